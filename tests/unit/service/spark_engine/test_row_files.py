import decimal
import pickle
import stat
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.spark_engine.range_buffer import RangeWork, StagedLost, source_of
from service.spark_engine.task import RowFileStager, read_rows
from sinks.memory import MemorySink
from topology.errors import SinkFailed
from topology.sink import Batch, Share, Staged


def columns(first, count):
    numbers = pa.array(range(first, first + count))
    words = pa.array([f"w{n % 3}" for n in range(first, first + count)]).dictionary_encode()
    return pa.RecordBatch.from_arrays([numbers, words], names=["n", "w"])


def batch(*parts):
    pieces = [piece for _line, pieces in parts for piece in pieces]
    shares = tuple(Share(line, 1, 1, 1, 0, 9, "", sum(map(len, of))) for line, of in parts)
    rows = sum(each.num_rows for each in shares)
    return Batch(1, pieces, rows, shares, np.arange(1000, 1000 + rows))


def pickled(value):
    return pickle.loads(pickle.dumps(value))  # noqa: S301


def test_rows_of_every_kind_come_back_with_line_and_offsets(tmp_path):
    stager = pickled(RowFileStager(str(tmp_path / "made" / "here")))
    row, cut = SimpleNamespace(name="a", price=decimal.Decimal("1.50")), columns(0, 5).slice(1, 3)
    parts = ("t[0]", [[row, None], cut]), ("t[1]", []), ("t[2]", [[3]]), ("t[0]", [[4]])
    staged: Staged = pickled(stager.stage(batch(*parts)))
    assert (staged.num_rows, staged.rejected) == (7, {})
    assert [(line, pieces, of.tolist()) for line, pieces, of in read_rows(staged)] == [
        ("t[0]", [[row, None], cut], [1000, 1001, 1002, 1003, 1004]),
        ("t[1]", [], []),
        ("t[2]", [[3]], [1005]),
        ("t[0]", [[4]], [1006]),
    ]


def test_file_is_private_and_without_the_parent_of_a_slice(tmp_path):
    stager = RowFileStager(str(tmp_path / "a"))
    staged = stager.stage(batch(("t[0]", [columns(0, 50_000).slice(3, 2)])))
    (file,) = (tmp_path / "a").iterdir()
    assert file.stat().st_size < 10_000
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    for _ in range(2):
        stager.discard(staged)
    assert not file.exists()


class Planted:
    def __init__(self, proof):
        self.proof = proof

    def __reduce__(self):
        return Path.touch, (self.proof,)


@pytest.mark.parametrize("change", ["planted", "appended", "cut off", "another group's"])
def test_changed_file_is_refused_unread(change, tmp_path):
    stager = RowFileStager(str(tmp_path / "spool"))
    staged, other = (stager.stage(batch(("t[0]", [[n, n]]))) for n in (1, 2))
    path, proof = Path(staged.parts[0].path), tmp_path / "proof"
    written = path.read_bytes()
    changes = {
        "planted": pickle.dumps(([Planted(proof)], np.zeros(2, np.int64))),
        "appended": written + b"\0",
        "cut off": written[:-1],
        "another group's": Path(other.parts[0].path).read_bytes(),
    }
    path.write_bytes(changes[change])
    work = RangeWork("rows", stager, is_apart=False, made=(staged,))
    with pytest.raises(StagedLost, match="not as its task wrote it"):
        work.stage(MemorySink[Any]("rows"), Batch(1, [], staged.num_rows, staged.shares))
    assert not proof.exists()


def test_unpicklable_rows_end_the_run(tmp_path):
    with pytest.raises(SinkFailed, match="cannot pickle rows"):
        RowFileStager(str(tmp_path)).stage(batch(("t[0]", [[threading.Lock()]])))
    assert list(tmp_path.iterdir()) == []


def test_of_a_row_that_the_sink_rejects_the_record_is_known(tmp_path):
    """Promise 13: the engine asks again without the record, which gets its letter.

    Rows on which a sink breaks stay for the next attempt.
    """
    stager, sink = RowFileStager(str(tmp_path)), MemorySink[Any]("table")
    stage, sink.stage = sink.stage, Mock(side_effect=ValueError("I/O operation on closed file"))
    made = stager.stage(batch(("t[0]", [[0, 1, 2]]), ("t[1]", [[3, 4, 5]])))
    work = RangeWork("table", stager, is_apart=False, made=(made,))
    asked = Batch(1, [], 6, made.shares)
    with pytest.raises(ValueError, match="closed file"):
        work.stage(sink, asked)
    sink.stage = lambda group: replace(stage(group), num_rows=5, rejected={4: "no 4 please"})
    found = work.stage(sink, asked)
    assert (set(found.rejected), found.shares, found.num_rows) == ({4}, made.shares, 5)
    assert work.sources == {4: ("t[1]", 1004, 0)}
    assert not list(tmp_path.rglob("*.rows"))


@given(st.lists(st.lists(st.integers(0, 5), max_size=12).map(sorted), min_size=1, max_size=4))
def test_row_is_known_by_record_and_place_in_it(offsets):
    shares = tuple(Share(str(n), 1, 1, 1, 0, 9, "", len(of)) for n, of in enumerate(offsets))
    known = np.array([offset for of in offsets for offset in of], np.int64)
    asked = Batch(1, [[None] * len(known)], len(known), shares, known)
    assert [source_of(asked, row) for row in range(len(known))] == [
        (str(n), offset, row - of.index(offset))
        for n, of in enumerate(offsets)
        for row, offset in enumerate(of)
    ]
