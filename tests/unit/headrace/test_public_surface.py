import importlib
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import headrace
import headrace.payloads
import headrace.sinks
import headrace.state
import headrace.testing
from headrace._startup import PACKAGES
from tests.support.patience import seconds

SURFACE = {
    "headrace": {
        "SKIP", "AdvancedBolt", "Bolt", "BoltError", "Cache", "CacheStatistics", "Collector",
        "Grouping", "Hooks", "InvalidReference", "InvalidTopology", "LineageLost",
        "NothingReturned", "Record", "Reference", "ReferenceLoadFailed", "ReferenceNotLoaded",
        "Reject", "RejectRows", "Retry", "RetryPolicy", "RowsRejected", "SinkBusy", "SinkFailed",
        "SinkFenced", "Skip", "To", "Topology", "Tuple", "all_tasks", "bolt", "custom", "direct",
        "fields", "global_", "reference", "shuffle", "stable_hash",
    },
    "headrace.payloads": {
        "Limits", "Registry", "RegistryBolt", "avro", "json", "json_columns",
        "json_schema", "protobuf", "raw", "text",
    },
    "headrace.sinks": {
        "BOTH_KINDS", "Batch", "Committed", "DeadLetter", "DeadLetterSink", "DeltaSink",
        "DiscardSink", "Fence", "ForeachSink", "IcebergSink", "KafkaDeadLetters", "KafkaTopicSink",
        "MemoryDeadLetters", "MemorySink", "PostgresSink", "RangeNotice", "Share", "Sink",
        "SinkContext", "SparkSink", "Staged", "check_fences", "fitting_rows", "is_to_commit",
    },
    "headrace.state": {
        "Aggregate", "AggregateFailed", "DeltaState", "MemoryState", "PostgresState", "Shape",
        "State", "StateStore", "combiner", "count", "least", "most", "reducer", "total",
    },
    "headrace.testing": {
        "Event", "NotSettled", "RetryPolicy", "ScreenPolicy", "TopologyTest", "topology_test",
    },
}  # fmt: skip


@pytest.mark.parametrize("module", SURFACE)
def test_the_surface_is_what_is_written_down_and_has_docstrings(module):
    found = importlib.import_module(module)
    assert sorted(found.__all__) == sorted(SURFACE[module])
    assert found.__doc__
    for name in found.__all__:
        thing = getattr(found, name)
        assert thing is not None
        if inspect.isclass(thing) or inspect.isfunction(thing):
            assert thing.__doc__, name


# Libraries that are large, or that read, write or start something.
CLIENTS = {
    "confluent_kafka", "deltalake", "kazoo", "opentelemetry", "pandas", "prometheus_client",
    "psycopg", "py4j", "pyiceberg", "pyspark", "sqlalchemy", "typer",
}  # fmt: skip
LARGE = {
    "asyncio", "http", "msgspec", "numpy", "orjson", "pyarrow", "pydantic", "rich", "structlog",
}  # fmt: skip
HELP = "sys.argv[1:] = ['--help']; from headrace.__main__ import main; main()"


@pytest.mark.parametrize(
    ("code", "absent"),
    [
        (f"import {', '.join(SURFACE)}", CLIENTS),
        ("import headrace", CLIENTS | LARGE),
        ("import service.app, sinks.kafka.sink, headrace.testing", {"opentelemetry"}),
        (
            "from headrace import Topology",
            (CLIENTS | LARGE | {"pyarrow.compute"}) - {"msgspec", "numpy", "orjson", "pyarrow"},
        ),
        (f"import headrace; {HELP}", (CLIENTS | LARGE) - {"rich", "typer"}),
    ],
)
def test_importing_starts_and_loads_no_client_and_no_spark(code, absent):
    script = (
        f"import sys, threading; {code}; "
        f"print(sorted({absent} & sys.modules.keys()), threading.active_count())"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script],
        capture_output=True, text=True, check=True, timeout=seconds(60),
    )  # fmt: skip
    assert done.stdout.splitlines()[-1] == "[] 1"
    assert done.stderr == ""


@pytest.mark.parametrize("package", ["headrace", *PACKAGES])
def test_every_package_says_that_it_is_typed(package):
    assert (Path(headrace.__file__).parents[1] / package / "py.typed").exists()
