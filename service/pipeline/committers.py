"""When a row is done: a committer for each way in which a pipeline accounts for rows.

At least and at most once a row is a tuple of its record's tree, acked when it is durable. Exactly
once a row has no edge (ADR 0029): its tree resolves when its rows are ready, and they wait for
their transaction.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from acker.acker import Flags, Trees
from partition.consumer import Consumer
from partition.errors import Fenced
from partition.interfaces import StoredOffset
from partition.manager import PartitionManager
from partition.records import (
    Offsets,
    Partition,
    Places,
    RecordIds,
    Resumed,
    TransactionKind,
    by_partition,
    offset_of,
    partition_index_of,
)
from partition.recovery import Chain
from service.pipeline.context import Observer
from service.pipeline.sink_buffer import (
    BatchBuffer,
    Rows,
    SinkBuffer,
    TransactionBuffer,
    TransactionPart,
    TransactionWork,
)
from service.pipeline.trees import OutcomeCounters, TreeTracker, joined_edges
from sinks.writer import BatchCommitted, Done, SinkWriter
from topology.calls import Failure
from topology.errors import SinkFenced
from topology.record import Reject
from topology.sink import Fence
from transactions.groups import GroupMember, GroupPhase, TransactionGroup, TransactionGroups
from transactions.partition_transactions import PartitionTransactions
from transactions.transaction import Phase, resumed

_MOST_GROUPS = 2  # one that is committed, one that is staged
_TOGETHER_SECONDS = 0.25  # ready partitions wait at most so long for those that are not


class RefusedRow(NamedTuple):
    """A row that a sink rejected, by its record, or by its tree and edge if it has one."""

    failure: Failure
    record_id: int = -1
    tree: int = -1
    edge: int = 0


class SinkCommitter(ABC):
    """Hands rows to the sinks, and says when records are done. The owner thread calls everything.

    What has a default does nothing where rows may come again, and where no partition can be lost.
    """

    rows_have_edges = False
    """Whether a row is a tuple of its record's tree, to be acked when it is durable."""

    buffers: Mapping[str, SinkBuffer]
    """By the names of the sinks' steps."""

    def __init__(
        self, consumer: Any, buffers: Iterable[SinkBuffer], observers: Sequence[Observer] = ()
    ) -> None:
        """`consumer` is a Consumer, in a task a RangeReader."""
        self._consumer = consumer
        self.buffers = {each.name: each for each in buffers}
        self._observers = observers
        self.counters = OutcomeCounters()

    @property
    def is_idle(self) -> bool:
        """Whether nothing is under way that the trees do not tell of."""
        return True

    @abstractmethod
    def add(self, sink: str, rows: Rows, now: float) -> None: ...

    @abstractmethod
    def step(self, now: float, *, flush: bool, plan: bool = True) -> bool:
        """Hand over what is due, with `flush` all of it; return whether there was anything.

        Without `plan` the run ends, and no further record is planned. Raises permanent errors.
        """

    @abstractmethod
    def handle(self, done: Any) -> list[RefusedRow]:
        """Handle a writer's report; return rows that its sink rejected. Raises permanent errors."""

    @abstractmethod
    def resolved(self, record_ids: RecordIds, flags: Flags) -> None: ...

    def discard_attempt(self, record_id: int) -> None:  # noqa: B027 - its rows may come again
        """Drop the rows of a record's failed attempt."""

    def partition_lost(self, index: int) -> None:  # noqa: B027 - its rows may be durable as well
        """Drop the rows of a partition: its next owner replays them."""

    def is_full(self, sink: str) -> bool:  # noqa: ARG002 - see BatchCommitter
        """Whether a sink should get nothing more for now."""
        return False

    def waiting_trees(self) -> Iterator[Trees]:
        return iter(())


class BatchCommitter(SinkCommitter):
    """At least or at most once: a record is done when its tree has resolved."""

    buffers: Mapping[str, BatchBuffer]
    rows_have_edges = True

    def __init__(
        self,
        consumer: Consumer,
        buffers: Iterable[BatchBuffer],
        observers: Sequence[Observer],
        trees: TreeTracker,
    ) -> None:
        super().__init__(consumer, buffers, observers)
        self._trees = trees

    def add(self, sink: str, rows: Rows, now: float) -> None:
        self.buffers[sink].add(rows, now)

    def step(self, now: float, *, flush: bool, plan: bool = True) -> bool:  # noqa: ARG002
        flush = flush or self._consumer.is_full
        handed = False
        for buffer in self.buffers.values():
            handed |= buffer.submit_due(now, flush=flush)
        return handed

    def handle(self, done: Done) -> list[RefusedRow]:
        pending, rejected = self.buffers[done.sink].ended(done)
        self._trees.ack(*joined_edges(*pending.without(rejected)))
        return [
            RefusedRow(
                Failure(done.sink, Reject(reason)),
                tree=int(pending.trees[row]),
                edge=int(pending.edges[row]),
            )
            for row, reason in rejected.items()
        ]

    def resolved(self, record_ids: RecordIds, flags: Flags) -> None:
        self.counters.resolved(np.bincount(flags, minlength=4))
        for observer in self._observers:
            observer.records_resolved(record_ids)
        self._consumer.ack(record_ids)

    def is_full(self, sink: str) -> bool:
        return self.buffers[sink].is_full

    def waiting_trees(self) -> Iterator[Trees]:
        for buffer in self.buffers.values():
            yield from buffer.trees()


