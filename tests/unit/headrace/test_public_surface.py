"""The public surface: what a user imports, and what importing it does not do."""

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


@pytest.mark.parametrize("module", SURFACE)
def test_importing_starts_and_loads_no_client_and_no_spark(module):
    code = (
        f"import sys, threading, {module}\n"
        "heavy = {'confluent_kafka', 'deltalake', 'kazoo', 'pyspark', 'py4j', 'psycopg'}\n"
        "heavy |= {'prometheus_client', 'typer'}\n"
        "print(sorted(heavy & set(sys.modules)), threading.active_count())\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        capture_output=True, text=True, check=True, timeout=seconds(60),
    )  # fmt: skip
    assert done.stdout == "[] 1\n"
    assert done.stderr == ""


@pytest.mark.parametrize("package", ["headrace", *PACKAGES])
def test_every_package_says_that_it_is_typed(package):
    assert (Path(headrace.__file__).parents[1] / package / "py.typed").exists()
