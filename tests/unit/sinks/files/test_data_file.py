"""Files of a table's rows, that no reader sees until a log names them."""

from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sinks.files import data_file
from sinks.files.data_file import DataFile, DataFileWriter
from sinks.files.layout import Layout
from sinks.files.options import FileOptions, repeating
from topology.errors import SinkFailed


def table(rows: int = 10) -> pa.Table:
    return pa.table({"n": range(rows), "c": [f"c{number % 2}" for number in range(rows)]})


def read(root: Path, file: DataFile) -> list[dict[str, Any]]:
    return pq.ParquetFile(root / file.path).read().to_pylist()


def on_disk(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}


def test_all_rows_are_in_the_files_that_are_told(tmp_path: Path) -> None:
    files = DataFileWriter(tmp_path, Layout(["c"])).write(table(), 7)
    assert {file.path for file in files} == on_disk(tmp_path)
    for file in files:
        rows = read(tmp_path, file)
        assert [f"c{row['n'] % 2}" for row in rows] == [file.partition["c"]] * 5
        assert (file.num_rows, file.statistics.num_rows) == (5, 5)
        assert file.num_bytes == (tmp_path / file.path).stat().st_size
        assert Path(file.path).name.startswith("part-00007-")
        assert file.path.endswith(".snappy.parquet")


def test_a_large_table_becomes_several_files(tmp_path: Path) -> None:
    writer = DataFileWriter(tmp_path, Layout(), FileOptions(target_bytes=table().nbytes // 3))
    files = writer.write(table(), 1)
    assert len(files) == 4
    assert [row["n"] for file in files for row in read(tmp_path, file)] == list(range(10))


def test_the_same_rows_written_again_are_in_files_of_their_own(tmp_path: Path) -> None:
    writer = DataFileWriter(tmp_path, Layout())
    first, second = writer.write(table(), 1), writer.write(table(), 1)
    assert {file.path for file in first + second} == on_disk(tmp_path)
    writer.remove(first)
    writer.remove(first)
    assert {file.path for file in second} == on_disk(tmp_path)


@pytest.mark.parametrize("folders", [["c"], ["c", "d"]])
def test_no_row_is_written_where_a_link_leads_out_of_the_table(
    folders: list[str], tmp_path: Path
) -> None:
    root, elsewhere = tmp_path / "table", tmp_path / "elsewhere"
    for folder in (root, elsewhere):
        folder.mkdir()
    (root / "c=c1").symlink_to(elsewhere)
    rows = table().append_column("d", pa.array(["x"] * 10))
    writer = DataFileWriter(root, Layout(folders))
    with pytest.raises(SinkFailed, match=f"{root}/c=c1.* leads to {elsewhere}.*not below {root}"):
        writer.write(rows, 1)
    with pytest.raises(SinkFailed, match=f"leads to {elsewhere}"):
        writer.join([table()], 1, "c=c1", {"c": "c1"})
    assert not on_disk(root)
    assert not list(elsewhere.iterdir())


def test_a_table_may_be_behind_a_link_and_have_links_within(tmp_path: Path) -> None:
    (tmp_path / "real" / "inner").mkdir(parents=True)
    (tmp_path / "real" / "c=c1").symlink_to("inner")
    (tmp_path / "table").symlink_to("real")
    files = DataFileWriter(tmp_path / "table", Layout(["c"])).write(table(), 1)
    assert sum(file.num_rows for file in files) == 10


def test_an_error_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[Path] = []

    def break_at_the_second(rows: pa.Table, path: Path, **options: Any) -> None:
        written.append(path)
        if len(written) == 2:
            path.write_bytes(b"half")
            raise OSError(28, "No space left on device")
        original(rows, path, **options)

    original = pq.write_table
    monkeypatch.setattr(data_file.pq, "write_table", break_at_the_second)
    with pytest.raises(OSError, match="No space left"):
        DataFileWriter(tmp_path, Layout(["c"])).write(table(), 1)
    assert on_disk(tmp_path) == set()


def test_times_are_cut_to_microseconds_and_short_decimals_are_integers(tmp_path: Path) -> None:
    rows = pa.table(
        {
            "at": pa.array([1_001], pa.timestamp("ns")),
            "price": pa.array([Decimal("1.50")], pa.decimal128(9, 2)),
        }
    )
    (file,) = DataFileWriter(tmp_path, Layout()).write(rows, 1)
    schema = pq.ParquetFile(tmp_path / file.path).schema
    assert "microseconds" in str(schema.column(0).logical_type)
    assert schema.column(1).physical_type == "INT32"


def test_texts_that_come_again_get_a_dictionary() -> None:
    rows = pa.table({"key": [f"{n}" for n in range(10)], "c": ["x"] * 10, "n": [1] * 10})
    assert repeating(rows) == ["c"]
    assert repeating(rows.slice(10)) == ["key", "c"]


def test_tables_are_joined_in_one_file_in_their_order(tmp_path: Path) -> None:
    writer = DataFileWriter(tmp_path, Layout(), FileOptions(row_group_rows=20))
    file = writer.join((table() for _ in range(5)), 3, "c=x", {"c": "x"})
    assert file is not None
    assert on_disk(tmp_path) == {file.path}
    assert file.path.startswith("c=x/part-00003-")
    assert [row["n"] for row in read(tmp_path, file)] == 5 * list(range(10))
    assert (file.num_rows, file.partition) == (50, {"c": "x"})
    assert (file.statistics.minima["n"], file.statistics.maxima["n"]) == (0, 9)
    # Rows of small tables share a row group.
    assert pq.ParquetFile(tmp_path / file.path).metadata.num_row_groups == 3


def test_nothing_joined_is_no_file(tmp_path: Path) -> None:
    assert DataFileWriter(tmp_path, Layout()).join([table(0), table(0)], 1, "", {}) is None
    assert on_disk(tmp_path) == set()


def test_a_number_that_is_none_hides_no_row_of_files_that_are_joined(tmp_path: Path) -> None:
    writer = DataFileWriter(tmp_path, Layout(), FileOptions(row_group_rows=1))
    tables = [pa.table({"x": [1.0], "n": [1]}), pa.table({"x": [float("nan")], "n": [2]})]
    several, one = writer.join(tables, 1, "", {}), writer.join(tables[:1], 1, "", {})
    assert several is not None
    assert one is not None
    assert ("x" in several.statistics.minima, several.statistics.minima["n"]) == (False, 1)
    assert one.statistics.minima == {"x": 1.0, "n": 1}


def test_an_error_of_what_is_joined_leaves_no_file(tmp_path: Path) -> None:
    def broken() -> Iterator[pa.Table]:
        yield table()
        yield table()
        raise OSError(5, "Input/output error")

    writer = DataFileWriter(tmp_path, Layout(), FileOptions(row_group_rows=1))
    with pytest.raises(OSError, match="Input/output"):
        writer.join(broken(), 1, "", {})
    assert on_disk(tmp_path) == set()


def test_a_value_that_cannot_be_written_is_told_as_what_it_is(tmp_path: Path) -> None:
    """Closing the file raises something else, which says nothing of values."""
    times = pa.array([1_767_322_800_000_000_000], pa.timestamp("ms"))
    poison = pa.table({"t": times, "n": [1]})
    writer = DataFileWriter(tmp_path, Layout())
    with pytest.raises(pa.ArrowInvalid, match="overflow"):
        writer.write(poison, 1)
    with pytest.raises(pa.ArrowInvalid, match="overflow"):
        writer.join([poison], 1, "", {})
    assert on_disk(tmp_path) == set()
