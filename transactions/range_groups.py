"""Groups of ranges: run together, committed together, in the order in which they were planned."""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple, Protocol

from partition.chunk import Partition
from partition.transaction import Range
from transactions.errors import OutOfOrder, TooManyActive
from transactions.policy import RangePolicy
from transactions.range_line import RangeLine

_FIRST_PAUSE_SECONDS = 1.0
_LONGEST_PAUSE_SECONDS = 30.0
_MOST_PATIENCE = 8  # so many times as long as a first one may a try take
_JITTER = 0.2  # at most this part of a pause is taken off it

Refused = Mapping[int, Mapping[str, Mapping[int, str]]]
"""By offset: the sinks that do not take all rows of the record; which ones, and why."""


class RangeHeld(Protocol):
    """What a run found a range to hold."""

    @property
    def partition(self) -> Partition:
        """Whose range it is."""

    @property
    def count(self) -> int:
        """How many records it holds."""

    @property
    def digest(self) -> str:
        """See `transactions.digest`."""

    @property
    def leader_epoch(self) -> int | None:
        """No record of it has a later one; None: not known, or there is none."""


class RangeMember(NamedTuple):
    """A transaction of a group, and the line it is of."""

    place: int  # of the partition
    line: RangeLine
    txid: int


class GroupPhase(Enum):
    """How far a group is."""

    PLANNED = "planned"  # it may be run once all of it is stored, and its pause is over
    RUNNING = "running"
    READ = "read"  # its members are sealed
    COMMITTING = "committing"


@dataclass(slots=True, eq=False)
class RangeGroup:
    """One range of each of some partitions. Only RangeGroups changes it."""

    number: int  # from 1
    members: tuple[RangeMember, ...]
    attempt: int = 0  # how often it was run
    phase: GroupPhase = GroupPhase.PLANNED
    refused: dict[int, dict[int, dict[str, Mapping[int, str]]]] = field(default_factory=dict)
    """By place and offset, for its next runs: see `RangeGroups.refuse`."""
    failures: int = 0
    patience: int = 1
    """How many times as long as a group's first try its next one may take."""
    again_at: float = 0.0  # not to be run before


class RangeGroups:
    """The groups in flight. Seconds are of the owner's clock, and given.

    Groups are started in order, and one that fails fails all later ones: they come after it in
    the same lines, and could not be committed before it. What is told of a try that is not the
    live one changes nothing. Pure: no thread, no clock, no I/O.
    """

    def __init__(self, policy: RangePolicy, rng: random.Random) -> None:
        self._policy = policy
        self._rng = rng
        self._groups: list[RangeGroup] = []
        self._number = 0

    def __iter__(self) -> Iterator[RangeGroup]:
        """The groups in flight, in order."""
        return iter(tuple(self._groups))

    def __len__(self) -> int:
        """How many groups are in flight."""
        return len(self._groups)

    @property
    def may_plan(self) -> bool:
        """Whether another group may be planned."""
        return len(self._groups) < self._policy.max_active

    def plan(self, members: Sequence[RangeMember]) -> RangeGroup:
        """Make a group of open transactions, each the next of its line that no group has.

        Raises TooManyActive, OutOfOrder, and ValueError for no member or two of one place.
        """
        if not self.may_plan:
            raise TooManyActive(self._policy.max_active)
        if not members or len({each.place for each in members}) < len(members):
            raise ValueError("a group is of one range each of one or more partitions")
        for each in members:
            each.line.group(each.txid)
        self._number += 1
        group = RangeGroup(self._number, tuple(members))
        self._groups.append(group)
        return group

    def of(self, number: int) -> RangeGroup | None:
        """The group of that number, if it is in flight."""
        return next((each for each in self._groups if each.number == number), None)

    def is_live(self, number: int, attempt: int) -> bool:
        """Whether a try is under way or read: what it makes is of use."""
        group = self.of(number)
        is_run = group is not None and group.phase is not GroupPhase.PLANNED
        return is_run and group is not None and group.attempt == attempt

    def next_run(self, now: float) -> RangeGroup | None:
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
            live = each.line.transaction_of(each.txid).attempt
            each.line.read(each.txid, live, of_it.count, of_it.digest, of_it.leader_epoch)
        group.phase = GroupPhase.READ
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
        group = self._at(number, attempt, GroupPhase.RUNNING, GroupPhase.READ)
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

    def next_commit(self) -> RangeGroup | None:
        """The lowest group if it can be committed, COMMITTING from now on; None: it cannot."""
        group = self._groups[0] if self._groups else None
        if group is None or group.phase is not GroupPhase.READ:
            return None
        if not all(each.line.is_ready(each.txid) for each in group.members):
            return None
        for each in group.members:
            each.line.take(each.txid)
        group.phase = GroupPhase.COMMITTING
        return group

    def not_done(self, number: int) -> bool:
        """Learn that a group's commit is known not to have come about: it is READ again."""
        group = self.of(number)
        if group is None or group.phase is not GroupPhase.COMMITTING:
            return False
        for each in group.members:
            each.line.not_done(each.txid)
        group.phase = GroupPhase.READ
        return True

    def done(self, number: int) -> list[tuple[RangeMember, Range]]:
        """Learn that every sink has it; return what it covered of each partition.

        Raises OutOfOrder unless it is the lowest group, and COMMITTING.
        """
        lowest = self._groups[0] if self._groups else None
        is_due = lowest is not None and lowest.phase is GroupPhase.COMMITTING
        if lowest is None or lowest.number != number or not is_due:
            raise OutOfOrder(number, self._number + 1 if lowest is None else lowest.number)
        del self._groups[0]
        return [(each, each.line.done(each.txid)) for each in lowest.members]

    def drop(self, place: int) -> tuple[int, ...]:
        """Leave a partition out: it is lost, or its log is not what it was.

        No commit of a group that has it may be under way. A group that ran with it is run again
        without it, at once, and so are all later ones; one that has no other member vanishes.
        What is open of its line is in `RangeLine.replays` again. Returns the numbers of the
        groups whose tries, if they had any, are of no use any more.
        """
        with_it = [each for each in self._groups if _has(each, place)]
        lines = {m.line for each in with_it for m in each.members if m.place == place}
        ran = [each for each in with_it if each.phase is not GroupPhase.PLANNED]
        for each in with_it:
            self.not_done(each.number)
            each.members = tuple(m for m in each.members if m.place != place)
            each.refused.pop(place, None)
        self._groups = [each for each in self._groups if each.members]
        for line in lines:
            line.give_back()
        first = next((each for each in ran if each.members), None)
        again = self._again(first) if first is not None else ()
        return tuple(sorted({each.number for each in (*ran, *again)}))

    def _again(self, first: RangeGroup) -> Sequence[RangeGroup]:
        """Have a group and all later ones run again; return them."""
        later = self._groups[self._groups.index(first) :]
        failed: set[RangeLine] = set()
        for group in later:
            group.phase = GroupPhase.PLANNED
            for each in group.members:
                if each.line not in failed:  # which fails what is after it in its line
                    each.line.fail(each.txid)
                    failed.add(each.line)
        return later

    def _at(self, number: int, attempt: int, *phases: GroupPhase) -> RangeGroup | None:
        group = self.of(number)
        is_it = group is not None and group.attempt == attempt and group.phase in phases
        return group if is_it else None


def _has(group: RangeGroup, place: int) -> bool:
    return any(each.place == place for each in group.members)
