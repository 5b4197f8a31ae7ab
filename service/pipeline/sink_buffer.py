"""Rows on their way to one sink: those that wait, and those that its writer has.

Two kinds, as a transaction's rows differ from a batch's: they wait for their transaction, however
many batches that takes, lose those of failed tries, come in the order of their records, and are
staged and committed in two steps, since other sinks and letters are waited for in between.
"""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import pyarrow as pa

from acker.acker import Edges, Trees
from partition.records import RecordIds, offsets_of
from service.engine import SinkStatistics
from service.pipeline.context import NOBODY, Observers
from service.pipeline.trees import TreeTracker
from sinks.tries import WriteRetries
from sinks.writer import BatchCommitted, Done, SinkWriter
from topology.histogram import Histogram
from topology.sink import NO_TRACES, Batch, Piece, Share, Sink, Staged
from topology.steps import SinkStep
from transactions.rows import Rows

_MOST_BATCHES = 2  # one that is committed, one that is staged
_LADEN_BATCHES = 3
_SAMPLED_ROWS = 8
_PLAIN_BYTES = 8  # a number, a date, a flag
_NO_RECORDS: RecordIds = np.empty(0, np.int64)


class SinkBuffer(ABC):
    """One sink step, its writer, and figures.

    The owner thread calls everything; `on_done` is called by the writer's threads.
    """

    def __init__(
        self,
        step: SinkStep,
        sink: Sink[Any],
        on_done: Callable[[Done], object],
        *,
        at_most_once: bool = False,
        write_retries: WriteRetries | None = None,
    ) -> None:
        """`sink` is what the writer's threads call; see `SinkWriter` for the rest."""
        self.step = step
        self.name = step.name
        self.writer = SinkWriter(sink, on_done, at_most_once=at_most_once, retries=write_retries)
        self.rows_written = 0
        self.batches_written = 0
        self.rows_rejected = 0
        self.write_seconds = 0.0
        self.bytes_written: int | None = 0
        self.write_times = Histogram()

    def start(self) -> None:
        """Start the writer's threads."""
        self.writer.start()

    def stop(self, timeout_seconds: float) -> bool:
        """Stop them; False if one did not end in time."""
        return self.writer.stop(timeout_seconds)

    @property
    @abstractmethod
    def rows_pending(self) -> int:
        """Rows that wait, or are being written."""

    def statistics(self) -> SinkStatistics:
        """Its figures, and how well the writer is."""
        return SinkStatistics(
            sink=self.name,
            rows_written=self.rows_written,
            rows_rejected=self.rows_rejected,
            rows_pending=self.rows_pending,
            batches_written=self.batches_written,
            write_seconds=self.write_seconds,
            retries=self.writer.retries,
            failing_since=self.writer.failing_since,
            last_error=self.writer.last_error,
            bytes_written=self.bytes_written,
            write_times=self.write_times.figures(),
        )

    def _count(self, rows: int, rejected: int, num_bytes: int | None, seconds: float) -> None:
        """Count a batch that is durable now; its commit took so long."""
        self.rows_written += rows
        self.rows_rejected += rejected
        self.batches_written += 1
        self.write_seconds += seconds
        self.write_times.add(seconds)
        if self.bytes_written is not None and num_bytes is not None:
            self.bytes_written += num_bytes


@dataclass(frozen=True, slots=True)
class WriterEvent:
    """A report of a sink's threads."""

    sink: str  # the step's name
    done: Done


@dataclass(frozen=True, slots=True)
class PendingBatch:
    """A micro-batch on its way to the sink, and the trees its rows resolve.

    `trees[i]` and `edges[i]` belong to row i of the batch.
    """

    batch: Batch
    num_bytes: int  # estimated, see `estimated_bytes`
    trees: Trees
    edges: Edges


