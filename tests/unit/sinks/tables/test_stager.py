"""Files that another process writes, for a commit in this one."""

import itertools
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from threading import Event
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import fs

from sinks import DeltaSink
from sinks.storage import Storage
from sinks.tables import files
from sinks.tables.files import FileStager
from sinks.tables.partitioning import Layout, Part
from tests.support.patience import seconds
from topology.errors import SinkFailed
from topology.sink import Batch, Piece, Share, Staged

LOCAL = Storage("/")
SCHEMA = pa.schema([pa.field("n", pa.int64(), nullable=False), ("place", pa.string())])
SHARE = Share("orders[0]", 1, 1, 1, 0, 10, "d", 3)

PROGRAM = """
import pickle, sys
stager, group = pickle.load(sys.stdin.buffer)
staged = stager.stage(group)
assert not {"pyspark", "deltalake"} & set(sys.modules), "an executor's process needs neither"
pickle.dump(staged, sys.stdout.buffer)
"""


def group(*rows: object) -> Batch:
    pieces: list[Piece] = [list(rows)]
    return Batch(7, pieces, len(rows), (SHARE,))


def row(number: int, place: str = "here") -> dict[str, object]:
    return {"n": number, "place": place}


def test_a_stager_works_in_another_process_and_here_its_files_are_known(tmp_path: Path) -> None:
    stager = FileStager(LOCAL, str(tmp_path), Layout(["place"]), SCHEMA)
    given = pickle.dumps((stager, group(row(1), {}, row(2), row(3, "there"))))
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        input=given,
        capture_output=True,
        check=True,
        timeout=seconds(60),
    )
    staged: Staged = pickle.loads(done.stdout)  # noqa: S301 - our own
    assert (staged.shares, staged.num_rows, set(staged.rejected)) == ((SHARE,), 3, {1})
    assert {file.path.split("/")[0] for file in staged.parts} == {"place=here", "place=there"}
    assert [file.partition for file in staged.parts] == [{"place": "here"}, {"place": "there"}]
    rows = [pq.ParquetFile(tmp_path / file.path).read() for file in staged.parts]
    assert [each.column("n").to_pylist() for each in rows] == [[1, 2], [3]]
    stager.discard(staged)
    assert not list(tmp_path.rglob("*.parquet"))


def test_rows_that_cannot_be_synced_leave_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: str) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(files, "sync", full)
    stager = FileStager(LOCAL, str(tmp_path), Layout(), SCHEMA)
    with pytest.raises(OSError, match="no space left"):
        stager.stage(group(row(1)))
    assert not list(tmp_path.rglob("*.parquet"))


def test_a_row_that_no_file_can_hold_is_rejected_and_the_others_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Promise 13: and no file of the search for it is left."""

    def write(rows: pa.Table, file: Any, **options: Any) -> None:
        if 3 in rows["n"].to_pylist():
            raise pa.ArrowInvalid("3 cannot be written")
        original(rows, file, **options)

    original = pq.write_table
    monkeypatch.setattr(files.pq, "write_table", write)
    stager = FileStager(LOCAL, str(tmp_path), Layout(["place"]), SCHEMA)
    staged = stager.stage(group(row(1), {}, row(2, "there"), row(3), row(4)))
    assert staged.num_rows == 3
    assert set(staged.rejected) == {1, 3}
    assert staged.rejected[3] == "no file can hold it: ArrowInvalid: 3 cannot be written"
    found = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.parquet")}
    assert found == {file.path for file in staged.parts}
    assert len(found) == 2


@pytest.mark.parametrize(
    ("becomes", "wrong"), [(None, "is not there"), (b"short", "has 5 bytes here, not ")]
)
def test_a_file_of_another_process_that_is_not_here_is_named(
    tmp_path: Path, becomes: bytes | None, wrong: str
) -> None:
    """Promise 14: a log that named it would lack its rows."""
    writer = FileStager(LOCAL, str(tmp_path), Layout(["place"]), SCHEMA)
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

    def filesystem(self, uri: str) -> tuple[fs.FileSystem, str]:
        return fs.SubTreeFileSystem(uri, fs.LocalFileSystem()), ""


def test_few_parts_for_a_store_are_in_memory_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Promise 10: a part is a copy of its rows."""
    unwritten: list[int] = []
    made, written = itertools.count(1), itertools.count(1)
    last = 0
    all_made = Event()

    class Counted(Layout):
        def parts(self, table: pa.Table) -> Iterator[Part]:
            for part in super().parts(table):
                (tmp_path / part.folder).mkdir()
                unwritten.append(next(made) - last)
                yield part
            all_made.set()

    def write(*positional: Any, **options: Any) -> None:
        nonlocal last
        all_made.wait(0.2)  # the first ones do so in vain
        all_made.set()
        original(*positional, **options)
        last = next(written)

    original = pq.write_table
    monkeypatch.setattr(files.pq, "write_table", write)
    stager = FileStager(RemoteStorage("/"), str(tmp_path), Counted(["place"]), SCHEMA)
    staged = stager.stage(group(*(row(number, f"place-{number}") for number in range(100))))
    assert len(staged.parts) == 100
    assert max(unwritten) <= files._AT_ONCE


def test_no_table_has_a_stager_before_it_was_fenced() -> None:
    with pytest.raises(SinkFailed, match="'orders' takes no batch before a fence"):
        DeltaSink("orders", schema=SCHEMA).stager()


def test_rows_with_a_key_are_staged_in_one_place() -> None:
    """Of a key's rows the last one counts, and no process knows the others' rows."""
    assert DeltaSink("orders", schema=SCHEMA, key=["n"]).stager() is None
