"""One sink of the spark engine: what tasks have staged is joined, or staged here, and committed."""

import shutil
import uuid
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from partition.records import Offsets
from service.pipeline.sink_buffer import GroupBuffer, GroupWork
from service.spark_engine.task import (
    EVERY_ROW,
    Reasons,
    RowFileChanged,
    RowFileStager,
    read_rows,
)
from sinks.writer import BatchStaged, SinkWriter, check_rejected
from topology.errors import SinkFailed
from topology.sink import Batch, Piece, Share, Sink, Staged, Stager
from topology.steps import SinkStep


class StagedLost(SinkFailed):
    """Rows that tasks have staged are gone: their ranges have to be run again."""


class RowSource(NamedTuple):
    line: str
    offset: int
    row: int  # among the rows that the record has in this sink


@dataclass(slots=True, eq=False)
class RangeWork(GroupWork):
    """One sink's part of an attempt.

    If the sink has a stager of its own, rows are staged where the table lies (`is_apart`); else
    they come in files, and are staged here.
    """

    sink: str  # the step's name
    stager: Stager
    is_apart: bool
    made: tuple[Staged, ...] = ()  # by the tasks, in their order
    shares: tuple[Share, ...] = ()
    sources: dict[int, RowSource] = field(default_factory=dict)  # of rows that the sink rejected
    num_bytes: int | None = field(default=None, kw_only=True)  # unknown: tasks have the rows

    @property
    def num_rejected(self) -> int:
        return sum(len(each.rejected) for each in self.made)

    def rows_of(self, line: str) -> int:
        shares = (share for each in self.made for share in each.shares)
        return sum(share.num_rows for share in shares if share.line == line)

    def stage(self, sink: Sink[Any], batch: Batch) -> Staged:
        """Join what is staged where the table lies, or stage the rows; on the staging thread.

        Raises StagedLost, or what the sink raises.
        """
        if self.is_apart:
            return sink.joined(batch.shares, [replace(each, rejected={}) for each in self.made])
        whole = _whole(batch, self.made)
        staged = sink.stage(whole)
        check_rejected(staged.rejected, whole.num_rows, sink.name)
        self.sources = {row: source_of(whole, row) for row in staged.rejected}
        self.discard()
        self.made = ()
        return staged

    def discard(self) -> None:
        """Discard what tasks have made, and files of tasks that have not reported.

        On the staging thread. Raises what the stager raises.
        """
        for each in self.made:
            self.stager.discard(each)
        if isinstance(self.stager, RowFileStager):
            shutil.rmtree(self.stager.folder, ignore_errors=True)


class RangeBuffer(GroupBuffer[RangeWork]):
    def __init__(self, step: SinkStep, writer: SinkWriter) -> None:
        super().__init__(step, writer)
        self._bytes_written = None

    @property
    def rows_pending(self) -> int:
        return sum(share.num_rows for work in self._works.values() for share in work.shares)

    def begin(self, folder: str | None) -> RangeWork:
        """Make what an attempt's tasks stage with; `folder` is one that executors share, if any.

        Raises SinkFailed if rows have to come by files and there is none, and as the sink does.
        """
        stager = self.step.sink.stager()
        if stager is not None:
            return RangeWork(self.name, stager, is_apart=True)
        if folder is None:
            raise SinkFailed(
                f"sink '{self.name}' is written by the driver, and its rows come by files in the "
                "warehouse; on the spark engine that must be a folder, not a URI, for such a sink"
            )
        return RangeWork(self.name, RowFileStager(f"{folder}/{uuid.uuid4().hex}"), is_apart=False)

    def stage(self, work: RangeWork, shares: tuple[Share, ...]) -> None:
        """Put together what tasks made. Without shares it is done: the sink has the rows."""
        work.shares = shares
        if not shares:
            work.is_done = True
            return
        num_rows = sum(each.num_rows for each in work.made)
        batch = Batch(self._asked(work), [], num_rows, shares)
        self.writer.stage(batch, partial(work.stage, self.step.sink))

    def staged(self, done: BatchStaged) -> RangeWork | None:
        """Handle the end of a staging; None: nobody wants it any more.

        Raises any error but StagedLost.
        """
        work = self._works.get(done.batch.sequence)
        if done.staged is None:
            if not isinstance(done.error, StagedLost):
                raise done.error or RuntimeError(self.name)
            self._works.pop(done.batch.sequence, None)
        elif work is None:
            self.writer.discard(done.staged)
        else:
            work.staged = done.staged
        return work

    def discard(self, work: RangeWork) -> None:
        """Discard what will not be committed, or once it is staged."""
        self._works.pop(work.number, None)
        if work.is_done:
            return
        if work.staged is not None:
            self.writer.discard(work.staged)
        elif not work.number:
            self.writer.let_go(work.discard)


def source_of(batch: Batch, row: int) -> RowSource:
    """Return the source of a row. Within a share the offsets of the rows ascend."""
    if batch.offsets is None:
        raise AssertionError(batch.sequence)
    ends = np.cumsum([share.num_rows for share in batch.shares])
    which = int(np.searchsorted(ends, row, side="right"))
    share = batch.shares[which]
    offsets = batch.offsets[ends[which] - share.num_rows : row + 1]
    before = int(np.count_nonzero(offsets == offsets[-1])) - 1
    return RowSource(share.line, int(offsets[-1]), before)


def again(known: Reasons | None, found: Reasons) -> Reasons:
    """Return the rows of a record to refuse in the next attempt; `known` were in the last one.

    A record of which again a row was rejected gets none, so that the attempts end.
    """
    return found if known is None else {EVERY_ROW: next(iter(found.values()))}


def _whole(batch: Batch, made: Sequence[Staged]) -> Batch:
    """Return all rows, one share's after the other's. Raises StagedLost."""
    pieces: defaultdict[str, list[Piece]] = defaultdict(list)
    offsets: defaultdict[str, list[Offsets]] = defaultdict(list)
    try:
        for each in made:
            for line, its_pieces, its_offsets in read_rows(each):
                pieces[line] += its_pieces
                offsets[line].append(its_offsets)
    except (FileNotFoundError, RowFileChanged) as error:
        message = (
            f"rows of group {batch.sequence} are not as a task has left them: {error}; "
            "the warehouse must be a folder that executors and driver share"
        )
        raise StagedLost(message) from error
    lines = [share.line for share in batch.shares]
    found = [each for line in lines for each in offsets[line]]
    return replace(
        batch,
        pieces=[piece for line in lines for piece in pieces[line]],
        offsets=np.concatenate([np.empty(0, np.int64), *found]),
    )
