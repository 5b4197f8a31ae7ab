"""Say when a row is done: two committers, one for each way in which a pipeline accounts for rows.

At least and at most once a row is a tuple of its record's tree, acked when it is durable. Exactly
once a row has no edge: its tree resolves when its rows are ready, and they wait for their
transaction. Both tell of rows that a sink refused, and know nothing of what becomes of these.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from acker.acker import Flags, Trees
from partition.consumer import Consumer
from partition.errors import Fenced
from partition.records import (
    RecordIds,
    offset_of,
    offsets_of,
    partition_index_of,
    partition_indexes_of,
)
from service.pipeline.context import Observers
from service.pipeline.sink_buffer import (
    BatchBuffer,
    Part,
    TransactionBuffer,
    Work,
    WriterEvent,
    good_rows,
)
from service.pipeline.trees import LETTERED, Tally, TreeTracker
from sinks.writer import BatchCommitted
from topology.calls import Failure
from topology.errors import SinkFenced
from topology.record import Reject
from topology.sink import Piece, Share
from transactions.groups import GroupPhase, Member, TransactionGroup, TransactionGroups
from transactions.partition_transactions import PartitionTransactions, Phase, Transaction

_MOST_GROUPS = 2  # one that is committed, one that is staged
_TOGETHER_SECONDS = 0.25  # at most so long lines that are ready wait for those that are not


class RefusedRow(NamedTuple):
    """A row that a sink does not take, by its record, or by its tree and edge if it has one."""

    failure: Failure
    record_id: int = -1
    tree: int = -1
    edge: int = 0


class BatchCommitter:
    """Acks rows and resolves records, at least or at most once. The owner calls everything.

    A record is done when its tree has resolved: all its rows are durable then.
    """

    is_idle = True
    """Nothing is under way that the trees do not tell of."""

    def __init__(
        self,
        outlets: Iterable[BatchBuffer],
        trees: TreeTracker,
        reader: Consumer,
        tally: Tally,
        on: Observers,
    ) -> None:
        self.by_name: Mapping[str, BatchBuffer] = {outlet.name: outlet for outlet in outlets}
        """The sinks' buffers, by their steps' names."""
        self._trees = trees
        self._reader = reader
        self.tally = tally
        self._on = on

    @property
    def outlets(self) -> Sequence[BatchBuffer]:
        """The sinks' buffers."""
        return list(self.by_name.values())

    def step(self, now: float, *, flush: bool, plan: bool = True) -> bool:  # noqa: ARG002 - as TransactionCommitter
        """Hand over the batches that are due, with `flush` all; True if there was one."""
        handed = False
        for outlet in self.by_name.values():
            handed |= outlet.submit_due(now, self._trees, flush=flush or self._reader.is_full)
        return handed

    def handle(self, event: WriterEvent) -> list[RefusedRow]:
        """Hear what a sink's threads report; give the rows it refused. Raises what ends the run."""
        ended = self.by_name[event.sink].ended(event.done)
        if ended is None:
            return []
        pending, staged = ended
        good, edges = good_rows(pending, staged)
        for notify in self._on.rows_written:
            notify(event.sink, self._trees.record_ids(good))
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
        """Learn that the trees of records have resolved."""
        self.tally.acked(flags)
        for notify in self._on.records_resolved:
            notify(record_ids)
        self._reader.ack(record_ids)

    def discard_attempt(self, record_id: int) -> None:
        """Do nothing: rows of a try that has failed may come again."""

    def partition_lost(self, place: int) -> None:
        """Do nothing: rows of a partition that is lost may be durable as well."""

    def waiting_trees(self) -> Iterator[Trees]:
        """Give the trees of the rows that are on their way."""
        for outlet in self.by_name.values():
            yield from outlet.trees()

    def holds(self, place: int) -> bool:  # noqa: ARG002 - as TransactionCommitter
        """Tell whether anything here names a record of a partition: rows name their trees."""
        return False


