"""One sink of the spark engine: what tasks have staged for it is committed here."""

import shutil
import uuid
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from partition.records import Offsets
from service.pipeline.sink_buffer import GroupBuffer
from service.spark_engine.task import EVERY_ROW, Reasons, SpoolChanged, SpoolStager, read_lines
from sinks.tries import WriteRetries, check_rejected
from sinks.writer import Done
from topology.errors import SinkFailed
from topology.sink import Batch, Piece, Share, Sink, Staged, Stager
from topology.steps import SinkStep


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


class StagedLost(SinkFailed):
    """What tasks have staged is not there any more: their ranges have to be run again."""


@dataclass(frozen=True, slots=True)
class RangeTold:
    """What a sink's threads report."""

    outlet: "RangeOutlet"
    done: Done


@dataclass(slots=True, eq=False)
class RangeWork:
    """What tasks made of one try's rows for one sink, and how far the sink is with it.

    Where the sink has a stager of its own, that is ready where the table lies (`is_apart`); else
    it is rows in files, to be staged here.
    """

    outlet: "RangeOutlet"
    stager: Stager
    is_apart: bool
    made: tuple[Staged, ...]  # in the order of the tasks
    shares: tuple[Share, ...] = ()
    origins: dict[int, Origin] = field(default_factory=dict)
    """By row that the sink refused."""
    number: int = 0  # of the sink's groups; 0: it was not asked yet
    staged: Staged | None = None
    is_done: bool = False  # it is durable, or there is nothing to do
    num_bytes: int | None = None  # tasks have the rows

    @property
    def is_staged(self) -> bool:
        """Whether it can be committed, or there is nothing to commit."""
        return self.is_done or self.staged is not None

    @property
    def num_rows(self) -> int:
        """Rows that tasks handed over."""
        return sum(each.num_rows for each in self.made)

    @property
    def num_rejected(self) -> int:
        """Rows that the tasks found not to fit; their records have their letters."""
        return sum(len(each.rejected) for each in self.made)

    def rows_of(self, line: str) -> int:
        """How many rows of a line were given to the stager."""
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
        self.origins = {row: origin_of(whole, row) for row in staged.rejected}
        self.let_go()
        self.made = ()
        return staged

    def let_go(self) -> None:
        """Discard what tasks have made, and of rows in files also what no task has told of.

        On the staging thread. Raises as the stager.
        """
        for each in self.made:
            self.stager.discard(each)
        if isinstance(self.stager, SpoolStager):
            shutil.rmtree(self.stager.folder, ignore_errors=True)


class RangeOutlet(GroupBuffer[RangeWork]):
    """One sink step. The owner thread calls everything; `on_told` is called by the writer's."""

    def __init__(
        self,
        step: SinkStep,
        sink: Sink[Any],
        on_told: Callable[[RangeTold], object],
        *,
        write_retries: WriteRetries | None = None,
    ) -> None:
        super().__init__(
            step,
            sink,
            lambda done: on_told(RangeTold(self, done)),
            write_retries=write_retries,
        )
        self._sink = sink
        self.bytes_written = None

    @property
    def rows_pending(self) -> int:
        """Rows that tasks have handed over, and that are not durable."""
        return sum(share.num_rows for work in self._works.values() for share in work.shares)

    def stager(self, folder: str | None) -> tuple[Stager, bool]:
        """What tasks stage with, and whether it does so where the table lies.

        Else rows come by files, in a new folder below one that executors share. Raises SinkFailed
        where there is no such folder, and what the sink raises.
        """
        stager = self._sink.stager()
        if stager is not None:
            return stager, True
        if folder is None:
            raise SinkFailed(
                f"sink '{self.name}' is written by the driver, and its rows come by files in the "
                "warehouse; on the spark engine that must be a folder, not a URI, for such a sink"
            )
        return SpoolStager(f"{folder}/{uuid.uuid4().hex}"), False

    def stage(self, work: RangeWork) -> None:
        """Have what tasks made put together. Without shares it is done: the sink has the rows."""
        if not work.shares:
            work.is_done = True
            return
        batch = Batch(self._asked(work), [], work.num_rows, work.shares)
        self.writer.stage(batch, partial(work.stage, self._sink))

    def staged(self, number: int, staged: Staged) -> RangeWork | None:
        """Learn that a group is ready; None: nobody wants it any more, and it is discarded."""
        work = self._works.get(number)
        if work is None:
            self.writer.discard(staged)
            return None
        work.staged = staged
        return work

    def ended(self, number: int) -> RangeWork | None:
        """Learn that a group cannot be made ready; None: nobody wanted it."""
        return self._works.pop(number, None)

    def committed(self, seconds: float) -> RangeWork:
        """Learn that the commit under way is durable."""
        work = self._committing
        return self._durable(seconds, 0 if work is None else work.num_rejected)

    def not_committed(self) -> RangeWork:
        """Learn that the commit under way has ended, and made nothing durable."""
        return self._ended()

    def discard(self, work: RangeWork) -> None:
        """Let go of what will not be committed. What is being staged is discarded then."""
        self._works.pop(work.number, None)
        if work.is_done:
            return
        if work.staged is not None:
            self.writer.discard(work.staged)
        elif not work.number:
            self.writer.let_go(work.let_go)


def _whole(batch: Batch, made: tuple[Staged, ...]) -> Batch:
    """All rows, one share's after the other's. Raises StagedLost."""
    pieces: defaultdict[str, list[Piece]] = defaultdict(list)
    offsets: defaultdict[str, list[Offsets]] = defaultdict(list)
    try:
        for each in made:
            for line, (its_pieces, its_offsets) in read_lines(each).items():
                pieces[line] += its_pieces
                offsets[line].append(its_offsets)
    except (FileNotFoundError, SpoolChanged) as error:
        message = (
            f"rows of group {batch.sequence} are not as a task has left them: {error}; "
            "the warehouse must be a folder that executors and driver share"
        )
        raise StagedLost(message) from error
    lines = [share.line for share in batch.shares]
    return replace(
        batch,
        pieces=[piece for line in lines for piece in pieces[line]],
        offsets=np.concatenate(
            [np.empty(0, np.int64), *(each for line in lines for each in offsets[line])]
        ),
    )
