"""Which replica may hold which partition: plans, the balance behind them, partitions as text. Pure.

Safety: two live members may never work on one partition at the same time, nor on two that are
co-partitioned (the same number of topics that are joined). A member reads plans in order; it may
skip some and may read late. A member that is no longer registered blocks nothing: it has given up
by its own clock before the others see that it is gone.

The writer of a plan must make sure that nobody registered between reading `members` and writing.
Otherwise a name that was thought gone opens what is given to another.
"""

import re
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, TypeAlias

from msgspec import Meta

from partition.errors import CountsDiffer
from partition.records import Partition

Natural: TypeAlias = Annotated[int, Meta(ge=0, le=2**63 - 1)]


@dataclass(frozen=True, slots=True)
class Member:
    """A registered replica and its last report; `seen` and `holds` are of one moment."""

    name: str
    process: str = ""  # random, new at each start
    joined: int = 0  # grows from one registration to the next
    seen: int = 0  # the newest plan it has applied; 0: none
    holds: frozenset[Partition] = frozenset()  # opened or being opened, and not released
    host: str = ""
    since_ms: int = 0
    headrace: str = ""  # the package's version


@dataclass(frozen=True, slots=True)
class Leaving:
    """The member that must release a partition, and the plan that revoked it."""

    name: str
    number: int


@dataclass(frozen=True, slots=True)
class Plan:
    """The owner of each partition. One is in `owners`, in `leaving`, or in neither."""

    number: int  # from 1; grows from each plan to the next
    leader: str  # who wrote it
    owners: Mapping[Partition, str]
    leaving: Mapping[Partition, Leaving]
    rebalanced: int = 0  # the newest `Control.rebalance` that was carried out

    def of(self, name: str) -> frozenset[Partition]:
        return frozenset(each for each, owner in self.owners.items() if owner == name)


@dataclass(frozen=True, slots=True)
class Note:
    """An operator's request: by whom, why, and when (milliseconds since 1970)."""

    by: str
    why: str
    at_ms: Natural


@dataclass(frozen=True, slots=True)
class Control:
    paused: Note | None = None
    drained: Mapping[str, Note] = field(default_factory=dict)  # by the replica's name
    rebalance: Natural = 0  # grows with each request
    resumed: Natural = 0  # grows with each resume: a short pause may pass between two heartbeats


@dataclass(frozen=True, slots=True)
class Copartitions:
    """Co-partitioned topics: one member has all their partitions of one number.

    `group_of` returns a topic's group; None: its partitions are assigned one by one. With
    `all_to_one` all that there is goes together, and the other members stand by.
    """

    group_of: Callable[[str], Hashable | None] = lambda _topic: None
    all_to_one: bool = False

    def unit_of(self, partition: Partition) -> Hashable:
        """Return a key that co-partitioned partitions share, and no others."""
        if self.all_to_one:
            return None
        group = self.group_of(partition.topic)
        return partition if group is None else (group, partition.number)

    def units(self, partitions: Iterable[Partition]) -> list[list[Partition]]:
        """Group co-partitioned partitions; sorted, the groups by their first partition."""
        units: dict[Hashable, list[Partition]] = {}
        for partition in sorted(set(partitions)):
            units.setdefault(self.unit_of(partition), []).append(partition)
        return list(units.values())

    def check(self, partitions: Iterable[Partition]) -> None:
        counts = Counter(partition.topic for partition in partitions)
        groups: dict[Hashable, list[str]] = {}
        for topic in sorted(counts):
            groups.setdefault(self.group_of(topic), []).append(topic)
        groups.pop(None, None)
        for topics in groups.values():
            if len({counts[topic] for topic in topics}) > 1:
                raise CountsDiffer({topic: counts[topic] for topic in topics})


SINGLY = Copartitions()


def leader_of(members: Collection[Member]) -> Member | None:
    return min(members, key=lambda each: (each.joined, each.name), default=None)


