"""What every sink promises that makes rows durable exactly once, asked of each of them."""

import queue
import sqlite3
import threading
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, TypedDict

import msgspec
import pyarrow as pa
import pytest
from pyiceberg.exceptions import NoSuchTableError

from examples.own_sink.sink import SqliteOrders
from examples.support.postgres_server import EmbeddedPostgres
from sinks import (
    DeltaSink,
    IcebergSink,
    KafkaTopicSink,
    MemorySink,
    PostgresSink,
    SparkSink,
)
from sinks.spark.driver import SparkDriver
from sinks.storage import Storage
from tests.acceptance import evidence, table_files
from tests.support.committed_messages import committed_values
from tests.support.fake_spark import FakeSpark
from tests.support.iceberg_table import Table, in_postgres
from tests.support.patience import seconds
from tests.support.postgres_table import PostgresTable
from tests.support.remote_staging import StagedApart, copied, halves, staged_apart
from topology.errors import SinkFailed, SinkFenced
from topology.schema import schema_of
from topology.sink import (
    Batch,
    Committed,
    Fence,
    Piece,
    Share,
    Sink,
    SinkContext,
    Staged,
)


class Order(TypedDict):
    number: int
    customer: str | None


SCHEMA = schema_of(Order)
KEYED = pa.schema([*SCHEMA, ("gone", pa.bool_())])
FIRST, SECOND, THIRD = "orders[0]", "orders[1]", "refunds[0]"


def order(number: int) -> dict[str, Any]:
    return {"number": number, "customer": f"c{number}"}


class House(ABC):
    """Where a sink under test lives, and how to read what it wrote by other means."""

    def __init__(self, warehouse: Path) -> None:
        self.context = SinkContext("pipeline", "sink", {}, Storage(str(warehouse)), None)

    @abstractmethod
    def sink(self) -> Sink[Any]:
        """A new sink on the same place: another process's, as it were."""

    @abstractmethod
    def rows(self) -> list[dict[str, Any]]: ...


class MemoryHouse(House):
    def __init__(self, warehouse: Path) -> None:
        super().__init__(warehouse)
        self.memory: MemorySink[Order] = MemorySink(schema=Order)

    def sink(self) -> Sink[Any]:
        return self.memory  # it is the place itself

    def rows(self) -> list[dict[str, Any]]:
        return self.memory.rows


class DeltaHouse(House):
    """A Delta table, read off its log and its files."""

    def __init__(self, warehouse: Path) -> None:
        self.context = SinkContext(
            "pipeline", "sink", {}, Storage(str(warehouse)), None, exactly_once=True
        )

    def sink(self) -> Sink[Any]:
        return DeltaSink("orders", schema=Order)

    def rows(self) -> list[dict[str, Any]]:
        return evidence.read_table(Path(self.context.storage.warehouse) / "orders").to_pylist()


class KeyedDeltaHouse(DeltaHouse):
    """A table whose rows have a key."""

    def sink(self) -> Sink[Any]:
        return DeltaSink("orders", schema=KEYED, key=["number"], deleted="gone")


class SparkHouse(DeltaHouse):
    """The same table, written by Spark itself."""

    def __init__(self, warehouse: Path, driver: SparkDriver | FakeSpark) -> None:
        super().__init__(warehouse)
        self.context = replace(self.context, spark=driver)

    def sink(self) -> Sink[Any]:
        return SparkSink("orders", format="delta", schema=Order)


class FakeSparkHouse(SparkHouse):
    """Without a JVM: what the sink does, and the fake."""


class ApartHouse(DeltaHouse):
    """The same table, whose files other processes write."""

    def sink(self) -> Sink[Any]:
        return StagedApart(DeltaSink("orders", schema=Order))


class IcebergHouse(House):
    """A table that is read by its metadata and files alone."""

    def sink(self) -> Sink[Any]:
        return IcebergSink("orders", schema=Order)

    def rows(self) -> list[dict[str, Any]]:
        return table_files.of_iceberg(Path(self.context.storage.warehouse) / "orders").to_pylist()


