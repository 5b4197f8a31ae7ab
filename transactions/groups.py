"""Groups of transactions, one of each of some partitions: committed together, in order."""

import random
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple, Protocol

from partition.records import Partition, Range
from transactions.partition_transactions import (
    OutOfOrder,
    PartitionTransactions,
    TooManyActive,
    Transaction,
)

_FIRST_PAUSE_SECONDS = 1.0
_LONGEST_PAUSE_SECONDS = 30.0
_MOST_PATIENCE = 8  # so many times as long as a first one may a try take
_JITTER = 0.2  # at most this part of a pause is taken off it

Refused = Mapping[int, Mapping[str, Mapping[int, str]]]
"""By offset: the sinks that do not take all rows of the record; which ones, and why."""


@dataclass(frozen=True, slots=True)
class RangePolicy:
    """Of the spark engine's ranges, all partitions together. Seconds are of the owner's clock.

    Records are counted as offsets, which is what can be known of a range that nobody has read.
    """

    records: int = 1_000_000  # at most so many in one group of ranges; so many are planned at once
    seconds: float = 1.0  # or after so long, if fewer wait
    max_active: int = 2  # groups in flight: one is committed while the next is processed


class RangeHeld(Protocol):
    """A range, as a run found it."""

    @property
    def partition(self) -> Partition:
        """The partition whose range it is."""

    @property
    def count(self) -> int:
        """The number of records in it."""

    @property
    def digest(self) -> str:
        """See `RangeDigest`."""

    @property
    def leader_epoch(self) -> int | None:
        """No record of it has a later one; None: not known, or there is none."""


class Member(NamedTuple):
    """A transaction of a group, and the partition it is of."""

    place: int  # of the partition
    line: PartitionTransactions
    txid: int

    @property
    def transaction(self) -> Transaction:
        """The same. Raises KeyError if it is not open any more."""
        return self.line.transaction_of(self.txid)


class GroupPhase(Enum):
    """The state of a group."""

    PLANNED = "planned"  # it may be run once all of it is stored, and its pause is over
    RUNNING = "running"
    PROCESSED = "processed"  # rows are ready, and can be staged and committed
    COMMITTING = "committing"


@dataclass(slots=True, eq=False)
class TransactionGroup:
    """One transaction of each of some partitions. Only TransactionGroups changes it."""

    number: int  # from 1
    members: tuple[Member, ...]
    phase: GroupPhase
    # Of one that is run on executors:
    attempt: int = 0  # how often it was run
    refused: dict[int, dict[int, dict[str, Mapping[int, str]]]] = field(default_factory=dict)
    """By place and offset, for its next runs: see `TransactionGroups.refuse`."""
    failures: int = 0
    patience: int = 1
    """Its next try may take so many times as long as a group's first."""
    again_at: float = 0.0  # not to be run before


