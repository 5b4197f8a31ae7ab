"""The sink of a task stages through a stager, and rejects what the driver was refused."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from service.spark_engine.refusals import EVERY_ROW
from service.spark_engine.taking import TakingSink
from sinks.rows import rows_of
from tests.worlds.tasking import KeepingStager, rows_in
from topology.sink import Batch, Committed, Fence, Share, Staged


def group(*lines: tuple[str, int], columns: bool = False) -> Batch:
    """Rows 0, 1, 2, … in pieces of two; a line's records have the offsets 0, 1, 2, …"""
    shares = tuple(Share(line, 1, 1, 1, 0, 100, "", rows) for line, rows in lines)
    count = sum(rows for _line, rows in lines)
    rows = list(range(count))
    pieces: list[Any] = [rows[at : at + 2] for at in range(0, count, 2)]
    if columns:
        pieces = [pa.RecordBatch.from_pylist([{"n": n} for n in piece]) for piece in pieces]
    offsets = np.concatenate([np.arange(n) for _line, n in lines])
    return Batch(1, pieces, count, shares, offsets)


@pytest.mark.parametrize("columns", [False, True])
def test_rejected_rows_are_named_by_their_places_in_the_whole_group(*, columns: bool) -> None:
    """Places are those of the group, though the stager saw fewer rows."""
    row: Any = (lambda n: {"n": n}) if columns else (lambda n: n)
    stager = KeepingStager(unfit=[row(0), row(6)])
    sink = TakingSink(
        "rows", stager, {"a": {1: {0: "one"}, 2: {0: "two"}}, "b": {0: {EVERY_ROW: "none"}}}
    )
    asked = group(("a", 4), ("b", 5), columns=columns)
    staged = sink.stage(asked)
    assert staged.shares == asked.shares
    assert staged.rejected == {0: "unfit", 1: "one", 2: "two", 4: "none", 6: "unfit"}
    assert staged.num_rows == 4
    (seen,) = stager.groups
    assert list(rows_of(seen.pieces)) == [row(n) for n in (0, 3, 5, 6, 7, 8)]
    assert [share.num_rows for share in seen.shares] == [2, 4]
    assert seen.offsets is not None
    assert seen.offsets.tolist() == [0, 3, 1, 2, 3, 4]
    sink.commit(staged)
    assert rows_in(sink.taken) == [row(n) for n in (3, 5, 7, 8)]


def test_of_a_record_with_many_rows_only_those_that_were_refused_are_rejected() -> None:
    """Lines may have the same offsets, and a record fewer rows than it had before."""
    stager = KeepingStager()
    sink = TakingSink(
        "rows",
        stager,
        {"a": {7: {1: "middle"}}, "b": {7: {0: "first", 9: "gone"}, 8: {EVERY_ROW: "all"}}},
    )
    lines = (("a", 5), ("b", 5), ("c", 1))
    shares = tuple(Share(line, 1, 1, 1, 0, 100, "", rows) for line, rows in lines)
    offsets = np.array([6, 7, 7, 8, 7, 8, 7, 9, 7, 8, 7])
    staged = sink.stage(Batch(1, [list(range(11))], 11, shares, offsets))
    assert staged.rejected == {2: "middle", 5: "all", 6: "first", 9: "all"}
    sink.commit(staged)
    assert rows_in(sink.taken) == [0, 1, 3, 4, 7, 8, 10]


def test_a_group_without_rows_makes_no_file() -> None:
    stager = KeepingStager()
    sink = TakingSink("rows", stager, {"a": {0: {0: "no"}}})
    for asked, rejected in ((group(("a", 0)), {}), (group(("a", 1)), {0: "no"})):
        staged = sink.stage(asked)
        assert (staged.num_rows, staged.rejected) == (0, rejected)
        sink.commit(staged)
    assert (stager.groups, sink.taken) == ([], [])


class _Stubborn(KeepingStager):
    def discard(self, staged: Staged) -> None:
        super().discard(staged)
        if len(self.discarded) == 1:
            raise OSError("busy")


def test_what_was_made_is_discarded_once_and_one_that_cannot_be_keeps_no_other() -> None:
    stager = _Stubborn()
    sink = TakingSink("rows", stager, {})
    first, second, third = (sink.stage(group(("a", 2))) for _ in range(3))
    sink.commit(first)
    with pytest.raises(OSError, match="busy"):
        sink.discard(third)
    sink.discard(third)
    sink.discard_all()
    sink.discard_all()
    made = [each.parts[0] for each in (third, third, first, second)]
    assert stager.discarded == made
    assert sink.taken == []


def test_it_fences_nothing() -> None:
    sink = TakingSink("rows", KeepingStager(), {})
    assert sink.fence([Fence("a", 4)]) == [Committed("a", 4, 0)]
    sink.close()