class IcebergInPostgresHouse(House):
    """A table whose catalogue is in PostgreSQL, read by pyiceberg."""

    def __init__(self, warehouse: Path | str, catalog: Mapping[str, str]) -> None:
        self.table = Table(warehouse, catalog, f"orders_{uuid.uuid4().hex}")
        self.context = SinkContext("pipeline", "sink", {}, self.table.storage, None)

    def sink(self) -> Sink[Any]:
        return IcebergSink(self.table.name, schema=Order, catalog="lake")

    def rows(self) -> list[dict[str, Any]]:
        try:
            return self.table.rows()
        except NoSuchTableError:
            return []


class IcebergRestHouse(IcebergInPostgresHouse):
    """A table behind a REST catalogue, in an object store."""


class PostgresHouse(House):
    """A table of PostgreSQL's, which tells its rows itself."""

    def __init__(self, server: EmbeddedPostgres) -> None:
        self.table = PostgresTable(server)
        self.context = self.table.context(exactly_once=True)

    def sink(self) -> Sink[Any]:
        sink: PostgresSink[Any] = self.table.made(schema=SCHEMA)
        return sink

    def rows(self) -> list[dict[str, Any]]:
        return self.table.rows()


class KeyedPostgresHouse(PostgresHouse):
    """The same with a key."""

    def sink(self) -> Sink[Any]:
        sink: PostgresSink[Any] = self.table.made(schema=KEYED, key="number", deleted="gone")
        return sink


class TopicHouse(House):
    """A topic of two partitions; rows are what a consumer of committed messages gets."""

    def __init__(self, warehouse: Path, address: str, topic: str) -> None:
        kafka = {"bootstrap.servers": address, "linger.ms": 0}
        self.context = SinkContext("pipeline", "sink", kafka, Storage(""), None, exactly_once=True)
        self.topic = topic

    def sink(self) -> Sink[Any]:
        return KafkaTopicSink(self.topic, value=as_json)

    def rows(self) -> list[dict[str, Any]]:
        return [msgspec.json.decode(value) for value in committed_values(self.context, self.topic)]


def as_json(row: dict[str, Any]) -> bytes:
    if type(row.get("number")) is not int:
        raise TypeError("'number' is no int")
    return msgspec.json.encode(row)


class OwnHouse(House):
    """The SQLite of the example."""

    def sink(self) -> Sink[Any]:
        return SqliteOrders(Path(self.context.storage.warehouse) / "orders.db")

    def rows(self) -> list[dict[str, Any]]:
        with sqlite3.connect(Path(self.context.storage.warehouse) / "orders.db") as database:
            found = database.execute("SELECT number, customer FROM orders").fetchall()
        return [{"number": number, "customer": customer} for number, customer in found]


HOUSES = [
    MemoryHouse,
    OwnHouse,
    DeltaHouse,
    ApartHouse,
    pytest.param(SparkHouse, marks=[pytest.mark.integration, pytest.mark.nightly]),
    FakeSparkHouse,
    KeyedDeltaHouse,
    IcebergHouse,
    pytest.param(IcebergInPostgresHouse, marks=pytest.mark.integration),
    pytest.param(IcebergRestHouse, marks=pytest.mark.integration),
    pytest.param(PostgresHouse, marks=pytest.mark.integration),
    pytest.param(KeyedPostgresHouse, marks=pytest.mark.integration),
    pytest.param(TopicHouse, marks=pytest.mark.integration),
]


STAGE_APART = [
    DeltaHouse,
    FakeSparkHouse,
    pytest.param(SparkHouse, marks=[pytest.mark.integration, pytest.mark.nightly]),
    IcebergHouse,
]


