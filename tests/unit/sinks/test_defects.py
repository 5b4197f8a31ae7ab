"""Rows on which a sink's code breaks are found, and no other suffers."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sinks.defects import at_the_second, stage_others, write_others
from sinks.memory import MemorySink
from sinks.rows import rows_of
from topology.errors import RowsRejected
from topology.sink import Batch, Piece
from topology.transactional import Group, Share, Staged


class Choking(MemorySink[Any]):
    """Breaks on some numbers, rejects 13, and knows what it has staged and not discarded."""

    def __init__(self, *bad: int, error: Exception | None = None) -> None:
        super().__init__("choking")
        self.bad = set(bad)
        self.error = error or pa.ArrowInvalid("would be cut off\nby a lot")
        self.staged: list[Staged] = []
        self.calls = 0

    def write(self, batch: Batch) -> None:
        rejected = self.judged(batch.pieces)
        self.rows += [row for row in rows_of(batch.pieces) if row["n"] != 13]
        if rejected:
            raise RowsRejected(rejected)

    def stage(self, group: Group) -> Staged:
        rejected = self.judged(group.pieces)
        assert sum(share.num_rows for share in group.shares) == group.num_rows
        assert group.offsets is not None
        numbers = [row["n"] for row in rows_of(group.pieces)]
        assert group.offsets.tolist() == [100 + number for number in numbers]
        kept = [number for number in numbers if number != 13]
        self.staged.append(Staged(group.shares, len(kept), tuple(kept), rejected))
        return self.staged[-1]

    def discard(self, staged: Staged) -> None:
        self.staged.remove(staged)

    def judged(self, pieces: Sequence[Piece]) -> dict[int, str]:
        self.calls += 1
        numbers = [row["n"] for row in rows_of(pieces)]
        if self.bad & set(numbers):
            raise self.error
        return {place: "unlucky" for place, number in enumerate(numbers) if number == 13}


def pieces_of(num_rows: int, columns: tuple[int, int] = (0, 0)) -> list[Piece]:
    """Rows that are numbered from 0; those between these places are columns."""
    rows = [{"n": number} for number in range(num_rows)]
    start, stop = columns
    between = pa.RecordBatch.from_pylist(rows[start:stop], schema=pa.schema([("n", pa.int64())]))
    return [rows[:start], between, rows[stop:]]


def group(num_rows: int, columns: tuple[int, int] = (0, 0)) -> Group:
    first = num_rows // 3
    shares = tuple(
        Share(f"t[{number}]", 1, 1, 1, 0, 1, "0" * 32, rows)
        for number, rows in enumerate((first, num_rows - first))
    )
    offsets = np.arange(100, 100 + num_rows)
    return Group(1, shares, pieces_of(num_rows, columns), num_rows, offsets)


numbered = st.integers(1, 40).flatmap(
    lambda count: st.tuples(
        st.just(count),
        st.sets(st.integers(0, count - 1), max_size=5),
        st.tuples(st.integers(0, count), st.integers(0, count)).map(
            lambda ends: (min(ends), max(ends))
        ),
    )
)


@given(numbered)
def test_a_group_is_staged_as_one_without_the_rows_on_which_staging_breaks(
    drawn: tuple[int, set[int], tuple[int, int]],
) -> None:
    count, bad, columns = drawn
    bad -= {13}
    sink = Choking(*bad)
    whole = group(count, columns)
    staged = stage_others(sink, whole)
    unlucky = {13} if count > 13 else set()
    assert set(staged.rejected) == bad | unlucky
    assert staged.parts == tuple(n for n in range(count) if n not in bad | unlucky)
    assert (staged.shares, staged.num_rows) == (whole.shares, len(staged.parts))
    assert len(sink.staged) == 1  # what was tried is discarded
    assert all("ArrowInvalid: would be cut off" in staged.rejected[place] for place in bad)


@given(numbered)
def test_a_batch_is_written_without_the_rows_on_which_writing_breaks(
    drawn: tuple[int, set[int], tuple[int, int]],
) -> None:
    count, bad, columns = drawn
    bad -= {13}
    sink = Choking(*bad)

    def write(batch: Batch) -> dict[int, str]:
        try:
            sink.write(batch)
        except RowsRejected as rejection:
            return rejection.reasons
        return {}

    rejected = write_others(write, Batch(1, pieces_of(count, columns), count))
    assert set(rejected) == bad | ({13} if count > 13 else set())
    assert [row["n"] for row in sink.rows] == [n for n in range(count) if n not in {13, *rejected}]


def test_when_every_row_is_bad_the_work_has_an_end() -> None:
    sink = Choking(*range(64))
    staged = stage_others(sink, group(64))
    assert (staged.num_rows, len(staged.rejected)) == (0, 64)
    assert sink.calls <= 2 * 64 + 2
    sink.calls = 0
    assert len(write_others(lambda batch: sink.judged(batch.pieces), batch_of(64))) == 64
    assert sink.calls <= 2 * 64


def batch_of(num_rows: int) -> Batch:
    return Batch(1, pieces_of(num_rows), num_rows)


def test_one_bad_row_costs_a_few_tries() -> None:
    sink = Choking(700)
    assert set(stage_others(sink, group(1024)).rejected) == {13, 700}
    assert sink.calls <= 25


def test_what_breaks_without_rows_too_is_no_fault_of_theirs() -> None:
    class Broken(Choking):
        def judged(self, pieces: Sequence[Piece]) -> dict[int, str]:
            raise ValueError(len(pieces))

    with pytest.raises(ValueError, match="0"):
        stage_others(Broken(), group(5))
    with pytest.raises(ValueError, match="0"):
        write_others(lambda batch: Broken().judged(batch.pieces), Batch(1, [[], [], []], 0))


@pytest.mark.parametrize(
    "error",
    [OSError("disk"), json.JSONDecodeError("html", "<", 0), msgspec.DecodeError("html")],
    ids=lambda error: type(error).__name__,
)
def test_what_is_no_defect_of_rows_is_raised(error: Exception) -> None:
    sink = Choking(3, error=error)
    with pytest.raises(type(error)):
        stage_others(sink, group(5))
    with pytest.raises(type(error)):
        write_others(lambda batch: sink.judged(batch.pieces), batch_of(5))
    tried = at_the_second(lambda: sink.judged(pieces_of(5)), dict)
    for _ in range(3):
        with pytest.raises(type(error)):
            tried()


@pytest.mark.parametrize("error", [OverflowError(), "\ud800", b"\xff"], ids=repr)
def test_what_code_raises_of_values_is_a_defect_of_rows(error: Any) -> None:
    if not isinstance(error, Exception):
        with pytest.raises(UnicodeError) as caught:
            error.encode() if isinstance(error, str) else error.decode()
        error = caught.value
    assert set(stage_others(Choking(3, error=error), group(5)).rejected) == {3}


def test_a_group_whose_pieces_only_stand_for_rows_is_not_divided() -> None:
    stands = Group(1, (), [["one for ten"]], 10)

    class Standing(MemorySink[Any]):
        def stage(self, group: Group) -> Staged:
            assert group is stands
            raise ValueError("as it is")

    with pytest.raises(ValueError, match="as it is"):
        stage_others(Standing("standing"), stands)


def test_the_first_failure_is_taken_as_passing_and_the_second_as_the_rows() -> None:
    failures: Iterator[Exception | None] = iter(
        [ValueError(), None, OSError(), OverflowError(), ValueError()]
    )

    def work() -> str:
        failure = next(failures)
        if failure is not None:
            raise failure
        return "done"

    tried = at_the_second(work, lambda: "rescued")
    with pytest.raises(ValueError):  # noqa: PT011 - it has no text
        tried()
    assert tried() == "done"
    with pytest.raises(OSError):  # noqa: PT011
        tried()
    assert tried() == "rescued"
    assert tried() == "rescued"
