"""What an Iceberg table's files get of a group's rows; no Spark runs."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sinks.files import data_file
from sinks.files.data_file import DataFileWriter
from sinks.spark.iceberg.layout import IcebergLayout
from sinks.spark.iceberg.way import Way
from topology.transactional import Group

ROWS = pa.schema([pa.field("n", pa.int64()), pa.field("place", pa.string(), nullable=False)])


def test_a_row_that_no_file_can_hold_is_rejected_and_an_empty_text_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Promise 13: and no file of the search for it is left."""

    def write(rows: pa.Table, path: Path, **options: Any) -> None:
        if 3 in rows["n"].to_pylist():
            raise pa.ArrowInvalid("3 cannot be written")
        original(rows, path, **options)

    original = pq.write_table
    monkeypatch.setattr(data_file.pq, "write_table", write)
    facts: Any = None
    writer = DataFileWriter(tmp_path, IcebergLayout(["place"], {"place": "string"}))
    way = Way(facts, ROWS, ROWS.with_metadata({"of": "the table"}), writer)
    rows = [{"n": number, "place": ""} for number in range(5)]
    staged = way.stage(Group(7, (), [[{"n": 9}, *rows]], 6))
    assert (staged.num_rows, set(staged.rejected)) == (4, {0, 4})
    (written,) = staged.parts
    (file,) = written.files
    assert pq.ParquetFile(tmp_path / file.path).read()["n"].to_pylist() == [0, 1, 2, 4]
    assert len(list(tmp_path.rglob("*.parquet"))) == 1
