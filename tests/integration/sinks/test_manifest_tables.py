"""Spark reads the files that a manifest names, as they were written."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from sinks import manifest_files
from sinks.spark.driver import SparkDriver
from tests.worlds.every_type import EVERY_TYPE, NOTHING, SOMETHING
from tests.worlds.manifest_table import LINE, Table, group, rows, write
from topology.sink import Batch
from topology.transactional import Fence

pytestmark = [
    pytest.mark.integration,
    # PySpark leaves the sockets by which it fetched rows to the garbage collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


def read(spark: SparkDriver, table: Path, schema: str) -> pa.Table:
    """As docs/reference/parquet-manifest.md says."""

    def job(session: Any) -> pa.Table:
        files = manifest_files(table)
        frame = session.read.schema(schema).option("basePath", str(table)).parquet(*files)
        found: pa.Table = frame.toArrow()
        return found

    return spark.run(job, group="read")


def columns(table: Table) -> str:
    """The columns as the log has them."""
    told = table.entries()[0]["whole"]["columns"]
    return ", ".join(f"`{each['name']}` {each['type']}" for each in told)


def test_values_of_every_type_come_back_and_the_log_knows_sparks_names_of_them(
    tmp_path: Path, spark: SparkDriver
) -> None:
    table = Table(tmp_path)
    sink = table.sink(EVERY_TYPE)
    batch = pa.RecordBatch.from_pylist([NOTHING, SOMETHING], schema=EVERY_TYPE)
    sink.write(Batch(1, [batch], 2))
    sink.write(Batch(2, [batch], 2))
    before = read(spark, table.path, columns(table))
    sink.compact(2**30)
    after = read(spark, table.path, columns(table))
    assert len(manifest_files(table.path)) == 1
    assert sorted(map(repr, before.to_pylist())) == sorted(map(repr, after.to_pylist()))
    found = next(row for row in before.to_pylist() if row["number"] is not None)
    for name in ("number", "tiny", "text", "bytes", "few", "day", "price", "large_price", "list"):
        assert found[name] == SOMETHING[name]
    assert found["struct"]["b"] == SOMETHING["struct"]["b"]
    assert next(row for row in before.to_pylist() if row["number"] is None) == NOTHING


def test_partitions_are_read_off_the_folders_and_what_is_not_committed_is_not_read(
    tmp_path: Path, spark: SparkDriver
) -> None:
    table = Table(tmp_path)
    sink = table.sink(partition_by="place")
    places = ["a b", "x=y/z%41:..", "é*?{}[]", None]
    for number, place in enumerate(places):
        write(sink, rows(number, place=place))
    wider = table.sink(
        pa.schema({"number": pa.int64(), "place": pa.string(), "euros": pa.float64()}),
        on_new_columns="add",
    )
    write(wider, [{"number": 4, "place": "a b", "euros": 1.5}])
    sink.fence([Fence(LINE, 1)])
    sink.stage(group(1, 99))
    found = read(spark, table.path, "number bigint, place string, euros double").to_pylist()
    assert sorted(found, key=lambda row: row["number"]) == [
        *({"number": n, "place": place, "euros": None} for n, place in enumerate(places)),
        {"number": 4, "place": "a b", "euros": 1.5},
    ]
