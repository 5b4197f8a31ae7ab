"""Delta tables that delta-rs commits, as Spark reads, streams and changes them."""

from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sinks.spark.driver import SparkDriver
from tests.support.delta_table import LINE, SCHEMA, SparkTable, group, rows, write
from tests.support.spark import stream, streamed
from tests.support.table_types import EVERY_TYPE, NOTHING, SOMETHING
from topology.errors import SinkFailed
from topology.sink import Batch, Committed, Fence

pytestmark = [
    pytest.mark.integration,
    # PySpark leaves the sockets by which it fetched rows to the garbage collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

TARGET_BYTES = 1024 * 1024
RETENTION = "delta.setTransactionRetentionDuration"


@pytest.fixture
def table(tmp_path: Path, spark: SparkDriver) -> Iterator[SparkTable]:
    return SparkTable(tmp_path, spark)


@pytest.mark.parametrize("partition_by", [[], ["text", "at", "local", "day", "price", "double"]])
def test_spark_reads_the_same_whoever_wrote_the_rows(
    tmp_path: Path, spark: SparkDriver, partition_by: list[str]
) -> None:
    plain = {"double": 1e300, "text": " a/b=c:%41 ..", "struct": None, "number": 5}
    batch = pa.RecordBatch.from_pylist(
        [NOTHING, SOMETHING, SOMETHING | plain, SOMETHING | {"text": ""}], schema=EVERY_TYPE
    )
    ours, theirs = SparkTable(tmp_path / "ours", spark), SparkTable(tmp_path / "theirs", spark)
    ours.sink(EVERY_TYPE, partition_by=partition_by).write(Batch(1, [batch], 4))
    file = tmp_path / "rows.parquet"
    pq.write_table(
        pa.Table.from_batches([batch]),
        file,
        coerce_timestamps="us",
        allow_truncated_timestamps=True,
        store_schema=False,
    )

    def append(session: Any) -> None:
        frame = session.read.parquet(str(file))
        frame.write.format("delta").partitionBy(*partition_by).save(str(theirs.path))

    spark.run(append, group="append")
    found = [each.read() for each in (ours, theirs)]
    assert found[0].schema.equals(found[1].schema)
    mine, other = (sorted(map(repr, each.to_pylist())) for each in found)
    assert mine == other
    write(ours.sink(EVERY_TYPE, partition_by=partition_by), [NOTHING | {"number": 7}])
    ours.sql("OPTIMIZE TABLE_PATH")
    assert len(ours.numbers("number is not null")) == 4


@pytest.mark.parametrize("key", [[], ["number", "twin"]], ids=["files", "merges"])
def test_filters_find_their_rows_though_files_say_what_they_hold(
    table: SparkTable, key: list[str]
) -> None:
    schema = pa.schema(
        [
            ("number", pa.int64()),
            ("twin", pa.bool_()),
            ("x", pa.float64()),
            ("text", pa.string()),
            ("at", pa.timestamp("us", tz="UTC")),
            ("price", pa.decimal128(20, 4)),
            ("day", pa.date32()),
        ]
    )

    def row(number: int, **changed: Any) -> dict[str, Any]:
        return {
            "number": number,
            "twin": False,
            "x": float("nan") if number == 3 else float(number),
            "text": "z" * 40 + str(number),
            "at": datetime(2026, 1, 1, 0, 0, number, 999_999, tzinfo=UTC),
            "price": Decimal(number) + Decimal("0.0001"),
            "day": date(2026, 1, 1 + number),
        } | changed

    sink = table.sink(schema, key=key)
    for number in range(4):
        write(sink, [row(number), row(number, x=0.0, twin=True)], number + 1)
    for _ in range(2):
        for where, numbers in {
            "number = 2": [2, 2],
            "x > 1000": [3],  # Spark holds NaN for the greatest
            f"text >= '{'z' * 40}2'": [2, 2, 3, 3],
            "at > timestamp'2026-01-01T00:00:01.999998Z'": [1, 1, 2, 2, 3, 3],
            "at > timestamp'2026-01-01T00:00:02.999999Z'": [3, 3],
            "price > 2": [2, 2, 3, 3],
            "day < date'2026-01-02'": [0, 0],
            "text is null": [],
        }.items():
            assert table.numbers(where) == numbers, where
        sink.compact(TARGET_BYTES)


@pytest.mark.parametrize("key", [[], ["number"]], ids=["files", "merges"])
def test_spark_writes_optimizes_and_merges_between_our_commits(
    table: SparkTable, key: list[str]
) -> None:
    sink = table.sink(key=key)
    sink.fence([Fence(LINE, 1)])
    sink.commit(sink.stage(group(1, 1)))
    table.sql("INSERT INTO TABLE_PATH VALUES (50, 'theirs')")
    sink.commit(sink.stage(group(2, 2)))
    table.sql("OPTIMIZE TABLE_PATH")
    staged = sink.stage(group(3, 3))
    table.sql(
        "MERGE INTO TABLE_PATH t USING (SELECT 2 AS number, 'merged' AS place) s "
        "ON t.number = s.number WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
    )
    sink.commit(staged)
    sink.commit(staged)
    assert table.numbers() == [1, 2, 3, 50]
    assert table.numbers("place = 'merged'") == [2]
    assert table.sink().committed([LINE]) == [Committed(LINE, 1, 3)]


def test_spark_streams_what_we_commit(table: SparkTable, tmp_path: Path) -> None:
    sink = table.sink()
    sink.fence([Fence(LINE, 1)])

    def job(session: Any) -> None:
        stream(session.readStream.format("delta").load(str(table.path)), tmp_path)

    for txid in (1, 2):
        sink.commit(sink.stage(group(txid, txid, 10 * txid)))
        table.spark.run(job, group="stream")
        sink.compact(TARGET_BYTES)
    assert sorted(streamed(tmp_path)["number"].to_pylist()) == [1, 2, 10, 20]


@pytest.mark.parametrize(
    ("statement", "reason"),
    [
        ("ALTER TABLE TABLE_PATH ADD CONSTRAINT low CHECK (number < 100)", "the constraint low"),
        (
            "ALTER TABLE TABLE_PATH SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')",
            "delta.columnMapping.mode = name",
        ),
        (
            f"ALTER TABLE TABLE_PATH SET TBLPROPERTIES ('{RETENTION}' = 'interval 1 day')",
            RETENTION,
        ),
        (
            "ALTER TABLE TABLE_PATH SET TBLPROPERTIES ('delta.enableRowTracking' = 'true')",
            "the feature ",
        ),
    ],
)
def test_unsupported_writer_features_stop_the_sink(
    table: SparkTable, statement: str, reason: str
) -> None:
    sink = table.sink()
    sink.fence([Fence(LINE, 1)])
    staged = sink.stage(group(1, 7))
    table.sql(statement)
    with pytest.raises(SinkFailed, match=f"{reason}.*; use SparkSink"):
        sink.commit(staged)
    with pytest.raises(SinkFailed, match=f"{reason}.*; use SparkSink"):
        table.sink()
    assert table.numbers() == []


def test_rows_that_spark_deletes_by_a_vector_stay_away(table: SparkTable) -> None:
    sink = table.sink()
    write(sink, rows(*range(9)))
    table.sql(
        "ALTER TABLE TABLE_PATH SET TBLPROPERTIES (delta.enableDeletionVectors = true)",
        "DELETE FROM TABLE_PATH WHERE number = 1",
    )
    write(sink, rows(20), 2)
    with pytest.raises(SinkFailed, match="rows have a key, and it has the feature deletionVectors"):
        table.sink(key=["number"])
    sink.compact(TARGET_BYTES)
    assert table.numbers() == [0, 2, 3, 4, 5, 6, 7, 8, 20]


def test_a_table_lies_where_its_name_says_whatever_the_name(
    tmp_path: Path, spark: SparkDriver
) -> None:
    table = SparkTable(tmp_path / "my ware#house" / "größe", spark)
    sink = table.sink()
    write(sink, rows(1, 2))
    write(table.sink(key=["number"]), rows(2, 3), 2)
    assert table.numbers() == [1, 2, 3]
    assert [path.name for path in tmp_path.iterdir()] == ["my ware#house"]
    assert SCHEMA.names == table.read().column_names
