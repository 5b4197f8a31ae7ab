"""Groups of transactions, one of each of some partitions: committed together, in order."""

import random
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple, TypeAlias

from partition.records import Range
from topology.sink import Share
from transactions.partition_transactions import PartitionTransactions
from transactions.transaction import OutOfOrder, RangeRead, Transaction

_FIRST_PAUSE_SECONDS = 1.0
_LONGEST_PAUSE_SECONDS = 30.0
_MOST_PATIENCE = 8  # an attempt may take at most so many times as long as a first one
_JITTER = 0.2  # at most this part of a pause is taken off it

Refused: TypeAlias = Mapping[int, Mapping[str, Mapping[int, str]]]
"""By offset: the sinks that refuse rows of the record; which rows, and why."""


@dataclass(frozen=True, slots=True)
class RangePolicy:
    """Size of the spark engine's groups of ranges. Seconds are of the owner's clock.

    Records are counted as offsets, which is what can be known of a range that nobody has read.
    """

    records: int = 1_000_000  # at most so many in one group of ranges; so many are planned at once
    seconds: float = 1.0  # or after so long, if fewer wait
    max_active: int = 2  # groups in flight: one is committed while the next is processed


class GroupMember(NamedTuple):
    place: int  # of the partition
    line: PartitionTransactions
    txid: int

    @property
    def transaction(self) -> Transaction:
        """Raises KeyError if it is closed."""
        return self.line.transaction_of(self.txid)

    def share(self, epoch: int, num_rows: int) -> Share:
        """Return its share of a group, for one sink. Raises ValueError for a planned range."""
        line, covers = str(self.line.partition), self.transaction.range
        if covers.digest is None:
            raise ValueError(f"{line} transaction {self.txid} is not sealed: it is of {covers}")
        span = covers.first, covers.end, covers.digest
        return Share(line, epoch, self.txid, self.transaction.attempt, *span, num_rows)


class GroupPhase(Enum):
    PLANNED = "planned"  # it may be run once all of it is stored, and its pause is over
    RUNNING = "running"
    PROCESSED = "processed"  # rows are ready, and can be staged and committed
    COMMITTING = "committing"


@dataclass(slots=True, eq=False)
class TransactionGroup:
    number: int  # from 1
    members: tuple[GroupMember, ...]
    phase: GroupPhase
    # Of one that is run on executors:
    attempt: int = 0
    refused: dict[int, dict[int, dict[str, Mapping[int, str]]]] = field(default_factory=dict)
    """By partition index and offset, for its next attempts: see `TransactionGroups.refuse`."""
    failures: int = 0
    patience: int = 1  # its next attempt may take so many times as long as a first one
    again_at: float = 0.0  # not to be run before

    def has(self, place: int) -> bool:
        return any(each.place == place for each in self.members)


