"""What every sink promises, asked of each of them."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, TypedDict

import pyarrow as pa
import pytest

from sinks.storage import Storage
from tests.support.houses import INTEGRATION, House, Rows, build
from topology.errors import RowsRejected, SinkFailed
from topology.schema import schema_of
from topology.sink import Batch, Piece, Sink


class Flight(TypedDict):
    number: int
    carrier: str
    delay: float | None
    stops: list[str]


SCHEMA = schema_of(Flight)


def flight(number: int) -> dict[str, Any]:
    return {"number": number, "carrier": "AA", "delay": None, "stops": [str(number)]}


TABLES = [
    pytest.param("spark_parquet", marks=INTEGRATION),
    pytest.param("spark_delta", marks=INTEGRATION),
    "spark_parquet-fake",
    "spark_delta-fake",
    "delta",
    "iceberg",
]
of_tables = pytest.mark.parametrize("house", TABLES, indirect=True)  # what only tables promise


@pytest.fixture(params=["memory", *TABLES, pytest.param("postgres", marks=INTEGRATION)])
def house(request):
    return build(request.param, Flight, request, exactly_once=False)


def batch(*pieces: Piece, sequence: int = 1) -> Batch:
    rows = sum(
        piece.num_rows if isinstance(piece, pa.RecordBatch) else len(piece) for piece in pieces
    )
    return Batch(sequence, list(pieces), rows)


@pytest.fixture
def opened(house):
    sinks: list[Sink[Any]] = []

    def open_sink(**options: Any) -> Sink[Any]:
        sinks.append(house.sink(**options))
        sinks[-1].open(house.context)
        return sinks[-1]

    yield open_sink
    for sink in sinks:
        sink.close()
        sink.close()


def test_rows_are_durable_when_write_returns(house, opened):
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
    assert [*dict.fromkeys(house.numbers())] == [1, 2, 3, 4, 5]


def test_rejected_rows_are_named_exactly_and_the_rest_is_durable(house, opened):
    columns = pa.record_batch(
        {"number": [4, 5], "carrier": pa.array(["AA", None]), "stops": [["a"], ["b"]]}
    )
    wrong = flight(2) | {"number": "two"}
    with pytest.raises(RowsRejected) as caught:
        opened().write(batch([flight(1)], [wrong, flight(3)], columns))
    assert set(caught.value.reasons) == {1, 4}
    assert "'number'" in caught.value.reasons[1]
    assert "'carrier'" in caught.value.reasons[4]
    assert house.numbers() == [1, 3, 4]


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


def test_values_that_would_be_kept_as_others_are_named_and_the_rest_is_durable(house, opened):
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
    assert house.numbers() == [1, 3, 6]


def test_times_that_are_no_partition_are_named_and_the_rest_is_durable(house, opened):
    schema = pa.schema([("number", pa.int64()), ("day", pa.date32()), ("at", pa.timestamp("us"))])
    sink = opened(schema=schema, **in_partitions(house, "day", "at"))
    days = pa.array([0, 20260101], pa.int32()).view(pa.date32())
    times = pa.array([None, EPOCH_NS]).view(pa.timestamp("us"))
    for name, column, bad in [("day", days, 20260101), ("at", times, EPOCH_NS)]:
        rows: Rows = [{"number": 3, name: bad}, {"number": 4}]
        with pytest.raises(RowsRejected) as caught:
            sink.write(batch(pa.record_batch({"number": [1, 2], name: column}), rows))
        assert set(caught.value.reasons) == {1, 2}
    assert house.numbers() == [1, 1, 4, 4]


def in_partitions(house: House, *names: str) -> dict[str, Any]:
    return {} if house.kind in ("memory", "postgres") else {"partition_by": [*names]}


@pytest.mark.parametrize("house", TABLES[:5], indirect=True)  # that have it as null
def test_an_empty_text_does_not_become_a_null_that_may_not_be(house, opened):
    rows = [flight(1), flight(2) | {"carrier": ""}, flight(3)]
    with pytest.raises(RowsRejected) as caught:
        opened(partition_by=["carrier"]).write(batch(rows))
    assert set(caught.value.reasons) == {1}
    assert "found ''" in caught.value.reasons[1]
    assert house.numbers() == [1, 3]


@of_tables
def test_partitions_are_folders_and_nothing_is_left_in_the_spool(house, opened):
    sink = opened(partition_by=["carrier"])
    sink.write(batch([flight(1), flight(2) | {"carrier": "9"}]))
    assert {path.name for path in house.warehouse.rglob("carrier=*")} == {"carrier=AA", "carrier=9"}
    assert house.numbers() == [1, 2]
    sink.close()
    assert list(house.warehouse.glob(".spool/*")) == []
    opened(partition_by=["carrier"])  # its guessed types are no difference


@of_tables
def test_a_table_with_other_columns_is_refused_when_opened(house, opened):
    opened().write(batch([flight(1)]))
    other = pa.schema([("number", pa.string()), *[SCHEMA.field(i) for i in (1, 2, 3)]])
    with pytest.raises(SinkFailed, match=r"'orders'.*'number': found string.*(bigint|long|int64)"):
        house.sink(schema=other).open(house.context)


@of_tables
def test_what_spark_refuses_while_writing_ends_the_sink(house, opened):
    twice = pa.schema([("a", pa.int64()), ("A", pa.int64())])
    with pytest.raises(SinkFailed, match=r"'orders': (Spark refuses|.* differ in case)"):
        opened(schema=twice).write(batch([{"a": 1, "A": 2}]))


@of_tables
def test_a_type_that_spark_has_not_is_refused_when_opened(house, opened, monkeypatch):
    monkeypatch.setattr("sinks.tables.table._BUSY_SECONDS", 0.0)
    with pytest.raises(SinkFailed, match="column 'u': found uint64"):
        opened(schema=pa.schema([("u", pa.uint64())]))


@of_tables
def test_a_warehouse_that_cannot_be_written_is_refused_when_opened(house, tmp_path):
    (tmp_path / "file").write_text("in the way")
    context = replace(house.context, storage=Storage(str(tmp_path / "file")))
    with pytest.raises(SinkFailed, match="a folder that can be written is needed"):
        house.sink().open(context)


@pytest.mark.slow
@of_tables
def test_a_batch_large_enough_for_two_tasks_is_whole(house, opened):
    opened().write(batch([flight(number) for number in range(100_001)]))
    assert house.numbers() == list(range(100_001))
