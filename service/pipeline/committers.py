"""When a row is done: a committer for each way in which a pipeline accounts for rows.

At least and at most once a row is a tuple of its record's tree, acked when it is durable. Exactly
once a row has no edge (ADR 0029): its tree resolves when its rows are ready, and they wait for
their transaction.
"""

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from acker.acker import Edges, Flags, Trees
from partition.consumer import Consumer
from partition.errors import Fenced
from partition.records import (
    RecordIds,
    offset_of,
    offsets_of,
    partition_index_of,
    partition_indexes_of,
)
from service.pipeline.context import Observer
from service.pipeline.sink_buffer import (
    BatchBuffer,
    SinkBuffer,
    TransactionBuffer,
    TransactionPart,
    TransactionWork,
    WriterEvent,
)
from service.pipeline.trees import DEAD_LETTERED, OutcomeCounters, TreeTracker
from sinks.writer import BatchCommitted
from topology.calls import Failure
from topology.errors import SinkFenced
from topology.record import Reject
from topology.sink import Piece, Share
from transactions.groups import GroupMember, GroupPhase, TransactionGroup, TransactionGroups
from transactions.partition_transactions import PartitionTransactions
from transactions.transaction import Phase, Transaction

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

    It knows neither retries nor dead letters. What has a default here does nothing where rows may
    come again, and where no partition can be lost.
    """

    rows_have_edges = False
    """Whether a row is a tuple of its record's tree, to be acked when it is durable."""
    is_idle = True
    """Whether nothing is under way that the trees do not tell of."""

    def __init__(self, buffers: Iterable[SinkBuffer], counters: OutcomeCounters) -> None:
        self.buffers: Mapping[str, SinkBuffer] = {each.name: each for each in buffers}
        """By the names of the sinks' steps."""
        self.counters = counters

    @abstractmethod
    def add(self, sink: str, piece: Piece, trees: Trees, edges: Edges | None, now: float) -> None:
        """Add rows for a sink; row i is of tree `trees[i]`, by `edges[i]` if rows have edges."""

    @abstractmethod
    def step(self, now: float, *, flush: bool, plan: bool = True) -> bool:
        """Hand over what is due, with `flush` all of it; return whether there was anything.

        Without `plan` the run ends, and no further record is planned. Raises permanent errors.
        """

    @abstractmethod
    def handle(self, event: Any) -> list[RefusedRow]:
        """Handle a writer's event; return the rows that its sink rejected.

        Raises permanent errors.
        """

    @abstractmethod
    def resolved(self, record_ids: RecordIds, flags: Flags) -> None:
        """Handle resolved trees."""

    def discard_attempt(self, record_id: int) -> None:  # noqa: B027 - its rows may come again
        """Drop the rows of a record's failed attempt."""

    def partition_lost(self, index: int) -> None:  # noqa: B027 - its rows may be durable as well
        """Drop the rows of a partition: its next owner replays them."""

    def holds(self, index: int) -> bool:  # noqa: ARG002 - see TransactionCommitter
        """Whether anything here refers to a record of a partition."""
        return False

    def is_full(self, sink: str, now: float) -> bool:  # noqa: ARG002 - see BatchCommitter
        """Whether a sink should get nothing more for now."""
        return False

    def waiting_trees(self) -> Iterator[Trees]:
        return iter(())


class BatchCommitter(SinkCommitter):
    """At least or at most once: a record is done when its tree has resolved."""

    rows_have_edges = True

    def __init__(
        self,
        consumer: Consumer,
        trees: TreeTracker,
        buffers: Sequence[BatchBuffer],
        observers: Sequence[Observer],
    ) -> None:
        super().__init__(buffers, OutcomeCounters())
        self._consumer = consumer
        self._trees = trees
        self._buffers = {each.name: each for each in buffers}
        self._observers = observers

    def add(self, sink: str, piece: Piece, trees: Trees, edges: Edges | None, now: float) -> None:
        if edges is None:
            raise ValueError(f"rows of sink '{sink}' came without edges")
        self._buffers[sink].add(piece, trees, edges, now)

    def step(self, now: float, *, flush: bool, plan: bool = True) -> bool:  # noqa: ARG002
        handed = False
        for buffer in self._buffers.values():
            handed |= buffer.submit_due(now, self._trees, flush=flush or self._consumer.is_full)
        return handed

    def handle(self, event: WriterEvent) -> list[RefusedRow]:
        pending, staged = self._buffers[event.sink].ended(event.done)
        good, edges = pending.good_rows(staged)
        for observer in self._observers:
            observer.rows_written(event.sink, self._trees.record_ids(good))
        self._trees.ack(good, edges)
        return [
            RefusedRow(
                Failure(event.sink, Reject(reason)),
                tree=int(pending.trees[row]),
                edge=int(pending.edges[row]),
            )
            for row, reason in staged.rejected.items()
        ]

    def resolved(self, record_ids: RecordIds, flags: Flags) -> None:
        self.counters.acked(flags)
        for observer in self._observers:
            observer.records_resolved(record_ids)
        self._consumer.ack(record_ids)

    def is_full(self, sink: str, now: float) -> bool:
        return self._buffers[sink].is_full(now)

    def waiting_trees(self) -> Iterator[Trees]:
        for buffer in self._buffers.values():
            yield from buffer.trees()


