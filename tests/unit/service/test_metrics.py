import re
from dataclasses import replace

import pytest

from headrace import Record, Reject, Topology, bolt
from headrace.sinks import DiscardSink, MemoryDeadLetters
from headrace.testing import topology_test
from partition.assignment import Moves
from partition.latency import CommitLatency, Latencies, UncommittedChunk
from partition.records import Partition
from service.observability import snapshot as snapshot_module
from service.observability.metrics import CATALOGUE, Metrics
from service.pipeline.reference_tables import ReferenceStatistics
from topology.monitoring import BOUNDS
from topology.workers.runners import RunnerStatistics

NAME = re.compile(r"headrace_(partition|topology|acker|sinks|service)(_[a-z]+)+")
LABELS = r'(?:\{((?:[a-z]+="(?:[^"\\]|\\.)*",?)*)\})?'
SAMPLE = re.compile(rf"^([a-z_]+){LABELS} (-?[0-9.e+-]+)$", re.IGNORECASE)
FIGURE_WORDS = (
    "records", "bytes", "rows", "seconds", "offset", "trees", "tuples", "batches", "writes",
    "messages", "resolutions", "state", "commits", "loads",
    "calls", "ticks", "transactions", "letters", "epoch", "restarts", "groups", "partitions",
)  # fmt: skip
CHUNK = UncommittedChunk(last_offset=3, records=4, fetched_at=0.5, ages=(5.0, 3.0))


@bolt
def parse(record: Record) -> int:
    if record.value == b"bad":
        raise Reject("bad")
    if record.value == b"worse":
        raise ValueError("worse")
    return 1


@pytest.fixture(scope="module")
def snapshot():
    topology = Topology("metrics")
    topology.source("metrics").then(parse).into(DiscardSink())
    topology.dead_letters.into(MemoryDeadLetters())
    with topology_test(topology) as test:
        test.send(b"1", b"2", b"bad", b"worse")
        known = {
            "fetch_latency_seconds": 0.5, "lost": {"expired": 7},
            "committed_txid": 41, "open_transactions": 2, "commit_age_seconds": 12.5, "epoch": 9,
        }  # fmt: skip
        pipeline, counters = test._pipeline, test._pipeline.counters
        partitions = [replace(each, **known) for each in test._reader.statistics(0.0)]
        failing = {"failing_since": 0.5, "last_error": "disk full"}
        return snapshot_module.Snapshot(
            taken_at=1.0, partitions=tuple(partitions), acker=pipeline.statistics().acker,
            sinks=tuple(replace(each.statistics(), **failing) for each in pipeline.outlets),
            written=counters.written, filtered=counters.filtered, mirror_failures=3,
            dead_lettered=counters.dead_lettered, held_back_seconds={"out": 1.5},
            latencies={"metrics": CommitLatency().with_chunk(CHUNK, 1.0)},
            references=(ReferenceStatistics("airports", 1458, 60.5, 3, 1),),
            runners={"parse": RunnerStatistics(2, 5, 1, 3, 4, 6)}, failed_ticks={"parse": 7},
            failures=dict(counters.failures) | {'odd "step"\n': 1},
            dead_letters=dict(counters.dead_letters),
            dead_letter_causes=dict(counters.dead_letter_causes),
            call_times=pipeline.statistics().call_times,
            moves=Moves(taken=3, released=2, fenced=1),
            spark=snapshot_module.SparkStatistics(is_running=True, restarts=5),
            traces=snapshot_module.TraceStatistics(traced=6, skipped=7),
            apart=snapshot_module.ExecutorCounters(retries=4, failing_since=0.25),
        )  # fmt: skip


@pytest.fixture(scope="module")
def exposition(snapshot):
    return Metrics(lambda: snapshot).exposition().decode().splitlines()


def samples(exposition):
    found = {}
    for line in exposition:
        if not line.startswith("#"):
            match = SAMPLE.match(line)
            assert match, line
            assert (match[1], match[2] or "") not in found, line
            found[match[1], match[2] or ""] = float(match[3])
    return found


def test_every_name_and_help_text_follows_the_form():
    names = [metric.name for metric in CATALOGUE]
    assert len(set(names)) == len(names)
    for metric in CATALOGUE:
        assert NAME.fullmatch(metric.name), metric.name
        assert metric.name.endswith(FIGURE_WORDS), metric.name
        assert re.fullmatch(r"[A-Z0-9].*\.", metric.help), metric.name


def test_every_metric_is_in_the_exposition_with_help_and_type(exposition):
    found = {name for name, _ in samples(exposition)}
    for metric in CATALOGUE:
        name = metric.name + ("_total" if metric.kind == "counter" else "")
        assert f"# TYPE {name} {metric.kind}" in exposition
        assert f"# HELP {name} {metric.help}" in exposition
        assert (f"{name}_bucket" if metric.kind == "histogram" else name) in found
    assert len([line for line in exposition if line.startswith("# TYPE")]) == len(CATALOGUE)


