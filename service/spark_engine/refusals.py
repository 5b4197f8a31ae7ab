"""Which rows of which records a sink has refused after their task: not again, in another try. Pure.

A row is known by its record and its place among the rows that the record has in that sink.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

import numpy as np

from topology.sink import Batch

EVERY_ROW = -1
"""In place of a row's: no row of the record is wanted."""

Reasons = Mapping[int, str]
"""Why rows of a record are refused, by their places among its rows, or EVERY_ROW."""


class Origin(NamedTuple):
    """Where a row comes from."""

    line: str
    offset: int  # of its record
    place: int  # among the record's rows


def origins(group: Batch, records: Mapping[str, Collection[int]]) -> Iterator[tuple[int, Origin]]:
    """The rows of some records, which are named by line and offset: their places in the group.

    The group tells of which records its rows are; those of one are in the order they came in.
    """
    if group.offsets is None:
        raise AssertionError(group.sequence)
    start = 0
    for share in group.shares:
        offsets = group.offsets[start : start + share.num_rows]
        wanted = np.array(list(records.get(share.line, ())), np.int64)
        seen: Counter[int] = Counter()
        for row in np.flatnonzero(np.isin(offsets, wanted)).tolist():
            offset = int(offsets[row])
            yield start + row, Origin(share.line, offset, seen[offset])
            seen[offset] += 1
        start += share.num_rows


def origins_of(group: Batch, rows: Collection[int]) -> dict[int, Origin]:
    """Where some rows of a group come from."""
    if group.offsets is None:
        raise AssertionError(group.sequence)
    ends = np.cumsum([share.num_rows for share in group.shares])
    records: dict[str, set[int]] = {}
    for row in rows:
        line = group.shares[int(np.searchsorted(ends, row, side="right"))].line
        records.setdefault(line, set()).add(int(group.offsets[row]))
    return {row: origin for row, origin in origins(group, records) if row in rows}


def reason_of(reasons: Reasons, place: int) -> str | None:
    """Why a row of a record is refused; None: it is not."""
    return reasons.get(place, reasons.get(EVERY_ROW))


def again(known: Reasons | None, found: Reasons) -> Reasons:
    """What is to be refused in the next try, by what the last one knew, and what was found in it.

    If some rows were left out, and the sink takes the rest neither, its rows are others in each
    try: then it gets none, so that there is an end of it.
    """
    if known is None:
        return found
    return {EVERY_ROW: next(iter(found.values()))}