class TransactionCommitter:
    """Groups, stages and commits transactions, exactly once. The owner thread calls everything.

    One step: what waits is planned, transactions are closed when the micro-batch is due, what is
    ready becomes a group, and groups are committed in order: one is committed while the next is
    staged, and that while a third fills. Nothing blocks: the sinks' threads report through the
    pipeline's queue, and `handle` hears them.
    """

    def __init__(
        self,
        reader: Consumer,
        outlets: Iterable[TransactionBuffer],
        tally: Tally,
        on: Observers,
    ) -> None:
        self._reader = reader
        self.by_name = {outlet.name: outlet for outlet in outlets}
        """The sinks' buffers, by their steps' names."""
        self.tally = tally
        self._on = on
        self._lines: dict[int, PartitionTransactions] = {}
        self._tallies: dict[tuple[int, int], Tally] = {}
        self._lettered: dict[tuple[int, int], set[int]] = {}  # owners with a letter
        self._groups = TransactionGroups(_MOST_GROUPS)
        self._works: dict[int, dict[str, Work]] = {}  # by group, then by sink
        self._ready_since: float | None = None
        self._seconds = min(outlet.step.policy.batch_seconds for outlet in self.by_name.values())

    @property
    def outlets(self) -> Sequence[TransactionBuffer]:
        """The sinks' buffers."""
        return list(self.by_name.values())

    # What comes of records

    def add(self, sink: str, piece: Piece, record_ids: RecordIds) -> None:
        """Take rows for a sink; `owners` are their records, -1 where a try was given up."""
        places = partition_indexes_of(record_ids)
        offsets = offsets_of(record_ids)
        if len(places) and (places == places[0]).all():
            txids = self._txids(int(places[0]), offsets)
        else:
            txids = np.zeros(len(record_ids), np.int64)
            for place in np.unique(places).tolist():
                there = places == place
                txids[there] = self._txids(place, offsets[there])
        self.by_name[sink].add(piece, record_ids, txids, places)

    def _txids(self, place: int, offsets: RecordIds) -> RecordIds:
        line = self._lines.get(place)
        return np.zeros(len(offsets), np.int64) if line is None else line.transactions_of(offsets)

    def resolved(self, record_ids: RecordIds, flags: Flags) -> None:
        """Learn that the trees of records have resolved."""
        if not len(record_ids):
            return
        self._reader.processed(record_ids)
        places, offsets = partition_indexes_of(record_ids), offsets_of(record_ids)
        if (places == places[0]).all():
            self._resolved(int(places[0]), offsets, record_ids, flags)
            return
        for place in np.unique(places).tolist():
            there = places == place
            self._resolved(place, offsets[there], record_ids[there], flags[there])

    def _resolved(
        self, place: int, offsets: RecordIds, record_ids: RecordIds, flags: Flags
    ) -> None:
        line = self._lines.get(place)
        if line is None:
            return
        txids = line.transactions_of(offsets)
        line.processed(offsets)
        for txid in [int(txids[0])] if (txids == txids[0]).all() else np.unique(txids).tolist():
            if not txid:
                continue
            there = txids == txid
            self._tallies.setdefault((place, txid), Tally()).acked(flags[there])
            letters = record_ids[there & (flags & LETTERED > 0)]
            if len(letters):
                self._lettered.setdefault((place, txid), set()).update(letters.tolist())

    def discard_attempt(self, record_id: int) -> None:
        """Leave out the rows of a record's try that has failed."""
        place = partition_index_of(record_id)
        for outlet in self.by_name.values():
            outlet.discard_attempt(record_id, place)

    def partition_lost(self, place: int) -> None:
        """Forget what is ready of a partition: whoever has it now replays it."""
        self._lines.pop(place, None)
        for outlet in self.by_name.values():
            outlet.partition_lost(place)
        for key in [key for key in (*self._tallies, *self._lettered) if key[0] == place]:
            self._tallies.pop(key, None)
            self._lettered.pop(key, None)

    def holds(self, place: int) -> bool:
        """Tell whether a transaction of a partition is staged or committed, also of one lost."""
        return any(each.place == place for group in self._groups for each in group.members)

    def waiting_trees(self) -> Iterator[Trees]:
        """Give nothing: rows have no tree."""
        return iter(())

    # The step

    def step(self, now: float, *, flush: bool, plan: bool = True) -> bool:
        """Plan, close, group and commit what can be; True if anything moved.

        With `flush` nothing waits to be due; without `plan` the run ends.
        """
        managers = dict(self._reader.assignment.owned())
        owned: list[tuple[int, PartitionTransactions]] = [
            (place, each.delivery) for place, each in managers.items()
        ]
        self._lines.update(owned)
        is_held = self._is_held
        for place, line in owned if plan else ():
            line.is_held = is_held
            if self._reader.assignment.may_plan(place):
                line.plan(now, managers[place].room)
        filling = [
            (line, managers[place].room) for place, line in owned if line.filling is not None
        ]
        self._close(filling, now, flush=flush)
        for manager in managers.values():
            self._reader.offsets.note(manager)  # what is planned is stored at once
        return self._begin(owned, now, flush=flush) or self._commit_next()

    @property
    def _is_held(self) -> bool:
        """True if more rows wait than the sinks get done: a few records may become many rows."""
        is_busy = not self._groups.may_plan
        return is_busy and any(outlet.is_laden for outlet in self.by_name.values())

    def _close(
        self, filling: list[tuple[PartitionTransactions, int]], now: float, *, flush: bool
    ) -> None:
        """Close lines; with each comes how many more records have room."""
        if not filling:
            return
        since = min(line.filling.since for line, _ in filling if line.filling is not None)
        is_due = now - since >= self._seconds or any(line.is_full(room) for line, room in filling)
        if flush or is_due or any(outlet.is_due for outlet in self.by_name.values()):
            for line, _ in filling:
                line.close()
            for outlet in self.by_name.values():
                outlet.closed()

    def _begin(
        self, owned: Iterable[tuple[int, PartitionTransactions]], now: float, *, flush: bool
    ) -> bool:
        """Make a group of what is ready, and have it staged."""
        if not self._groups.may_plan:
            return False
        ready = [
            Member(place, line, found.txid)
            for place, line in owned
            if (found := line.ready()) is not None
        ]
        if not ready:
            self._ready_since = None
            return False
        if self._ready_since is None:
            self._ready_since = now
        waits = any(line.ready() is None and _is_closed(line.ungrouped) for _, line in owned)
        if waits and not flush and now - self._ready_since < self._patience:
            return False
        self._ready_since = None
        group = self._groups.plan(ready, GroupPhase.PROCESSED)
        works = self._works[group.number] = {}
        for name, outlet in self.by_name.items():
            works[name] = work = Work(name, group.number, self._parts(name, group.members))
            outlet.stage(work)
        return True

    @property
    def _patience(self) -> float:
        return min(_TOGETHER_SECONDS, self._seconds / 4)

    def _parts(self, sink: str, members: Iterable[Member]) -> list[Part]:
        """Give a sink its part of a group; rows of what it has already are let go."""
        parts = [
            (member, self.by_name[sink].part(member.place, self._share(member)))
            for member in members
        ]
        return [part for member, part in parts if member.txid > member.line.skips.get(sink, 0)]

    def _share(self, member: Member) -> Share:
        epoch = self._reader.partition(member.place).epoch
        return share_of(str(member.line.partition), epoch, member.transaction)

    def _commit_next(self) -> bool:
        """Have the lowest group committed, if every sink has it staged and no letter is out."""
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
        for work in works:
            self.by_name[work.sink].commit(work)
        self._end_if_done(group)
        return True

    def _leave_out_lost(self, group: TransactionGroup) -> bool:
        """Leave out what is another owner's: of a letter that is out nobody would hear here."""
        lost = [each for each in group.members if self._lines.get(each.place) is not each.line]
        if not lost:
            return False
        self._groups.leave_out(group.number, lost)
        lines = {str(each.line.partition) for each in lost}
        for work in self._works[group.number].values():
            self.by_name[work.sink].leave_out(work, lines)
        return True

    # What the sinks tell

    def handle(self, event: WriterEvent) -> list[RefusedRow]:
        """Hear what a sink's threads report; give the rows it refused. Raises what ends the run."""
        outlet, done = self.by_name[event.sink], event.done
        refused: list[RefusedRow] = []
        if isinstance(done, BatchCommitted):
            group = self._committed(outlet, done)
        elif done.staged is None:
            raise done.error or RuntimeError(outlet.name)
        else:
            work = outlet.staged(done.batch.sequence, done.staged)
            group = self._group_of(work)
            refused = self._refused(work, done.staged.rejected, group)
            if group.phase is GroupPhase.COMMITTING:  # it was staged anew, less what is lost
                outlet.commit(work)
        if group.phase is GroupPhase.COMMITTING:
            self._end_if_done(group)
        return refused

    def _refused(
        self, work: Work, rejected: Mapping[int, str], group: TransactionGroup
    ) -> list[RefusedRow]:
        """Give a row of each record of which a sink refused one, and wait for its letter."""
        ours = {each.place for each in group.members if self._lines.get(each.place) is each.line}
        reasons: dict[int, str] = {}
        for row, reason in rejected.items():
            reasons.setdefault(work.record_id_of(row), reason)
        return [
            RefusedRow(Failure(work.sink, Reject(reason)), record_id)
            for record_id, reason in reasons.items()
            # Else it was lost meanwhile, and perhaps claimed again, or it has its letter.
            if partition_index_of(record_id) in ours and self._awaits_letter(record_id)
        ]

    def _awaits_letter(self, record_id: int) -> bool:
        """Wait for the letter of a record of which a sink refused a row; False: it has one."""
        place, offset = partition_index_of(record_id), offset_of(record_id)
        line = self._lines[place]
        txid = int(line.transactions_of(np.array([offset], np.int64))[0])
        letters = self._lettered.setdefault((place, txid), set())
        if record_id in letters:
            return False
        letters.add(record_id)
        self._tallies[place, txid].sunk -= 1  # it had a row; `resolved` counts it again
        line.awaits(offset)
        return True

    def _committed(self, outlet: TransactionBuffer, done: BatchCommitted) -> TransactionGroup:
        if isinstance(done.error, SinkFenced):
            work = outlet.refused(done.error.line)
            group = self._group_of(work)
            for member in group.members:
                if str(member.line.partition) == done.error.line:
                    partition = member.line.partition
                    fenced = Fenced(partition, str(done.error))
                    self._reader.assignment.refuse(partition, fenced, index=member.place)
                    self.partition_lost(member.place)  # before the group is taken for done
        elif done.error is not None:
            raise done.error
        else:
            work = outlet.committed(done.seconds)
            for notify in self._on.rows_written:
                notify(outlet.name, work.good_record_ids())
            group = self._group_of(work)
        return group

    def _group_of(self, work: Work) -> TransactionGroup:
        group = self._groups.of(work.group)
        if group is None:
            raise KeyError(work.group)
        return group

    def _end_if_done(self, group: TransactionGroup) -> None:
        """Resolve the records of a group that every sink has."""
        if not all(work.is_done for work in self._works[group.number].values()):
            return
        del self._works[group.number]
        for (place, line, txid), covered in self._groups.done(group.number):
            if self._lines.get(place) is not line:
                continue  # it is lost
            self._reader.resolve_below(place, covered.end)
            for notify in self._on.resolved_below:
                notify(place, covered.end)
            self.tally.add(self._tallies.pop((place, txid), Tally()))
            self._lettered.pop((place, txid), None)

    @property
    def is_idle(self) -> bool:
        """True if nothing is staged or committed, and nothing could be without a retry."""
        if len(self._groups):
            return False
        owned = self._reader.assignment.owned()
        lines: list[PartitionTransactions] = [manager.delivery for _, manager in owned]
        return not any(line.is_due or line.filling or line.ready() for line in lines)


def _is_closed(waiting: Sequence[Transaction]) -> bool:
    """Tell whether the lowest of some transactions grows no more."""
    return bool(waiting) and waiting[0].phase is not Phase.FILLING


def share_of(line: str, epoch: int, transaction: Transaction) -> Share:
    """A transaction's share of a group, no row counted yet; `line` is its partition's name.

    Raises ValueError for a range that is only planned: nobody may commit it.
    """
    covers = transaction.range
    if covers.digest is None:
        raise ValueError(f"{line} transaction {transaction.txid} is not sealed: it is of {covers}")
    span = covers.first, covers.end, covers.digest
    return Share(line, epoch, transaction.txid, transaction.attempt, *span, 0)