class TransactionCommitter(SinkCommitter):
    """Exactly once: groups transactions, has them staged, and committed in order.

    One group is committed while the next is staged, and that while a third fills. Nothing blocks:
    the sinks' threads report through the pipeline's queue.
    """

    buffers: Mapping[str, TransactionBuffer]

    def __init__(
        self,
        consumer: Consumer,
        buffers: Iterable[TransactionBuffer],
        observers: Sequence[Observer],
    ) -> None:
        super().__init__(consumer, buffers, observers)
        self._lines: dict[int, PartitionTransactions] = {}
        """By partition index, until the partition is lost."""
        self._groups = TransactionGroups(_MOST_GROUPS)
        self._works: dict[int, dict[str, TransactionWork]] = {}  # by group, then by sink
        self._ready_since: float | None = None
        self._seconds = min(each.step.policy.batch_seconds for each in self.buffers.values())

    # Records

    def add(self, sink: str, rows: Rows, now: float) -> None:  # noqa: ARG002 - no deadline
        txids = np.zeros(len(rows.record_ids), np.int64)
        for line, offsets, places in self._by_line(rows.record_ids):
            txids[places] = line.transactions_of(offsets)
        self.buffers[sink].add(rows, txids)

    def resolved(self, record_ids: RecordIds, flags: Flags) -> None:
        self._consumer.processed(record_ids)
        for line, offsets, places in self._by_line(record_ids):
            line.processed(offsets, flags[places])

    def _by_line(
        self, record_ids: RecordIds
    ) -> Iterator[tuple[PartitionTransactions, Offsets, Places]]:
        for index, offsets, places in by_partition(record_ids):
            if index in self._lines:
                yield self._lines[index], offsets, places

    def discard_attempt(self, record_id: int) -> None:
        for buffer in self.buffers.values():
            buffer.rows.discard_attempt(record_id)

    def partition_lost(self, index: int) -> None:
        self._lines.pop(index, None)
        for buffer in self.buffers.values():
            buffer.rows.drop(index)

    # The step

    def step(self, now: float, *, flush: bool, plan: bool = True) -> bool:
        managers = dict(self._consumer.assignment.owned())
        lines = {index: manager.delivery for index, manager in managers.items()}
        self._lines.update(lines)
        # A few records may become many rows: plan no more than the sinks get done.
        is_laden = any(buffer.is_laden for buffer in self.buffers.values())
        is_held = is_laden and not self._groups.may_plan
        for index, line in lines.items() if plan else ():
            line.is_held = is_held
            if self._consumer.assignment.may_plan(index):
                line.plan(now, managers[index].room)
        self._close(managers.values(), now, flush=flush)
        return self._begin(lines, now, flush=flush) or self._commit_next()

    def _close(
        self,
        managers: Iterable[PartitionManager[PartitionTransactions]],
        now: float,
        *,
        flush: bool,
    ) -> None:
        """Close the transactions that take records, if a batch is due."""
        filling = [(each, each.delivery.filling) for each in managers if each.delivery.filling]
        is_due = filling and (
            flush
            or now - min(transaction.since for _, transaction in filling) >= self._seconds
            or any(buffer.is_filled for buffer in self.buffers.values())
            or any(manager.delivery.is_full(manager.room) for manager, _ in filling)
        )
        if is_due:
            for manager, _ in filling:
                manager.delivery.close()
            for buffer in self.buffers.values():
                buffer.closed()

    def _begin(
        self, lines: Mapping[int, PartitionTransactions], now: float, *, flush: bool
    ) -> bool:
        if not self._groups.may_plan:
            return False
        ready: list[GroupMember] = []
        waits = False  # for a closed transaction that will be ready
        for index, line in lines.items():
            found = line.ready()
            if found is not None:
                ready.append(GroupMember(index, line, found.txid))
            else:
                waits |= any(each.phase is not Phase.FILLING for each in line.ungrouped[:1])
        if not ready:
            self._ready_since = None
            return False
        if self._ready_since is None:
            self._ready_since = now
        patience = min(_TOGETHER_SECONDS, self._seconds / 4)
        if waits and not flush and now - self._ready_since < patience:
            return False
        self._ready_since = None
        group = self._groups.plan(ready, GroupPhase.PROCESSED)
        works = {name: self._work(buffer, group) for name, buffer in self.buffers.items()}
        self._works[group.number] = works
        for name, work in works.items():
            self.buffers[name].stage(work)
        return True

    def _work(self, buffer: TransactionBuffer, group: TransactionGroup) -> TransactionWork:
        """Take a group's rows out, and keep those of transactions that the sink has not yet."""
        parts = []
        for member in group.members:
            rows = buffer.rows.take(member.place, member.txid)
            if member.txid > member.line.skips.get(buffer.name, 0):
                epoch = self._consumer.assignment.at(member.place).epoch
                parts.append(TransactionPart(member.share(epoch, len(rows.record_ids)), rows))
        return TransactionWork(group, parts)

    def _commit_next(self) -> bool:
        """Commit the lowest group if every sink has staged it and no dead letter is pending."""
        group = self._groups.lowest
        if group is None or group.phase is not GroupPhase.PROCESSED:
            return False
        works = self._works[group.number]
        if not all(work.is_staged for work in works.values()):
            return False
        lost = [each for each in group.members if not self._is_ours(each)]
        if lost:  # their dead letters are not awaited here
            self._groups.leave_out(group.number, lost)
            for name, work in works.items():
                self.buffers[name].leave_out(work, {str(each.line.partition) for each in lost})
            return True
        if self._groups.next_commit() is None:
            return False
        for name, work in works.items():
            self.buffers[name].commit(work)
        self._end_if_done(group)
        return True

    def _is_ours(self, member: GroupMember) -> bool:
        """Whether its partition was not lost since, even if it was claimed again."""
        return self._lines.get(member.place) is member.line

    # Reports of the sinks

    def handle(self, done: Done) -> list[RefusedRow]:
        buffer = self.buffers[done.sink]
        refused: list[RefusedRow] = []
        if isinstance(done, BatchCommitted):
            group = buffer.committed(done).group
            if isinstance(done.error, SinkFenced):
                self._fenced(group, done.error)
        else:
            work = buffer.staged(done)
            group = work.group
            refused = self._refused(done.sink, work)
            if group.phase is GroupPhase.COMMITTING:  # it was staged again, without what is lost
                buffer.commit(work)
        if group.phase is GroupPhase.COMMITTING:
            self._end_if_done(group)
        return refused

    def _refused(self, sink: str, work: TransactionWork) -> list[RefusedRow]:
        """Return one row of each rejected record that has no dead letter yet."""
        rejected = work.staged.rejected if work.staged is not None else {}
        if not rejected:
            return []
        record_ids = work.record_ids()
        lines = {each.place: each.line for each in work.group.members if self._is_ours(each)}
        refused: dict[int, RefusedRow] = {}
        for row, reason in rejected.items():
            record_id = int(record_ids[row])
            line = lines.get(partition_index_of(record_id))
            if record_id in refused or line is None:
                continue
            if line.awaits(offset_of(record_id)):
                refused[record_id] = RefusedRow(Failure(sink, Reject(reason)), record_id)
        return list(refused.values())

    def _fenced(self, group: TransactionGroup, error: SinkFenced) -> None:
        """Give up a partition of another owner before the group is counted as done."""
        for member in group.members:
            partition = member.line.partition
            if str(partition) == error.line:
                fenced = Fenced(partition, str(error))
                self._consumer.assignment.refuse(partition, fenced, index=member.place)
                self.partition_lost(member.place)

    def _end_if_done(self, group: TransactionGroup) -> None:
        if not all(work.is_done for work in self._works[group.number].values()):
            return
        del self._works[group.number]
        outcomes = [each.transaction.by_flags for each in group.members]
        ended = zip(self._groups.done(group.number), outcomes, strict=True)
        for (member, covered), by_flags in ended:
            if self._is_ours(member):
                self._consumer.resolve_below(member.place, covered.end)
                for observer in self._observers:
                    observer.resolved_below(member.place, covered.end)
                self.counters.resolved(by_flags)

    @property
    def is_idle(self) -> bool:
        """Whether no group is in flight and none can begin without a retry."""
        lines = [manager.delivery for _, manager in self._consumer.assignment.owned()]
        return not len(self._groups) and not any(
            each.is_due or each.filling or each.ready() for each in lines
        )


class EpochFencer:
    """Fences partitions in every sink as they are opened: a `partition.recovery.Fencing`.

    The former owner of a partition may still be about to commit. So each sink first gets the new
    epoch, and then says what it has (ADR 0031: claim, fence, read, fetch).
    """

    def __init__(self, kind: TransactionKind, writers: Mapping[str, SinkWriter]) -> None:
        self.kind = kind
        self._writers = writers  # by their sinks' steps

    def fence(self, partition: Partition, epoch: int) -> Chain[Mapping[str, int]]:
        fence = Fence(str(partition), epoch)
        answers = {name: writer.fence(fence) for name, writer in self._writers.items()}
        committed: dict[str, int] = {}
        for name, answer in answers.items():
            try:
                committed[name] = yield answer
            except SinkFenced as error:
                raise Fenced(partition, str(error)) from error
        return committed

    def resume(
        self, partition: Partition, stored: StoredOffset, committed: Mapping[str, int]
    ) -> Resumed:
        return resumed(partition, stored, committed, self.kind)
