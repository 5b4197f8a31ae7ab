"""Rows by file from a task to the driver."""

import decimal
import pickle
import stat
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from service.spark_engine.range_buffer import RangeWork, StagedLost
from service.spark_engine.task import RowFileStager, read_rows
from sinks.memory import MemorySink
from topology.errors import SinkFailed
from topology.sink import Batch, Share, Staged


@dataclass
class Row:
    """A user's own row."""

    name: str
    price: decimal.Decimal


def share(line: str, rows: int) -> Share:
    return Share(line, 1, 1, 1, 0, 100, "", rows)


def batch(first: int, count: int) -> pa.RecordBatch:
    numbers = pa.array(range(first, first + count))
    words = pa.array([f"w{n % 3}" for n in range(first, first + count)]).dictionary_encode()
    return pa.RecordBatch.from_arrays([numbers, words], names=["n", "w"])


def group(*parts: tuple[str, list[Any]]) -> Batch:
    pieces = [piece for _line, pieces in parts for piece in pieces]
    shares = tuple(share(line, sum(map(len, pieces))) for line, pieces in parts)
    rows = sum(each.num_rows for each in shares)
    return Batch(1, pieces, rows, shares, np.arange(1000, 1000 + rows))


def again(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))  # noqa: S301


def test_rows_of_every_kind_come_back_with_their_offsets(tmp_path: Path) -> None:
    stager = again(RowFileStager(str(tmp_path / "made" / "here")))
    row = Row("a", decimal.Decimal("1.50"))
    staged: Staged = again(stager.stage(group(("t[0]", [[row, None], batch(0, 5).slice(1, 3)]))))
    assert (staged.num_rows, staged.rejected) == (5, {})
    ((_line, pieces, offsets),) = read_rows(staged)
    assert pieces[0] == [row, None]
    assert pieces[1] == batch(0, 5).slice(1, 3)
    assert offsets.tolist() == [1000, 1001, 1002, 1003, 1004]


def test_a_slice_does_not_take_its_whole_parent_along(tmp_path: Path) -> None:
    stager = RowFileStager(str(tmp_path))
    stager.stage(group(("t[0]", [batch(0, 50_000).slice(3, 2)])))
    (file,) = tmp_path.iterdir()
    assert file.stat().st_size < 10_000


def test_rows_are_told_apart_by_line(tmp_path: Path) -> None:
    stager = RowFileStager(str(tmp_path))
    staged = stager.stage(
        group(("t[0]", [[1, 2], [3]]), ("t[1]", []), ("t[2]", [batch(0, 4)]), ("t[0]", [[4]]))
    )
    assert [
        (line, list(map(len, pieces)), offsets.tolist())
        for line, pieces, offsets in read_rows(staged)
    ] == [
        ("t[0]", [2, 1], [1000, 1001, 1002]),
        ("t[1]", [], []),
        ("t[2]", [4], [1003, 1004, 1005, 1006]),
        ("t[0]", [1], [1007]),
    ]


def test_each_group_has_a_file_of_its_own_and_discarding_removes_it(tmp_path: Path) -> None:
    stager = RowFileStager(str(tmp_path))
    one, two = (stager.stage(group(("t[0]", [[n]]))) for n in (1, 2))
    stager.discard(one)
    stager.discard(one)
    assert len(list(tmp_path.iterdir())) == 1
    assert [pieces for _line, pieces, _offsets in read_rows(two)] == [[[2]]]
    with pytest.raises(OSError, match="No such file"):
        list(read_rows(one))


class Planted:
    """Writes a file when it is unpickled."""

    def __init__(self, proof: Path) -> None:
        self.proof = proof

    def __reduce__(self) -> Any:
        return Path.touch, (self.proof,)


@pytest.mark.parametrize("change", ["planted", "appended", "cut off", "another group's"])
def test_a_file_that_somebody_changed_is_refused_unread(change: str, tmp_path: Path) -> None:
    stager = RowFileStager(str(tmp_path / "spool"))
    staged, other = (stager.stage(group(("t[0]", [[n, n]]))) for n in (1, 2))
    path, proof = Path(staged.parts[0].path), tmp_path / "proof"
    written = path.read_bytes()
    path.write_bytes(
        {
            "planted": pickle.dumps(([Planted(proof)], np.zeros(2, np.int64))),
            "appended": written + b"\0",
            "cut off": written[:-1],
            "another group's": Path(other.parts[0].path).read_bytes(),
        }[change]
    )
    outlet: Any = None
    work = RangeWork(outlet, stager, is_apart=False, made=(staged,))
    with pytest.raises(StagedLost, match="not as its task wrote it"):
        work.stage(MemorySink[Any]("rows"), Batch(1, [], staged.num_rows, staged.shares))
    assert not proof.exists()


def test_rows_are_private(tmp_path: Path) -> None:
    RowFileStager(str(tmp_path / "a" / "b")).stage(group(("t[0]", [[1]])))
    assert stat.S_IMODE((tmp_path / "a" / "b").stat().st_mode) == 0o700


def test_rows_that_cannot_be_pickled_end_the_run_and_leave_no_file(tmp_path: Path) -> None:
    with pytest.raises(SinkFailed, match="cannot pickle rows"):
        RowFileStager(str(tmp_path)).stage(group(("t[0]", [[threading.Lock()]])))
    assert list(tmp_path.iterdir()) == []