TOPIC = 'topic="metrics"'
LOST = 'partition="0",reason="expired",topic="metrics"'
STEP, PLACE = 'step="parse"', 'partition="0",topic="metrics"'
FIGURES = [
    ("headrace_partition_open_transactions", PLACE, 2),
    ("headrace_partition_committed_transactions", PLACE, 41),
    ("headrace_partition_read_records_total", PLACE, 4),
    ("headrace_partition_failed_records", PLACE, 1),
    ("headrace_partition_last_completed_offset", PLACE, 3),
    ("headrace_partition_log_end_offset", PLACE, 4),
    ("headrace_partition_lag_records", PLACE, 4),
    ("headrace_partition_source_lost_records_total", LOST, 7),
    ("headrace_partition_unmirrored_commits_total", "", 3),
    ("headrace_service_written_records_total", "", 2),
    ("headrace_service_dead_lettered_records_total", "", 1),
    ("headrace_topology_failed_tuples_total", 'step="parse"', 1),
    ("headrace_sinks_written_rows_total", 'sink="discard"', 2),
    ("headrace_topology_reference_rows", 'reference="airports"', 1458),
    ("headrace_topology_reference_age_seconds", 'reference="airports"', 60.5),
    ("headrace_topology_reference_loads_total", 'reference="airports"', 3),
    ("headrace_topology_reference_failed_loads_total", 'reference="airports"', 1),
    ("headrace_topology_running_calls", STEP, 2),
    ("headrace_topology_waiting_tuples", STEP, 5),
    ("headrace_topology_holding_records", STEP, 1),
    ("headrace_topology_abandoned_calls", STEP, 3),
    ("headrace_topology_timed_out_calls_total", STEP, 4),
    ("headrace_topology_late_calls_total", STEP, 6),
    ("headrace_topology_failed_ticks_total", STEP, 7),
    ("headrace_partition_dead_letters_total", PLACE, 1),
    ("headrace_partition_commit_age_seconds", PLACE, 12.5),
    ("headrace_partition_end_to_end_latency_seconds_sum", TOPIC, 2 * 5.5 + 2 * 3.5),
    ("headrace_partition_processing_latency_seconds_sum", TOPIC, 4 * 0.5),
    ("headrace_partition_owner_epoch", PLACE, 9),
    ("headrace_topology_dead_letters_total", 'error="Reject",step="parse"', 1),
    ("headrace_topology_executed_tuples_total", STEP, 4),
    ("headrace_sinks_failing_seconds", 'sink="discard"', 0.5),
    ("headrace_sinks_written_bytes_total", 'sink="discard"', 16),
    ("headrace_service_spark_running_state", "", 1),
    ("headrace_service_spark_restarts_total", "", 5),
    ("headrace_service_traced_records_total", "", 6),
    ("headrace_service_untraced_records_total", "", 7),
    ("headrace_service_range_groups_failing_seconds", "", 0.75),
    ("headrace_service_retried_range_groups_total", "", 4),
    ("headrace_service_taken_partitions_total", "", 3),
    ("headrace_service_released_partitions_total", "", 2),
    ("headrace_service_fenced_partitions_total", "", 1),
]


def test_figures_are_the_pipelines_own(exposition):
    found = samples(exposition)
    assert [(name, labels, found[name, labels]) for name, labels, _ in FIGURES] == FIGURES
    assert found["headrace_service_snapshot_age_seconds", ""] > 0


def test_a_histogram_s_buckets_are_cumulative_and_end_with_all(exposition):
    found = samples(exposition)
    for name, label, count, bounds in (
        ("headrace_topology_call_seconds", 'step="parse"', 4, BOUNDS),
        ("headrace_sinks_batch_seconds", 'sink="discard"', 1, BOUNDS),
        ("headrace_partition_end_to_end_latency_seconds", TOPIC, 4, Latencies.bounds),
        ("headrace_partition_processing_latency_seconds", TOPIC, 4, Latencies.bounds),
    ):
        assert len(bounds) + 1 == len([key for key in found if key[0] == f"{name}_bucket"])
        bucket = f"{name}_bucket"
        rising = [v for (n, labels), v in found.items() if n == bucket and label in labels]
        assert rising == sorted(rising)
        assert rising[-1] == found[f"{name}_count", label] == count
        assert found[f"{name}_sum", label] > 0


def test_without_spark_nothing_is_said_of_it(snapshot):
    text = Metrics(lambda: replace(snapshot, spark=None)).exposition().decode()
    assert "\nheadrace_service_spark_running_state 1" not in text
    assert "# HELP headrace_service_spark_running_state" in text


def test_states_are_0_or_1_also_of_partitions_that_could_not_be_opened(snapshot):
    halted = replace(snapshot, halted={Partition("metrics", 1): "its offset cannot be read"})
    found = samples(Metrics(lambda: halted).exposition().decode().splitlines())
    states = {key: value for key, value in found.items() if key[0].endswith("_state")}
    assert len({name for name, _ in states}) == 5
    assert set(states.values()) <= {0.0, 1.0}
    name = "headrace_partition_halted_state"
    assert [states[name, f'partition="{n}",topic="metrics"'] for n in (0, 1)] == [0, 1]


def test_an_odd_label_is_escaped(exposition):
    assert 'headrace_topology_failed_tuples_total{step="odd \\"step\\"\\n"} 1.0' in exposition


def test_before_the_first_snapshot_there_is_nothing():
    assert Metrics(lambda: None).exposition() == b""
