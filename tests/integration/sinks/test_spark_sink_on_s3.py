"""SparkSink on an object store: Hadoop's S3A, by the jars and properties that the service gives."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from service.config import load
from service.parts import spark_for
from sinks import SparkSink
from sinks.spark.driver import SparkDriver
from sinks.storage import Storage
from tests.support.seaweed import KEY_ID, SECRET, EmbeddedSeaweed
from tests.worlds.delta_table import SCHEMA, rows
from topology.errors import SinkFailed
from topology.sink import Batch, Sink, SinkContext

pytestmark = [
    pytest.mark.integration,
    pytest.mark.usefixtures("no_spark"),
    # PySpark leaves the sockets by which it fetched rows to the garbage collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(scope="module")
def driver(no_spark: None, seaweed: EmbeddedSeaweed) -> Iterator[SparkDriver]:
    """The Spark that a service starts whose warehouse is in the store."""
    storage = {
        "warehouse": "s3://lake/by-spark",
        "endpoint": seaweed.url,
        "access_key_id": KEY_ID,
        "secret_access_key": SECRET,
    }
    needed = {"kafka": {"bootstrap.servers": "b:9092"}, "zookeeper": {"hosts": "z:2181"}}
    sink = SparkSink[Any]("orders", format="delta", schema=SCHEMA)
    driver = spark_for([sink], "orders", load(None, needed | {"storage": storage}))
    assert driver is not None
    yield driver
    driver.close()


Open = Callable[..., Any]


@pytest.fixture
def opened(driver: SparkDriver, seaweed: EmbeddedSeaweed, request: Any) -> Iterator[Open]:
    """`opened(sink)` opens it in a folder of the test's own."""
    sinks: list[Sink[Any]] = []
    mine = seaweed.storage(request.node.name.replace("[", "-").replace("]", ""))

    def opened(sink: Sink[Any], *, exactly_once: bool = False) -> Any:
        sink.open(SinkContext("p", "s", {}, mine, driver, exactly_once=exactly_once))
        sinks.append(sink)
        return sink

    yield opened
    for sink in sinks:
        sink.close()


def by_spark(source: str = "delta") -> SparkSink[Any]:
    return SparkSink("orders", format=source, schema=SCHEMA, partition_by=["place"])


def numbers(sink: SparkSink[Any], storage: Storage) -> list[int]:
    """What Arrow finds, of the files that the table's log names where it has one."""
    uri = storage.uri("orders")
    files, root = storage.filesystem(uri)
    if sink.format == "delta":
        table = DeltaTable(uri, storage_options=storage.object_store_options(uri))
        found = [
            pq.read_table(storage.filesystem(each)[1], filesystem=files)
            for each in table.file_uris()
        ]
        return sorted(n for each in found for n in each["number"].to_pylist())
    return sorted(pq.read_table(root, filesystem=files)["number"].to_pylist())


def storage_of(sink: SparkSink[Any]) -> Storage:
    assert sink._context is not None
    return sink._context.storage


@pytest.mark.parametrize("source", ["parquet", "delta"])
def test_rows_are_written_at_least_once(opened: Open, source: str) -> None:
    sink = opened(by_spark(source))
    for sequence in (1, 2):
        sink.write(Batch(sequence, [rows(sequence, 10 * sequence)], 2))
    assert numbers(sink, storage_of(sink)) == [1, 2, 10, 20]


def test_exactly_once_is_refused_with_the_reason(opened: Open) -> None:
    """Promise 9: Hadoop's S3A lets two committers win one version of the table's log."""
    with pytest.raises(SinkFailed, match="of two commits of one version both win; take DeltaSink"):
        opened(by_spark(), exactly_once=True)


def test_no_argument_of_the_jvm_has_a_credential(opened: Open, driver: SparkDriver) -> None:
    opened(by_spark())
    assert driver._jvm is not None
    arguments = Path(f"/proc/{driver._jvm.process.pid}/cmdline").read_text()
    assert "hadoop-aws" in arguments
    assert SECRET not in arguments
    assert KEY_ID not in arguments