class TransactionGroups:
    """The groups in flight, on both engines. Seconds are of the owner's clock, and given.

    The local engine makes a group of transactions that are processed. The spark engine makes one
    of those that are planned, runs it, and runs it again with all later ones if it fails: they
    come after it in the same partitions, and could not be committed before it. What is told of a
    try that is not the live one changes nothing. Pure: no thread, no clock, no I/O.
    """

    def __init__(self, max_active: int, rng: random.Random | None = None) -> None:
        self._max_active = max_active
        self._rng = rng or random.Random()  # noqa: S311 - it spreads pauses
        self._groups: list[TransactionGroup] = []
        self._number = 0

    def __iter__(self) -> Iterator[TransactionGroup]:
        """The groups in flight, in order."""
        return iter(tuple(self._groups))

    def __len__(self) -> int:
        """The number of groups in flight."""
        return len(self._groups)

    @property
    def may_plan(self) -> bool:
        """True if there may be another group."""
        return len(self._groups) < self._max_active

    @property
    def lowest(self) -> TransactionGroup | None:
        """The one to be committed next."""
        return self._groups[0] if self._groups else None

    def plan(
        self, members: Sequence[Member], phase: GroupPhase = GroupPhase.PLANNED
    ) -> TransactionGroup:
        """Make a group of open transactions, each the next of its partition that no group has.

        Raises TooManyActive, OutOfOrder, and ValueError for no member or two of one place.
        """
        if not self.may_plan:
            raise TooManyActive(self._max_active)
        if not members or len({each.place for each in members}) < len(members):
            raise ValueError("a group is of one range each of one or more partitions")
        for each in members:
            if each.txid != each.line.grouped_to + 1 or not each.line.ungrouped:
                raise OutOfOrder(each.txid, each.line.grouped_to + 1)
            each.line.grouped_to = each.txid
            if each.line.is_outdated(each.txid):
                each.line.fail(each.txid)
        self._number += 1
        group = TransactionGroup(self._number, tuple(members), phase)
        self._groups.append(group)
        return group

    def of(self, number: int) -> TransactionGroup | None:
        """The group of that number, if it is in flight."""
        return next((each for each in self._groups if each.number == number), None)

    def is_live(self, number: int, attempt: int) -> bool:
        """True if a try is under way or processed: what it makes is of use."""
        group = self.of(number)
        if group is None or group.phase is GroupPhase.PLANNED:
            return False
        return group.attempt == attempt

    def next_run(self, now: float) -> TransactionGroup | None:
        """The group to run now, RUNNING from now on; None: there is none yet."""
        group = next((each for each in self._groups if each.phase is GroupPhase.PLANNED), None)
        if group is None or now < group.again_at:
            return None
        if not all(each.line.is_recorded(each.txid) for each in group.members):
            return None
        group.attempt += 1
        group.phase = GroupPhase.RUNNING
        return group

    def ran(self, number: int, attempt: int, reads: Sequence[RangeHeld]) -> bool:
        """Learn that a try has read all ranges, and seal them; False: it is not the live one.

        A group is run again at once, and so are all later ones, if a range of it turns out to have
        been read, or to be read now, from a log that was cut off below it since. Raises ValueError
        if the try lacks a member's range.
        """
        group = self._at(number, attempt, GroupPhase.RUNNING)
        if group is None:
            return False
        held = {each.partition: each for each in reads}
        missing = [str(e.line.partition) for e in group.members if e.line.partition not in held]
        if missing:
            raise ValueError(f"a run of group {number} tells nothing of {', '.join(missing)}")
        for each in group.members:
            of_it = held[each.line.partition]
            live = each.transaction.attempt
            each.line.read(each.txid, live, of_it.count, of_it.digest, of_it.leader_epoch)
        group.phase = GroupPhase.PROCESSED
        outdated = [
            (later, each.place)
            for later in self._groups
            for each in later.members
            if each.line.is_outdated(each.txid)
        ]
        for later, place in outdated:
            later.refused.pop(place, None)  # of records that stood where others stand now
        if outdated:
            self._again(outdated[0][0])
        return True

    def failed(self, number: int, attempt: int, now: float, *, took_too_long: bool = False) -> bool:
        """Learn that a try has failed; it and all later ones are to be run again.

        After a pause, which grows with each failure of it; and if it took too long, with twice the
        patience, up to a limit. False, and nothing is changed: the try is not the live one, or it
        is COMMITTING: then only `not_done` says that it may fail.
        """
        group = self._at(number, attempt, GroupPhase.RUNNING, GroupPhase.PROCESSED)
        if group is None:
            return False
        group.failures += 1
        if took_too_long:
            group.patience = min(2 * group.patience, _MOST_PATIENCE)
        pause = _FIRST_PAUSE_SECONDS * 2.0 ** min(group.failures - 1, 16)
        pause = min(pause, _LONGEST_PAUSE_SECONDS) * (1 - _JITTER * self._rng.random())
        group.again_at = now + pause
        self._again(group)
        return True

    def refuse(self, number: int, refused: Mapping[int, Refused]) -> None:
        """Remember, by place, records whose rows a sink does not take: each gets its letter.

        For the next tries of a group, since this one has staged what is refused. What is said of a
        record and a sink is in place of what was said before.
        """
        group = self.of(number)
        if group is None:
            return
        for place in {each.place for each in group.members} & refused.keys():
            known = group.refused.setdefault(place, {})
            for offset, reasons in refused[place].items():
                known.setdefault(offset, {}).update(reasons)

    def next_commit(self) -> TransactionGroup | None:
        """The lowest group if it can be committed, COMMITTING from now on; None: it cannot."""
        group = self.lowest
        if group is None or group.phase is not GroupPhase.PROCESSED:
            return None
        if not all(each.line.is_ready(each.txid) for each in group.members):
            return None
        for each in group.members:
            each.line.take(each.txid)
        group.phase = GroupPhase.COMMITTING
        return group

    def not_done(self, number: int) -> bool:
        """Learn that a group's commit is known not to have come about."""
        group = self.of(number)
        if group is None or group.phase is not GroupPhase.COMMITTING:
            return False
        for each in group.members:
            each.line.not_done(each.txid)
        group.phase = GroupPhase.PROCESSED
        return True

    def done(self, number: int) -> list[tuple[Member, Range]]:
        """Learn that every sink has it; return what it covered of each partition.

        Raises OutOfOrder unless it is the lowest group, and COMMITTING.
        """
        lowest = self.lowest
        is_due = lowest is not None and lowest.phase is GroupPhase.COMMITTING
        if lowest is None or lowest.number != number or not is_due:
            raise OutOfOrder(number, self._number + 1 if lowest is None else lowest.number)
        del self._groups[0]
        return [(each, each.line.done(each.txid)) for each in lowest.members]

    def drop(self, place: int) -> tuple[int, ...]:
        """Leave a partition out: it is lost, or its log is not what it was.

        No commit of a group that has it may be under way. A group that ran with it is run again
        without it, at once, and so are all later ones; one that has no other member vanishes.
        What is open of its line is `ungrouped` again, in new attempts. Returns the numbers of the
        groups whose tries, if they had any, are of no use any more.
        """
        with_it = [each for each in self._groups if _has(each, place)]
        left = [m for each in with_it for m in each.members if m.place == place]
        ran = [each for each in with_it if each.phase is not GroupPhase.PLANNED]
        for each in with_it:
            self.not_done(each.number)
            each.members = tuple(m for m in each.members if m.place != place)
            each.refused.pop(place, None)
        self._groups = [each for each in self._groups if each.members]
        for line in {each.line for each in left}:
            line.fail(line.committed + 1)
            line.grouped_to = line.committed
        first = next((each for each in ran if each.members), None)
        again = self._again(first) if first is not None else ()
        return tuple(sorted({each.number for each in (*ran, *again)}))

    def leave_out(self, number: int, gone: Collection[Member]) -> None:
        """Let members leave a group whose others are committed, as they are another owner's."""
        for group in self._groups:
            if group.number == number:
                group.members = tuple(each for each in group.members if each not in gone)

    def _again(self, first: TransactionGroup) -> Sequence[TransactionGroup]:
        """Have a group and all later ones run again; return them."""
        later = self._groups[self._groups.index(first) :]
        failed: set[PartitionTransactions] = set()
        for group in later:
            group.phase = GroupPhase.PLANNED
            for each in group.members:
                if each.line not in failed:  # which fails what is after it in its line
                    each.line.fail(each.txid)
                    failed.add(each.line)
        return later

    def _at(self, number: int, attempt: int, *phases: GroupPhase) -> TransactionGroup | None:
        group = self.of(number)
        is_it = group is not None and group.attempt == attempt and group.phase in phases
        return group if is_it else None