@pytest.fixture(params=HOUSES)
def house(request: pytest.FixtureRequest, tmp_path: Path) -> House:
    if request.param is FakeSparkHouse:
        return FakeSparkHouse(tmp_path, FakeSpark(request.getfixturevalue("monkeypatch")))
    if request.param is SparkHouse:
        return SparkHouse(tmp_path, request.getfixturevalue("spark"))
    if request.param in (PostgresHouse, KeyedPostgresHouse):
        of_postgres: House = request.param(request.getfixturevalue("postgres"))
        return of_postgres
    if request.param in (IcebergInPostgresHouse, IcebergRestHouse):
        behind = _behind_a_catalogue(request, tmp_path)
        request.addfinalizer(behind.table.close)  # noqa: PT021 - of these houses only
        return behind
    if request.param is TopicHouse:
        kafka, topic = request.getfixturevalue("kafka"), request.getfixturevalue("topic")
        return TopicHouse(tmp_path, kafka.address, topic(2))
    house: House = request.param(tmp_path)
    return house


def _behind_a_catalogue(request: pytest.FixtureRequest, tmp_path: Path) -> IcebergInPostgresHouse:
    if request.param is IcebergInPostgresHouse:
        catalog = in_postgres(request.getfixturevalue("postgres"), tmp_path)
        return IcebergInPostgresHouse(tmp_path, catalog)
    bucket = f"tables-{uuid.uuid4().hex[:8]}"
    server = request.getfixturevalue("seaweed")
    return IcebergRestHouse(f"s3://{bucket}", server.catalogue(bucket))


@pytest.fixture
def opened(house: House) -> Iterator[Callable[[], Sink[Any]]]:
    sinks: list[Sink[Any]] = []

    def open_sink() -> Sink[Any]:
        sinks.append(house.sink())
        sinks[-1].open(house.context)
        return sinks[-1]

    yield open_sink
    for sink in sinks:
        sink.close()
        sink.close()


@pytest.fixture
def sink(opened: Callable[[], Sink[Any]]) -> Sink[Any]:
    """A sink in which the owner of all three lines has epoch 1."""
    sink = opened()
    sink.fence([Fence(line, 1) for line in (FIRST, SECOND, THIRD)])
    return sink


def share(
    line: str = FIRST, txid: int = 1, rows: int = 1, *, epoch: int = 1, attempt: int = 1
) -> Share:
    return Share(line, epoch, txid, attempt, 10 * txid, 10 * txid + 10, f"{txid:032x}", rows)


def group(*shares: tuple[Share, Sequence[Any]], number: int = 1) -> Batch:
    """The shares with their rows."""
    given = [replace(each, num_rows=len(rows)) for each, rows in shares]
    pieces: list[Piece] = [list(rows) for _, rows in shares if rows]
    return Batch(number, pieces, sum(len(rows) for _, rows in shares), tuple(given))


def put(sink: Sink[Any], *shares: tuple[Share, Sequence[Any]]) -> Staged:
    staged = sink.stage(group(*shares))
    sink.commit(staged)
    return staged


def numbers(house: House) -> list[int]:
    return sorted(row["number"] for row in house.rows())


def state(sink: Sink[Any], *lines: str) -> list[tuple[int, int]]:
    """Epoch and txid of each line."""
    found = sink.committed(lines)
    assert tuple(each.line for each in found) == lines
    return [(each.epoch, each.txid) for each in found]


def test_rows_and_columns_are_durable_with_their_txid(house: House, sink: Sink[Any]) -> None:
    """Promise 3. Storm 45: idempotent by txid, so it may be repeated when its reply was lost."""
    columns = pa.RecordBatch.from_pylist([order(2), order(3)], schema=SCHEMA)
    pieces: list[Piece] = [[order(1)], columns, [], [order(4)]]
    staged = sink.stage(Batch(1, pieces, 4, (share(rows=3), share(SECOND))))
    for _ in range(2):
        sink.commit(staged)
        found = sorted(house.rows(), key=lambda row: row["number"])
        assert found == [order(number) for number in range(1, 5)]
        assert state(sink, FIRST, SECOND) == [(1, 1), (1, 1)]