class TransactionGroups:
    """The groups in flight, on both engines. Seconds are of the owner's clock, and given.

    The local engine makes a group of transactions that are processed. The spark engine makes one
    of those that are planned, runs it, and runs it again with all later ones if it fails: they
    come after it in the same partitions, and could not be committed before it. Reports of an
    attempt that is not the live one change nothing. Pure: no thread, no clock, no I/O.
    """

    def __init__(self, max_active: int, rng: random.Random | None = None) -> None:
        self._max_active = max_active
        self._rng = rng or random.Random()  # noqa: S311 - it spreads pauses
        self._groups: list[TransactionGroup] = []
        self._number = 0

    def __iter__(self) -> Iterator[TransactionGroup]:
        return iter(tuple(self._groups))

    def __len__(self) -> int:
        return len(self._groups)

    @property
    def may_plan(self) -> bool:
        return len(self._groups) < self._max_active

    @property
    def lowest(self) -> TransactionGroup | None:
        return self._groups[0] if self._groups else None

    def plan(
        self, members: Sequence[GroupMember], phase: GroupPhase = GroupPhase.PLANNED
    ) -> TransactionGroup:
        """Make a group of open transactions, each the next of its partition that no group has.

        Raises OutOfOrder, and ValueError for no member or two of one partition.
        """
        if not self.may_plan:
            raise OutOfOrder(f"{len(self._groups)} groups are in flight")
        if not members or len({each.place for each in members}) < len(members):
            raise ValueError("a group is of one range each of one or more partitions")
        for each in members:
            if each.txid != each.line.grouped_to + 1 or not each.line.ungrouped:
                raise OutOfOrder(f"{each.line.partition} {each.txid} is not the next to group")
            each.line.grouped_to = each.txid
            if each.line.is_outdated(each.txid):
                each.line.fail(each.txid)
        self._number += 1
        group = TransactionGroup(self._number, tuple(members), phase)
        self._groups.append(group)
        return group

    def of(self, number: int) -> TransactionGroup | None:
        return next((each for each in self._groups if each.number == number), None)

    def is_live(self, number: int, attempt: int) -> bool:
        group = self.of(number)
        if group is None or group.phase is GroupPhase.PLANNED:
            return False
        return group.attempt == attempt

    def next_run(self, now: float) -> TransactionGroup | None:
        """Return the group to run now, which is RUNNING from now on, or None."""
        group = next((each for each in self._groups if each.phase is GroupPhase.PLANNED), None)
        if group is None or now < group.again_at:
            return None
        if not all(each.line.is_recorded(each.txid) for each in group.members):
            return None
        group.attempt += 1
        group.phase = GroupPhase.RUNNING
        return group

    def ran(self, number: int, attempt: int, reads: Sequence[RangeRead]) -> bool:
        """Seal all ranges of an attempt, as it has read them; False: it is not the live one.

        A group is run again at once, and so are all later ones, if a range of it turns out to be of
        a log that was cut off below it since. Raises ValueError if the attempt lacks a range.
        """
        group = self._at(number, attempt, GroupPhase.RUNNING)
        if group is None:
            return False
        held = {each.partition: each for each in reads}
        missing = [str(e.line.partition) for e in group.members if e.line.partition not in held]
        if missing:
            raise ValueError(f"an attempt of group {number} lacks {', '.join(missing)}")
        for each in group.members:
            of_it, live = held[each.line.partition], each.transaction.attempt
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
        """Have a group whose attempt has failed run again, with all later ones, after a pause.

        The pause grows with each failure; an attempt that took too long doubles the patience, up
        to a limit. False, and nothing is changed: the attempt is not the live one, or it is
        COMMITTING, when only `not_done` says that it may fail.
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
        """Remember, by partition index, records whose rows a sink refuses: each gets a dead letter.

        For the next attempts of a group. Reasons for a record and a sink replace known ones.
        """
        group = self.of(number)
        if group is None:
            return
        for place in {each.place for each in group.members} & refused.keys():
            known = group.refused.setdefault(place, {})
            for offset, reasons in refused[place].items():
                known.setdefault(offset, {}).update(reasons)

    def next_commit(self) -> TransactionGroup | None:
        """Return the lowest group if it can be committed, COMMITTING from now on, or None."""
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
        group = self.of(number)
        if group is None or group.phase is not GroupPhase.COMMITTING:
            return False
        for each in group.members:
            each.line.not_done(each.txid)
        group.phase = GroupPhase.PROCESSED
        return True

    def done(self, number: int) -> list[tuple[GroupMember, Range]]:
        """Remove a group that every sink has; return the range that it covered of each partition.

        Raises OutOfOrder unless it is the lowest group, and COMMITTING.
        """
        group = self.lowest
        if group is None or group.number != number or group.phase is not GroupPhase.COMMITTING:
            raise OutOfOrder(f"group {number} is not being committed")
        del self._groups[0]
        return [(each, each.line.done(each.txid)) for each in group.members]

    def drop(self, place: int) -> None:
        """Leave a partition out: it is lost, or its log has changed.

        No commit of a group that has it may be under way. A group that ran with it runs again
        without it, at once, and so do all later ones. Its open transactions are `ungrouped` again.
        """
        with_it = [each for each in self._groups if each.has(place)]
        lines = {m.line for each in with_it for m in each.members if m.place == place}
        ran = [each for each in with_it if each.phase is not GroupPhase.PLANNED]
        for each in with_it:
            self.not_done(each.number)
            each.members = tuple(m for m in each.members if m.place != place)
            each.refused.pop(place, None)
        self._groups = [each for each in self._groups if each.members]
        for line in lines:
            line.fail(line.committed + 1)
            line.grouped_to = line.committed
        first = next((each for each in ran if each.members), None)
        if first is not None:
            self._again(first)

    def leave_out(self, number: int, gone: Collection[GroupMember]) -> None:
        """Remove members that another owner has from a group whose others are committed."""
        group = self.of(number)
        if group is not None:
            group.members = tuple(each for each in group.members if each not in gone)

    def _again(self, first: TransactionGroup) -> None:
        failed: set[PartitionTransactions] = set()
        for group in self._groups[self._groups.index(first) :]:
            group.phase = GroupPhase.PLANNED
            for each in group.members:
                if each.line not in failed:  # which fails all after it in its partition
                    each.line.fail(each.txid)
                    failed.add(each.line)

    def _at(self, number: int, attempt: int, *phases: GroupPhase) -> TransactionGroup | None:
        group = self.of(number)
        is_it = group is not None and group.attempt == attempt and group.phase in phases
        return group if is_it else None


class RangePlanner:
    """Divides a group's records among partitions, by index: the offsets it takes of each. Pure."""

    def __init__(self, policy: RangePolicy) -> None:
        self._policy = policy
        self._since: float | None = None  # when something was first seen to wait
        self._turn = 0  # index of the partition that is first to get one record more than others

    def look(self, now: float, logs: Mapping[int, tuple[int, int]]) -> bool:
        """Record which offsets wait, while nothing may be planned; True if a plan is due."""
        waiting = sum(_waiting_of(logs).values())
        if not waiting:
            self._since = None
            return False
        if self._since is None:
            self._since = now
        return waiting >= self._policy.records or now - self._since >= self._policy.seconds

    def plan(
        self, now: float, logs: Mapping[int, tuple[int, int]], *, flush: bool = False
    ) -> dict[int, int] | None:
        """Return the end of the next range of each partition that gets one; None: not yet.

        `logs` has, by partition index, where the next range begins and where the log ends. A plan
        is due when enough records wait to fill a group, when some have waited, or with `flush`.
        """
        is_time = self.look(now, logs)
        waiting = _waiting_of(logs)
        if not waiting or not (is_time or flush):
            return None
        counts, self._turn = divide(waiting, self._policy.records, self._turn)
        # What is left over has waited, too, but a tiny group right behind a full one is dear.
        self._since = None if counts == waiting else now
        return {index: logs[index][0] + count for index, count in sorted(counts.items())}


def divide(waiting: Mapping[int, int], most: int, turn: int) -> tuple[dict[int, int], int]:
    """Return how many of at most so many records each partition gets, and the next `turn`.

    Partitions get equal parts, and what one does not need goes to the others. `turn` is the index
    of the one that is first to get one record more than others.
    """
    counts: dict[int, int] = {}
    by_need = sorted(waiting, key=lambda index: (waiting[index], index))
    for done, index in enumerate(by_need):
        part, more = divmod(most, len(by_need) - done)
        if waiting[index] > part:  # and so do all that come now
            others = sorted(by_need[done:], key=lambda each: (each < turn, each))
            counts |= {each: part + (place < more) for place, each in enumerate(others)}
            if more:
                turn = others[more - 1] + 1
            break
        counts[index] = waiting[index]
        most -= waiting[index]
    return {index: count for index, count in counts.items() if count}, turn


def _waiting_of(logs: Mapping[int, tuple[int, int]]) -> dict[int, int]:
    return {index: end - first for index, (first, end) in logs.items() if end > first}
