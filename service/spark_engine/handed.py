"""What tasks have staged, on its way through a sink's own threads."""

import shutil
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from partition.chunk import Offsets
from service.spark_engine.refusals import Origin, origin_of
from service.spark_engine.spool import SpoolChanged, SpoolStager, read_lines
from sinks.tries import check_rejected
from topology.errors import SinkFailed
from topology.sink import (
    Batch,
    Committed,
    Fence,
    Piece,
    Share,
    Sink,
    SinkContext,
    Staged,
    Stager,
)


class StagedLost(SinkFailed):
    """What tasks have staged is not there any more: their ranges have to be run again."""


@dataclass(slots=True, eq=False)
class Handed:
    """What tasks made of one group's rows for one sink, in the order of the tasks."""

    staged: tuple[Staged, ...]
    stager: Stager
    is_apart: bool  # it is ready where the table lies; else it is rows, to be staged here
    origins: dict[int, Origin] = field(default_factory=dict)
    """By row that the sink refused."""

    @property
    def num_rows(self) -> int:
        """Rows that were handed over."""
        return sum(each.num_rows for each in self.staged)

    @property
    def num_rejected(self) -> int:
        """Rows that the tasks found not to fit; their records have their letters."""
        return sum(len(each.rejected) for each in self.staged)

    def rows_of(self, line: str) -> int:
        """How many rows of a line were given to the stager."""
        shares = (share for each in self.staged for share in each.shares)
        return sum(share.num_rows for share in shares if share.line == line)

    def discard(self) -> None:
        """Let it go, and of rows in files also what no task has told of. Raises as the stager."""
        for each in self.staged:
            self.stager.discard(each)
        if isinstance(self.stager, SpoolStager):
            shutil.rmtree(self.stager.folder, ignore_errors=True)

    def as_group(self, number: int, shares: tuple[Share, ...]) -> Batch:
        """A group that says nothing but this; HandsOn knows what it means."""
        return Batch(number, [[self]], self.num_rows, shares)

    def as_staged(self) -> Staged:
        """The same, of something that is to be discarded."""
        return Staged((), 0, (self,))


class HandsOn(Sink[Any]):
    """Stands before a sink of the driver's: what comes to be staged was staged by tasks.

    Threads are the contract's.
    """

    def __init__(self, name: str, sink: Sink[Any]) -> None:
        self.name = name
        self._sink = sink

    def open(self, context: SinkContext) -> None:
        """Do nothing: the sink is open."""

    def fence(self, fences: Sequence[Fence]) -> list[Committed]:
        """As the sink."""
        return self._sink.fence(fences)

    def commit(self, staged: Staged) -> None:
        """As the sink."""
        self._sink.commit(staged)

    def stage(self, group: Batch) -> Staged:
        """Join what is staged where the table lies, or stage the rows that were spooled.

        Raises StagedLost, or what the sink raises.
        """
        handed = _handed_in(group)
        if handed.is_apart:
            fitting = [replace(each, rejected={}) for each in handed.staged]
            return self._sink.joined(group.shares, fitting)
        whole = _whole(group, handed)
        staged = self._sink.stage(whole)
        check_rejected(staged.rejected, whole.num_rows, self.name)
        if staged.rejected:
            handed.origins = {row: origin_of(whole, row) for row in staged.rejected}
        handed.discard()
        handed.staged = ()
        return staged

    def discard(self, staged: Staged) -> None:
        """As the sink, or the stager of what was only handed over."""
        for part in staged.parts:
            if isinstance(part, Handed):
                part.discard()
                return
        self._sink.discard(staged)

    def close(self) -> None:
        """Do nothing: who opened the sink closes it."""


def _handed_in(group: Batch) -> Handed:
    handed = group.pieces[0][0]
    if not isinstance(handed, Handed):
        raise TypeError(type(handed).__name__)
    return handed


def _whole(group: Batch, handed: Handed) -> Batch:
    """All rows, one share's after the other's. Raises StagedLost."""
    pieces: defaultdict[str, list[Piece]] = defaultdict(list)
    offsets: defaultdict[str, list[Offsets]] = defaultdict(list)
    try:
        for each in handed.staged:
            for line, (its_pieces, its_offsets) in read_lines(each).items():
                pieces[line] += its_pieces
                offsets[line].append(its_offsets)
    except (FileNotFoundError, SpoolChanged) as error:
        message = (
            f"rows of group {group.sequence} are not as a task has left them: {error}; "
            "the warehouse must be a folder that executors and driver share"
        )
        raise StagedLost(message) from error
    lines = [share.line for share in group.shares]
    return replace(
        group,
        pieces=[piece for line in lines for piece in pieces[line]],
        offsets=np.concatenate(
            [np.empty(0, np.int64), *(each for line in lines for each in offsets[line])]
        ),
    )
