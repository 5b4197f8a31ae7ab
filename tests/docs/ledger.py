"""Who runs the code blocks of the documentation; and, of those that nobody runs, why not.

Python runs from top to bottom of its page (`test_snippets.py`), and the operators' commands are
given on real servers (`tests/integration/service/test_documented_commands.py`). Here is the rest.
What is in none of these places fails `test_ledger.py`.
"""

import re
from pathlib import Path

from tests.docs.blocks import all_pages, commands

QUICKSTART = "acceptance/test_quickstart.py::test_the_quickstart_works_as_it_is_written"
EXAMPLES = "acceptance/test_examples.py::"
LETTERS = (
    "integration/service/test_dead_letters.py::"
    "test_letters_are_listed_shown_sent_again_once_and_dropped"
)
SOME_LETTERS = (
    "integration/service/test_dead_letters.py::test_letters_replay_to_another_topic_at_a_rate"
)
CI = ".ci/run"  # it runs the command as it stands
CRASHES = "takes hours; acceptance/test_exactly_once.py draws some of its cases in every run"
FAULTS = "takes minutes for a case; acceptance/test_crash_points.py plays some in every run"
CHAOS = "takes minutes and more; unit/faults tests how its steps are drawn and judged"
BENCHMARKS = "takes an hour with the machine to itself; acceptance/test_bench.py runs every suite"
NIGHTLY = "takes hours; unit/test_nightly.py tests how its parts are played and judged"
A_PART = "is a part of `make test`, which runs this very test"
FROM_OUTSIDE = "fetches and installs packages, or tools, from outside"

# Python that does not run with its page: the page and the block's first line, who runs it.
PYTHON_RUN_BY = {
    ("docs/quickstart.md", "from confluent_kafka import Producer"): QUICKSTART,
    ("examples/flights/README.md", "def test_a_cancelled_flight_is_skipped():"): (
        "unit/examples/test_flights.py::test_a_cancelled_flight_is_skipped"
    ),
}

# Commands, and the tests that give them for every change.
RUN_BY = {
    "make run": CI,
    "make test": CI,
    "make score": CI,
    "make simulate": CI,
    "headrace graph readings:topology": QUICKSTART,
    "headrace dev up --topic readings": QUICKSTART,
    "headrace check readings:topology --config service.toml": QUICKSTART,
    "headrace run readings:topology --config service.toml": QUICKSTART,
    "headrace status readings:topology --config service.toml": QUICKSTART,
    "headrace run orders:topology --embedded": (
        "integration/service/test_cli.py::test_a_run_with_its_own_servers_needs_no_configuration"
    ),
    "headrace tables compact sizes:topology --config service.toml": (
        "integration/service/test_cli_exactly_once.py::"
        "test_operator_sees_replays_and_compacts_files_in_between"
    ),
    "headrace tables expire sizes:topology --config service.toml": (
        "unit/service/test_cli_tables.py::test_table_behind_another_sink_is_maintained"
    ),
    "headrace tables vacuum sizes:topology --older-than-hours 168 --config service.toml": (
        "unit/service/test_cli_tables.py::test_table_behind_another_sink_is_maintained"
    ),
    "headrace tables compact sizes:topology sizes --target-mib 256 --config service.toml": (
        "integration/service/test_cli_exactly_once.py::"
        "test_operator_sees_replays_and_compacts_files_in_between"
    ),
    "HEADRACE_ZOOKEEPER__PASSWORD=… headrace run orders:topology --config service.toml": (
        "integration/partition/test_zookeeper_security.py::"
        "test_check_tells_refused_credentials_and_not_the_password"
    ),
    "HEADRACE_KAFKA__SASL_PASSWORD__FILE=/run/secrets/kafka headrace run orders:topology "
    "--config service.toml": (
        "integration/partition/test_kafka_security.py::test_all_clients_of_a_run_sign_in"
    ),
    "headrace dead-letters list orders:topology --config service.toml": LETTERS,
    "headrace dead-letters list orders:topology --config service.toml --step parse --since 2h": (
        LETTERS
    ),
    "headrace dead-letters show orders:topology 0:17 --config service.toml": LETTERS,
    "headrace dead-letters show orders:topology 0:17 --config service.toml "
    "--value-only > value.bin": (
        "integration/service/test_dead_letters.py::"
        "test_value_left_out_of_a_letter_is_read_from_its_topic"
    ),
    'headrace dead-letters replay orders:topology --step parse --why "the parser knows v2 now" '
    "--dry-run --config service.toml": LETTERS,
    'headrace dead-letters replay orders:topology --step parse --why "the parser knows v2 now" '
    "--config service.toml": LETTERS,
    'headrace dead-letters replay orders:topology 0:17 0:19 --why "mended" --yes --rate 100 '
    "--config service.toml": SOME_LETTERS,
    'headrace dead-letters drop orders:topology --error "no such currency" --until 1d '
    '--why "a test\'s records" --config service.toml': LETTERS,
    "python -m deploy.reference": (
        "docs/test_reference.py::test_the_metrics_page_is_the_catalogue"
    ),
    "python -m examples.own_sink": (
        "unit/examples/test_examples.py::test_the_example_runs_by_itself"
    ),
    "python -m examples.iceberg": f"{EXAMPLES}test_page_views_are_in_the_iceberg_table_once",
    "python -m examples.topic": f"{EXAMPLES}test_card_alerts_go_into_their_topic_once",
    "python -m examples.lookup": (
        "unit/examples/test_examples.py::test_the_example_runs_by_itself"
    ),
    "python -m tests.simulation --seed 34 --tape tape.json --trace": (
        "docs/test_ledger.py::test_a_tape_is_played_again_as_the_page_says"
    ),
}