class BatchBuffer(SinkBuffer):
    """A batch fills while others are written in the background.

    A piece is never split, so a batch may pass its limits by less than one piece. A call costs
    O(pieces), never O(rows).
    """

    def __init__(
        self,
        step: SinkStep,
        sink: Sink[Any],
        put: Callable[[WriterEvent], object],
        *,
        at_most_once: bool = False,
        write_retries: WriteRetries | None = None,
        on: Observers = NOBODY,
    ) -> None:
        """With `at_most_once` no commit is tried twice."""
        super().__init__(
            step,
            sink,
            lambda done: put(WriterEvent(step.name, done)),
            at_most_once=at_most_once,
            write_retries=write_retries,
        )
        self._on = on
        self._sequence = 0
        self._ready: Future[Any] | None = None  # once the sink can stage
        self._writing: deque[PendingBatch] = deque()  # without their pieces
        self._empty()

    def _empty(self) -> None:
        self._pieces: list[Piece] = []
        self._trees: list[Trees] = []
        self._edges: list[Edges] = []
        self._rows = 0
        self._bytes = 0
        self.deadline: float | None = None
        """The time at which the batch that fills is due at the latest; None while it is empty."""

    def start(self) -> None:
        """Start the writer's threads."""
        super().start()
        self._ready = self.writer.fence(())

    def add(self, piece: Piece, trees: Trees, edges: Edges, now: float) -> None:
        """Take rows for the batch that fills: row i belongs to `trees[i]` by `edges[i]`.

        Raises ValueError when the arrays are not as long as the piece.
        """
        length = piece.num_rows if isinstance(piece, pa.RecordBatch) else len(piece)
        if len(trees) != length or len(edges) != length:
            raise ValueError(
                f"a piece of {length} rows came with {len(trees)} trees and {len(edges)} edges"
            )
        if not length:
            return
        self._pieces.append(piece)
        self._trees.append(trees)
        self._edges.append(edges)
        self._rows += length
        self._bytes += estimated_bytes(piece)
        if self.deadline is None:
            self.deadline = now + self.step.policy.batch_seconds

    def is_due(self, now: float) -> bool:
        """True if the batch should be written: it is full, or its oldest row has waited enough."""
        policy = self.step.policy
        return self.deadline is not None and (
            now >= self.deadline
            or self._rows >= policy.batch_rows
            or self._bytes >= policy.batch_bytes
        )

    def submit_due(self, now: float, tracker: TreeTracker, *, flush: bool) -> bool:
        """Hand the batch to the writer if it is due (or `flush`) and the writer takes one.

        `tracker` knows whose the trees are.
        """
        if not self._takes_one or not self._rows or not (flush or self.is_due(now)):
            return False
        self._sequence += 1
        batch = Batch(self._sequence, self._pieces, self._rows)
        trees, edges = np.concatenate(self._trees), np.concatenate(self._edges)
        pending = PendingBatch(batch, self._bytes, trees, edges)
        self._empty()
        for notify in self._on.batch_submitted:
            record_ids, joined_ids = tracker.record_ids(trees), tracker.records_of(trees)
            found = notify(self.name, self._sequence, record_ids, joined_ids, ())
            pending = replace(pending, batch=replace(batch, traces=found)) if found else pending
        self._writing.append(replace(pending, batch=replace(pending.batch, pieces=[])))
        self.writer.write(pending.batch)
        return True

    @property
    def _takes_one(self) -> bool:
        if self._ready is None or not self._ready.done():
            return False
        self._ready.result()  # raises what ends the run
        return len(self._writing) < _MOST_BATCHES

    def is_full(self, now: float) -> bool:
        """True if the next batch is due while the last ones are being written: backpressure."""
        return not self._takes_one and self.is_due(now)

    def ended(self, done: Done) -> tuple[PendingBatch, Staged] | None:
        """Learn what the writer has done; the batch that has ended, if one has.

        Raises what ends the run.
        """
        if done.error is not None:
            raise done.error
        if not isinstance(done, BatchCommitted):
            return None
        pending, staged = self._writing.popleft(), done.staged
        for notify in self._on.batch_ended:
            notify(self.name, pending.batch.sequence, len(staged.rejected), None)
        self._count(staged.num_rows, len(staged.rejected), pending.num_bytes, done.seconds)
        return pending, staged

    @property
    def committing(self) -> PendingBatch:
        """The oldest of the batches that are being written."""
        return self._writing[0]

    @property
    def rows_pending(self) -> int:
        """Rows that fill a batch or are being written."""
        return self._rows + sum(each.batch.num_rows for each in self._writing)

    def trees(self) -> Iterator[Trees]:
        """The trees of the rows that are on their way: slow, but not lost."""
        for pending in self._writing:
            yield pending.trees
        yield from self._trees


