"""What every sink promises, asked of each of them."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, TypedDict
from urllib.parse import urlsplit
from urllib.request import url2pathname

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from examples.support.postgres_server import EmbeddedPostgres
from sinks import DeltaSink, IcebergSink, MemorySink, PostgresSink, SparkSink
from sinks.spark.driver import SparkDriver
from sinks.storage import Storage
from tests.acceptance import evidence, table_files
from tests.support.fake_spark import FakeSpark
from tests.support.postgres_table import PostgresTable
from topology.errors import RowsRejected, SinkFailed
from topology.schema import schema_of
from topology.sink import Batch, Piece, Sink, SinkContext


class Flight(TypedDict):
    number: int
    carrier: str
    delay: float | None
    stops: list[str]


SCHEMA = schema_of(Flight)
Rows = list[dict[str, Any]]


def flight(number: int) -> dict[str, Any]:
    return {"number": number, "carrier": "AA", "delay": None, "stops": [str(number)]}


class House(ABC):
    """Where a sink under test lives, and how to read what it wrote by other means."""

    def __init__(self, warehouse: Path) -> None:
        self.context = SinkContext("pipeline", "sink", {}, Storage(str(warehouse)), None)

    @abstractmethod
    def sink(self, **options: Any) -> Sink[Any]: ...

    @abstractmethod
    def rows(self) -> Rows: ...


class MemoryHouse(House):
    def sink(self, **options: Any) -> Sink[Any]:
        self.memory: MemorySink[Any] = MemorySink(schema=options.get("schema", Flight))
        return self.memory

    def rows(self) -> Rows:
        return self.memory.rows


class SparkHouse(House):
    kind: Callable[..., SparkSink[Any]]

    def __init__(self, warehouse: Path, driver: SparkDriver | FakeSpark) -> None:
        self.driver = driver
        self.context = SinkContext("pipeline", "sink", {}, Storage(str(warehouse)), driver)

    def sink(self, **options: Any) -> Sink[Any]:
        self.table = self.kind("flights", **{"schema": Flight, **options})
        return self.table

    def rows(self) -> Rows:
        def files(session: Any) -> list[str]:
            frame = session.read.format(self.table.format).load(self.table.path)
            return [str(file) for file in frame.inputFiles()]

        paths = [url2pathname(urlsplit(f).path) for f in self.driver.run(files, group="read")]
        return [row for path in paths for row in pq.ParquetFile(path).read().to_pylist()]


class ParquetHouse(SparkHouse):
    kind = partial(SparkSink, format="parquet")


class ByDeltaHouse(SparkHouse):
    """A Delta table that Spark writes."""

    kind = partial(SparkSink, format="delta")


class FakeParquetHouse(ParquetHouse):
    """Without a JVM: what the sink does, and the fake."""


class FakeByDeltaHouse(ByDeltaHouse):
    """The same."""


class DeltaHouse(House):
    def sink(self, **options: Any) -> Sink[Any]:
        return DeltaSink("flights", **{"schema": Flight, **options})

    def rows(self) -> Rows:
        return evidence.read_table(Path(self.context.storage.warehouse) / "flights").to_pylist()


class IcebergHouse(House):
    def sink(self, **options: Any) -> Sink[Any]:
        return IcebergSink("flights", **{"schema": Flight, **options})

    def rows(self) -> Rows:
        return table_files.of_iceberg(Path(self.context.storage.warehouse) / "flights").to_pylist()


class PostgresHouse(House):
    """A table of PostgreSQL's, which tells its rows itself."""

    def __init__(self, server: EmbeddedPostgres) -> None:
        self.table = PostgresTable(server, "flights")
        self.context = self.table.context()

    def sink(self, **options: Any) -> Sink[Any]:
        sink: PostgresSink[Any] = self.table.made(**{"schema": SCHEMA, **options})
        return sink

    def rows(self) -> Rows:
        return self.table.rows()


TABLES = [
    pytest.param(ParquetHouse, marks=pytest.mark.integration),
    pytest.param(ByDeltaHouse, marks=pytest.mark.integration),
    FakeParquetHouse,
    FakeByDeltaHouse,
    DeltaHouse,
    IcebergHouse,
]
of_tables = pytest.mark.parametrize("house", TABLES, indirect=True)  # what only tables promise


POSTGRES = pytest.param(PostgresHouse, marks=pytest.mark.integration)


