"""What a Delta table that is not there yet cannot be."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from sinks import DeltaSink
from sinks.spark import table
from sinks.storage import Storage
from topology.errors import SinkFailed
from topology.sink import SinkContext


class OneJob:
    """A Spark that runs the first job, without a session."""

    def __init__(self) -> None:
        self.has_run = False

    def run(self, job: Any, *, group: str) -> Any:
        if self.has_run:
            raise SinkFailed(f"table 'orders': {group}")
        self.has_run = True
        return job(None)


def open_sink(sink: Any, warehouse: Path) -> None:
    spark: Any = OneJob()
    sink.open(SinkContext("pipeline", "sink", {}, Storage(str(warehouse)), spark))


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The schema of the table that is there; as long as this is empty, none is."""
    schemas: list[Any] = []
    monkeypatch.setattr(table, "existing_schema", lambda *_: next(iter(schemas), None))
    return schemas


@pytest.mark.parametrize("character", " ,;{}()=")
def test_a_table_with_a_column_that_delta_has_no_name_for_is_refused_before_its_first_row(
    character: str, found: list[Any], tmp_path: Path
) -> None:
    name = f"a{character}b"
    inner = pa.list_(pa.struct([(name, pa.int64())]))
    for schema in (pa.schema([(name, pa.int64())]), pa.schema([("s", inner)])):
        sink: DeltaSink[Any] = DeltaSink("orders", schema=schema)
        with pytest.raises(SinkFailed, match=r"'orders'.*column 'a.b': Delta allows names without"):
            open_sink(sink, tmp_path)


def test_a_table_that_is_there_may_have_such_columns(found: list[Any], tmp_path: Path) -> None:
    """One with column mapping."""
    schema = pa.schema([("order id", pa.int64())])
    found.append(table.spark_schema(schema))
    with pytest.raises(SinkFailed, match=r"'orders': orders-open$"):  # what comes next
        open_sink(DeltaSink("orders", schema=schema), tmp_path)
