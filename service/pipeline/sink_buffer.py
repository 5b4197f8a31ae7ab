"""Rows on their way to one sink: those that wait, and those that its writer has.

Two kinds, as a transaction's rows differ from a batch's: they wait for their transaction, however
many batches that takes, lose those of failed attempts, come in the order of their records, and are
staged and committed in two steps, since other sinks and dead letters are waited for in between.
"""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa

from acker.acker import Edges, Trees
from partition.records import RecordIds, offset_of
from service.observability.snapshot import SinkStatistics
from service.pipeline.context import Observer
from service.pipeline.trees import TreeTracker
from sinks.writer import BatchCommitted, BatchStaged, Done, SinkWriter
from topology.errors import SinkFenced
from topology.monitoring import Histogram
from topology.sink import NO_TRACES, Batch, Piece, RowTraces, Share, Staged
from topology.steps import SinkStep
from transactions.groups import TransactionGroup
from transactions.pending_rows import OrderedRows, PendingRows

_MOST_BATCHES = 2  # one that is committed, one that is staged
_LADEN_BATCHES = 3
_SAMPLED_ROWS = 8
_PLAIN_BYTES = 8  # a number, a date, a flag
_NO_RECORDS = np.empty(0, np.int64)


class SinkBuffer(ABC):
    """One sink step: the batch that fills, the writer, and statistics. The owner calls it."""

    def __init__(
        self, step: SinkStep, writer: SinkWriter, observers: Sequence[Observer] = ()
    ) -> None:
        self.step = step
        self.name = step.name
        self.writer = writer
        self.rows_rejected = 0
        self._observers = observers
        self._rows = 0  # of the batch that fills
        self._bytes = 0
        self._rows_written = 0
        self._bytes_written: int | None = 0
        self._write_times = Histogram()

    @property
    def is_filled(self) -> bool:
        """Whether a batch of rows has arrived since the last one."""
        policy = self.step.policy
        return self._rows >= policy.batch_rows or self._bytes >= policy.batch_bytes

    @property
    @abstractmethod
    def rows_pending(self) -> int:
        """Rows that wait, or are being written."""

    def statistics(self) -> SinkStatistics:
        return SinkStatistics(
            sink=self.name,
            rows_written=self._rows_written,
            rows_rejected=self.rows_rejected,
            rows_pending=self.rows_pending,
            retries=self.writer.retries,
            failing_since=self.writer.failing_since,
            last_error=self.writer.last_error,
            bytes_written=self._bytes_written,
            write_times=self._write_times.distribution(),
        )

    def _fill(self, piece: Piece) -> int:
        num_bytes = estimated_bytes(piece)
        self._rows += len(piece)
        self._bytes += num_bytes
        return num_bytes

    def _submitted(
        self, number: int, record_ids: RecordIds, joined_ids: RecordIds, shares: Sequence[Share]
    ) -> RowTraces:
        traces = NO_TRACES
        for observer in self._observers:
            found = observer.batch_submitted(self.name, number, record_ids, joined_ids, shares)
            traces = found or traces
        return traces

    def _written(self, done: BatchCommitted, rejected: int, num_bytes: int | None) -> None:
        self._rows_written += done.staged.num_rows
        self.rows_rejected += rejected
        self._write_times.add(done.seconds)
        if self._bytes_written is not None and num_bytes is not None:
            self._bytes_written += num_bytes


class Rows(NamedTuple):
    """Rows for a sink: row i is of `record_ids[i]` and `trees[i]`, by `edges[i]` if it has one."""

    piece: Piece
    record_ids: RecordIds
    trees: Trees
    edges: Edges


class PendingBatch(NamedTuple):
    """A micro-batch on its way to the sink; `trees[i]` and `edges[i]` belong to its row i."""

    sequence: int
    num_bytes: int  # estimated, see `estimated_bytes`
    trees: Trees
    edges: Edges

    def without(self, rejected: Collection[int]) -> tuple[Trees, Edges]:
        if not rejected:
            return self.trees, self.edges
        return np.delete(self.trees, list(rejected)), np.delete(self.edges, list(rejected))


