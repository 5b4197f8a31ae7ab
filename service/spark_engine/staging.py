"""A task's committer: rows are staged as soon as their records are done, for the driver to commit.

Rows are kept by range and by section: what was emitted between two moments. A section is staged
once all its records are done, and they are resolved once the letters of refused rows are durable.
So a range of any length passes through, in as many sections as it takes.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import structlog

from acker.acker import Edges, Flags, Trees
from partition.records import (
    DEAD_LETTERED,
    RecordIds,
    offsets_of,
    partition_index_of,
    partition_indexes_of,
    record_ids_of,
)
from service.pipeline.committers import RefusedRow, SinkCommitter
from service.pipeline.sink_buffer import estimated_bytes
from service.spark_engine.range_fetcher import RangeReader
from service.spark_engine.task import EVERY_ROW, Reasons, Task, TaskRange
from sinks.writer import RetryLoop, check_rejected
from topology.calls import Failure
from topology.errors import SinkFailed
from topology.record import Reject
from topology.sink import Batch, Piece, Share, Staged, Stager
from topology.steps import SinkStep
from transactions.pending_rows import PendingRows, rows_at

log = structlog.get_logger()

_SECTIONS = 3  # one is staged, one is being processed to its end, one fills
_NO_END = np.iinfo(np.int64).max


class TaskSink:
    """One sink step of a task. The owner calls everything; `stage` blocks it.

    `refused` has, by record id, which of a record's rows the driver's sink refused in an earlier
    attempt: they are rejected here, so that their record gets its letter. Of the ranges in
    `skipped`, by partition index, the sink has the rows already.
    """

    def __init__(
        self,
        step: SinkStep,
        stager: Stager,
        refused: Mapping[int, Reasons],
        skipped: npt.NDArray[np.bool_],
    ) -> None:
        self.step = step
        self._stager = stager
        self._refused = refused
        self._skipped = skipped
        self._rows = PendingRows()
        self._fill_rows = self._fill_bytes = 0
        self._retries = RetryLoop(step.name)
        self.staged: list[Staged] = []

    def add(
        self, piece: Piece, record_ids: RecordIds, sections: RecordIds, indexes: RecordIds
    ) -> None:
        """Add rows of records, with the numbers of their sections, from 1."""
        if self._skipped.any():
            sections = np.where(self._skipped[indexes], 0, sections)
        self._rows.add(piece, record_ids, sections, indexes)
        self._fill_rows += len(piece)
        self._fill_bytes += estimated_bytes(piece)

    def discard_attempt(self, record_id: int, index: int) -> None:
        self._rows.discard_attempt(record_id, index)

    @property
    def is_due(self) -> bool:
        """Whether enough rows for a batch came since the last `closed`."""
        policy = self.step.policy
        return self._fill_rows >= policy.batch_rows or self._fill_bytes >= policy.batch_bytes

    def closed(self) -> None:
        """Note that the rows so far are of closed sections."""
        self._fill_rows = self._fill_bytes = 0

    def stage(self, number: int, ranges: Sequence[TaskRange]) -> dict[int, str]:
        """Stage a section's rows; return the reason of each record of which a row is refused.

        What fails is retried for as long as the task may run. Raises SinkFailed.
        """
        taken = [self._rows.take(index, number) for index in range(len(ranges))]
        record_ids = np.concatenate([each.record_ids for each in taken])
        reasons = self._refused_rows(record_ids)
        pieces = [piece for each in taken for piece in each.pieces]
        kept = np.delete(np.arange(len(record_ids)), list(reasons))
        if len(kept):
            indexes = partition_indexes_of(record_ids[kept])
            counts = np.bincount(indexes, minlength=len(ranges)).tolist()
            shares = tuple(
                Share(str(each.partition), 0, number, 1, each.position.offset, each.end, "", count)
                for each, count in zip(ranges, counts, strict=True)
            )
            pieces = rows_at(pieces, kept) if reasons else pieces
            batch = Batch(number, pieces, len(kept), shares, offsets_of(record_ids[kept]))
            staged = self._retries.run(
                lambda: self._try_stage(batch), f"section {number} was staged", rows=len(kept)
            )
            self.staged.append(staged)
            reasons |= {int(kept[row]): reason for row, reason in staged.rejected.items()}
        return {int(record_ids[row]): reasons[row] for row in sorted(reasons, reverse=True)}

    def discard(self) -> None:
        """Discard what was staged, as far as that works: the task has failed."""
        for staged in self.staged:
            try:
                self._stager.discard(staged)
            except Exception as error:  # noqa: BLE001 - nobody sees what is left
                log.warning("sink_discard_failed", sink=self.step.name, error=str(error))
        self.staged = []

    def _try_stage(self, batch: Batch) -> Staged:
        staged = self._stager.stage(batch)
        check_rejected(staged.rejected, batch.num_rows, self.step.name)
        return staged

    def _refused_rows(self, record_ids: RecordIds) -> dict[int, str]:
        found: dict[int, str] = {}
        for record_id, reasons in self._refused.items():
            first, end = np.searchsorted(record_ids, [record_id, record_id + 1]).tolist()
            for row in range(first, end):
                reason = reason_of(reasons, row - first)
                if reason is not None:
                    found[row] = reason
        return found


def reason_of(reasons: Reasons, row: int) -> str | None:
    return reasons.get(row, reasons.get(EVERY_ROW))


def sinks_of(task: Task, steps: Sequence[SinkStep]) -> dict[str, TaskSink]:
    """Return the sinks of a task by step. Raises SinkFailed if one came without its stager."""
    refused: dict[str, dict[int, Reasons]] = {step.name: {} for step in steps}
    for index, each in enumerate(task.ranges):
        for offset, by_sink in each.refused.items():
            for name, reasons in by_sink.items():
                record_id = int(record_ids_of(index, np.array([offset]))[0])
                refused[name][record_id] = reasons
    found: dict[str, TaskSink] = {}
    for step in steps:
        if step.name not in task.stagers:
            raise SinkFailed(f"sink '{step.name}': the task came without its stager")
        skipped = np.array([step.name in each.skips for each in task.ranges], np.bool_)
        stager = task.stagers[step.name]
        found[step.name] = TaskSink(step, stager, refused[step.name], skipped)
    return found


@dataclass(slots=True, eq=False)
class _Section:
    """The records that were emitted between two moments, of all ranges."""

    ends: npt.NDArray[np.int64]  # by partition index: they lie before this offset
    emitted: int | None = None  # how many; None: more may come
    done: int = 0  # of these, their trees have resolved
    is_staged: bool = False
    lettered: set[int] = field(default_factory=set)  # records with a letter
    letters_out: set[int] = field(default_factory=set)  # for a refused row, and not durable yet


class StagingCommitter(SinkCommitter):
    """Stages rows as soon as their records are done, for the driver to commit.

    The owner calls everything.
    """

    def __init__(
        self,
        reader: RangeReader,
        sinks: Mapping[str, TaskSink],
        task: Task,
        put: Callable[[list[RefusedRow]], object],
    ) -> None:
        """`put` is the pipeline's queue of results; refused rows come back from it to `handle`."""
        super().__init__(())
        self._sinks = sinks
        self._reader = reader
        self._ranges = task.ranges
        self._most = max(1, task.settings.max_pending // _SECTIONS)
        self._put = put
        self._sections = [self._new_section()]
        self._first = 1  # the number of the lowest of these
        self._closed_at = reader.emitted()

    def add(
        self,
        sink: str,
        piece: Piece,
        record_ids: RecordIds,
        trees: Trees,  # noqa: ARG002 - see BatchCommitter
        edges: Edges,  # noqa: ARG002
        now: float,  # noqa: ARG002
    ) -> None:
        self._sinks[sink].add(piece, record_ids, *self._sections_of(record_ids))

    def resolved(self, record_ids: RecordIds, flags: Flags) -> None:
        self.counters.resolved(np.bincount(flags, minlength=4))
        self._reader.processed(record_ids)
        numbers, _indexes = self._sections_of(record_ids)
        letters = flags & DEAD_LETTERED > 0
        for number, section in enumerate(self._sections, self._first):
            of_it = numbers == number
            if section.is_staged:  # the letter of a refused row
                section.letters_out -= set(record_ids[of_it].tolist())
            else:
                section.done += int(np.count_nonzero(of_it))
                section.lettered |= set(record_ids[of_it & letters].tolist())

    def handle(self, event: list[RefusedRow]) -> list[RefusedRow]:
        """Return rows that a stager refused, as `step` has put them."""
        return event

    def discard_attempt(self, record_id: int) -> None:
        index = partition_index_of(record_id)
        for sink in self._sinks.values():
            sink.discard_attempt(record_id, index)

    def step(
        self,
        now: float,  # noqa: ARG002
        *,
        flush: bool,
        plan: bool = True,  # noqa: ARG002 - as TransactionCommitter
    ) -> bool:
        """Close, stage and resolve the sections that can be; True if anything moved.

        Raises SinkFailed.
        """
        self._close(flush=flush)
        moved = False
        for number, section in enumerate(self._sections, self._first):
            if section.emitted is None or section.done < section.emitted:
                break
            if not section.is_staged:
                self._stage(number, section)
                moved = True
        while self._sections[0].is_staged and not self._sections[0].letters_out:
            for index, end in enumerate(self._sections.pop(0).ends.tolist()):
                self._reader.resolve_below(index, end)
            self._first += 1
            moved = True
        return moved

    def _close(self, *, flush: bool) -> None:
        """Begin another section, if it is time."""
        emitted = self._reader.emitted() - self._closed_at
        if not emitted.any():
            return
        is_much = emitted.max() >= self._most or self._reader.is_full
        if flush or is_much or any(sink.is_due for sink in self._sinks.values()):
            self._sections[-1].ends = self._reader.emitted_to()
            self._sections[-1].emitted = int(emitted.sum())
            self._sections.append(self._new_section())
            self._closed_at += emitted
            for sink in self._sinks.values():
                sink.closed()

    def _new_section(self) -> _Section:
        return _Section(np.full(len(self._ranges), _NO_END, np.int64))

    def _sections_of(self, record_ids: RecordIds) -> tuple[RecordIds, RecordIds]:
        """Return the sections of records, 0 for no record, and the indexes of their partitions."""
        indexes, offsets = partition_indexes_of(record_ids), offsets_of(record_ids)
        known = (record_ids >= 0) & (indexes < len(self._ranges))
        if not known.all():
            indexes = np.where(known, indexes, 0)
        numbers = np.full(len(record_ids), self._first, np.int64)
        for section in self._sections[:-1]:
            numbers += offsets >= section.ends[indexes]
        return np.where(known, numbers, 0), indexes

    def _stage(self, number: int, section: _Section) -> None:
        section.is_staged = True
        refused: list[RefusedRow] = []
        for name, sink in self._sinks.items():
            for record_id, reason in sink.stage(number, self._ranges).items():
                if record_id in section.lettered:
                    continue  # a record has one letter
                section.lettered.add(record_id)
                section.letters_out.add(record_id)
                self.counters.written -= 1  # it had a row; `resolved` counts it again
                refused.append(RefusedRow(Failure(name, Reject(reason)), record_id))
        if refused:
            self._put(refused)