def good_rows(pending: PendingBatch, staged: Staged) -> tuple[Trees, Edges]:
    """Trees and edges of the rows that are durable now."""
    if not staged.rejected:
        return pending.trees, pending.edges
    good = np.ones(pending.batch.num_rows, np.bool_)
    good[list(staged.rejected)] = False
    return pending.trees[good], pending.edges[good]


class GroupWork(Protocol):
    """A sink's part of a group of transactions."""

    number: int  # of the sink's groups; 0: it was not asked yet
    staged: Staged | None
    is_done: bool
    num_bytes: int | None  # of its rows as columns; None: it is not known


W = TypeVar("W", bound=GroupWork)


class GroupBuffer(SinkBuffer, Generic[W]):
    """A sink that is given groups of transactions: staged several at once, committed one by one."""

    def __init__(
        self,
        step: SinkStep,
        sink: Sink[Any],
        on_done: Callable[[Done], object],
        *,
        write_retries: WriteRetries | None,
    ) -> None:
        super().__init__(step, sink, on_done, write_retries=write_retries)
        self._groups = 0
        self._works: dict[int, W] = {}
        self._committing: W | None = None

    def commit(self, work: W) -> None:
        """Have a group committed that is staged."""
        if work.staged is not None and not work.is_done:
            self._committing = work
            self.writer.commit(work.staged)

    def _asked(self, work: W) -> int:
        """Note that a group is about to be staged; its number."""
        self._groups += 1
        work.number = self._groups
        self._works[work.number] = work
        return work.number

    def _ended(self) -> W:
        """The group whose commit is under way, which has ended."""
        work, self._committing = self._committing, None
        if work is None:
            raise RuntimeError(f"sink '{self.name}' ended a commit that it was not given")
        return work

    def _durable(self, seconds: float, rejected: int | None = None) -> W:
        """Note that the commit under way, which took so long, made its group durable."""
        work = self._ended()
        del self._works[work.number]
        work.is_done = True
        if work.staged is not None:
            found = len(work.staged.rejected) if rejected is None else rejected
            self._count(work.staged.num_rows, found, work.num_bytes, seconds)
        return work


@dataclass(frozen=True, slots=True)
class Part:
    """One share's rows, and which record each is of."""

    place: int
    share: Share
    pieces: list[Piece]
    record_ids: RecordIds


@dataclass(slots=True, eq=False)
class Work:
    """One sink's part of a group."""

    sink: str  # the step's name
    group: int
    parts: list[Part]
    number: int = 0
    staged: Staged | None = None
    is_done: bool = False
    num_bytes: int | None = 0

    @property
    def is_staged(self) -> bool:
        """True if it can be committed, or there is nothing to commit."""
        return self.is_done or self.staged is not None

    def good_record_ids(self) -> RecordIds:
        """Give the records of the rows that the sink took."""
        record_ids = np.concatenate([part.record_ids for part in self.parts])
        rejected = [] if self.staged is None else list(self.staged.rejected)
        return np.delete(record_ids, rejected)

    def record_id_of(self, row: int) -> int:
        """Find which record a row of the group is of. Raises IndexError."""
        for part in self.parts:
            if row < len(part.record_ids):
                return int(part.record_ids[row])
            row -= len(part.record_ids)
        raise IndexError(row)