@pytest.mark.parametrize("rows", [[], [{}, {}]], ids=["none", "rejected"])
def test_group_without_rows_that_fit_raises_the_txids(
    house: House, sink: Sink[Any], rows: list[Any]
) -> None:
    """Promise 14: every txid is committed, also where all its records were filtered."""
    assert set(put(sink, (share(), rows), (share(SECOND), [])).rejected) == set(range(len(rows)))
    assert house.rows() == []
    assert state(sink, FIRST, SECOND) == [(1, 1), (1, 1)]
    put(sink, (share(txid=2), []), (share(SECOND, 2), [order(1)]))
    assert numbers(house) == [1]
    assert state(sink, FIRST, SECOND) == [(1, 2), (1, 2)]


def test_what_is_discarded_leaves_nothing_and_may_be_staged_again(
    house: House, sink: Sink[Any]
) -> None:
    staged = sink.stage(group((share(), [order(1)])))
    assert (house.rows(), state(sink, FIRST)) == ([], [(1, 0)]), "it is only staged"
    sink.discard(staged)
    assert house.rows() == []
    put(sink, (share(), [order(1)]))
    assert numbers(house) == [1]


def test_the_same_transaction_staged_again_is_done_once(
    house: House, opened: Callable[[], Sink[Any]], sink: Sink[Any]
) -> None:
    """Storm 45: it crashed between the sink's commit and writing down that it was done."""
    put(sink, (share(), [order(1)]), (share(SECOND), [order(2)]))
    again = opened()
    put(again, (share(attempt=2), [order(1)]), (share(SECOND, attempt=2), [order(2)]))
    assert numbers(house) == [1, 2]


def test_a_group_is_of_several_lines_whose_rows_and_txids_come_together(
    house: House, sink: Sink[Any]
) -> None:
    put(sink, (share(), [order(1)]), (share(SECOND), [order(2), order(3)]))
    put(sink, (share(txid=2), [order(4)]), (share(THIRD), [order(5)]))
    assert numbers(house) == [1, 2, 3, 4, 5]
    assert state(sink, FIRST, SECOND, THIRD) == [(1, 2), (1, 1), (1, 1)]


def test_rows_that_do_not_fit_are_named_and_the_others_are_durable(
    house: House, sink: Sink[Any]
) -> None:
    wrong = order(2) | {"number": "two"}
    staged = put(sink, (share(), [order(1), wrong]), (share(SECOND), [order(3), {}]))
    assert set(staged.rejected) == {1, 3}
    assert "'number'" in staged.rejected[1]
    assert staged.num_rows == 2
    assert numbers(house) == [1, 3]
    assert state(sink, FIRST, SECOND) == [(1, 1), (1, 1)]


def test_a_fence_tells_what_is_committed_in_its_order(sink: Sink[Any]) -> None:
    put(sink, (share(), [order(1)]))
    put(sink, (share(txid=2), [order(2)]), (share(SECOND), []))
    for _ in range(2):  # repeating it is harmless
        assert sink.fence([Fence(THIRD, 4), Fence(SECOND, 2), Fence(FIRST, 3)]) == [
            Committed(THIRD, 4, 0),
            Committed(SECOND, 2, 1),
            Committed(FIRST, 3, 2),
        ]
    nobodys = "refunds[7]"
    assert state(sink, FIRST, SECOND, THIRD, nobodys) == [(3, 2), (2, 1), (4, 0), (0, 0)]
    assert sink.committed([]) == []
    put(sink, (share(txid=3, epoch=3), [order(3)]))
    assert state(sink, FIRST) == [(3, 3)]


def test_rows_that_would_be_kept_as_others_are_named_and_the_rest_is_one_transaction(
    house: House, sink: Sink[Any]
) -> None:
    """Promise 13: what would lose something is a dead letter, not a row that is nearly right."""
    bad: list[Any] = [2.5, True, "2", None]
    rows = [order(1), *(order(2) | {"number": number} for number in bad), order(3)]
    staged = sink.stage(group((share(), rows), (share(SECOND), [order(4)])))
    assert set(staged.rejected) == {1, 2, 3, 4}
    sink.commit(staged)
    assert numbers(house) == [1, 3, 4]
    assert state(sink, FIRST, SECOND) == [(1, 1), (1, 1)]