def next_plan(
    plan: Plan | None,
    members: Sequence[Member],
    partitions: Collection[Partition],
    control: Control,
    copartitions: Copartitions = SINGLY,
) -> Plan | None:
    """Return the plan that follows, or None if nothing changes or nobody is registered.

    `partitions` are all that exist. A partition goes to its target as soon as no other live
    member may work on it, or on what is co-partitioned with it; until then it is `leaving`, or
    nobody's. Drained members are given nothing. If all are drained, all they have is revoked.
    """
    leader = leader_of(members)
    if leader is None:
        return None
    was = plan or Plan(0, "", {}, {})
    # Numbers go on from what members saw, even if the node of the plan was lost.
    number = 1 + max(was.number, *(each.seen for each in members))
    live = {each.name: each for each in members}
    holders = _holders(members)
    targets = _targets(was, members, partitions, control, copartitions)
    owners: dict[Partition, str] = {}
    leaving: dict[Partition, Leaving] = {}
    for unit in copartitions.units({*partitions, *was.owners, *was.leaving}):
        target = next((targets[each] for each in unit if each in targets), None)
        blocked = {
            each: left
            for each in unit
            if (left := _blocked(each, was, number, live, holders.get(each, ()), target))
        }
        # One member has all of the unit, or what it has not released yet: never two.
        others = any(left.name != target for left in blocked.values())
        for each in unit:
            owner = was.owners.get(each)
            if owner is not None and owner == target and owner in live and each in targets:
                if others:
                    leaving[each] = Leaving(owner, number)
                else:
                    owners[each] = owner
            elif each in blocked:
                leaving[each] = blocked[each]
            elif not others and each in targets:
                owners[each] = targets[each]
    if (owners, leaving, control.rebalance) == (was.owners, was.leaving, was.rebalanced):
        return None
    return Plan(number, leader.name, owners, leaving, control.rebalance)


def _targets(
    plan: Plan,
    members: Sequence[Member],
    partitions: Collection[Partition],
    control: Control,
    copartitions: Copartitions,
) -> dict[Partition, str]:
    names = {each.name for each in members}
    # What is leaving is nobody's: it is interrupted in any case, so the decision is not taken
    # back when another member was faster.
    previous = {
        partition: holding[0]
        for partition, holding in _holders(members).items()
        if partition not in plan.leaving
    }
    if copartitions.all_to_one:  # while others leave, the choice stays with the largest share
        previous.update((each, left.name) for each, left in plan.leaving.items())
    previous.update((each, owner) for each, owner in plan.owners.items() if owner in names)
    if control.rebalance > plan.rebalanced and not copartitions.all_to_one:
        previous = {}
    return balanced(names - control.drained.keys(), partitions, previous, copartitions)


def _blocked(
    partition: Partition,
    plan: Plan,
    number: int,
    live: Mapping[str, Member],
    holders: Sequence[str],
    target: str | None,
) -> Leaving | None:
    owner = plan.owners.get(partition)
    if owner is not None and owner in live:
        return Leaving(owner, number)  # it may have read the plan that gave it the partition
    left = plan.leaving.get(partition)
    if left is not None:
        # A name's new process has seen nothing yet, and may open what an older plan gave it.
        is_late = left.name in live and live[left.name].seen < left.number
        if is_late or left.name in holders:
            return left
    others = [name for name in holders if name != target]
    return Leaving(others[0], number) if others else None


def _holders(members: Sequence[Member]) -> dict[Partition, list[str]]:
    holders: dict[Partition, list[str]] = {}
    for member in sorted(members, key=lambda each: each.name):
        for partition in member.holds:
            holders.setdefault(partition, []).append(member.name)
    return holders


def balanced(
    members: Collection[str],
    partitions: Collection[Partition],
    previous: Mapping[Partition, str],
    copartitions: Copartitions = SINGLY,
) -> dict[Partition, str]:
    """Return a member for every partition; {} without members. The order of arguments is ignored.

    Co-partitioned partitions count as one unit. Of units of one size members get the same count,
    or one more. As few as possible move away from their `previous` owner. Those that must move
    go round the members if they can, so that a topic is spread as well. O(P log P).
    """
    names = sorted(set(members))
    if not names:
        return {}
    by_size: dict[int, list[list[Partition]]] = {}
    for unit in copartitions.units(partitions):
        by_size.setdefault(len(unit), []).append(unit)
    owners: dict[Partition, str] = {}
    load = dict.fromkeys(names, 0)
    for size in sorted(by_size, reverse=True):
        units = by_size[size]
        held = {unit[0]: _holder(unit, load, previous) for unit in units}
        dealt = _dealt(names, held, load)
        for unit in units:
            owners.update(dict.fromkeys(unit, dealt[unit[0]]))
            load[dealt[unit[0]]] += size
    return owners