@dataclass(slots=True)
class _Outcome:
    counters: OutcomeCounters = field(default_factory=OutcomeCounters)
    dead_lettered: set[int] = field(default_factory=set)  # record ids


class TransactionCommitter(SinkCommitter):
    """Exactly once: groups transactions, has them staged, and committed in order.

    One step: waiting records are planned, transactions are closed when the micro-batch is due,
    what is ready becomes a group, and groups are committed in order: one is committed while the
    next is staged, and that while a third fills. Nothing blocks: the sinks' threads report through
    the pipeline's queue.
    """

    def __init__(
        self,
        consumer: Consumer,
        trees: TreeTracker,
        buffers: Sequence[TransactionBuffer],
        observers: Sequence[Observer],
    ) -> None:
        super().__init__(buffers, OutcomeCounters())
        self._consumer = consumer
        self._trees = trees
        self._buffers = {each.name: each for each in buffers}
        self._observers = observers
        self._owned: dict[int, PartitionTransactions] = {}  # by partition index
        self._outcomes: defaultdict[tuple[int, int], _Outcome] = defaultdict(_Outcome)
        """By partition index and txid."""
        self._groups = TransactionGroups(_MOST_GROUPS)
        self._works: dict[int, dict[str, TransactionWork]] = {}  # by group, then by sink
        self._ready_since: float | None = None
        self._seconds = min(each.step.policy.batch_seconds for each in buffers)

    # Records

    def add(self, sink: str, piece: Piece, trees: Trees, edges: Edges | None, now: float) -> None:
        del edges, now  # rows have no edge, and wait for their transaction
        record_ids = self._trees.record_ids(trees)  # -1 where an attempt was abandoned
        txids = np.zeros(len(record_ids), np.int64)
        for index, offsets, there in _by_partition(record_ids):
            owned = self._owned.get(index)
            if owned is not None:
                txids[there] = owned.transactions_of(offsets)
        self._buffers[sink].add(piece, record_ids, txids, partition_indexes_of(record_ids))

    def resolved(self, record_ids: RecordIds, flags: Flags) -> None:
        self._consumer.processed(record_ids)
        for index, offsets, there in _by_partition(record_ids):
            owned = self._owned.get(index)
            if owned is None:
                continue
            txids = owned.transactions_of(offsets)
            owned.processed(offsets)
            is_one = bool((txids == txids[0]).all())
            for txid in txids[:1].tolist() if is_one else np.unique(txids).tolist():
                if not txid:
                    continue
                of_it = txids == txid
                its_flags = flags[there][of_it]
                outcome = self._outcomes[index, txid]
                outcome.counters.acked(its_flags)
                lettered = record_ids[there][of_it][its_flags & DEAD_LETTERED > 0]
                outcome.dead_lettered.update(lettered.tolist())

    def discard_attempt(self, record_id: int) -> None:
        index = partition_index_of(record_id)
        for buffer in self._buffers.values():
            buffer.rows.discard_attempt(record_id, index)

    def partition_lost(self, index: int) -> None:
        self._owned.pop(index, None)
        for buffer in self._buffers.values():
            buffer.rows.drop(index)
        for key in [key for key in self._outcomes if key[0] == index]:
            del self._outcomes[key]

    def holds(self, index: int) -> bool:
        """Whether a group with the partition is in flight, also after its loss."""
        return any(group.has(index) for group in self._groups)

    # The step

    def step(self, now: float, *, flush: bool, plan: bool = True) -> bool:
        managers = dict(self._consumer.assignment.owned())
        owned: dict[int, PartitionTransactions] = {
            index: manager.delivery for index, manager in managers.items()
        }
        self._owned.update(owned)
        # A few records may become many rows: plan no more than the sinks get done.
        is_laden = any(buffer.is_laden for buffer in self._buffers.values())
        is_held = is_laden and not self._groups.may_plan
        for index, each in owned.items() if plan else ():
            each.is_held = is_held
            if self._consumer.assignment.may_plan(index):
                each.plan(now, managers[index].room)
        filling = [
            (each, managers[index].room)
            for index, each in owned.items()
            if each.filling is not None
        ]
        self._close(filling, now, flush=flush)
        return self._begin(owned, now, flush=flush) or self._commit_next()

    def _close(
        self, filling: list[tuple[PartitionTransactions, int]], now: float, *, flush: bool
    ) -> None:
        """Close transactions if a batch is due. With each comes its partition's room."""
        if not filling:
            return
        since = min(each.filling.since for each, _ in filling if each.filling is not None)
        is_due = now - since >= self._seconds or any(each.is_full(room) for each, room in filling)
        if flush or is_due or any(buffer.is_filled for buffer in self._buffers.values()):
            for each, _ in filling:
                each.close()
            for buffer in self._buffers.values():
                buffer.closed()

    def _begin(
        self, owned: Mapping[int, PartitionTransactions], now: float, *, flush: bool
    ) -> bool:
        """Stage a group of the ready transactions."""
        if not self._groups.may_plan:
            return False
        ready = [
            GroupMember(index, each, found.txid)
            for index, each in owned.items()
            if (found := each.ready()) is not None
        ]
        if not ready:
            self._ready_since = None
            return False
        if self._ready_since is None:
            self._ready_since = now
        waits = any(each.ready() is None and _is_closed(each.ungrouped) for each in owned.values())
        patience = min(_TOGETHER_SECONDS, self._seconds / 4)
        if waits and not flush and now - self._ready_since < patience:
            return False
        self._ready_since = None
        group = self._groups.plan(ready, GroupPhase.PROCESSED)
        works = self._works[group.number] = {}
        for name, buffer in self._buffers.items():
            parts = self._parts(name, group.members)
            works[name] = TransactionWork(group, parts)
            buffer.stage(works[name])
        return True

    def _parts(self, sink: str, members: Iterable[GroupMember]) -> list[TransactionPart]:
        """A sink's part of a group, without the transactions that it has already."""
        parts = [
            (member, self._buffers[sink].part(member.place, self._share(member)))
            for member in members
        ]
        return [part for member, part in parts if member.txid > member.line.skips.get(sink, 0)]

    def _share(self, member: GroupMember) -> Share:
        epoch = self._consumer.assignment.at(member.place).epoch
        return share_of(str(member.line.partition), epoch, member.transaction)

    def _commit_next(self) -> bool:
        """Commit the lowest group if every sink has staged it and no dead letter is pending."""
        group = self._groups.lowest
        if group is None or group.phase is not GroupPhase.PROCESSED:
            return False
        works = self._works[group.number].values()
        if not all(work.is_staged for work in works):
            return False
        if self._leave_out_lost(group):
            return True
        if self._groups.next_commit() is None:
            return False
        for name, work in self._works[group.number].items():
            self._buffers[name].commit(work)
        self._end_if_done(group)
        return True

    def _leave_out_lost(self, group: TransactionGroup) -> bool:
        """Leave out lost partitions, whose dead letters are not awaited here."""
        lost = [each for each in group.members if not self._is_ours(each)]
        if not lost:
            return False
        self._groups.leave_out(group.number, lost)
        lines = {str(each.line.partition) for each in lost}
        for name, work in self._works[group.number].items():
            self._buffers[name].leave_out(work, lines)
        return True

    def _is_ours(self, member: GroupMember) -> bool:
        """Whether its partition was not lost since, even if it was claimed again."""
        return self._owned.get(member.place) is member.line

    # Reports of the sinks

    def handle(self, event: WriterEvent) -> list[RefusedRow]:
        buffer, done = self._buffers[event.sink], event.done
        refused: list[RefusedRow] = []
        if isinstance(done, BatchCommitted):
            work = buffer.committed(done)
            group = work.group
            if isinstance(done.error, SinkFenced):
                self._fenced(group, done.error)
            else:
                record_ids = np.delete(work.record_ids(), list(done.staged.rejected))
                for observer in self._observers:
                    observer.rows_written(event.sink, record_ids)
        else:
            work = buffer.staged(done)
            group = work.group
            refused = self._refused(event.sink, work, group)
            if group.phase is GroupPhase.COMMITTING:  # it was staged again, without what is lost
                buffer.commit(work)
        if group.phase is GroupPhase.COMMITTING:
            self._end_if_done(group)
        return refused

    def _refused(
        self, sink: str, work: TransactionWork, group: TransactionGroup
    ) -> list[RefusedRow]:
        """Return one row of each record of which the sink rejected any."""
        rejected = work.staged.rejected if work.staged is not None else {}
        if not rejected:
            return []
        record_ids = work.record_ids()
        reasons: dict[int, str] = {}
        for row, reason in rejected.items():
            reasons.setdefault(int(record_ids[row]), reason)
        ours = {each.place for each in group.members if self._is_ours(each)}
        return [
            RefusedRow(Failure(sink, Reject(reason)), record_id)
            for record_id, reason in reasons.items()
            if partition_index_of(record_id) in ours and self._awaits_dead_letter(record_id)
        ]

    def _awaits_dead_letter(self, record_id: int) -> bool:
        """Wait for the dead letter of a record with a rejected row; False: it has one already."""
        index, offset = partition_index_of(record_id), offset_of(record_id)
        owned = self._owned[index]
        txid = int(owned.transactions_of(np.array([offset], np.int64))[0])
        outcome = self._outcomes[index, txid]
        if record_id in outcome.dead_lettered:
            return False
        outcome.dead_lettered.add(record_id)
        outcome.counters.written -= 1  # it had a row; `resolved` counts it again
        owned.awaits(offset)
        return True

    def _fenced(self, group: TransactionGroup, error: SinkFenced) -> None:
        """Give up a partition of another owner before the group is counted as done."""
        for member in group.members:
            partition = member.line.partition
            if str(partition) == error.line:
                fenced = Fenced(partition, str(error))
                self._consumer.assignment.refuse(partition, fenced, index=member.place)
                self.partition_lost(member.place)

    def _end_if_done(self, group: TransactionGroup) -> None:
        """Resolve the records of a group that every sink has."""
        if not all(work.is_done for work in self._works[group.number].values()):
            return
        del self._works[group.number]
        for member, covered in self._groups.done(group.number):
            if not self._is_ours(member):
                continue
            index = member.place
            self._consumer.resolve_below(index, covered.end)
            for observer in self._observers:
                observer.resolved_below(index, covered.end)
            outcome = self._outcomes.pop((index, member.txid), None)
            if outcome is not None:
                self.counters.add(outcome.counters)

    @property
    def is_idle(self) -> bool:  # type: ignore[override]
        """Whether no group is in flight and none can begin without a retry."""
        if len(self._groups):
            return False
        managers = self._consumer.assignment.owned()
        owned: list[PartitionTransactions] = [manager.delivery for _, manager in managers]
        return not any(each.is_due or each.filling or each.ready() for each in owned)


def _by_partition(
    record_ids: RecordIds,
) -> Iterator[tuple[int, RecordIds, "slice | npt.NDArray[np.bool_]"]]:
    """Split record ids by partition: index, offsets, and the positions of these records."""
    indexes, offsets = partition_indexes_of(record_ids), offsets_of(record_ids)
    if len(indexes) and (indexes == indexes[0]).all():
        yield int(indexes[0]), offsets, slice(None)
        return
    for index in np.unique(indexes).tolist():
        there = indexes == index
        yield index, offsets[there], there


def _is_closed(waiting: Sequence[Transaction]) -> bool:
    return bool(waiting) and waiting[0].phase is not Phase.FILLING


def share_of(line: str, epoch: int, transaction: Transaction) -> Share:
    """Return a transaction's share of a group, with no row counted; `line` is its partition's name.

    Raises ValueError for a range that is only planned: nobody may commit it.
    """
    covers = transaction.range
    if covers.digest is None:
        raise ValueError(f"{line} transaction {transaction.txid} is not sealed: it is of {covers}")
    span = covers.first, covers.end, covers.digest
    return Share(line, epoch, transaction.txid, transaction.attempt, *span, 0)
