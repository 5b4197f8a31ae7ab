"""One partition's transactions on the spark engine: planned, stored, read, sealed, committed."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from partition.chunk import Offsets, Partition
from partition.errors import ReplayDiffers
from partition.position import Position, later_epoch
from partition.transaction import Range, Resumed, Transactions
from transactions.base_line import BaseLine, Opened, Transaction
from transactions.coordinator import Attempt
from transactions.errors import OutOfOrder
from transactions.policy import TransactionPolicy


@dataclass(slots=True, eq=False)
class _Open(Opened):
    """One whose range executors read."""

    is_grouped: bool = False  # a group has it
    is_read: bool = False  # in this attempt
    cut_under: int | None = None  # by a later leader: see `RangeLine.is_outdated`


class RangeLine(BaseLine[_Open]):
    """A partition's gate where executors read its records. The owner calls everything.

    A range is planned from offsets alone, before anyone has read it, and may be run once it
    stands in the store. What its run has read seals it. The sealed range, too, stands in the
    store before it is committed, so that whoever has to repeat it later can tell whether the log
    still gives the same records. A seal outlives its attempt: another attempt is compared with it.
    An opaque one that no sink can have loses its seal instead, and may come again as another; and
    so does any that was sealed before the range below it, where a later leader wrote that one.

    Nothing is offered to it, and nothing is emitted of it here. Pure: no thread, no clock.
    """

    def __init__(self, partition: Partition, resumed: Resumed, policy: TransactionPolicy) -> None:
        """Of the policy only the kind and `max_active` count."""
        super().__init__(
            partition, resumed, policy, lambda found: _Open(found.attempt, found.covers)
        )
        self._skips = dict(resumed.skips)
        self._begins = resumed.position  # of the lowest open transaction, or the next
        self._differs: ReplayDiffers | None = None

    # What the partition asks

    @property
    def open_to(self) -> int:
        """No record is emitted here: all of them lie behind this offset."""
        return 0

    @property
    def ends_at(self) -> int:
        """The same."""
        return 0

    @property
    def is_shut(self) -> bool:
        """Records are of no use here."""
        return True

    @property
    def begins_at(self) -> int:
        """Where the lowest open transaction begins, or the next one will: the offset to store."""
        return self._begins.offset

    @property
    def awaits_commit(self) -> bool:
        """Whether the lowest open transaction is read: its commit needs nothing of the log."""
        return bool(self._open) and self._open[0].is_read and self._differs is None

    def offered(
        self,
        offsets: Offsets,
        lengths: npt.NDArray[np.int64],  # noqa: ARG002 - see Gate
        leader_epochs: tuple[tuple[int, int], ...],  # noqa: ARG002
    ) -> None:
        """Raise ValueError: executors read the records."""
        raise ValueError(f"{len(offsets)} records of {self.partition} were fetched by the driver")

    def reached(self, end: int) -> None:
        """Ignore it: an end of the log tells the planner something, and no line."""

    def emitted(self, count: int) -> None:
        """Raise ValueError: as `offered`."""
        raise ValueError(f"{count} records of {self.partition} were emitted by the driver")

    @property
    def is_due(self) -> bool:
        """Whether a plan, an attempt or a seal is not stored."""
        return any(each.stored != each.range for each in self._open)

    def differs(self) -> ReplayDiffers | None:
        """Why the log cannot give a sealed range's records again; None: it does so far.

        Nothing is planned or committed from then on.
        """
        return self._differs

    def lost_records(self) -> ReplayDiffers | None:
        """Why the log may not go on elsewhere: a sealed transaction is to be run again.

        None if none is, as the lowest is read, or if what is open may be planned anew: no sink can
        have committed it.
        """
        if self._differs is not None or self.awaits_commit or self.may_plan_anew:
            return self._differs
        lowest = self._open[0]
        found = "the log now lacks some of them"
        return ReplayDiffers(self.partition, lowest.attempt.txid, str(lowest.range), found)

    @property
    def may_plan_anew(self) -> bool:
        """Whether no sink can have any open transaction, and their ranges are not promised.

        The lowest decides, since they are committed in order. A range that is only planned was
        never committed by anyone; a sealed one may be given up if transactions are opaque.
        """
        if not self._open:
            return True
        lowest = self._open[0]
        return not lowest.range.is_sealed or self._may_differ(lowest)

    def _may_differ(self, each: _Open) -> bool:
        """Whether it may come again as another one: it is opaque, and no sink can have it."""
        is_somewhere = any(txid >= each.attempt.txid for txid in self._skips.values())
        return self._policy.kind == "opaque" and not is_somewhere and not each.is_taken

    def resumed_at(self, position: Position) -> Resumed:
        """How a new line goes on after this one where the log goes on elsewhere.

        What is open here is planned anew, under the same txids, in later attempts.
        """
        goes_on = Transactions(self._policy.kind, self.committed)
        attempts = dict(self._resumed.attempts)
        attempts |= {each.attempt.txid: each.attempt.number for each in self._open}
        return replace(
            self._resumed,
            position=position,
            transactions=goes_on,
            skips=self._skips,
            attempts=attempts,
        )

    # What is planned

    @property
    def planned_to(self) -> int:
        """Where the next range begins."""
        return self._open[-1].range.end if self._open else self._begins.offset

    @property
    def may_begin(self) -> bool:
        """Whether another transaction may be begun."""
        return self._differs is None and self._coordinator.may_begin

    def begin(self, end: int, leader_epoch: int | None = None) -> Transaction:
        """Plan from `planned_to` to `end`. Raises TooManyActive, ValueError for no offset.

        `leader_epoch` is of who led the log when its end was told: no record of the range has a
        later one, so that whoever reads on behind it hears of a log that was cut off since.
        """
        covers = Range(self.planned_to, end, leader_epoch=leader_epoch)
        if end <= covers.first:
            raise ValueError(f"{self.partition}: {covers} are none")
        each = _Open(self._coordinator.begin(covers), covers)
        self._open.append(each)
        self._wanted = None
        return each.transaction

    @property
    def replays(self) -> list[Transaction]:
        """The open ones that no group has, in order: those found recorded, and given back."""
        return [each.transaction for each in self._open if not each.is_grouped]

    def group(self, txid: int) -> None:
        """Learn that a group has it. Raises OutOfOrder unless it is the first of `replays`."""
        lowest = next((each for each in self._open if not each.is_grouped), None)
        if lowest is None or lowest.attempt.txid != txid:
            raise OutOfOrder(txid, self.committed + 1 if lowest is None else lowest.attempt.txid)
        lowest.is_grouped = True
        if lowest.cut_under is not None:
            self.fail(txid)

    def give_back(self) -> None:
        """Learn that no group has any of it any more, and that no commit of it is under way.

        What is open is in `replays` again, in new attempts.
        """
        if not self._open:
            return
        lowest = self._open[0].attempt.txid
        if self._open[0].is_taken:
            self.not_done(lowest)
        self.fail(lowest)
        for each in self._open:
            each.is_grouped = False

    def transaction_of(self, txid: int) -> Transaction:
        """An open transaction as it is now. Raises KeyError."""
        return self._known(txid).transaction

    def position_of(self, txid: int) -> Position:
        """Where reading a range begins, with its resume key as far as it is known.

        Raises KeyError. The leader epoch is at least that of the record before; an older one
        would look as if the log had been cut off.
        """
        each = self._known(txid)
        place = txid - self.committed - 1
        if place == 0:
            return self._begins
        epoch = self._begins.leader_epoch
        for before in self._open[:place]:
            covers = before.range
            is_known = covers.is_sealed or covers.leader_epoch is not None
            epoch = later_epoch(epoch, covers.leader_epoch) if is_known else None
        return Position(each.range.first, epoch, self._begins.topic_id)

    # What is read and committed

    def is_recorded(self, txid: int) -> bool:
        """Whether its live attempt stands in the store: it may be run."""
        found = self._find(txid)
        return found is not None and found.stored is not None

    def read(
        self, txid: int, attempt: int, count: int, digest: str, leader_epoch: int | None
    ) -> bool:
        """Seal its range: an attempt has read so many records. False: it is not the live one.

        What was sealed before must be the same, and written by no later leader, else `differs`
        tells. What was only planned may be whatever it has turned out to be, unless `is_outdated`.
        """
        found = self._find(txid)
        if found is None or not self._coordinator.processed(Attempt(txid, attempt)):
            return False
        epoch = later_epoch(found.range.leader_epoch, leader_epoch)
        sealed = replace(found.range, count=count, digest=digest, leader_epoch=epoch)
        if not found.range.is_sealed:
            self._find_outdated(txid, epoch)
            if found.cut_under is not None:
                return True
            found.range = sealed
            self._wanted = None
        elif not _is_again(found.range, sealed):
            were, are = _said(found.range), _said(sealed)
            self._differs = ReplayDiffers(self.partition, txid, were, f"the log now gives {are}")
        found.is_read = True
        return True

    def is_outdated(self, txid: int) -> bool:
        """Whether it has to fail: its log was cut off below it, and it may be read already.

        A later leader wrote a range before it, which is read only now. It may have a seal: nobody
        can have committed it, since that one had none.
        """
        found = self._find(txid)
        return found is not None and found.cut_under is not None

    def _find_outdated(self, txid: int, epoch: int | None) -> None:
        """Find what an older leader wrote than what comes before it, from one that is read on."""
        latest = epoch
        if self._known(txid).range.leader_epoch is not None:
            # Else the epoch may be older, as where a partition begins it is that of its leader.
            latest = later_epoch(latest, self._begins.leader_epoch)
        for each in self._open[: txid - self.committed - 1]:
            if each.range.is_sealed:
                latest = later_epoch(latest, each.range.leader_epoch)
        for each in self._from(txid):
            known = epoch if each.attempt.txid == txid else each.range.leader_epoch
            if known is not None and known != later_epoch(known, latest):
                each.cut_under = latest

    def is_ready(self, txid: int) -> bool:
        """Whether its live attempt is read, and its sealed range stands in the store."""
        found = self._find(txid)
        is_read = found is not None and found.is_read and found.stored == found.range
        return is_read and self._differs is None and not self.is_outdated(txid)

    def take(self, txid: int) -> Transaction:
        """It is being committed from now on.

        Raises OutOfOrder unless it is ready, and the lowest that is not being committed.
        """
        lowest = self._not_taken
        if lowest is None or lowest.attempt.txid != txid or not self.is_ready(txid):
            raise OutOfOrder(txid, self.committed + 1 if lowest is None else lowest.attempt.txid)
        self._coordinator.next_commit()
        lowest.is_taken = True
        return lowest.transaction

    def not_done(self, txid: int) -> None:
        """Learn that it is not committed, nor can be without another call; those after it, too."""
        found = self._find(txid)
        if found is not None and self._coordinator.not_done(found.attempt):
            for each in self._from(txid):
                each.is_taken = False

    def fail(self, txid: int) -> None:
        """Give it, and all after it, a new attempt. Raises OutcomePending if one is taken.

        Those that are opaque and that no sink can have are only planned again, and so are those
        that are outdated: under the later leader, which what reads them has to know of.
        """
        found = self._find(txid)
        if found is None:
            return
        attempts = self._coordinator.fail(found.attempt)
        for each, attempt in zip(self._from(txid), attempts, strict=True):
            each.attempt, each.stored, each.is_read = attempt, None, False
            if each.cut_under is not None:
                each.range = Range(each.range.first, each.range.end, leader_epoch=each.cut_under)
                each.cut_under = None
            elif self._may_differ(each):
                each.range = replace(each.range, count=None, digest=None)
        self._wanted = None

    def done(self, txid: int) -> Range:
        """Learn that it is committed in every sink; see `BaseLine.done`."""
        covers = super().done(txid)
        epoch = later_epoch(self._begins.leader_epoch, covers.leader_epoch)
        self._begins = Position(covers.end, epoch, self._begins.topic_id)
        return covers

    @property
    def skips(self) -> Mapping[str, int]:
        """By sink: up to which txid it has our rows already."""
        return self._skips

    def is_in(self, sink: str, txid: int) -> None:
        """Learn that a sink has committed it, while others may not: there it is not repeated."""
        self._skips[sink] = max(txid, self._skips.get(sink, 0))

    def _from(self, txid: int) -> list[_Open]:
        return self._open[txid - self.committed - 1 :]


def _is_again(was: Range, now: Range) -> bool:
    """Whether a sealed range has come again; `now` has the later leader epoch of both.

    Offsets and lengths are not all: if its last record is of a later leader than the seal knows of,
    the log was cut off before it, and the record is another.
    """
    is_as_old = was.leader_epoch in {None, now.leader_epoch}
    return (now.count, now.digest) == (was.count, was.digest) and is_as_old


def _said(sealed: Range) -> str:
    led_by = "" if sealed.leader_epoch is None else f" under leader epoch {sealed.leader_epoch}"
    return f"{sealed}, digest {sealed.digest}{led_by}"
