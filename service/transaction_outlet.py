"""The sink side of a pipeline that is exactly-once: rows by transaction, and their groups."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from service.owners import Owners, offsets_of
from service.sink_end import GroupsEnd
from sinks.batcher import estimated_bytes
from sinks.tries import WriteRetries
from sinks.writer import Done
from topology.sink import Batch, Piece, Share, Sink, Staged
from topology.steps import SinkStep
from topology.traced import NO_TRACES
from transactions.rows import Rows

if TYPE_CHECKING:  # it imports OpenTelemetry, which is not there unless it is wanted
    from service.tracing.traces import Traces

_LADEN_BATCHES = 3


@dataclass(frozen=True, slots=True)
class Told:
    """What a sink's threads report."""

    outlet: "TransactionOutlet"
    done: Done


@dataclass(frozen=True, slots=True)
class Part:
    """One share's rows, and which record each is of."""

    place: int
    share: Share
    pieces: list[Piece]
    owners: Owners


@dataclass(slots=True)
class Work:
    """What one sink has to do for a group."""

    outlet: "TransactionOutlet"
    group: int
    parts: list[Part]
    number: int = 0
    staged: Staged | None = None
    is_done: bool = False
    num_bytes: int | None = 0

    @property
    def is_staged(self) -> bool:
        """Whether it can be committed, or there is nothing to commit."""
        return self.is_done or self.staged is not None

    def owner_of(self, row: int) -> int:
        """Which record a row of the group is of."""
        for part in self.parts:
            if row < len(part.owners):
                return int(part.owners[row])
            row -= len(part.owners)
        raise IndexError(row)


class TransactionOutlet(GroupsEnd[Work]):
    """One sink step: rows wait by transaction until their group is written.

    The owner thread calls everything; `on_told` is called by the writer's threads.
    """

    def __init__(
        self,
        step: SinkStep,
        sink: Sink[Any],
        on_told: Callable[[Told], object],
        *,
        write_retries: WriteRetries | None = None,
        at: Callable[[str], object] | None = None,
        traces: "Traces | None" = None,
    ) -> None:
        super().__init__(
            step,
            sink,
            lambda done: on_told(Told(self, done)),
            write_retries=write_retries,
            at=at,
        )
        self._rows = Rows()
        self._traces = traces
        self._fill_rows = 0
        self._fill_bytes = 0

    @property
    def rows_pending(self) -> int:
        """Rows that wait for their transaction's end, or are being written."""
        return self._rows.num_rows + sum(
            len(part.owners) for work in self._works.values() for part in work.parts
        )

    def is_full(self, now: float) -> bool:  # noqa: ARG002 - as Outlet
        """Never: what waits here is bounded by the transactions that may be open at once."""
        return False

    # Rows

    def add(self, piece: Piece, owners: Owners, txids: Owners, places: Owners) -> None:
        """Take rows of transactions."""
        self._rows.add(piece, owners, txids, places)
        self._fill_rows += len(piece)
        self._fill_bytes += estimated_bytes(piece)

    def void(self, owner: int, place: int) -> None:
        """Leave out what came of a record so far: its try has failed."""
        self._rows.void(owner, place)

    def drop(self, place: int) -> None:
        """Forget the rows of a partition that is lost."""
        self._rows.drop(place)

    @property
    def is_due(self) -> bool:
        """Whether enough rows came since the last `closed` for a batch."""
        policy = self.step.policy
        return self._fill_rows >= policy.batch_rows or self._fill_bytes >= policy.batch_bytes

    @property
    def is_laden(self) -> bool:
        """Whether more rows wait than one batch that is committed, one staged, and one."""
        return self.rows_pending > _LADEN_BATCHES * self.step.policy.batch_rows

    def closed(self) -> None:
        """Learn that what came so far belongs to closed transactions."""
        self._fill_rows = self._fill_bytes = 0

    # Groups

    def part(self, place: int, share: Share) -> Part:
        """Take a transaction's rows out."""
        taken = self._rows.take(place, share.txid)
        return Part(place, replace(share, num_rows=taken.num_rows), taken.pieces, taken.owners)

    def stage(self, work: Work) -> None:
        """Have a group made ready. One without shares is done: the sink has them already."""
        work.staged = None
        if not work.parts:
            work.is_done = True
            return
        number = self._asked(work)
        pieces = [piece for part in work.parts for piece in part.pieces]
        shares = tuple(part.share for part in work.parts)
        num_rows = sum(share.num_rows for share in shares)
        offsets = np.concatenate([offsets_of(part.owners) for part in work.parts])
        work.num_bytes = sum(map(estimated_bytes, pieces))
        traces = NO_TRACES
        if self._traces is not None:
            owners = np.concatenate([part.owners for part in work.parts])
            traces = self._traces.group(self.name, number, shares, owners)
        self.writer.stage(Batch(number, pieces, num_rows, shares, offsets, traces))

    def staged(self, number: int, staged: Staged) -> Work:
        """Learn that a group is ready."""
        work = self._works[number]
        work.staged = staged
        return work

    @property
    def committing(self) -> Work | None:
        """What is being committed."""
        return self._committing

    def refused(self, line: str) -> Work:
        """Learn that the commit under way was refused for a line: stage the others anew."""
        work = self._ended()
        del self._works[work.number]
        self._trace_anew(work)
        if work.staged is not None:
            self.writer.discard(work.staged)
        work.parts = [part for part in work.parts if part.share.line != line]
        self.stage(work)
        return work

    def leave_out(self, work: Work, lines: Collection[str]) -> None:
        """Have a group that is ready staged anew, if some of these lines are in it."""
        parts = [part for part in work.parts if part.share.line not in lines]
        if work.staged is None or len(parts) == len(work.parts):
            return
        del self._works[work.number]
        self._trace_anew(work)
        self.writer.discard(work.staged)
        work.parts = parts
        self.stage(work)

    def committed(self, seconds: float) -> Work:
        """Learn that the commit under way is durable."""
        work = self._durable(seconds)
        if self._traces is not None:
            rejected = len(work.staged.rejected) if work.staged else 0
            self._traces.written(self.name, work.number, rejected)
        return work

    def _trace_anew(self, work: Work) -> None:
        if self._traces is not None:
            self._traces.written(self.name, work.number, 0, "a line was lost; staged anew")
