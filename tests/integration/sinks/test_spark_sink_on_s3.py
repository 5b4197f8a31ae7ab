import threading
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from service.config.settings import load
from service.wiring import spark_of
from sinks import DeltaSink, SparkSink
from sinks.spark.settings import LOG_STORE
from sinks.storage import Storage
from tests.support.batches import LINE, SCHEMA, group, rows, write
from tests.support.commands import topology_of
from tests.support.near_a_store import unconditional
from tests.support.seaweed import KEY_ID, PUBLIC, SECRET
from topology.errors import SinkFailed, SinkFenced
from topology.sink import Batch, Committed, Fence, Sink, SinkContext

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("no_spark")]

OTHERS_LINE = "orders[1]"


@pytest.fixture(scope="module")
def driver(no_spark, seaweed):
    """The Spark that a service starts whose warehouse is in the store."""
    storage = {
        "warehouse": "s3://lake/by-spark",
        "endpoint": seaweed.url,
        "access_key_id": KEY_ID,
        "secret_access_key": SECRET,
    }
    needed = {"kafka": {"bootstrap.servers": "b:9092"}, "zookeeper": {"hosts": "z:2181"}}
    sink = SparkSink[Any]("orders", format="delta", schema=SCHEMA)
    driver = spark_of(topology_of([sink]), load(None, needed | {"storage": storage}))
    yield driver
    driver.close()


@pytest.fixture
def storage(seaweed, request):
    return seaweed.storage(request.node.name.replace("[", "-").replace("]", ""))


@pytest.fixture
def opened(driver, storage):
    sinks: list[Sink[Any]] = []

    def opened(sink: Sink[Any], *, exactly_once: bool = False) -> Any:
        sink.open(SinkContext("p", "s", {}, storage, driver, exactly_once=exactly_once))
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


@pytest.mark.nightly
@pytest.mark.parametrize("source", ["parquet", "delta"])
def test_rows_are_written_at_least_once(opened, storage, source):
    sink = opened(by_spark(source))
    for sequence in (1, 2):
        write(sink, rows(sequence, 10 * sequence), sequence)
    assert numbers(sink, storage) == [1, 2, 10, 20]


def test_rows_and_txids_are_one_commit_and_a_zombie_is_refused(opened, storage):
    """Promise 9."""
    sink = opened(by_spark(), exactly_once=True)
    sink.fence([Fence(LINE, 1)])
    sink.commit(sink.stage(group(1, 1, 2)))
    stale = sink.stage(group(2, 3))
    successor = opened(by_spark(), exactly_once=True)
    assert successor.fence([Fence(LINE, 2)]) == [Committed(LINE, 2, 1)]
    with pytest.raises(SinkFenced):
        sink.commit(stale)
    staged = successor.stage(group(2, 3, epoch=2))
    successor.commit(staged)
    successor.commit(staged)
    assert numbers(sink, storage) == [1, 2, 3]


@pytest.mark.nightly
def test_two_libraries_that_race_for_versions_lose_no_commit(opened, storage):
    """Promise 14: with Delta's own log store for S3 both win, and one commit is gone."""
    ours = opened(by_spark(), exactly_once=True)
    theirs = opened(DeltaSink[Any]("orders", schema=SCHEMA), exactly_once=True)
    ours.fence([Fence(LINE, 1)])
    theirs.fence([Fence(OTHERS_LINE, 1)])

    def commit_beside() -> None:
        for txid in range(1, 41):
            theirs.commit(theirs.stage(group(txid, 1000 + txid, line=OTHERS_LINE)))

    rival = threading.Thread(target=commit_beside)
    rival.start()
    for txid in range(1, 5):
        ours.commit(ours.stage(group(txid, txid)))
    rival.join()
    assert numbers(ours, storage) == [*range(1, 5), *range(1001, 1041)]
    assert ours.committed([LINE, OTHERS_LINE]) == [
        Committed(LINE, 1, 4),
        Committed(OTHERS_LINE, 1, 40),
    ]


def test_of_two_writers_of_one_entry_the_second_is_refused(opened, storage):
    """Promise 14: the race, without chance."""
    sink = opened(by_spark())
    sink.write(Batch(1, [rows(1)], 1))
    entry = f"{sink.path}/_delta_log/{1:020d}.json"

    def put_twice(session: Any) -> None:
        jvm, conf = session._jvm, session._jsc.hadoopConfiguration()
        store = jvm.headrace.ConditionalLogStore(conf)
        for text in ("mine", "theirs"):
            lines = jvm.java.util.Collections.singletonList(text).iterator()
            store.write(jvm.org.apache.hadoop.fs.Path(entry), lines, False, conf)  # noqa: FBT003

    with pytest.raises(Exception, match="FileAlreadyExistsException"):
        sink._run(put_twice, "put")
    files, root = storage.filesystem(entry)
    assert files.open_input_stream(root).read() == b"mine\n"


def test_no_argument_of_the_jvm_has_a_credential(opened, driver):
    opened(by_spark())
    arguments = Path(f"/proc/{driver._jvm.process.pid}/cmdline").read_text()
    assert "hadoop-aws" in arguments
    assert SECRET not in arguments
    assert KEY_ID not in arguments


@pytest.mark.parametrize(
    "lacks", ["the store", pytest.param("Spark's log store", marks=pytest.mark.nightly)]
)
def test_without_conditional_writes_exactly_once_is_refused(opened, seaweed, lacks):
    plain = SparkSink[Any](f"s3a://{PUBLIC}/orders", format="delta", schema=SCHEMA)
    key, own = "spark.delta.logStore.s3a.impl", "io.delta.storage.S3SingleDriverLogStore"
    with unconditional(seaweed.address) as url:

        def configure(session: Any) -> None:
            session._jsc.hadoopConfiguration().set(f"fs.s3a.bucket.{PUBLIC}.endpoint", url)
            session.conf.set(key, own if lacks != "the store" else LOG_STORE)

        opened(by_spark())._run(configure, "configure")
        reason = "no conditional writes" if lacks == "the store" else f"found the log store {own}"
        with pytest.raises(SinkFailed, match=reason):
            opened(plain, exactly_once=True)