class BatchBuffer(SinkBuffer):
    """A batch fills while others are written in the background.

    A piece is never split, so a batch may pass its limits by less than one piece. A call costs
    O(pieces), never O(rows).
    """

    def __init__(
        self,
        step: SinkStep,
        writer: SinkWriter,
        tracker: TreeTracker,
        observers: Sequence[Observer] = (),
    ) -> None:
        super().__init__(step, writer, observers)
        self._tracker = tracker
        self._ready: Future[Any] | None = writer.fence()  # None: the sink can stage
        self._sequence = 0
        self._writing: deque[PendingBatch] = deque()
        self._empty()

    def _empty(self) -> None:
        self._filling: list[Rows] = []
        self._rows = self._bytes = 0
        self._deadline: float | None = None  # of the batch that fills; None while it is empty

    def add(self, rows: Rows, now: float) -> None:
        """Raises ValueError unless all rows have trees and edges."""
        piece, _record_ids, trees, edges = rows
        if not len(trees) == len(edges) == len(piece):
            raise ValueError(
                f"a piece of {len(piece)} rows came with {len(trees)} trees and {len(edges)} edges"
            )
        if not len(piece):
            return
        self._filling.append(rows)
        self._fill(piece)
        if self._deadline is None:
            self._deadline = now + self.step.policy.batch_seconds

    def is_due(self, now: float) -> bool:
        """Whether the batch is full, or its oldest row has waited long enough."""
        return self._deadline is not None and (now >= self._deadline or self.is_filled)

    def submit_due(self, now: float, *, flush: bool) -> bool:
        """Hand over the batch if it is due (or `flush`) and the writer is free.

        Raises permanent errors.
        """
        if self._is_busy or not self._rows or not (flush or self.is_due(now)):
            return False
        self._sequence += 1
        trees = np.concatenate([rows.trees for rows in self._filling])
        edges = np.concatenate([rows.edges for rows in self._filling])
        traces = NO_TRACES
        if self._observers:
            ids = self._tracker.record_ids(trees), self._tracker.records_of(trees)
            traces = self._submitted(self._sequence, *ids, ())
        self._writing.append(PendingBatch(self._sequence, self._bytes, trees, edges))
        pieces = [rows.piece for rows in self._filling]
        self.writer.write(Batch(self._sequence, pieces, self._rows, traces=traces))
        self._empty()
        return True

    @property
    def _is_busy(self) -> bool:
        if self._ready is not None:
            if not self._ready.done():
                return True
            self._ready.result()  # raises what ends the run
            self._ready = None
        return len(self._writing) >= _MOST_BATCHES

    @property
    def is_full(self) -> bool:
        """Whether a whole batch waits for the writer; one that is only due grows on."""
        return self._is_busy and self.is_filled

    def ended(self, done: Done) -> tuple[PendingBatch, Mapping[int, str]]:
        """Return the batch that was committed, and its rejected rows. Raises permanent errors."""
        if done.error is not None or not isinstance(done, BatchCommitted):
            raise done.error or RuntimeError(self.name)
        pending, rejected = self._writing.popleft(), done.staged.rejected
        self._written(done, len(rejected), pending.num_bytes)
        for observer in self._observers:
            record_ids = self._tracker.record_ids(pending.without(rejected)[0])
            observer.batch_ended(self.name, pending.sequence, record_ids, len(rejected), None)
        return pending, rejected

    @property
    def rows_pending(self) -> int:
        return self._rows + sum(len(each.trees) for each in self._writing)

    def trees(self) -> Iterator[Trees]:
        yield from (pending.trees for pending in self._writing)
        yield from (rows.trees for rows in self._filling)


@dataclass(slots=True, eq=False, kw_only=True)
class GroupWork:
    number: int = 0  # of the sink's groups; 0: it was not asked yet
    staged: Staged | None = None
    is_done: bool = False  # it is durable, or there is nothing to do
    num_bytes: int | None = 0  # of its rows as columns; None: it is not known

    @property
    def is_staged(self) -> bool:
        """Whether it can be committed, or there is nothing to commit."""
        return self.is_done or self.staged is not None

    @property
    def num_rejected(self) -> int:
        return 0 if self.staged is None else len(self.staged.rejected)


W = TypeVar("W", bound=GroupWork)


class GroupBuffer(SinkBuffer, Generic[W]):
    """A sink that is given groups of transactions: staged several at once, committed one by one."""

    def __init__(
        self, step: SinkStep, writer: SinkWriter, observers: Sequence[Observer] = ()
    ) -> None:
        super().__init__(step, writer, observers)
        self._groups = 0
        self._works: dict[int, W] = {}
        self._committing: W | None = None

    def commit(self, work: W) -> None:
        """Commit a group. Raises RuntimeError before the one under way has ended."""
        if self._committing is not None:
            raise RuntimeError(f"sink '{self.name}' commits group {self._committing.number}")
        if work.staged is not None and not work.is_done:
            self._committing = work
            self.writer.commit(work.staged)

    def committed(self, done: BatchCommitted) -> W:
        """Return the group whose commit has ended. Raises its error, unless that is SinkFenced."""
        work, self._committing = self._committing, None
        if work is None:
            raise RuntimeError(f"sink '{self.name}' ended a commit that it was not given")
        if done.error is None:
            del self._works[work.number]
            work.is_done = True
            self._written(done, work.num_rejected, work.num_bytes)
        elif not isinstance(done.error, SinkFenced):
            raise done.error
        return work

    def _asked(self, work: W) -> int:
        self._groups += 1
        work.number = self._groups
        self._works[work.number] = work
        return work.number