def test_an_owner_with_an_older_epoch_cannot_fence(sink: Sink[Any]) -> None:
    """Promise 9: a zombie that wakes up while it takes over changes nothing."""
    sink.fence([Fence(FIRST, 3)])
    with pytest.raises(SinkFenced) as caught:
        sink.fence([Fence(FIRST, 2)])
    assert (caught.value.line, caught.value.epoch, caught.value.found) == (FIRST, 2, 3)
    assert state(sink, FIRST) == [(3, 0)]


def test_a_lower_epoch_is_refused_after_a_fence_and_changes_nothing(
    house: House, opened: Callable[[], Sink[Any]], sink: Sink[Any]
) -> None:
    """Promise 9: a zombie cannot finish a transaction once its successor has started."""
    zombies = sink.stage(group((share(SECOND), [order(2)]), (share(), [order(1)])))
    successor = opened()
    successor.fence([Fence(FIRST, 2)])
    for _ in range(2):
        with pytest.raises(SinkFenced) as caught:
            sink.commit(zombies)
        assert (caught.value.line, caught.value.epoch, caught.value.found) == (FIRST, 1, 2)
    assert house.rows() == []
    assert state(sink, FIRST, SECOND) == [(2, 0), (1, 0)]
    put(successor, (share(epoch=2, attempt=2), [order(1)]))
    with pytest.raises(SinkFenced):
        put(sink, (share(txid=2), [order(2)]))  # also what it stages after the fence
    put(sink, (share(SECOND), [order(2)]))
    assert numbers(house) == [1, 2]
    assert successor.fence([Fence(FIRST, 2)]) == [Committed(FIRST, 2, 1)]


def test_nothing_of_a_zombie_lands_once_its_successor_has_fenced_it(
    house: House, opened: Callable[[], Sink[Any]], sink: Sink[Any]
) -> None:
    """Promise 9: what the fence told is all there is of the zombie, whenever it commits."""
    ended: queue.SimpleQueue[int | Exception] = queue.SimpleQueue()

    def commit_on_and_on() -> None:
        try:
            for txid in range(1, 100_000):
                put(sink, (share(txid=txid), [order(txid)]))
                ended.put(txid)
        except Exception as error:  # noqa: BLE001 - it is looked at below
            ended.put(error)

    zombie = threading.Thread(target=commit_on_and_on)
    zombie.start()
    assert [ended.get(timeout=seconds(60)) for _ in range(3)] == [1, 2, 3]
    successor = opened()
    (told,) = successor.fence([Fence(FIRST, 2)])
    zombie.join(seconds(60))
    ends = [ended.get_nowait() for _ in range(ended.qsize())]
    assert isinstance(ends[-1], SinkFenced), ends[-1]
    assert numbers(house) == list(range(1, told.txid + 1))
    put(successor, (share(txid=told.txid + 1, epoch=2), [order(told.txid + 1)]))
    assert numbers(house) == list(range(1, told.txid + 2))


def test_only_some_shares_of_a_group_are_there(house: House, sink: Sink[Any]) -> None:
    put(sink, (share(), [order(1)]))
    with pytest.raises(SinkFailed):
        put(sink, (share(), [order(1)]), (share(SECOND), [order(2)]))
    assert numbers(house) == [1]
    assert state(sink, FIRST, SECOND) == [(1, 1), (1, 0)]


def test_one_is_staged_while_another_waits_for_its_commit(house: House, sink: Sink[Any]) -> None:
    staged = [
        sink.stage(group((share(txid=txid), [order(txid)]), number=txid)) for txid in (1, 2, 3)
    ]
    for each in staged:
        sink.commit(each)
    assert numbers(house) == [1, 2, 3]
    assert state(sink, FIRST) == [(1, 3)]


def test_what_is_committed_is_known_to_a_new_sink_on_the_same_place(
    house: House, opened: Callable[[], Sink[Any]], sink: Sink[Any]
) -> None:
    """Storm 45: state and txid outlive the process together."""
    put(sink, (share(), [order(1)]), (share(SECOND), []))
    sink.fence([Fence(FIRST, 5)])
    sink.close()
    again = opened()
    assert state(again, FIRST, SECOND, THIRD) == [(5, 1), (1, 1), (1, 0)]
    with pytest.raises(SinkFenced):
        put(again, (share(txid=2, epoch=4), [order(2)]))
    again.close()
    again.open(house.context)
    put(again, (share(epoch=5), [order(1)]))
    put(again, (share(txid=2, epoch=5), [order(2)]))
    assert numbers(house) == [1, 2]


