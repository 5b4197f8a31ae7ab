import itertools
import pickle
import subprocess
import sys
import threading
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import fs

from sinks import DeltaSink
from sinks.storage import Storage
from sinks.tables import files
from sinks.tables.files import FileStager
from sinks.tables.partitioning import Layout
from tests.support.batches import group_of, share
from tests.support.patience import seconds
from topology.errors import SinkFailed

SCHEMA = pa.schema([pa.field("n", pa.int64(), nullable=False), ("c", pa.string())])


def table(rows=10):
    return pa.table({"n": range(rows), "c": [f"c{number % 2}" for number in range(rows)]})


def stager(root, *partition_by):
    return FileStager(Storage("/"), str(root), Layout(partition_by), SCHEMA)


def group(*rows):
    return group_of(7, [*rows])


def row(number, place="here"):
    return {"n": number, "c": place}


def read(root, file):
    return pq.ParquetFile(root / file.path).read().to_pylist()


def on_disk(root):
    return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}


def test_all_rows_are_in_the_files_that_are_told(tmp_path, monkeypatch):
    written = stager(tmp_path, "c").write(table(), 7)
    assert {file.path for file in written} == on_disk(tmp_path)
    for file in written:
        rows = read(tmp_path, file)
        assert [f"c{row['n'] % 2}" for row in rows] == [file.partition["c"]] * 5
        assert (file.num_rows, file.statistics.num_rows) == (5, 5)
        assert file.num_bytes == (tmp_path / file.path).stat().st_size
        assert Path(file.path).name.startswith("part-00007-")
        assert file.path.endswith(".snappy.parquet")
    monkeypatch.setattr(files, "_TARGET_BYTES", table().nbytes // 3)
    several = stager(tmp_path).write(table(), 1)
    assert len(several) == 4
    assert [row["n"] for file in several for row in read(tmp_path, file)] == list(range(10))


@pytest.mark.parametrize("folders", [["c"], ["c", "d"]])
def test_no_row_is_written_where_a_link_leads_out_of_the_table(folders, tmp_path):
    root, elsewhere = tmp_path / "table", tmp_path / "elsewhere"
    for folder in (root, elsewhere):
        folder.mkdir()
    (root / "c=c1").symlink_to(elsewhere)
    rows = table().append_column("d", pa.array(["x"] * 10))
    with pytest.raises(SinkFailed, match=f"{root}/c=c1.* leads to {elsewhere}.*not below {root}"):
        stager(root, *folders).write(rows, 1)
    assert not on_disk(root)
    assert not list(elsewhere.iterdir())
    (root / "c=c1").unlink()
    (root / "inner").mkdir()
    (root / "c=c1").symlink_to("inner")
    (tmp_path / "link").symlink_to("table")
    assert sum(file.num_rows for file in stager(tmp_path / "link", *folders).write(rows, 1)) == 10


@pytest.mark.parametrize("is_local", [True, False])
def test_error_leaves_no_file_of_those_written_beside_it(tmp_path, monkeypatch, is_local):
    for folder in ("c=c0", "c=c1"):
        (tmp_path / folder).mkdir()
    has_failed = threading.Event()

    def write(rows, file, **options):
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
        stager(tmp_path, "c").write(table(), 1)
    assert on_disk(tmp_path) == set()


def test_times_are_cut_to_microseconds_and_short_decimals_are_integers(tmp_path):
    at = pa.array([1_001], pa.timestamp("ns"))
    price = pa.array([Decimal("1.50")], pa.decimal128(9, 2))
    (file,) = stager(tmp_path).write(pa.table({"at": at, "price": price}), 1)
    schema = pq.ParquetFile(tmp_path / file.path).schema
    assert "microseconds" in str(schema.column(0).logical_type)
    assert schema.column(1).physical_type == "INT32"


def test_a_value_that_cannot_be_written_is_told_as_what_it_is(tmp_path):
    """Closing the file raises something else, which says nothing of values."""
    times = pa.array([1_767_322_800_000_000_000], pa.timestamp("ms"))
    with pytest.raises(pa.ArrowInvalid, match="overflow"):
        stager(tmp_path).write(pa.table({"t": times, "n": [1]}), 1)
    assert on_disk(tmp_path) == set()


def test_files_and_their_folders_are_on_the_disk_when_they_are_told(tmp_path, monkeypatch):
    """Promise 3: a power cut after the answer takes no row."""
    synced = []
    monkeypatch.setattr(files, "sync", synced.append)
    written = stager(tmp_path, "c").write(table(), 1)
    wanted = {f"/{file.path}" for file in written} | {"", "/c=c0", "/c=c1"}
    assert set(synced) == {f"{tmp_path}{each}" for each in wanted}

    def full(_):
        raise OSError("no space left")

    monkeypatch.setattr(files, "sync", full)
    with pytest.raises(OSError, match="no space left"):
        stager(tmp_path).stage(group(row(1)))
    assert on_disk(tmp_path) == {file.path for file in written}


PROGRAM = """
import pickle, sys
stager, group = pickle.load(sys.stdin.buffer)
staged = stager.stage(group)
assert not {"pyspark", "deltalake"} & set(sys.modules), "an executor's process needs neither"
pickle.dump(staged, sys.stdout.buffer)
"""


def test_a_stager_works_in_another_process_and_here_its_files_are_known(tmp_path):
    ours = stager(tmp_path, "c")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        input=pickle.dumps((ours, group(row(1), {}, row(2), row(3, "there")))),
        capture_output=True,
        check=True,
        timeout=seconds(60),
    )
    staged = pickle.loads(done.stdout)  # noqa: S301 - our own
    assert (staged.shares, staged.num_rows, set(staged.rejected)) == (
        (share(7, num_rows=4),),
        3,
        {1},
    )
    assert [file.partition for file in staged.parts] == [{"c": "here"}, {"c": "there"}]
    assert [file.path.split("/")[0] for file in staged.parts] == ["c=here", "c=there"]
    found = [[row["n"] for row in read(tmp_path, file)] for file in staged.parts]
    assert found == [[1, 2], [3]]
    ours.discard(staged)
    assert on_disk(tmp_path) == set()


