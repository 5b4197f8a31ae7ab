"""One partition's transactions on the local engine: planned, stored, emitted, processed, done."""

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from partition.chunk import Offsets, Partition
from partition.errors import ReplayDiffers
from partition.position import LeaderEpochs, Position
from partition.transaction import Range, Resumed, Transactions
from transactions.base_line import BaseLine, Transaction
from transactions.digest import RangeDigest
from transactions.letters_out import LettersOut
from transactions.policy import TransactionPolicy
from transactions.replays import Replays
from transactions.underway import UnderWay
from transactions.unplanned import Unplanned

__all__ = ["Line", "Transaction"]


class Line(BaseLine[UnderWay]):
    """A partition's gate: what is emitted lies in a stored transaction. The owner calls everything.

    Records that wait are planned: put into the newest transaction, which grows, by whole
    chunks if they fit, until it is closed. What it grew by may be emitted once that is stored;
    so a crash finds the number of every record that has run, and replays it under that number.
    A transaction that was found recorded never grows: it may have been committed as it was.

    It is ready for its commit when it is closed, stands in the store as it is, and all its
    records are processed, which is when their trees have resolved. Pure: seconds are given.
    """

    def __init__(
        self,
        partition: Partition,
        resumed: Resumed,
        policy: TransactionPolicy,
        room: Callable[[], int],
    ) -> None:
        """`room` tells how many records may be emitted until the window is used up."""
        super().__init__(
            partition,
            resumed,
            policy,
            lambda found: UnderWay(found.attempt, found.covers, is_closed=True),
        )
        self.skips: Mapping[str, int] = resumed.skips
        self._room = room
        self._epochs = LeaderEpochs(resumed.position)
        self._replays = Replays(partition, self._open, self._epochs)
        self._unplanned = Unplanned()
        self._planned_at = float("-inf")
        self._planned_to = self._open[-1].range.end if self._open else resumed.position.offset
        self._open_to = resumed.position.offset
        self._letters = LettersOut()
        self.is_held = False
        """Whether nothing is to be planned for now, since the sinks are behind."""

    # What the partition asks

    @property
    def open_to(self) -> int:
        """Records below this offset may be emitted: they are stored as a transaction's."""
        return self._open_to

    @property
    def ends_at(self) -> int:
        """Where the transaction ends that is being emitted: no chunk reaches beyond."""
        for each in self._open:
            if each.may_emit:
                return each.range.end
        return self._open_to

    @property
    def begins_at(self) -> int | None:
        """Where the lowest open transaction begins: the offset to store; None: none is open."""
        return self._open[0].range.first if self._open else None

    @property
    def awaits_commit(self) -> bool:
        """Whether a transaction is open of which every record is here, if it has any."""
        return bool(self._open) and not self._open[0].is_awaited

    @property
    def is_shut(self) -> bool:
        """Whether no record can be planned before a transaction is committed."""
        if self.is_held and not self._replays:
            return True
        if self._replays or (self.filling and not self.is_full):
            return False
        if not self._coordinator.may_begin:
            return True
        space = self._space()
        chunk = self._unplanned.chunk_records
        return space <= 0 or (chunk > 0 and not self._begins_with(chunk, space))

    def offered(
        self,
        offsets: Offsets,
        lengths: npt.NDArray[np.int64],
        leader_epochs: tuple[tuple[int, int], ...],
    ) -> None:
        """Learn of records that wait from now on: of a transaction that is replayed, or new."""
        self._epochs.fetched(leader_epochs)
        if self._replays:
            self._wanted = None  # what was only planned may be sealed now
        replayed = self._replays.offered(offsets, lengths)
        if replayed < len(offsets):
            self._unplanned.add(offsets[replayed:], lengths[replayed:])

    def reached(self, end: int) -> None:
        """Learn that no record lies before `end` but those offered."""
        if self._replays:
            self._wanted = None
        self._replays.reached(end)

    def emitted(self, count: int) -> None:
        """Learn that the next so many records were emitted for the first time."""
        for each in self._open:
            if not count:
                break
            count -= each.emit(count)

    @property
    def is_due(self) -> bool:
        """Whether records are planned, replayed in a new attempt, or sealed, and not stored so."""
        return self._planned_to > self._open_to or any(each.is_seal_due for each in self._open)

    def stored(self, transactions: Transactions) -> None:
        """Learn that it stands there, as it was when `to_store` gave it."""
        super().stored(transactions)
        for each in self._open:
            if each.stored is not None:
                self._open_to = max(self._open_to, each.stored.end)

    def differs(self) -> ReplayDiffers | None:
        """Why the log cannot give an open transaction's records again; None: it does so far.

        Nothing is planned or committed from then on.
        """
        return self._replays.differs

    def lost_records(self) -> ReplayDiffers | None:
        """Why the log may not go on elsewhere: a transaction is to be replayed; None: none is."""
        return self._replays.lost

    def resumed_at(self, position: Position) -> Resumed:
        """How a new line goes on after this one where the log goes on elsewhere.

        What is open here is not in it: it was done before, or its partition is halted.
        """
        goes_on = Transactions(self._policy.kind, self.committed)
        return replace(self._resumed, position=position, transactions=goes_on)

    # What is planned

    def plan(self, now: float) -> None:
        """Put what waits into the newest transaction, or begin one, if it is time and fits.

        It is time when many wait, when some have waited long, or when the partition stands
        idle: an idle one plans the first record that comes at once.
        """
        if self._replays.differs is None and not self.is_held and self._is_time(now):
            self._fill(now)

    @property
    def filling(self) -> int:
        """Records planned into the newest transaction; 0: it is closed, or there is none."""
        newest = self._newest
        return 0 if newest is None else newest.count

    @property
    def filling_since(self) -> float | None:
        """When the first record of the newest was planned; None: as `filling`."""
        newest = self._newest
        return None if newest is None else newest.since

    @property
    def is_full(self) -> bool:
        """Whether the newest takes no more: not the next chunk, or none at all."""
        newest = self._newest
        if newest is None:
            return False
        return min(self._policy.records - newest.count, self._space()) < max(
            1, self._unplanned.chunk_records
        )

    def close(self) -> bool:
        """Let the newest grow no more; False if there is none that does."""
        newest = self._newest
        if newest is None:
            return False
        newest.is_closed = True
        return True

    @property
    def closing(self) -> int:
        """Transactions that are closed, and were not taken."""
        return sum(each.is_closed and not each.is_taken for each in self._open)

    @property
    def _newest(self) -> UnderWay | None:
        """The transaction that grows."""
        return self._open[-1] if self._open and not self._open[-1].is_closed else None

    def _is_time(self, now: float) -> bool:
        waited = self._unplanned.waited(now)
        if not len(self._unplanned):
            return False
        if len(self._unplanned) >= self._policy.plan_records or waited >= self._policy.plan_seconds:
            return True
        is_idle = not any(each.unemitted for each in self._open)
        return is_idle and now - self._planned_at >= self._policy.plan_seconds

    def _space(self) -> int:
        """Records that may be planned until the window is used up."""
        return self._room() - sum(each.unemitted for each in self._open)

    def _begins_with(self, chunk: int, space: int) -> int:
        """How many records of a chunk a new transaction takes.

        A part of it only when it is larger than a transaction may be, or when there is nothing
        open whose commit could make more room.
        """
        most = min(chunk, self._policy.records)
        if most <= space or not self._open:
            return max(0, min(most, space))
        return 0

    def _fill(self, now: float) -> None:
        newest = self._newest
        if newest is None and not self._coordinator.may_begin:
            return
        space = self._space()
        digest = RangeDigest() if newest is None else newest.digest
        first = self._unplanned.first if not self._open else self._planned_to
        before = digest.count
        end = 0
        while chunk := self._unplanned.chunk_records:
            if digest.count:
                fits = chunk <= min(self._policy.records - digest.count, space)
                take = chunk if fits else 0
            else:
                take = self._begins_with(chunk, space)
            if not take:
                break
            offsets, lengths = self._unplanned.take(take)
            digest.add(offsets, lengths)
            space -= take
            end = int(offsets[-1]) + 1
        if digest.count == before:
            return
        epoch = self._epochs.fetched_before(end)  # not known is no earlier one's: see Replays
        self._epochs.forget_below(end)
        first = first if newest is None else newest.range.first
        covers = Range(first, end, digest.count, digest.hex(), epoch)
        if newest is None:
            attempt = self._coordinator.begin(covers)
            self._open.append(UnderWay(attempt, covers, since=now, digest=digest))
        else:
            self._coordinator.grow(newest.attempt, covers)
            newest.range = covers
        self._planned_to, self._planned_at = end, now
        self._wanted = None

    # What is processed and committed

    @property
    def is_idle(self) -> bool:
        """Whether no transaction is open, and so no record planned."""
        return not self._open

    def attempt_of(self, txid: int) -> int:
        """Which try at an open transaction this is. Raises KeyError if it is not open."""
        return self._known(txid).attempt.number

    def transactions_of(self, offsets: Offsets) -> npt.NDArray[np.int64]:
        """The txid of each record of an open transaction; 0 for all others."""
        if not len(offsets) or not self._open:
            return np.zeros(len(offsets), np.int64)
        lowest, highest = int(offsets.min()), int(offsets.max())
        for each in self._open:
            if each.range.first <= lowest and highest < each.range.end:
                return np.full(len(offsets), each.attempt.txid, np.int64)
        ends = np.array([self._open[0].range.first, *(each.range.end for each in self._open)])
        places = np.searchsorted(ends, offsets, side="right")
        txids = np.array([0, *(each.attempt.txid for each in self._open), 0], np.int64)
        return txids[places]

    def processed(self, offsets: Offsets) -> None:
        """Learn that the trees of records have resolved, or that their letters are durable.

        Raises ValueError when more were processed of a transaction than emitted.
        """
        offsets = self._letters.without(offsets)
        if not len(offsets) or not self._open or self._replays.differs is not None:
            return
        below = int(np.count_nonzero(offsets < self._open[0].range.first))
        for each in self._open:
            if below == len(offsets):
                break
            before, below = below, int(np.count_nonzero(offsets < each.range.end))
            each.process(below - before)

    def awaits(self, offset: int) -> None:
        """Learn that a sink refused a row of a processed record, and that its letter is out.

        The record's next `processed` tells that the letter is durable; each call waits for one.
        """
        self._letters.add(offset)

    def has_letters_out(self, txid: int) -> bool:
        """Whether a letter of an open transaction is not durable."""
        found = self._find(txid)
        return found is not None and self._letters.within(found.range)

    def ready(self) -> Transaction | None:
        """The lowest transaction that was not taken, if it can be committed."""
        each = self._not_taken
        if each is None or not each.is_processed or self._replays.differs is not None:
            return None
        return None if self._letters.within(each.range) else each.transaction

    def take(self) -> Transaction | None:
        """The same; it is being committed from now on, and the one after it may be ready next."""
        found = self.ready()
        if found is not None:
            each = self._known(found.txid)
            each.is_taken = True
            self._coordinator.processed(each.attempt)
            self._coordinator.next_commit()
        return found