def _has(group: TransactionGroup, place: int) -> bool:
    return any(each.place == place for each in group.members)


class RangePlanner:
    """Shares a group's records out among partitions: which offsets it takes of each. Pure.

    A partition is named by its place. What waits of it are the offsets from where its next range
    would begin to the end of its log. Seconds are of the owner's clock.
    """

    def __init__(self, policy: RangePolicy) -> None:
        self._policy = policy
        self._since: float | None = None  # when something was first seen to wait
        self._turn = 0  # the place that is first to get one record more than others

    def look(self, now: float, places: Mapping[int, tuple[int, int]]) -> bool:
        """Learn what waits, while nothing may be planned; True if a plan would be made now.

        So what waits behind groups in flight does not wait anew once they are done.
        """
        waiting = sum(_waiting_of(places).values())
        if not waiting:
            self._since = None
            return False
        if self._since is None:
            self._since = now
        return waiting >= self._policy.records or now - self._since >= self._policy.seconds

    def plan(
        self, now: float, places: Mapping[int, tuple[int, int]], *, flush: bool = False
    ) -> dict[int, int] | None:
        """The end of the next range of each partition that gets one; None: it is not time yet.

        `places` has, by place, where the next range begins and where the log ends. It is time
        when as many wait as fill a group, when some have waited long, or at once with `flush`.
        Partitions get equal parts of it, and what one does not need goes to the others.
        """
        is_time = self.look(now, places)
        waiting = _waiting_of(places)
        if not waiting or not (is_time or flush):
            return None
        shares = self._shares(waiting)
        # What is left over has waited, too, but a tiny group right behind a full one is dear.
        self._since = None if shares == waiting else now
        return {place: places[place][0] + count for place, count in sorted(shares.items())}

    def _shares(self, waiting: Mapping[int, int]) -> dict[int, int]:
        """At most so many of each as wait of it, in all no more than fill a group."""
        shares: dict[int, int] = {}
        left = self._policy.records
        by_need = sorted(waiting, key=lambda place: (waiting[place], place))
        for done, place in enumerate(by_need):
            part, more = divmod(left, len(by_need) - done)
            if waiting[place] > part:  # and so do all that come now
                others = sorted(by_need[done:], key=lambda each: (each < self._turn, each))
                shares |= {each: part + (turn < more) for turn, each in enumerate(others)}
                if more:
                    self._turn = others[more - 1] + 1
                break
            shares[place] = waiting[place]
            left -= waiting[place]
        return {place: count for place, count in shares.items() if count}


def _waiting_of(places: Mapping[int, tuple[int, int]]) -> dict[int, int]:
    return {place: end - first for place, (first, end) in places.items() if end > first}
