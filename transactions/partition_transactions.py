"""One partition's transactions: numbered, stored before they run, committed in order."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from acker.acker import Flags
from partition.delivery import AtLeastOnce
from partition.errors import ReplayDiffers
from partition.interfaces import Progress
from partition.ledger import CommitProgress, Ledger
from partition.records import (
    DEAD_LETTERED,
    WRITTEN,
    Chunk,
    LeaderEpochs,
    Offsets,
    OpenTransaction,
    Partition,
    Position,
    Range,
    Resumed,
    Transactions,
    later_epoch,
)
from transactions.transaction import (
    Lengths,
    OutOfOrder,
    Phase,
    RangeDigest,
    Transaction,
    TransactionPolicy,
    Unplanned,
    is_again,
    text_of_range,
)


class PartitionTransactions(AtLeastOnce):
    """One partition's open transactions, in order, on both engines: exactly once. Pure.

    Storm's TransactionalSpoutCoordinator and Trident's MasterBatchCoordinator are the models: up
    to `max_active` are open, processed at once, committed in order, and one that fails fails all
    later ones, in new attempts. Unlike Storm's, each partition numbers its own; the attempt is
    stored with the txid, so that it grows over restarts too.

    A range of offsets is stored under its txid before a record of it is emitted. Its seal, the
    count and the digest of its records, is stored before it is committed, so that a replay can
    tell whether the log still has the same records.

    The local engine knows the records when it plans them, so its ranges are sealed from the
    start: waiting records go into the newest transaction, by whole chunks if they fit, until it
    is closed. A transaction found in the store never grows, and is compared as its records come
    again. On the spark engine executors read the records, and `read` seals or compares.
    """

    stores_first = True

    def __init__(
        self,
        partition: Partition,
        ledger: Ledger,
        progress: CommitProgress,
        resumed: Resumed | None,
        policy: TransactionPolicy,
    ) -> None:
        """Raises ValueError unless `resumed` says how the transactions go on."""
        if resumed is None:
            raise ValueError(f"{partition}: no state to resume its transactions from")
        super().__init__(partition, ledger, progress)
        self.partition = partition
        self.buffer_records = 2 * policy.plan_records
        self.committed = resumed.transactions.committed
        """The last txid that is committed in every sink; 0: none."""
        self.grouped_to = self.committed
        """The last txid that a group has; `TransactionGroups` keeps it."""
        self.skips = dict(resumed.skips)
        """By sink: the txid up to which it has our rows already."""
        self.is_held = False
        """True while nothing is to be planned, as the sinks are behind."""
        self._policy = policy
        self._resumed = resumed
        self._begins = resumed.position  # of the lowest open transaction, or of the next
        self._open = [
            Transaction(each.txid, self._least(each.attempt), each.range, Phase.PLANNED)
            for each in resumed.transactions.checked(resumed.position.offset).open
        ]
        self.open_to = resumed.position.offset
        """The end of the transactions that are stored: records below it may be emitted."""
        self._epochs = LeaderEpochs(resumed.position)
        self._unplanned = Unplanned()
        self._planned_at = float("-inf")
        self._differs: ReplayDiffers | None = None
        self._wanted: Transactions | None = None  # what `to_store` gives, until it changes

    # As a delivery mode

    @property
    def ends_at(self) -> int:
        """The end of the transaction that is being emitted: no chunk crosses it."""
        for each in self._open:
            if each.emitted < each.count or not each.range.is_sealed:
                return each.range.end
        return self.open_to

    def emit_limit(self, room: int, ahead: int) -> int:  # noqa: ARG002 - see AtLeastOnce
        return self._ledger.waiting_below(min(self.open_to, self.ends_at))

    def accepts_more(self, room: int) -> bool:
        if self._policy.by_executors or self._differs is not None:
            return False
        if self._awaited:
            return True
        if self.is_held:
            return False
        if self.filling is not None and not self.is_full(room):
            return True
        if not self.may_begin:
            return False
        space = self._space(room)
        return space > 0 and (not len(self._unplanned) or self._fits(space, 0) > 0)

    def progress(self, room: int) -> tuple[int, Transactions]:  # noqa: ARG002
        offset = self._open[0].range.first if self._open else self._ledger.last_completed_offset
        return offset, self.to_store()

    def is_urgent(self, room: int, max_pending: int) -> bool:
        return self.is_due or super().is_urgent(room, max_pending)

    def owes_emission(self) -> bool:
        """Whether planned records wait: nothing is committed without them."""
        ledger = self._ledger
        return bool(self._open and ledger.waiting) and ledger.emitted_to < self._open[-1].range.end

    @property
    def awaits_commit(self) -> bool:
        return bool(self._open) and self._open[0].phase is not Phase.PLANNED

    def on_fetched(self, chunk: Chunk, lengths: Lengths) -> None:
        offsets = chunk.offsets
        self._epochs.fetched(chunk.leader_epochs)
        start = 0
        for each in self._awaited:
            if start == len(offsets):
                return
            end = start + int(np.searchsorted(offsets[start:], each.range.end))
            each.digest.add(offsets[start:end], lengths[start:end])
            start = end
            is_whole = each.range.count is not None and each.digest.count >= each.range.count
            if start == len(offsets) and not is_whole:
                return
            self._came_again(each)
        if self._differs is None:
            self._unplanned.add(offsets[start:], lengths[start:])

    def on_log_end(self, end: int) -> None:
        for each in self._awaited:
            if each.range.end <= end:
                self._came_again(each)

    def on_emitted(self, count: int) -> None:
        for each in self._open:
            if not count:
                break
            part = min(count, each.count - each.emitted)
            each.emitted += part
            count -= part

    @property
    def is_due(self) -> bool:
        """Whether a plan, an attempt or a seal is not stored."""
        return not all(each.is_stored for each in self._open)

    def to_store(self) -> Transactions:
        if self._wanted is None:
            open_ones = tuple(OpenTransaction(e.txid, e.attempt, e.range) for e in self._open)
            self._wanted = Transactions(self._policy.kind, self.committed, open_ones)
        return self._wanted

    def on_stored(self, progress: Progress) -> None:
        for each in progress.transactions.open if progress.transactions else ():
            found = self._find(each.txid)
            if found is not None and found.attempt == each.attempt:
                found.stored = each.range
                self.open_to = max(self.open_to, each.range.end)

    def replay_error(self, *, log_moved: bool) -> ReplayDiffers | None:
        """Return an error if the log cannot give a sealed range's records again.

        Nothing is planned from then on. Where the log goes on elsewhere, open ones may be planned
        anew if no sink can have them: the lowest decides, since they are committed in order. A
        range that is only planned nobody has committed, and a sealed one may be dropped if it is
        opaque; but on the local engine its records may be in flight, under its txid.
        """
        if self._differs is not None or not log_moved or self.awaits_commit or not self._open:
            return self._differs
        lowest = self._open[0]
        is_free = not lowest.range.is_sealed or self._may_differ(lowest)
        if is_free and self._policy.by_executors:
            return None
        lacks = "the log now lacks some of them"
        return ReplayDiffers(self.partition, lowest.txid, text_of_range(lowest.range), lacks)

    def resume_state(self, position: Position) -> Resumed:
        """Resume with the open ones planned anew, under their txids, in later attempts."""
        attempts = dict(self._resumed.attempts) | {each.txid: each.attempt for each in self._open}
        return replace(
            self._resumed,
            position=position,
            transactions=Transactions(self._policy.kind, self.committed),
            skips=self.skips,
            attempts=attempts,
        )

    # Planning records that are here

    def plan(self, now: float, room: int) -> None:
        """Put waiting records into the newest transaction, or begin one, if it is time and fits."""
        if self._differs is None and not self.is_held and self._is_time(now):
            self._fill(now, room)

    @property
    def filling(self) -> Transaction | None:
        """The newest transaction, if it grows."""
        is_filling = self._open and self._open[-1].phase is Phase.FILLING
        return self._open[-1] if is_filling else None

    def is_full(self, room: int) -> bool:
        """Whether the newest transaction has no room for the next chunk."""
        if self.filling is None:
            return False
        left = min(self._policy.records - self.filling.count, self._space(room))
        return left < max(1, self._unplanned.chunk_records)

    def close(self) -> None:
        """Stop the growth of the newest transaction."""
        newest = self.filling
        if newest is not None:
            newest.phase = Phase.PROCESSING
            self._process(newest, 0)

    def _is_time(self, now: float) -> bool:
        waited = self._unplanned.waited(now)
        if not len(self._unplanned):
            return False
        if len(self._unplanned) >= self._policy.plan_records or waited >= self._policy.plan_seconds:
            return True
        is_idle = all(each.emitted == each.count for each in self._open)
        return is_idle and now - self._planned_at >= self._policy.plan_seconds

    def _space(self, room: int) -> int:
        """Records that may be planned until the in-flight limit is reached."""
        return room - sum(each.count - each.emitted for each in self._open)

    def _fits(self, space: int, count: int) -> int:
        return self._unplanned.fits(self._policy.records, space, count, splits=not self._open)

    def _fill(self, now: float, room: int) -> None:
        newest = self.filling
        if newest is None and not self.may_begin:
            return
        space = self._space(room)
        digest = RangeDigest() if newest is None else newest.digest
        first = self.planned_to if self._open else self._unplanned.first
        before, end = digest.count, 0
        while take := self._fits(space, digest.count):
            offsets, lengths = self._unplanned.take(take)
            digest.add(offsets, lengths)
            space -= take
            end = int(offsets[-1]) + 1
        if digest.count == before:
            return
        epoch = self._epochs.fetched_before(end)
        self._epochs.forget_below(end)
        if newest is None:
            newest = self._begin(Range(first, end), Phase.FILLING)
            newest.since, newest.digest = now, digest
        newest.range = Range(newest.range.first, end, digest.count, digest.hex(), epoch)
        self._planned_at = now
        self._wanted = None

    # Planning ranges of offsets

    @property
    def planned_to(self) -> int:
        return self._open[-1].range.end if self._open else self._begins.offset

    @property
    def may_begin(self) -> bool:
        return self._differs is None and len(self._open) < self._policy.max_active

    def begin(self, end: int, leader_epoch: int | None = None) -> Transaction:
        """Plan from `planned_to` to `end`. Raises OutOfOrder, ValueError for no offset.

        `leader_epoch` is of the leader that said where the log ends: no record of the range has a
        later one. A read behind the range under this epoch notices if the log was cut off since.
        """
        covers = Range(self.planned_to, end, leader_epoch=leader_epoch)
        if end <= covers.first:
            raise ValueError(f"{self.partition}: {covers} are none")
        return self._begin(covers, Phase.PLANNED)

    def _begin(self, covers: Range, phase: Phase) -> Transaction:
        if not self.may_begin:
            raise OutOfOrder(f"{len(self._open)} transactions of {self.partition} are open")
        txid = self.committed + len(self._open) + 1
        attempt = self._least(self._resumed.attempts.get(txid, 0))
        begun = Transaction(txid, attempt, covers, phase)
        self._open.append(begun)
        self._wanted = None
        return begun

    def _least(self, attempt: int) -> int:
        return max(attempt + 1, self._resumed.least_attempt)

    def position_of(self, txid: int) -> Position:
        """The position from which to read a range, with its resume key if known. Raises KeyError.

        The leader epoch is at least that of the record before; under an older one the log would
        seem to have been cut off.
        """
        each = self.transaction_of(txid)
        if each is self._open[0]:
            return self._begins
        epoch = self._begins.leader_epoch
        for before in self._open[: txid - self.committed - 1]:
            covers = before.range
            is_known = covers.is_sealed or covers.leader_epoch is not None
            epoch = later_epoch(epoch, covers.leader_epoch) if is_known else None
        return Position(each.range.first, epoch, self._begins.topic_id)

    # Reading

    @property
    def _awaited(self) -> Sequence[Transaction]:
        """Those that are replayed, and whose records have not all come."""
        if self._policy.by_executors or self._differs is not None:
            return ()
        return [each for each in self._open if each.phase is Phase.PLANNED]

    def _came_again(self, each: Transaction) -> None:
        """Seal or compare a range of which all records have come that the log has."""
        if self._differs is None:
            epoch = self._epochs.fetched_before(each.range.end)
            self._seal(each, each.digest.count, each.digest.hex(), epoch, Phase.PROCESSING)
            self._process(each, 0)

    def is_recorded(self, txid: int) -> bool:
        found = self._find(txid)
        return found is not None and found.stored is not None

    def read(
        self, txid: int, attempt: int, count: int, digest: str, leader_epoch: int | None
    ) -> bool:
        """Seal the range that an attempt has read; False: the attempt is not the live one.

        A range that was sealed before must hold the same records, of no later leader, else
        `replay_error` returns ReplayDiffers. One that was only planned may hold any, unless
        `is_outdated`.
        """
        found = self._find(txid)
        if found is None or found.attempt != attempt or not self.is_recorded(txid):
            return False
        if found.phase is not Phase.PLANNED:
            return False
        if not found.range.is_sealed:
            self._find_outdated(found, later_epoch(found.range.leader_epoch, leader_epoch))
        if found.cut_under is None:
            self._seal(found, count, digest, leader_epoch, Phase.PROCESSED)
        return True

    def _seal(
        self, each: Transaction, count: int, digest: str, leader_epoch: int | None, phase: Phase
    ) -> None:
        epoch = later_epoch(each.range.leader_epoch, leader_epoch)
        sealed = replace(each.range, count=count, digest=digest, leader_epoch=epoch)
        if not each.range.is_sealed:
            each.range = sealed
            self._wanted = None
        elif not is_again(each.range, sealed):
            were, are = text_of_range(each.range), text_of_range(sealed)
            found = f"the log now gives {are}"
            self._differs = ReplayDiffers(self.partition, each.txid, were, found)
            return
        each.phase = phase

    def is_outdated(self, txid: int) -> bool:
        """Whether it has to fail: a later leader wrote before it, so its log was cut off below it.

        Nobody can have committed it, since the one before had no seal.
        """
        found = self._find(txid)
        return found is not None and found.cut_under is not None

    def _find_outdated(self, read: Transaction, epoch: int | None) -> None:
        """Mark transactions of an older leader than those before them, from `read` on."""
        latest = epoch
        if read.range.leader_epoch is not None:
            # Else the epoch may be older, as where a partition begins it is that of its leader.
            latest = later_epoch(latest, self._begins.leader_epoch)
        for each in self._open:
            if each.txid < read.txid:
                if each.range.is_sealed:
                    latest = later_epoch(latest, each.range.leader_epoch)
                continue
            known = epoch if each is read else each.range.leader_epoch
            if known is not None and known != later_epoch(known, latest):
                each.cut_under = latest

    # Processing

    def transactions_of(self, offsets: Offsets) -> npt.NDArray[np.int64]:
        """The txid of each record of an open transaction; 0 for all others."""
        if not len(offsets) or not self._open:
            return np.zeros(len(offsets), np.int64)
        lowest, highest = int(offsets.min()), int(offsets.max())
        for each in self._open:
            if each.range.first <= lowest and highest < each.range.end:
                return np.full(len(offsets), each.txid, np.int64)
        ends = np.array([self._open[0].range.first, *(each.range.end for each in self._open)])
        txids = np.array([0, *(each.txid for each in self._open), 0], np.int64)
        return txids[np.searchsorted(ends, offsets, side="right")]

    def processed(self, offsets: Offsets, flags: Flags) -> None:
        """Count records whose trees have resolved, or whose dead letters are durable.

        Raises ValueError when more were processed of a transaction than emitted.
        """
        left = len(offsets)
        for each in self._open:
            if not left:
                break
            of_it = (offsets >= each.range.first) & (offsets < each.range.end)
            if self._differs is not None:  # only a group that was closed before goes on
                of_it &= np.isin(offsets, list(each.awaited))
            count = int(np.count_nonzero(of_it))
            if not count:
                continue
            left -= count
            each.by_flags += np.bincount(flags[of_it], minlength=4)
            each.dead_lettered.update(offsets[of_it & (flags & DEAD_LETTERED > 0)].tolist())
            if each.awaited:
                count -= len(each.awaited)
                each.awaited.difference_update(offsets[of_it].tolist())
                count += len(each.awaited)
            self._process(each, count)

    @staticmethod
    def _process(each: Transaction, count: int) -> None:
        each.processed += count
        if each.processed > each.emitted:
            raise ValueError(
                f"{each.processed} records of transaction {each.txid} were processed, "
                f"{each.emitted} were emitted: one came twice"
            )
        if each.phase is Phase.PROCESSING and each.processed == each.count:
            each.phase = Phase.PROCESSED

    def awaits(self, offset: int) -> bool:
        """Hold the transaction of a processed record until its dead letter is durable.

        A sink has refused a row of it. The record's next `processed` ends the wait. False: the
        record has a dead letter already.
        """
        found = next(each for each in self._open if offset < each.range.end)
        if offset in found.dead_lettered:
            return False
        found.dead_lettered.add(offset)
        found.awaited.add(offset)
        found.by_flags[WRITTEN] -= 1  # `processed` counts it again
        return True

    # Committing

    @property
    def ungrouped(self) -> Sequence[Transaction]:
        """The open transactions that no group has, in order."""
        return self._open[self.grouped_to - self.committed :]

    def ready(self) -> Transaction | None:
        """Return the lowest that no group has, if it can be committed."""
        lowest = next(iter(self.ungrouped), None)
        return lowest if lowest is not None and self.is_ready(lowest.txid) else None

    def is_ready(self, txid: int) -> bool:
        """Whether it is processed, stored as it is, and awaits no dead letter."""
        each = self._find(txid)
        if each is None or each.phase is not Phase.PROCESSED or not each.is_stored:
            return False
        return not each.awaited and not self.is_outdated(txid)

    def take(self, txid: int) -> None:
        """Mark it as being committed.

        Raises OutOfOrder unless it is ready, and the lowest that is not being committed.
        """
        lowest = next((e for e in self._open if e.phase is not Phase.COMMITTING), None)
        if lowest is None or lowest.txid != txid or not self.is_ready(txid):
            raise OutOfOrder(f"{self.partition} transaction {txid} is not the next to commit")
        lowest.phase = Phase.COMMITTING

    def not_done(self, txid: int) -> None:
        """Mark it and all later ones as not committed, which no running call can change."""
        for each in self._from(txid):
            if each.phase is Phase.COMMITTING:
                each.phase = Phase.PROCESSED

    def fail(self, txid: int) -> None:
        """Give it, and all after it, a new attempt. Raises OutOfOrder if one is being committed.

        Opaque ones that no sink can have are only planned again, and so are those that are
        outdated: under the later leader's epoch, so that a read under it notices the cut.
        """
        failed = self._from(txid)
        if any(each.phase is Phase.COMMITTING for each in failed):
            raise OutOfOrder(f"{self.partition}: a transaction from {txid} on is being committed")
        for each in failed:
            each.attempt, each.phase, each.stored = each.attempt + 1, Phase.PLANNED, None
            if each.cut_under is not None:
                each.range = Range(each.range.first, each.range.end, leader_epoch=each.cut_under)
                each.cut_under = None
            elif self._may_differ(each):
                each.range = replace(each.range, count=None, digest=None)
        self._wanted = None

    def _may_differ(self, each: Transaction) -> bool:
        """Whether other records may come under its txid: it is opaque, and no sink can have it."""
        is_somewhere = any(txid >= each.txid for txid in self.skips.values())
        is_free = not is_somewhere and each.phase is not Phase.COMMITTING
        return self._policy.kind == "opaque" and is_free

    def done(self, txid: int) -> Range:
        """Note that it is committed in every sink; return its range.

        Raises OutOfOrder unless it is the lowest open one, and was taken.
        """
        lowest = self._open[0] if self._open else None
        if lowest is None or lowest.txid != txid or lowest.phase is not Phase.COMMITTING:
            raise OutOfOrder(f"{self.partition} transaction {txid} is not being committed")
        del self._open[0]
        self.committed = txid
        self.grouped_to = max(self.grouped_to, txid)
        self._wanted = None
        covers = lowest.range
        epoch = later_epoch(self._begins.leader_epoch, covers.leader_epoch)
        self._begins = Position(covers.end, epoch, self._begins.topic_id)
        return covers

    def is_in(self, sink: str, txid: int) -> None:
        """Note that a sink has committed it: it is not repeated there."""
        self.skips[sink] = max(txid, self.skips.get(sink, 0))

    def transaction_of(self, txid: int) -> Transaction:
        """Raises KeyError unless it is open."""
        found = self._find(txid)
        if found is None:
            raise KeyError(txid)
        return found

    def _find(self, txid: int) -> Transaction | None:
        position = txid - self.committed - 1
        return self._open[position] if 0 <= position < len(self._open) else None

    def _from(self, txid: int) -> Sequence[Transaction]:
        return [] if self._find(txid) is None else self._open[txid - self.committed - 1 :]
