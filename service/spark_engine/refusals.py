"""Which rows of which records a sink has refused after their task: not again, in another try. Pure.

A row is known by its record and its index among the rows that the record has in that sink.
"""

from typing import NamedTuple

import numpy as np

from service.spark_engine.task import EVERY_ROW, Reasons
from topology.sink import Batch


class Origin(NamedTuple):
    """Where a row comes from."""

    line: str
    offset: int  # of its record
    row: int  # among the record's rows


def origin_of(batch: Batch, row: int) -> Origin:
    """Where a row of a batch comes from. Within a share the offsets of the rows ascend."""
    if batch.offsets is None:
        raise AssertionError(batch.sequence)
    ends = np.cumsum([share.num_rows for share in batch.shares])
    which = int(np.searchsorted(ends, row, side="right"))
    share = batch.shares[which]
    offsets = batch.offsets[ends[which] - share.num_rows : row + 1]
    return Origin(share.line, int(offsets[-1]), int(np.count_nonzero(offsets == offsets[-1])) - 1)


def again(known: Reasons | None, found: Reasons) -> Reasons:
    """What is to be refused in the next try, by what the last one knew, and what was found in it.

    If some rows were left out, and the sink takes the rest neither, its rows are others in each
    try: then it gets none, so that there is an end of it.
    """
    if known is None:
        return found
    return {EVERY_ROW: next(iter(found.values()))}
