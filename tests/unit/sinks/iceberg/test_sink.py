from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from sinks import IcebergSink
from sinks.storage import Storage
from topology.errors import InvalidSchema, SinkFailed
from topology.sink import SinkContext

SCHEMA = pa.schema({"number": pa.int64(), "place": pa.string()})


class NoSpark:
    """A Spark that nothing is asked of."""

    def run(self, *_: Any, **__: Any) -> Any:
        raise AssertionError("it was asked")


def context(warehouse: str, spark: Any = None) -> SinkContext:
    return SinkContext("pipeline", "sink", {}, Storage(warehouse), spark or NoSpark())


@pytest.mark.parametrize("name", ["../orders", "a#files", "v1.metadata.json", "", "a/../b", "a\0b"])
def test_a_name_that_is_no_path_below_a_warehouse_is_refused(name: str) -> None:
    with pytest.raises(InvalidSchema):
        IcebergSink(name, schema=SCHEMA)


@pytest.mark.parametrize("columns", [["x"], ["place", "place"]])
def test_partitions_must_be_columns(columns: list[str]) -> None:
    with pytest.raises(InvalidSchema, match="allowed are some of the columns number, place"):
        IcebergSink("orders", schema=SCHEMA, partition_by=columns)


def test_a_partition_must_have_exact_values() -> None:
    schema = pa.schema({"x": pa.float64(), "n": pa.int64()})
    with pytest.raises(InvalidSchema, match="column 'x' is double, whose values are no"):
        IcebergSink("orders", schema=schema, partition_by="x")


def test_what_becomes_of_new_columns_is_one_of_two_words() -> None:
    with pytest.raises(InvalidSchema, match="on_new_columns is 'maybe'; allowed are"):
        IcebergSink("orders", schema=SCHEMA, on_new_columns="maybe")  # type: ignore[arg-type]


def test_a_place_that_is_not_local_or_holds_another_table_is_refused(tmp_path: Path) -> None:
    sink = IcebergSink("orders", schema=SCHEMA)
    with pytest.raises(SinkFailed, match="not on a local file system"):
        sink.open(context("hdfs://lake"))
    (tmp_path / "orders" / "_delta_log").mkdir(parents=True)
    with pytest.raises(SinkFailed, match="is a Delta table; use DeltaSink"):
        sink.open(context(str(tmp_path)))
    with pytest.raises(SinkFailed, match="needs Spark"):
        sink.open(SinkContext("pipeline", "sink", {}, Storage(str(tmp_path)), None))


def test_what_is_not_open_says_so() -> None:
    with pytest.raises(SinkFailed, match="'orders' is not open"):
        IcebergSink("orders", schema=SCHEMA).committed(["orders[0]"])
