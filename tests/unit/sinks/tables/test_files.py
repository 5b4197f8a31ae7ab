"""Files of a table's rows, that no reader sees until a log names them."""

import threading
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sinks.storage import Storage
from sinks.tables import files
from sinks.tables.files import DataFile, FileStager
from sinks.tables.partitioning import Layout
from tests.support.patience import seconds
from topology.errors import SinkFailed

LOCAL = Storage("/")


def table(rows: int = 10) -> pa.Table:
    return pa.table({"n": range(rows), "c": [f"c{number % 2}" for number in range(rows)]})


def read(root: Path, file: DataFile) -> list[dict[str, Any]]:
    return pq.ParquetFile(root / file.path).read().to_pylist()


def on_disk(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}


def test_all_rows_are_in_the_files_that_are_told(tmp_path: Path) -> None:
    written = FileStager(LOCAL, str(tmp_path), Layout(["c"])).write(table(), 7)
    assert {file.path for file in written} == on_disk(tmp_path)
    for file in written:
        rows = read(tmp_path, file)
        assert [f"c{row['n'] % 2}" for row in rows] == [file.partition["c"]] * 5
        assert (file.num_rows, file.statistics.num_rows) == (5, 5)
        assert file.num_bytes == (tmp_path / file.path).stat().st_size
        assert Path(file.path).name.startswith("part-00007-")
        assert file.path.endswith(".snappy.parquet")


def test_a_large_table_becomes_several_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "_TARGET_BYTES", table().nbytes // 3)
    written = FileStager(LOCAL, str(tmp_path)).write(table(), 1)
    assert len(written) == 4
    assert [row["n"] for file in written for row in read(tmp_path, file)] == list(range(10))


def test_the_same_rows_written_again_are_in_files_of_their_own(tmp_path: Path) -> None:
    writer = FileStager(LOCAL, str(tmp_path))
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
    writer = FileStager(LOCAL, str(root), Layout(folders))
    with pytest.raises(SinkFailed, match=f"{root}/c=c1.* leads to {elsewhere}.*not below {root}"):
        writer.write(rows, 1)
    assert not on_disk(root)
    assert not list(elsewhere.iterdir())


def test_a_table_may_be_behind_a_link_and_have_links_within(tmp_path: Path) -> None:
    (tmp_path / "real" / "inner").mkdir(parents=True)
    (tmp_path / "real" / "c=c1").symlink_to("inner")
    (tmp_path / "table").symlink_to("real")
    written = FileStager(LOCAL, str(tmp_path / "table"), Layout(["c"])).write(table(), 1)
    assert sum(file.num_rows for file in written) == 10


@pytest.mark.parametrize("is_local", [True, False])
def test_error_leaves_no_file_of_those_written_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_local: bool
) -> None:
    for folder in ("c=c0", "c=c1"):
        (tmp_path / folder).mkdir()
    has_failed = threading.Event()

    def write(rows: pa.Table, file: Any, **options: Any) -> None:
        if rows["n"][0].as_py() == 1:
            file.write(b"half")
            has_failed.set()
            raise OSError(28, "No space left on device")
        assert is_local or has_failed.wait(seconds(20))
        original(rows, file, **options)

    original = pq.write_table
    monkeypatch.setattr(files.pq, "write_table", write)
    monkeypatch.setattr(files, "is_local", lambda _: is_local)
    with pytest.raises(OSError, match="No space left"):
        FileStager(LOCAL, str(tmp_path), Layout(["c"])).write(table(), 1)
    assert on_disk(tmp_path) == set()


def test_times_are_cut_to_microseconds_and_short_decimals_are_integers(tmp_path: Path) -> None:
    rows = pa.table(
        {
            "at": pa.array([1_001], pa.timestamp("ns")),
            "price": pa.array([Decimal("1.50")], pa.decimal128(9, 2)),
        }
    )
    (file,) = FileStager(LOCAL, str(tmp_path)).write(rows, 1)
    schema = pq.ParquetFile(tmp_path / file.path).schema
    assert "microseconds" in str(schema.column(0).logical_type)
    assert schema.column(1).physical_type == "INT32"


def test_a_value_that_cannot_be_written_is_told_as_what_it_is(tmp_path: Path) -> None:
    """Closing the file raises something else, which says nothing of values."""
    times = pa.array([1_767_322_800_000_000_000], pa.timestamp("ms"))
    poison = pa.table({"t": times, "n": [1]})
    writer = FileStager(LOCAL, str(tmp_path))
    with pytest.raises(pa.ArrowInvalid, match="overflow"):
        writer.write(poison, 1)
    assert on_disk(tmp_path) == set()


def test_files_and_their_folders_are_on_the_disk_when_they_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Promise 3: a power cut after the answer takes no row."""
    synced: list[str] = []
    monkeypatch.setattr(files, "sync", synced.append)
    written = FileStager(LOCAL, str(tmp_path), Layout(["c"])).write(table(), 1)
    folders = {"", "/c=c0", "/c=c1"}
    wanted = {f"/{file.path}" for file in written} | folders
    assert set(synced) == {f"{tmp_path}{each}" for each in wanted}