class TransactionBuffer(GroupBuffer[Work]):
    """Rows wait by transaction until their group is written."""

    def __init__(
        self,
        step: SinkStep,
        sink: Sink[Any],
        put: Callable[[WriterEvent], object],
        *,
        write_retries: WriteRetries | None = None,
        on: Observers = NOBODY,
    ) -> None:
        super().__init__(
            step,
            sink,
            lambda done: put(WriterEvent(step.name, done)),
            write_retries=write_retries,
        )
        self._rows = Rows()
        self._on = on
        self._fill_rows = 0
        self._fill_bytes = 0
        self._all_rows = 0
        self._all_bytes = 0

    @property
    def rows_pending(self) -> int:
        """Rows that wait for their transaction's end, or are being written."""
        return self._rows.num_rows + sum(
            len(part.record_ids) for work in self._works.values() for part in work.parts
        )

    def is_full(self, now: float) -> bool:  # noqa: ARG002 - as BatchBuffer
        """Never: what waits here is bounded by the transactions that may be open at once."""
        return False

    # Rows

    def add(self, piece: Piece, record_ids: RecordIds, txids: RecordIds, places: RecordIds) -> None:
        """Take rows of transactions."""
        self._rows.add(piece, record_ids, txids, places)
        num_bytes = estimated_bytes(piece)
        self._fill_rows += len(piece)
        self._fill_bytes += num_bytes
        self._all_rows += len(piece)
        self._all_bytes += num_bytes

    def discard_attempt(self, record_id: int, place: int) -> None:
        """Leave out what came of a record so far: its try has failed."""
        self._rows.void(record_id, place)

    def partition_lost(self, place: int) -> None:
        """Forget its rows."""
        self._rows.drop(place)

    @property
    def is_due(self) -> bool:
        """True if enough rows came since the last `closed` for a batch."""
        policy = self.step.policy
        return self._fill_rows >= policy.batch_rows or self._fill_bytes >= policy.batch_bytes

    @property
    def is_laden(self) -> bool:
        """True if more rows wait than one batch that is committed, one staged, and one."""
        return self.rows_pending > _LADEN_BATCHES * self.step.policy.batch_rows

    def closed(self) -> None:
        """Learn that what came so far belongs to closed transactions."""
        self._fill_rows = self._fill_bytes = 0

    # Groups

    def part(self, place: int, share: Share) -> Part:
        """Take a transaction's rows out."""
        taken = self._rows.take(place, share.txid)
        return Part(place, replace(share, num_rows=taken.num_rows), taken.pieces, taken.record_ids)

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
        record_ids = np.concatenate([part.record_ids for part in work.parts])
        # To ask the pieces again takes as long as it took to ask when they came: 45 µs each.
        work.num_bytes = num_rows * self._all_bytes // max(1, self._all_rows)
        traces = NO_TRACES
        for notify in self._on.batch_submitted:
            traces = notify(self.name, number, record_ids, _NO_RECORDS, shares) or traces
        self.writer.stage(Batch(number, pieces, num_rows, shares, offsets_of(record_ids), traces))

    def staged(self, number: int, staged: Staged) -> Work:
        """Learn that a group is ready."""
        work = self._works[number]
        work.staged = staged
        return work

    @property
    def committing(self) -> Work | None:
        """The group that is being committed."""
        return self._committing

    def refused(self, line: str) -> Work:
        """Learn that the commit under way was refused for a line: stage the others anew."""
        work = self._ended()
        self.leave_out(work, {line})
        return work

    def leave_out(self, work: Work, lines: Collection[str]) -> None:
        """Have a group that is ready staged anew, if some of these lines are in it."""
        parts = [part for part in work.parts if part.share.line not in lines]
        if work.staged is None or len(parts) == len(work.parts):
            return
        del self._works[work.number]
        for notify in self._on.batch_ended:
            notify(self.name, work.number, 0, "a line was lost; staged anew")
        self.writer.discard(work.staged)
        work.parts = parts
        self.stage(work)

    def committed(self, seconds: float) -> Work:
        """Learn that the commit under way is durable."""
        work = self._durable(seconds)
        for notify in self._on.batch_ended:
            notify(self.name, work.number, len(work.staged.rejected) if work.staged else 0, None)
        return work


def estimated_bytes(piece: Piece) -> int:
    """About how many bytes a piece's values have as columns.

    Exact for a RecordBatch. For rows, the mean of eight rows spread over the piece: text
    and bytes count their length, containers their parts, everything else eight bytes.
    The Python objects of the rows take several times as much.
    """
    if isinstance(piece, pa.RecordBatch):
        return int(piece.nbytes)
    if not piece:
        return 0
    sample = piece[:: max(1, len(piece) // _SAMPLED_ROWS)][:_SAMPLED_ROWS]
    return sum(map(_size, sample)) * len(piece) // len(sample)


def _size(value: Any) -> int:
    if isinstance(value, str | bytes):
        return len(value)
    if isinstance(value, dict):
        return sum(map(_size, value.values()))
    if isinstance(value, list | tuple):
        return sum(map(_size, value))
    names = getattr(value, "__struct_fields__", ()) or getattr(value, "__dataclass_fields__", ())
    return sum([_size(getattr(value, name)) for name in names]) or _PLAIN_BYTES