@pytest.mark.parametrize(
    ("becomes", "wrong"), [(None, "is not there"), (b"short", "has 5 bytes here, not ")]
)
def test_a_file_of_another_process_that_is_not_here_is_named(tmp_path, becomes, wrong):
    """Promise 14: a log that named it would lack its rows."""
    writer = stager(tmp_path, "c")
    parts = writer.stage(group(row(1), row(2, "there"))).parts
    writer.check(parts)
    path = tmp_path / parts[1].path
    path.unlink()
    if becomes is not None:
        path.write_bytes(becomes)
    with pytest.raises(SinkFailed, match="must share the folder of the table") as raised:
        writer.check(parts)
    assert f"file {path}, which an executor wrote, {wrong}" in str(raised.value)


class RemoteStorage(Storage):
    """A local folder that has to be handled as a store's."""

    def filesystem(self, uri):
        return fs.SubTreeFileSystem(uri, fs.LocalFileSystem()), ""


def test_few_parts_for_a_store_are_in_memory_at_once(tmp_path, monkeypatch):
    """Promise 10: a part is a copy of its rows."""
    unwritten = []
    made, written = itertools.count(1), itertools.count(1)
    last = 0
    all_made = threading.Event()

    class Counted(Layout):
        def parts(self, table):
            for part in super().parts(table):
                (tmp_path / part.folder).mkdir()
                unwritten.append(next(made) - last)
                yield part
            all_made.set()

    def write(*positional, **options):
        nonlocal last
        all_made.wait(0.2)  # the first ones do so in vain
        all_made.set()
        original(*positional, **options)
        last = next(written)

    original = pq.write_table
    monkeypatch.setattr(files.pq, "write_table", write)
    remote = FileStager(RemoteStorage("/"), str(tmp_path), Counted(["c"]), SCHEMA)
    staged = remote.stage(group(*(row(number, f"place-{number}") for number in range(100))))
    assert len(staged.parts) == 100
    assert max(unwritten) <= files._AT_ONCE


def test_a_table_has_a_stager_once_it_was_fenced_and_with_a_key_none():
    """Of a key's rows the last one counts, and no process knows the others' rows."""
    with pytest.raises(SinkFailed, match="'orders' takes no batch before a fence"):
        DeltaSink("orders", schema=SCHEMA).stager()
    assert DeltaSink("orders", schema=SCHEMA, key=["n"]).stager() is None