# Those that have the empty text of a partition as null.
PARTITIONED = TABLES[:5]


@pytest.fixture(params=[MemoryHouse, *TABLES, POSTGRES])
def house(request: pytest.FixtureRequest, tmp_path: Path) -> House:
    if request.param is PostgresHouse:
        return PostgresHouse(request.getfixturevalue("postgres"))
    if request.param in (FakeParquetHouse, FakeByDeltaHouse):
        fake: House = request.param(tmp_path, FakeSpark(request.getfixturevalue("monkeypatch")))
        return fake
    if issubclass(request.param, SparkHouse):
        return request.param(tmp_path, request.getfixturevalue("spark"))
    house: House = request.param(tmp_path)
    return house


def batch(*pieces: Piece, sequence: int = 1) -> Batch:
    rows = sum(
        piece.num_rows if isinstance(piece, pa.RecordBatch) else len(piece) for piece in pieces
    )
    return Batch(sequence, list(pieces), rows)


def numbers(house: House) -> list[int]:
    return sorted(row["number"] for row in house.rows())


@pytest.fixture
def opened(house: House) -> Iterator[Callable[..., Sink[Any]]]:
    sinks: list[Sink[Any]] = []

    def open_sink(**options: Any) -> Sink[Any]:
        sinks.append(house.sink(**options))
        sinks[-1].open(house.context)
        return sinks[-1]

    yield open_sink
    for sink in sinks:
        sink.close()
        sink.close()


Opened = Callable[..., Sink[Any]]


def test_rows_are_durable_when_write_returns(house: House, opened: Opened) -> None:
    """Promise 3, Storm 17: a record is complete only when its rows are durable in the sink."""
    sink = opened()
    columns = pa.RecordBatch.from_pylist([flight(2), flight(3)], schema=SCHEMA)
    sink.write(batch([flight(1)], columns, [], [flight(4)]))
    found = sorted(house.rows(), key=lambda row: row["number"])
    assert found == [flight(number) for number in range(1, 5)]
    with pytest.raises(RowsRejected):
        sink.write(batch([{}, {"number": 1}]))
    sink.close()
    sink.open(house.context)
    for _ in range(2):
        sink.write(batch([flight(5)], sequence=2))
    assert [*dict.fromkeys(numbers(house))] == [1, 2, 3, 4, 5]


def test_rejected_rows_are_named_exactly_and_the_rest_is_durable(
    house: House, opened: Opened
) -> None:
    columns = pa.record_batch(
        {"number": [4, 5], "carrier": pa.array(["AA", None]), "stops": [["a"], ["b"]]}
    )
    wrong = flight(2) | {"number": "two"}
    with pytest.raises(RowsRejected) as caught:
        opened().write(batch([flight(1)], [wrong, flight(3)], columns))
    assert set(caught.value.reasons) == {1, 4}
    assert "'number'" in caught.value.reasons[1]
    assert "'carrier'" in caught.value.reasons[4]
    assert numbers(house) == [1, 3, 4]


MOMENT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
EPOCH_NS = 1_767_322_800_000_000_000
KINDS: dict[str, pa.DataType] = {
    "day": pa.date32(),
    "at": pa.timestamp("us", "UTC"),
    "near": pa.float32(),
    "within": pa.struct([("x", pa.int64())]),
    "many": pa.list_(pa.int64()),
    "flag": pa.bool_(),
}
WIDE = pa.schema([pa.field("number", pa.int64(), nullable=False), *KINDS.items()])
POISON: list[tuple[str, Any]] = [
    ("day", 20260101),
    ("day", MOMENT),
    ("at", EPOCH_NS),
    ("near", 1e40),
    ("within", {"x": 1.9}),
    ("within", {"x": 1, "typo": 5}),
    ("many", [2.7]),
    ("flag", 7),
    ("number", True),
]


def test_values_that_would_be_kept_as_others_are_named_and_the_rest_is_durable(
    house: House, opened: Opened
) -> None:
    """Promise 13: whatever a value is, it stops nobody and does not become another one."""
    good = {"number": 1, "day": MOMENT.date(), "at": MOMENT, "near": 0.5, "within": {"x": 1}}
    rows: Rows = [good, *({"number": 2, name: value} for name, value in POISON), {"number": 3}]
    days = pa.array([0, 20260101, None], pa.int32()).view(pa.date32())
    times = pa.array([EPOCH_NS, 0, None]).view(pa.timestamp("us", "UTC"))
    columns = pa.record_batch({"number": [4, 5, 6], "day": days, "at": times})
    text = pa.record_batch({"number": pa.array(["7", "8"])})
    with pytest.raises(RowsRejected) as caught:
        opened(schema=WIDE).write(batch(rows, columns, text))
    first = len(rows)
    expected = {*range(1, first - 1), first, first + 1, first + 3, first + 4}
    assert set(caught.value.reasons) == expected
    assert numbers(house) == [1, 3, 6]


