"""Rows on which the code of a sink breaks: found by halving, so that one never stops the others.

The net below `fit`, which judges rows without writing them. Pure, but for what the sink does.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from topology.sink import Batch, Piece
from topology.transactional import Group, Share, Staged

Result = TypeVar("Result")

DEFECTS = (ValueError, OverflowError)
"""What code raises of values; pyarrow's ArrowInvalid and Python's UnicodeErrors are among them."""

# Of these the likelier cause is what the sink has read, of a service for example.
_OF_ANSWERS = (json.JSONDecodeError, msgspec.DecodeError)
_LONGEST = 200  # characters of an error in a reason


class _Stages(Protocol):
    """A sink of transactions, or a stager."""

    def stage(self, group: Group) -> Staged: ...

    def discard(self, staged: Staged) -> None: ...


def at_the_second(work: Callable[[], Result], rescue: Callable[[], Result]) -> Callable[[], Result]:
    """Work that is left to `rescue` from the second time on that it fails as rows make it fail.

    The first time something else may have been the cause.
    """
    failures = 0

    def tried() -> Result:
        nonlocal failures
        try:
            return work()
        except _OF_ANSWERS:
            raise
        except DEFECTS:
            failures += 1
            if failures == 1:
                raise
        return rescue()

    return tried


def stage_others(sink: _Stages, group: Group) -> Staged:
    """Stage a group without the rows on which `stage` breaks, which are rejected.

    Raises what `stage` raises of no rows at all, and what is no defect of rows. Costs a few tries
    for each such row, two for each row if all are.
    """
    if sum(map(len, group.pieces)) != group.num_rows:
        return sink.stage(group)  # its pieces only stand for rows

    def try_out(start: int, stop: int) -> dict[int, str]:
        sink.discard(sink.stage(_only(group, np.arange(start, stop))))
        return {}

    try_out(0, 0)
    reasons = _halved(try_out, group.num_rows)
    kept = np.delete(np.arange(group.num_rows), list(reasons))
    staged = sink.stage(_only(group, kept) if reasons else group)
    rejected = {int(kept[row]): reason for row, reason in staged.rejected.items()}
    return replace(staged, shares=group.shares, rejected=reasons | rejected)


def write_others(write: Callable[[Batch], dict[int, str]], batch: Batch) -> dict[int, str]:
    """Write a batch, in parts, without the rows on which `write` breaks; return all rejected rows.

    `write` returns those of a part. Raises what it raises, if that is no defect of rows; then any
    part may have been written.
    """

    def write_part(start: int, stop: int) -> dict[int, str]:
        rows = np.arange(start, stop)
        reasons = write(Batch(batch.sequence, _at(batch.pieces, rows), stop - start))
        return {start + row: reason for row, reason in reasons.items()}

    return _halved(write_part, batch.num_rows)


def _halved(work: Callable[[int, int], dict[int, str]], num_rows: int) -> dict[int, str]:
    """Do some work for runs of rows, ever shorter ones where it breaks; why rows are rejected."""
    rejected: dict[int, str] = {}
    spans = [(0, num_rows)]
    while spans:
        start, stop = spans.pop()
        try:
            rejected |= work(start, stop)
        except _OF_ANSWERS:
            raise
        except DEFECTS as error:
            if stop - start < 1:
                raise
            if stop - start == 1:
                rejected[start] = f"the sink cannot take it: {_line(error)}"
                continue
            middle = (start + stop) // 2
            spans += [(middle, stop), (start, middle)]
    return rejected


def _only(group: Group, kept: npt.NDArray[np.int64]) -> Group:
    """The rows of a group at these places, ascending."""
    shares: list[Share] = []
    start = 0
    for share in group.shares:
        shares.append(replace(share, num_rows=len(_within(kept, start, share.num_rows))))
        start += share.num_rows
    offsets = None if group.offsets is None else group.offsets[kept]
    return Group(group.number, tuple(shares), _at(group.pieces, kept), len(kept), offsets)


def _at(pieces: Sequence[Piece], kept: npt.NDArray[np.int64]) -> list[Piece]:
    found: list[Piece] = []
    start = 0
    for piece in pieces:
        places = _within(kept, start, len(piece))
        start += len(piece)
        if not len(places):
            continue
        if isinstance(piece, pa.RecordBatch):
            found.append(piece.take(places))
        else:
            found.append([piece[place] for place in places.tolist()])
    return found


def _within(places: npt.NDArray[np.int64], start: int, length: int) -> npt.NDArray[np.int64]:
    """Those of ascending places that lie in a run, counted from its start."""
    low, high = np.searchsorted(places, [start, start + length])
    return places[low:high] - start


def _line(error: Exception) -> str:
    said: Any = (str(error).splitlines() or [""])[0]
    return f"{type(error).__name__}: {said}"[:_LONGEST]
