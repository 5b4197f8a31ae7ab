"""S17: a host's clock is ahead or behind; rows, fences and ages hold, or it is refused."""

import multiprocessing
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from sinks import KafkaTopicSink
from sinks.spark.driver import SparkDriver
from sinks.storage import Storage
from tests.acceptance.table_files import metadata_of
from tests.support.clock_shift import WallClock
from tests.support.committed_messages import committed_values
from tests.support.lake import NAME, SINKS, Lake, Owner, in_sqlite, rows_to
from tests.support.patience import seconds
from topology.errors import SinkFailed, SinkFenced
from topology.sink import Batch, Fence, Share, SinkContext

pytestmark = pytest.mark.faults

HOUR, YEAR = 3600, 365 * 24 * 3600
SHIFTS = (-2 * HOUR, YEAR, -YEAR, 2 * HOUR, 0)  # of a host's clock, against the right one


class Host:
    def __init__(self, clock: WallClock) -> None:
        self.clock = clock
        self._pool = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))

    def do(self, work: Callable[..., Any], *given: Any) -> Any:
        return self._pool.submit(work, *given).result(seconds(60))

    def end(self) -> None:
        self._pool.shutdown()


@pytest.fixture
def host(tmp_path, monkeypatch):
    clock = WallClock(tmp_path)
    for name, value in clock.environment.items():
        monkeypatch.setenv(name, value)
    made = Host(clock)
    yield made
    made.end()


def lake(folder: Path, kind: str) -> Lake:
    warehouse = folder / "warehouse"
    warehouse.mkdir()
    storage = in_sqlite(Storage(str(warehouse)), warehouse)
    return Lake(kind, storage, storage)


def go_on(table: Lake, epoch: int) -> int:
    """A host's part: take the line, and commit two transactions. The last txid."""
    owner = Owner(table, epoch)
    owner.fence()
    for _ in range(2):
        owner.commit()
    owner.sink.close()
    return owner.txid


def vacuum(table: Lake) -> str:
    try:
        table.sink().vacuum(24)
    except SinkFailed as error:
        return str(error)
    return ""


def read_by_spark(table: Lake, spark: SparkDriver) -> Counter[int]:
    place = f"{table.storage.warehouse}/{NAME}"
    if table.kind == "iceberg":
        place = str(metadata_of(Path(table.storage.warehouse, "iceberg.db"), NAME))
    format_ = "iceberg" if table.kind == "iceberg" else "delta"

    def read(session: Any) -> list[int]:
        frame = session.read.format(format_).load(place)
        return frame.toArrow()["number"].to_pylist()

    return Counter(spark.run(read, group="read"))


@pytest.mark.parametrize("kind", SINKS)
def test_owners_with_skewed_clocks_fence_and_lose_nothing(kind, host, tmp_path, spark):
    """Promises 3 and 9: also for those who read with Java's libraries."""
    table = lake(tmp_path, kind)
    for turn, shift in enumerate(SHIFTS):
        owner = Owner(table, epoch=2 * turn + 1)
        owner.fence()
        owner.commit()
        staged = owner.stage()
        host.clock.shift(shift)
        txid = host.do(go_on, table, 2 * turn + 2)
        assert txid == owner.txid + 2
        with pytest.raises(SinkFenced):
            owner.commit(staged)
        owner.sink.discard(staged)
        owner.sink.close()
        assert table.numbers() == rows_to(txid)
        if kind != "state":  # which has each number as often as a column says
            assert read_by_spark(table, spark) == rows_to(txid)


@pytest.mark.parametrize("kind", ["delta", "parts", "iceberg"])
def test_vacuum_by_a_clock_that_is_ahead_takes_no_staged_file(kind, host, tmp_path):
    """Promise 14: it is refused, and the transaction is committed."""
    table = lake(tmp_path, kind)
    owner = Owner(table)
    owner.fence()
    staged = owner.stage()
    host.clock.shift(48 * HOUR)
    said = host.do(vacuum, table)
    assert "clock is 48 hours ahead" in said
    owner.commit(staged)
    assert table.numbers() == rows_to(1)


LINE = "orders[0]"


def topic_context(server: str) -> SinkContext:
    properties = {"bootstrap.servers": server}
    return SinkContext("pipeline", "sink", properties, Storage(""), None, exactly_once=True)


def topic_sink(server: str, name: str) -> KafkaTopicSink[Any]:
    sink: KafkaTopicSink[Any] = KafkaTopicSink(name, value=str)
    sink.open(topic_context(server))
    return sink


def transaction(txid: int, epoch: int) -> Batch:
    share = Share(LINE, epoch, txid, 1, txid, txid + 1, "", 1)
    return Batch(txid, [[txid]], 1, (share,))


def send_two(server: str, name: str, epoch: int) -> int:
    """A host's part: take the line, and commit two transactions. The last txid."""
    sink = topic_sink(server, name)
    (found,) = sink.fence([Fence(LINE, epoch)])
    for txid in (found.txid + 1, found.txid + 2):
        sink.commit(sink.stage(transaction(txid, epoch)))
    sink.close()
    return found.txid + 2


@pytest.mark.integration
@pytest.mark.parametrize("shift", [HOUR, -HOUR])
def test_topic_owners_whose_clocks_differ_fence_each_other(shift, host, kafka, topic):
    """Promises 3 and 9: a broker takes records of up to an hour ahead."""
    name = topic()
    first = topic_sink(kafka.address, name)
    first.fence([Fence(LINE, 1)])
    first.commit(first.stage(transaction(1, 1)))
    staged = first.stage(transaction(2, 1))
    host.clock.shift(shift)
    assert host.do(send_two, kafka.address, name, 2) == 3
    with pytest.raises(SinkFenced):
        first.commit(staged)
    first.close()
    last = topic_sink(kafka.address, name)
    assert [(each.epoch, each.txid) for each in last.fence([Fence(LINE, 3)])] == [(3, 3)]
    last.close()
    assert sorted(committed_values(topic_context(kafka.address), name)) == [b"1", b"2", b"3"]