def _holder(
    unit: Sequence[Partition], names: Collection[str], previous: Mapping[Partition, str]
) -> str | None:
    held = Counter(previous[each] for each in unit if previous.get(each) in names)
    return min(held, key=lambda name: (-held[name], name), default=None)


def _dealt(
    names: Sequence[str], held: Mapping[Partition, str | None], load: Mapping[str, int]
) -> dict[Partition, str]:
    """Deal partitions, in order, to members; `load` is what they have already."""
    kept: dict[str, list[Partition]] = {name: [] for name in names}
    for partition, owner in held.items():
        if owner is not None:
            kept[owner].append(partition)
    room = _quotas(kept, len(held), load)
    owners: dict[Partition, str] = {}
    for name in names:
        # The highest numbers move, of all topics: not all the partitions of the last topic.
        stays = sorted(kept[name], key=lambda each: (each.number, each.topic))[: room[name]]
        owners.update((partition, name) for partition in stays)
        room[name] -= len(stays)
    for index, partition in enumerate(held):
        name = names[index % len(names)]
        if partition not in owners and room[name]:
            owners[partition] = name
            room[name] -= 1
    seats = iter([name for name in names for _ in range(room[name])])
    return {each: owners[each] if each in owners else next(seats) for each in held}


def _quotas(
    kept: Mapping[str, Collection[Partition]], total: int, load: Mapping[str, int]
) -> dict[str, int]:
    share, left_over = divmod(total, len(kept))
    ranked = sorted(kept, key=lambda name: (len(kept[name]) <= share, load[name], name))
    return {name: share + (rank < left_over) for rank, name in enumerate(ranked)}


MAX_NUMBER = 2**31 - 1  # Kafka's own limit
MAX_COUNT = 1_000_000  # of one topic: a corrupt text is refused before it fills the memory
_RANGE = re.compile(r"(0|[1-9][0-9]{0,9})(?:-([1-9][0-9]{0,9}))?")
_SHOWN = 60
_EXPECTED = f'ascending ranges as in "0-3,7", up to {MAX_NUMBER}, of at most {MAX_COUNT} numbers'


def encode_numbers(numbers: Iterable[int]) -> str:
    """Return numbers as ranges, "0-3,7": each number once, ascending; "" for none."""
    ranges: list[list[int]] = []
    for number in sorted(set(numbers)):
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ",".join(f"{first}" if first == last else f"{first}-{last}" for first, last in ranges)


def decode_numbers(text: str) -> list[int]:
    """Return the numbers of ranges, ascending. Raises ValueError: not ascending, or no ranges."""
    numbers: list[int] = []
    for part in text.split(",") if text else ():
        found = _RANGE.fullmatch(part)
        if found is None:
            raise ValueError(f"{_shown(part)} is no range, expected {_EXPECTED}")
        first, last = int(found[1]), int(found[2] or found[1])
        goes_on = not numbers or first > numbers[-1]
        if not goes_on or (found[2] is not None and last <= first) or last > MAX_NUMBER:
            raise ValueError(f"{_shown(part)} is out of place, expected {_EXPECTED}")
        if len(numbers) + last - first >= MAX_COUNT:
            raise ValueError(f"{_shown(part)} makes too many numbers, expected {_EXPECTED}")
        numbers.extend(range(first, last + 1))
    return numbers


def by_topic(partitions: Iterable[Partition]) -> dict[str, str]:
    numbers: dict[str, list[int]] = {}
    for partition in partitions:
        numbers.setdefault(partition.topic, []).append(partition.number)
    return {topic: encode_numbers(numbers[topic]) for topic in sorted(numbers)}


def from_topics(mapping: Mapping[str, str]) -> frozenset[Partition]:
    partitions: set[Partition] = set()
    for topic, text in mapping.items():
        try:
            partitions.update(Partition(topic, number) for number in decode_numbers(text))
        except ValueError as error:
            raise ValueError(f"topic {topic}: {error}") from error
    return frozenset(partitions)


def _shown(part: str) -> str:
    return repr(part[:_SHOWN]) + ("..." if len(part) > _SHOWN else "")