class TransactionPart(NamedTuple):
    share: Share
    rows: OrderedRows


@dataclass(slots=True, eq=False)
class TransactionWork(GroupWork):
    group: TransactionGroup
    parts: list[TransactionPart]

    def record_ids(self) -> RecordIds:
        return np.concatenate([part.rows.record_ids for part in self.parts])


class TransactionBuffer(GroupBuffer[TransactionWork]):
    """Rows wait by transaction until their group is written."""

    def __init__(
        self, step: SinkStep, writer: SinkWriter, observers: Sequence[Observer] = ()
    ) -> None:
        super().__init__(step, writer, observers)
        self.rows = PendingRows()
        self._all_rows = 0
        self._all_bytes = 0

    @property
    def rows_pending(self) -> int:
        parts = (part for work in self._works.values() for part in work.parts)
        return self.rows.num_rows + sum(part.share.num_rows for part in parts)

    @property
    def is_laden(self) -> bool:
        """Whether more rows wait than one batch that is committed, one staged, and one."""
        return self.rows_pending > _LADEN_BATCHES * self.step.policy.batch_rows

    def add(self, rows: Rows, txids: RecordIds) -> None:
        """Add rows of transactions; those of none (0) are dropped."""
        self.rows.add(rows.piece, rows.record_ids, txids)
        self._all_rows += len(rows.piece)
        self._all_bytes += self._fill(rows.piece)

    def closed(self) -> None:
        """Start a new batch: the rows so far belong to closed transactions."""
        self._rows = self._bytes = 0

    def stage(self, work: TransactionWork) -> None:
        """Stage a group. One without parts is done: the sink has its rows already."""
        work.staged = None
        if not work.parts:
            work.is_done = True
            return
        number, record_ids = self._asked(work), work.record_ids()
        pieces = [piece for part in work.parts for piece in part.rows.pieces]
        shares = tuple(part.share for part in work.parts)
        # To ask the pieces again takes as long as it took to ask when they came: 45 µs each.
        work.num_bytes = len(record_ids) * self._all_bytes // max(1, self._all_rows)
        traces = self._submitted(number, record_ids, _NO_RECORDS, shares)
        offsets = offset_of(record_ids)
        self.writer.stage(Batch(number, pieces, len(record_ids), shares, offsets, traces))

    def staged(self, done: BatchStaged) -> TransactionWork:
        """Raises permanent errors."""
        if done.staged is None:
            raise done.error or RuntimeError(self.name)
        work = self._works[done.batch.sequence]
        work.staged = done.staged
        return work

    def committed(self, done: BatchCommitted) -> TransactionWork:
        """As `GroupBuffer`; with SinkFenced stage it again without the line of another owner."""
        work = super().committed(done)
        if isinstance(done.error, SinkFenced):
            self.leave_out(work, {done.error.line})
            return work
        for observer in self._observers:
            record_ids = np.delete(work.record_ids(), list(done.staged.rejected))
            observer.batch_ended(self.name, work.number, record_ids, work.num_rejected, None)
        return work

    def leave_out(self, work: TransactionWork, lines: Collection[str]) -> None:
        """Stage a group again without some lines, if it has any of them."""
        parts = [part for part in work.parts if part.share.line not in lines]
        if work.staged is None or len(parts) == len(work.parts):
            return
        del self._works[work.number]
        for observer in self._observers:
            error = "a line was lost; staged anew"
            observer.batch_ended(self.name, work.number, _NO_RECORDS, 0, error)
        self.writer.discard(work.staged)
        work.parts = parts
        self.stage(work)


def estimated_bytes(piece: Piece) -> int:
    """About how many bytes a piece's values have as columns.

    Exact for a RecordBatch. For rows, the mean of eight of them: text and bytes count their
    length, containers their parts, everything else eight bytes.
    """
    if isinstance(piece, pa.RecordBatch):
        return int(piece.nbytes)
    if not piece:
        return 0
    sample = piece[:: max(1, len(piece) // _SAMPLED_ROWS)][:_SAMPLED_ROWS]
    size, left = 0, list(sample)
    while left:
        value = left.pop()
        if isinstance(value, str | bytes):
            size += len(value)
        elif isinstance(value, dict):
            left += value.values()
        elif isinstance(value, list | tuple):
            left += value
        else:
            names = "__struct_fields__", "__dataclass_fields__", "__pydantic_fields__"
            fields = next(filter(None, (getattr(type(value), name, ()) for name in names)), ())
            left += [getattr(value, name) for name in fields]
            size += 0 if fields else _PLAIN_BYTES
    return size * len(piece) // len(sample)