def test_times_that_are_no_partition_are_named_and_the_rest_is_durable(
    house: House, opened: Opened
) -> None:
    schema = pa.schema([("number", pa.int64()), ("day", pa.date32()), ("at", pa.timestamp("us"))])
    sink = opened(schema=schema, **in_partitions(house, "day", "at"))
    days = pa.array([0, 20260101], pa.int32()).view(pa.date32())
    times = pa.array([None, EPOCH_NS]).view(pa.timestamp("us"))
    for name, column, bad in [("day", days, 20260101), ("at", times, EPOCH_NS)]:
        rows: Rows = [{"number": 3, name: bad}, {"number": 4}]
        with pytest.raises(RowsRejected) as caught:
            sink.write(batch(pa.record_batch({"number": [1, 2], name: column}), rows))
        assert set(caught.value.reasons) == {1, 2}
    assert numbers(house) == [1, 1, 4, 4]


def in_partitions(house: House, *names: str) -> dict[str, Any]:
    """The option of sinks that have partitions."""
    return {} if isinstance(house, MemoryHouse | PostgresHouse) else {"partition_by": [*names]}


@pytest.mark.parametrize("house", PARTITIONED, indirect=True)
def test_an_empty_text_does_not_become_a_null_that_may_not_be(house: House, opened: Opened) -> None:
    rows = [flight(1), flight(2) | {"carrier": ""}, flight(3)]
    with pytest.raises(RowsRejected) as caught:
        opened(partition_by=["carrier"]).write(batch(rows))
    assert set(caught.value.reasons) == {1}
    assert "found ''" in caught.value.reasons[1]
    assert numbers(house) == [1, 3]


@of_tables
def test_partitions_are_folders_and_nothing_is_left_in_the_spool(
    house: House, opened: Opened
) -> None:
    sink = opened(partition_by=["carrier"])
    sink.write(batch([flight(1), flight(2) | {"carrier": "9"}]))
    warehouse = Path(house.context.storage.warehouse)
    assert {path.name for path in warehouse.rglob("carrier=*")} == {
        "carrier=AA",
        "carrier=9",
    }
    assert numbers(house) == [1, 2]
    sink.close()
    assert list(warehouse.glob(".spool/*")) == []
    opened(partition_by=["carrier"])  # its guessed types are no difference


@of_tables
def test_a_table_with_other_columns_is_refused_when_opened(house: House, opened: Opened) -> None:
    opened().write(batch([flight(1)]))
    other = pa.schema([("number", pa.string()), *[SCHEMA.field(i) for i in (1, 2, 3)]])
    with pytest.raises(SinkFailed, match=r"'flights'.*'number': found string.*(bigint|long|int64)"):
        house.sink(schema=other).open(house.context)


@of_tables
def test_what_spark_refuses_while_writing_ends_the_sink(house: House, opened: Opened) -> None:
    twice = pa.schema([("a", pa.int64()), ("A", pa.int64())])
    with pytest.raises(SinkFailed, match=r"'flights': (Spark refuses|.* differ in case)"):
        opened(schema=twice).write(batch([{"a": 1, "A": 2}]))


@of_tables
def test_a_type_that_spark_has_not_is_refused_when_opened(house: House, opened: Opened) -> None:
    with pytest.raises(SinkFailed, match="column 'u': found uint64"):
        opened(schema=pa.schema([("u", pa.uint64())]))


@of_tables
def test_a_warehouse_that_cannot_be_written_is_refused_when_opened(
    house: House, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("in the way")
    context = replace(house.context, storage=Storage(str(tmp_path / "file")))
    with pytest.raises(SinkFailed, match="a folder that can be written is needed"):
        house.sink().open(context)


@of_tables
def test_a_batch_large_enough_for_two_tasks_is_whole(house: House, opened: Opened) -> None:
    opened().write(batch([flight(number) for number in range(100_001)]))
    assert numbers(house) == list(range(100_001))