# Commands that are given at night alone: a faster test does the same with another example.
RUN_AT_NIGHT = {
    "headrace run orders:topology --engine spark --config service.toml": (
        "acceptance/test_spark_cluster.py::test_killed_executor_loses_and_repeats_no_row"
    ),
    "python -m examples.postgres": (
        f"{EXAMPLES}test_every_parcel_on_its_way_has_the_row_of_its_last_scan"
    ),
    "python -m examples.spark_step": (
        f"{EXAMPLES}test_every_order_of_a_known_customer_is_billed_once"
    ),
    "python -m examples.upserts": (
        f"{EXAMPLES}test_upserts_example_keeps_the_last_row_of_each_customer"
    ),
    "python -m examples.word_count --engine spark": (
        f"{EXAMPLES}test_word_count_on_spark_counts_every_word_once"
    ),
}

# Commands that no test gives, and why.
NOT_RUN = {
    "make check": A_PART,
    "python -m examples.word_count": "unit/examples runs its topology, and the night its command",
    "make crash": CRASHES,
    "make crash CASES=delta,topic:sink_after_commit": CRASHES,
    "make crash CASES=delta@spark,postgres@spark:range_after_seal": CRASHES,
    "make crash CASES=iceberg@s3": CRASHES,
    "make faults": FAULTS,
    "make faults CASES=C07": FAULTS,
    "make faults CASES=S12,S13": FAULTS,
    "make faults CASES=C07:kill:2,K02": FAULTS,
    "make chaos": CHAOS,
    "make chaos MINUTES=2 CASES=lines CHAOS_SEED=7": CHAOS,
    "make chaos CASES=soak MINUTES=60": CHAOS,
    "python -m benchmarks hot-path": BENCHMARKS,
    "python -m benchmarks all --report docs/benchmarks.md": BENCHMARKS,
    "make bench SUITE=scale": BENCHMARKS,
    "make bench SUITE=scale REPORT=docs/scale.md": BENCHMARKS,
    "make deep": FROM_OUTSIDE,
    "make nightly": NIGHTLY,
    "make nightly PARTS=crash,chaos": NIGHTLY,
    "make env": FROM_OUTSIDE,
    "make lock": FROM_OUTSIDE,
    "deploy/node.sh ~/.cache/headrace/tools/images.tar bash": FROM_OUTSIDE,
}


def played_pages() -> list[Path]:
    """The pages with commands that are given on real servers."""
    return [page for page in all_pages() if any(map(is_played, commands(page)))]


def is_played(command: str) -> bool:
    """Whether a command is given on real servers, in the place of the operators' pages."""
    if command in {*RUN_BY, *RUN_AT_NIGHT, *NOT_RUN}:
        return False
    return bool(
        re.search(r"^(\S+=\S+ )*headrace .*(orders|payments):topology", command)
        or command.startswith("curl -s localhost:")
    )


def needs_a_cluster(command: str) -> bool:
    """Whether a command is for an engine of containers or a cluster; none is here."""
    return command.split(maxsplit=1)[0] in ("docker", "helm", "kubectl")
