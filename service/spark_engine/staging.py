"""A task's committer: rows are staged as soon as their records are done, for the driver to commit.

Of each range those are staged that lie below the first record that is not done, a batch at a time,
and they are resolved once the letters of refused rows are durable. So a range of any length passes
through.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import structlog

from acker.acker import Flags
from partition.records import DEAD_LETTERED, RecordIds, offset_of, partition_index_of, record_ids_of
from service.pipeline.committers import RefusedRow, SinkCommitter
from service.pipeline.sink_buffer import Rows, estimated_bytes
from service.spark_engine.range_reader import RangeReader
from service.spark_engine.task import EVERY_ROW, Reasons, Task, TaskRange
from sinks.writer import RetryLoop, check_rejected
from topology.calls import Failure
from topology.errors import SinkFailed
from topology.record import Reject
from topology.sink import Batch, Piece, Share, Staged, Stager
from topology.steps import SinkStep
from transactions.pending_rows import OrderedRows, PendingRows, rows_at

log = structlog.get_logger()

_BATCHES = 3  # at least so many are made of what may be in flight of a partition
_ALL = 1  # stands for a transaction: what waits of a partition is not divided further


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
        self._batches = 0
        self._retries = RetryLoop(step.name)
        self.staged: list[Staged] = []

    def add(self, piece: Piece, record_ids: RecordIds) -> None:
        """Add rows of records; those of no record (-1) are dropped."""
        known = record_ids >= 0
        indexes = np.where(known, partition_index_of(record_ids), 0)
        self._rows.add(piece, record_ids, np.where(known & ~self._skipped[indexes], _ALL, 0))
        self._fill_rows += len(piece)
        self._fill_bytes += estimated_bytes(piece)

    def discard_attempt(self, record_id: int) -> None:
        self._rows.discard_attempt(record_id)

    @property
    def is_due(self) -> bool:
        policy = self.step.policy
        return self._fill_rows >= policy.batch_rows or self._fill_bytes >= policy.batch_bytes

    def stage(self, ends: Sequence[int], ranges: Sequence[TaskRange]) -> dict[int, str]:
        """Stage the rows of records below `ends`, by partition index.

        Return the reason of each record of which a row is refused. What fails is retried for as
        long as the task may run. Raises SinkFailed.
        """
        self._fill_rows = self._fill_bytes = 0
        taken = [self._take(index, end) for index, end in enumerate(ends)]
        record_ids = np.concatenate([each.record_ids for each in taken])
        reasons = self._refused_rows(record_ids)
        pieces = [piece for each in taken for piece in each.pieces]
        kept = np.delete(np.arange(len(record_ids)), list(reasons))
        if len(kept):
            self._batches += 1
            number = self._batches
            indexes = partition_index_of(record_ids[kept])
            counts = np.bincount(indexes, minlength=len(ranges)).tolist()
            shares = tuple(
                Share(str(each.partition), 0, number, 1, each.position.offset, each.end, "", count)
                for each, count in zip(ranges, counts, strict=True)
            )
            pieces = rows_at(pieces, kept) if reasons else pieces
            batch = Batch(number, pieces, len(kept), shares, offset_of(record_ids[kept]))
            staged = self._retries.run(
                lambda: self._try_stage(batch), f"batch {number} was staged", rows=len(kept)
            )
            self.staged.append(staged)
            reasons |= {int(kept[row]): reason for row, reason in staged.rejected.items()}
        return {int(record_ids[row]): reasons[row] for row in sorted(reasons, reverse=True)}

    def _take(self, index: int, end: int) -> OrderedRows:
        rows = self._rows.take(index, _ALL)
        all_rows = np.arange(len(rows.record_ids))
        count = int(np.searchsorted(offset_of(rows.record_ids), end))
        if count == len(all_rows):
            return rows
        rest = rows.record_ids[count:]
        for piece in rows_at(rows.pieces, all_rows[count:]):
            of_it, rest = rest[: len(piece)], rest[len(piece) :]
            self._rows.add(piece, of_it, np.full_like(of_it, _ALL))
        return OrderedRows(rows_at(rows.pieces, all_rows[:count]), rows.record_ids[:count])

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


class StagingCommitter(SinkCommitter):
    def __init__(
        self,
        reader: RangeReader,
        sinks: Mapping[str, TaskSink],
        task: Task,
        put: Callable[[list[RefusedRow]], object],
    ) -> None:
        """`put` is the pipeline's queue of results; refused rows come back from it to `handle`."""
        super().__init__(reader, ())
        self._sinks = sinks
        self._ranges = task.ranges
        self._most = max(1, task.settings.limits.max_pending // _BATCHES)
        self._put = put
        self._done = 0  # records, since the last batch
        self._staged_to = self._resolved_to = [each.position.offset for each in task.ranges]
        self._lettered: set[int] = set()  # records with a letter that are not staged yet
        self._letters_out: set[int] = set()  # of the last batch, for a refused row

    def add(self, sink: str, rows: Rows, now: float) -> None:  # noqa: ARG002 - see BatchCommitter
        self._sinks[sink].add(rows.piece, rows.record_ids)

    def resolved(self, record_ids: RecordIds, flags: Flags) -> None:
        self.counters.resolved(np.bincount(flags, minlength=4))
        self._consumer.processed(record_ids)
        self._done += len(record_ids)
        self._lettered.update(record_ids[flags & DEAD_LETTERED > 0].tolist())
        self._letters_out.difference_update(record_ids.tolist() if self._letters_out else ())

    def handle(self, event: list[RefusedRow]) -> list[RefusedRow]:
        return event

    def discard_attempt(self, record_id: int) -> None:
        for sink in self._sinks.values():
            sink.discard_attempt(record_id)

    def step(
        self,
        now: float,  # noqa: ARG002
        *,
        flush: bool,
        plan: bool = True,  # noqa: ARG002 - as TransactionCommitter
    ) -> bool:
        """Stage a batch, or resolve the last one; True if anything moved. Raises SinkFailed."""
        moved = not self._letters_out and self._stage(flush=flush)
        if self._letters_out or self._resolved_to == self._staged_to:
            return moved
        for index, end in enumerate(self._staged_to):
            self._consumer.resolve_below(index, end)
        self._resolved_to = self._staged_to
        return True

    def _stage(self, *, flush: bool) -> bool:
        is_rest = flush or self._consumer.is_full
        is_much = self._done >= self._most or any(sink.is_due for sink in self._sinks.values())
        if not (is_rest or is_much):
            return False
        ends = self._consumer.processed_to()
        if ends == self._staged_to or not (is_much or ends == self._consumer.emitted_to()):
            return False
        self._done, self._staged_to = 0, ends
        refused: list[RefusedRow] = []
        for name, sink in self._sinks.items():
            for record_id, reason in sink.stage(ends, self._ranges).items():
                if record_id in self._lettered:
                    continue  # a record has one letter
                self._lettered.add(record_id)
                self._letters_out.add(record_id)
                self.counters.written -= 1  # it had a row; `resolved` counts it again
                refused.append(RefusedRow(Failure(name, Reject(reason)), record_id))
        later = (e for e in self._lettered if offset_of(e) >= ends[partition_index_of(e)])
        self._lettered = set(later)
        if refused:
            self._put(refused)
        return True
