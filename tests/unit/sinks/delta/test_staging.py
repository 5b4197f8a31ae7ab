"""What a Delta table's files get of a micro-batch; no Spark runs."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sinks import DeltaSink
from sinks.files import data_file
from sinks.files.data_file import DataFileWriter
from sinks.files.layout import Layout
from sinks.spark.delta.way import Way
from tests.worlds.delta_facts import facts_of
from topology.transactional import Group

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        pa.field("place", pa.string(), nullable=False),
        ("value", pa.int64()),
        ("gone", pa.bool_()),
    ]
)


def fenced(folder: Path, **options: Any) -> DeltaSink[Any]:
    """A sink that knows how a table, partitioned by place, is written."""
    sink: DeltaSink[Any] = DeltaSink("t", schema=SCHEMA, **options)
    facts = facts_of(sink.stored, ["place"])
    sink._way = Way(facts, None, DataFileWriter(folder, Layout(["place"])), None)
    return sink


def row(key: int, value: int, place: str = "x", *, gone: bool = False) -> dict[str, Any]:
    return {"id": key, "place": place, "value": value, "gone": gone}


@pytest.fixture
def choking(monkeypatch: pytest.MonkeyPatch) -> None:
    """No file can hold the value 7."""

    def write(rows: pa.Table, path: Path, **options: Any) -> None:
        if 7 in rows["value"].to_pylist():
            raise pa.ArrowInvalid("no 7 please")
        original(rows, path, **options)

    original = pq.write_table
    monkeypatch.setattr(data_file.pq, "write_table", write)


@pytest.mark.usefixtures("choking")
def test_a_row_with_a_key_that_no_file_can_hold_leaves_its_key_to_the_row_before(
    tmp_path: Path,
) -> None:
    sink = fenced(tmp_path, key=["id"], deleted="gone")
    rows = [row(1, 5), row(2, 5), row(1, 7), row(3, 7), row(2, 6), row(4, 7, gone=True)]
    staged = sink.stage(Group(1, (), [rows], len(rows)))
    assert set(staged.rejected) == {2, 3}
    (written,) = staged.parts
    (file,) = written.files
    found = pq.ParquetFile(tmp_path / file.path).read().to_pylist()
    assert [(each["id"], each["value"]) for each in found] == [(1, 5), (2, 6)]
    assert sorted(written.keys["0"].to_pylist()) == [1, 2, 4]
    assert len(list(tmp_path.rglob("*.parquet"))) == 1


def test_an_empty_text_of_a_partition_is_rejected_unless_its_row_only_deletes(
    tmp_path: Path,
) -> None:
    rows = [row(1, 1, ""), row(2, 2), row(3, 3, "", gone=True), row(4, 4, "")]
    staged = fenced(tmp_path, key=["id"], deleted="gone").stage(Group(1, (), [rows], 4))
    assert set(staged.rejected) == {0, 3}
    assert sorted(staged.parts[0].keys["0"].to_pylist()) == [2, 3]
    staged = fenced(tmp_path).stage(Group(1, (), [rows], 4))
    assert set(staged.rejected) == {0, 2, 3}
    assert staged.num_rows == 1
