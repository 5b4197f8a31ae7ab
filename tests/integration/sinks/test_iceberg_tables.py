"""Iceberg tables behind a catalogue in PostgreSQL, as Spark reads and writes them beside us."""

import multiprocessing
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from examples.support.postgres_server import EmbeddedPostgres
from sinks.spark.driver import SparkDriver
from tests.support import table_types
from tests.support.delta_table import LINE, group, rows, write
from tests.support.iceberg_table import SparkTable, racing
from tests.support.patience import seconds
from tests.support.spark import streamed
from topology.errors import SinkFenced
from topology.sink import Committed

pytestmark = [
    pytest.mark.integration,
    # PySpark leaves the sockets by which it fetched rows to the garbage collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
STRANGE = 'a `strange`."name" é'
EVERY_TYPE = table_types.EVERY_TYPE.append(pa.field("pair", pa.list_(pa.int32(), 2))).append(
    pa.field(STRANGE, pa.string())
)
NOTHING: dict[str, Any] = dict.fromkeys(EVERY_TYPE.names)
SOMETHING = table_types.SOMETHING | {
    "float": 0.5,
    "local": datetime(2026, 1, 2, 3, 4, 5, 678000),  # noqa: DTZ001 - it has no zone
    "pair": [1, 2],
    STRANGE: "x",
}
PARTITIONS = ["text", "at", "local", "day", "price", "bool", "tiny", "number", "few"]
TRANSFORMS = ["day(at)", "month(local)", "bucket(4, number)", "truncate(2, text)", "year(day)"]


@pytest.fixture
def table(tmp_path: Path, spark: SparkDriver, postgres: EmbeddedPostgres) -> Iterator[SparkTable]:
    made = SparkTable(tmp_path, spark, postgres)
    yield made
    made.close()


def plain(value: Any) -> Any:
    """A value without what Arrow's types alone bring along."""
    if isinstance(value, dict):
        return {name: plain(within) for name, within in value.items()}
    if isinstance(value, datetime) and value.tzinfo is not None:
        return value.astimezone(UTC)
    return value


@pytest.mark.parametrize(
    "partition_by", [[], PARTITIONS, TRANSFORMS], ids=["no", "values", "transforms"]
)
def test_spark_reads_every_type_as_it_was_written(
    table: SparkTable, partition_by: list[str]
) -> None:
    more = {"double": 1e300, "text": " a/b=c:%41 ..", "struct": None, "number": 5, "bool": False}
    given = [NOTHING, SOMETHING, SOMETHING | more, SOMETHING | {"text": ""}, {"text": ".." * 200}]
    write(table.sink(EVERY_TYPE, partition_by=partition_by), given)
    found = [plain(row) for row in table.read().to_pylist()]
    assert sorted(map(repr, found)) == sorted(repr(NOTHING | row) for row in given)
    for where in ("text = ''", "text is null", "text = ' a/b=c:%41 ..'"):
        assert table.read(where).num_rows == 1, where
    assert table.read("number = 5 or at_ns > timestamp'2026-01-02T03:04:05Z'").num_rows == 3
    assert table.read(f"day = date'{SOMETHING['day']}'").num_rows == 3


def test_filters_use_file_statistics(table: SparkTable) -> None:
    schema = pa.schema(
        [
            ("number", pa.int64()),
            ("x", pa.float64()),
            ("text", pa.string()),
            ("at", pa.timestamp("us", tz="UTC")),
            ("price", pa.decimal128(20, 4)),
            ("day", pa.date32()),
        ]
    )
    sink = table.sink(schema)
    for number in range(4):
        row = {
            "number": number,
            "x": float("nan") if number == 3 else float(number),
            "text": "z" * 40 + str(number),
            "at": datetime(2026, 1, 1, 0, 0, number, 999_999, tzinfo=UTC),
            "price": Decimal(number) + Decimal("0.0001"),
            "day": date(2026, 1, 1 + number),
        }
        write(sink, [row, row | {"x": 0.0}], number + 1)
    for where, numbers in {
        "number = 2": [2, 2],
        "x > 1000": [3],  # Spark holds NaN for the greatest
        f"text >= '{'z' * 40}2'": [2, 2, 3, 3],
        "at > timestamp'2026-01-01T00:00:01.999998Z'": [1, 1, 2, 2, 3, 3],
        "price > 2": [2, 2, 3, 3],
        "day < date'2026-01-02'": [0, 0],
        "text is null": [],
    }.items():
        assert sorted(table.read(where)["number"].to_pylist()) == numbers, where
    planned = [
        len(list(table.theirs().scan(where).plan_files()))
        for where in (
            "number = 2",
            "price > 2.5000",
            "day < '2026-01-02'",
            "text is null",
            "x > 1000",
        )
    ]
    assert planned == [1, 1, 1, 0, 1]


def test_spark_appends_rewrites_and_expires_between_our_commits(table: SparkTable) -> None:
    """Promise 9, and every row is there once."""
    sink = table.fenced(partition_by=["place"])
    for txid in range(1, 5):
        sink.commit(sink.stage(group(txid, txid)))
        table.sql(f"INSERT INTO OURS SELECT {100 + txid}, 'theirs'")
    table.sql("CALL lake.system.rewrite_data_files(table => 'OURS')")
    sink.commit(sink.stage(group(5, 5)))
    table.sql("MERGE INTO OURS t USING (SELECT 2L n) s ON t.number = s.n WHEN MATCHED THEN DELETE")
    table.sql(
        "CALL lake.system.expire_snapshots(table => 'OURS', "
        "older_than => TIMESTAMP '2999-01-01', retain_last => 1)"
    )
    sink.commit(sink.stage(group(6, 6)))
    assert sorted(table.read()["number"].to_pylist()) == [1, 3, 4, 5, 6, 101, 102, 103, 104]
    assert table.sink().committed([LINE]) == [Committed(LINE, 1, 6)]
    table.fenced(epoch=2)
    with pytest.raises(SinkFenced):
        sink.commit(sink.stage(group(7, 7)))


def test_spark_streams_what_we_commit(table: SparkTable, tmp_path: Path) -> None:
    """A fence is a snapshot without files, and no obstacle."""
    for txid in (1, 2):
        sink = table.fenced(epoch=txid)
        sink.commit(sink.stage(group(txid, txid, 10 * txid, epoch=txid)))
        table.stream(tmp_path)
    assert sorted(streamed(tmp_path)["number"].to_pylist()) == [1, 2, 10, 20]


def test_new_columns_are_where_spark_looks_for_them(table: SparkTable) -> None:
    write(table.sink(), rows(1))
    table.sql("ALTER TABLE OURS ADD COLUMN theirs STRING")
    more = pa.schema([("number", pa.int64()), ("tags", pa.list_(pa.string()))])
    write(table.sink(more, on_new_columns="add"), [{"number": 2, "tags": ["a"]}])
    assert sorted(table.read().to_pylist(), key=lambda row: row["number"]) == [
        {"number": 1, "place": "x", "theirs": None, "tags": None},
        {"number": 2, "place": None, "theirs": None, "tags": ["a"]},
    ]


def test_iceberg_writers_race_through_postgresql_without_loss(table: SparkTable) -> None:
    lines = ["orders[0]", "orders[1]"]
    table.fenced(*lines)
    context = multiprocessing.get_context("spawn")
    racers = [
        context.Process(target=racing, args=(table.storage, line, number, 15, table.name))
        for number, line in enumerate(lines)
    ]
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join(seconds(120.0))
    assert [racer.exitcode for racer in racers] == [0, 0]
    assert table.numbers() == [1000 * n + txid for n in range(2) for txid in range(1, 16)]