def test_rows_that_belong_to_no_transaction_may_be_written_beside(
    house: House, sink: Sink[Any]
) -> None:
    put(sink, (share(), [order(1)]))
    sink.write(Batch(1, [[order(2)]], 1))
    put(sink, (share(txid=2), [order(3)]))
    assert numbers(house) == [1, 2, 3]
    assert state(sink, FIRST) == [(1, 2)]


def test_lines_whose_names_differ_little_are_apart(
    house: House, opened: Callable[[], Sink[Any]]
) -> None:
    sink = opened()
    lines = [f"{topic}[{number}]" for topic, number in product(("a", "A", "a.b", "a_b"), (1, 11))]
    sink.fence([Fence(line, place) for place, line in enumerate(lines, start=1)])
    put(sink, *((share(line, epoch=e), [order(e)]) for e, line in enumerate(lines, start=1)))
    assert state(sink, *lines) == [(epoch, 1) for epoch in range(1, len(lines) + 1)]
    assert numbers(house) == list(range(1, len(lines) + 1))


@pytest.mark.parametrize("house", STAGE_APART, indirect=True)
def test_what_other_processes_staged_is_committed_as_one_group(
    house: House, sink: Sink[Any]
) -> None:
    """Promise 14: a group has one commit, however many processes made its files."""
    shares = (share(rows=3), share(SECOND, rows=3))
    rows: list[Piece] = [
        [order(1), order(2), {}, order(4)],
        [order(5) | {"number": "five"}, order(6)],
    ]
    staged = sink.joined(shares, staged_apart(sink.stager(), *halves(Batch(1, rows, 6, shares))))
    assert (staged.shares, staged.num_rows, set(staged.rejected)) == (shares, 4, {2, 4})
    assert house.rows() == []
    sink.commit(staged)
    sink.commit(copied(staged))
    assert numbers(house) == [1, 2, 4, 6]
    assert state(sink, FIRST, SECOND) == [(1, 1), (1, 1)]
    sink.commit(sink.joined((share(txid=2, rows=0),), []))  # no process had any row of it
    assert numbers(house) == [1, 2, 4, 6]
    assert state(sink, FIRST, SECOND) == [(1, 2), (1, 1)]


@pytest.mark.parametrize("house", STAGE_APART, indirect=True)
def test_what_other_processes_staged_elsewhere_is_not_committed(
    house: House, sink: Sink[Any]
) -> None:
    """Promise 14: the table would name files that this process cannot see."""
    whole = group((share(), [order(1), order(2)]))
    before = set(Path(house.context.storage.warehouse).rglob("*.parquet"))
    staged = staged_apart(sink.stager(), *halves(whole))
    file = next(
        each
        for each in Path(house.context.storage.warehouse).rglob("*.parquet")
        if each not in before
    )
    file.unlink()
    with pytest.raises(SinkFailed, match=f"{file.name}.*must share the folder of the table"):
        sink.joined(whole.shares, staged)


@pytest.mark.parametrize("house", STAGE_APART, indirect=True)
def test_what_other_processes_staged_leaves_nothing_when_it_is_discarded(
    house: House, sink: Sink[Any]
) -> None:
    def files() -> set[Path]:
        return set(Path(house.context.storage.warehouse).rglob("*.parquet"))

    whole = group((share(), [order(1), order(2)]))
    put(sink, (share(), [order(1), order(2)]))
    before = files()
    staged = staged_apart(sink.stager(), *halves(whole))
    assert len(files() - before) == 2
    sink.discard(sink.joined(whole.shares, staged))
    assert files() == before

    stager = sink.stager()
    assert stager is not None
    for each in staged_apart(stager, *halves(whole)):
        stager.discard(each)
    assert files() == before
