"""Who may hold which partition: what members report, what the leader answers with. Pure.

Safety: never are two live members both allowed to work on one partition, nor
on two that go together (co-partitioned topics' of one number). A
member reads plans in order; it may skip some and may read late. One that is not registered any
more blocks nothing: it gives up by its own clock before the others hear of it.

This needs one thing of whoever writes a plan: that nobody registered between the reading of
`members` and the writing. Else a name that was thought gone opens what is given to another.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from partition.records import Partition
from partition.replicas.balance import SINGLY, Copartitions, balanced, one_for_all


@dataclass(frozen=True, slots=True)
class Member:
    """A replica that is registered, as it reported last: `seen` and `holds` of one moment."""

    name: str
    process: str  # random, new at each start
    joined: int  # grows from one registration to the next
    seen: int  # the newest plan it has applied; 0: none
    holds: frozenset[Partition]  # opened or being opened, and not released
    host: str = ""
    since_ms: int = 0
    headrace: str = ""  # the package's version


@dataclass(frozen=True, slots=True)
class Leaving:
    """Who must release a partition, and the plan that revoked it."""

    name: str
    number: int


@dataclass(frozen=True, slots=True)
class Plan:
    """Who may hold which partition. A partition is in `owners`, in `leaving`, or in neither."""

    number: int  # from 1; grows from each plan to the next
    leader: str  # who wrote it
    owners: Mapping[Partition, str]
    leaving: Mapping[Partition, Leaving]
    rebalanced: int = 0  # the newest `Control.rebalance` that was heeded

    def of(self, name: str) -> frozenset[Partition]:
        """What a member may hold."""
        return frozenset(each for each, owner in self.owners.items() if owner == name)


@dataclass(frozen=True, slots=True)
class Note:
    """Who asked for something, why, and when (milliseconds since 1970)."""

    by: str
    why: str
    at_ms: int


@dataclass(frozen=True, slots=True)
class Control:
    """What operators ask for."""

    paused: Note | None = None
    drained: Mapping[str, Note] = field(default_factory=dict)  # by the replica's name
    rebalance: int = 0  # grows with each request


def leader_of(members: Collection[Member]) -> Member | None:
    """Return the member that joined first; None without members."""
    return min(members, key=lambda each: (each.joined, each.name), default=None)


def next_plan(
    plan: Plan | None,
    members: Sequence[Member],
    partitions: Collection[Partition],
    control: Control,
    copartitions: Copartitions = SINGLY,
) -> Plan | None:
    """Return the plan that follows, or None if nothing changes or nobody is registered.

    `partitions` are all that there are. A partition goes to whom it is meant for as soon as no
    other live member may work on it, or on what goes together with it; until then it is
    `leaving`, or nobody's. Drained members are given nothing. If all are drained, what they have
    is revoked.
    """
    leader = leader_of(members)
    if leader is None:
        return None
    was = plan or Plan(0, "", {}, {})
    # Numbers go on where members saw them, even if the node of the plan was lost.
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
        # One member has all of it, or as much as it has not released yet: never two.
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
    """Return who each partition is meant for, whoever may work on it now."""
    available = [
        each.name
        for each in sorted(members, key=lambda each: (each.joined, each.name))
        if each.name not in control.drained
    ]
    names = {each.name for each in members}
    # What is leaving is nobody's: it is interrupted in any case, and so a decision once taken
    # is not taken back because another member was faster.
    previous = {
        partition: holding[0]
        for partition, holding in _holders(members).items()
        if partition not in plan.leaving
    }
    previous.update((each, owner) for each, owner in plan.owners.items() if owner in names)
    if copartitions.all_to_one:
        return one_for_all(available, partitions, previous)
    is_asked = control.rebalance > plan.rebalanced
    return balanced(available, partitions, {} if is_asked else previous, copartitions)


def _blocked(
    partition: Partition,
    plan: Plan,
    number: int,
    live: Mapping[str, Member],
    holders: Sequence[str],
    target: str | None,
) -> Leaving | None:
    """Return who must release a partition before it may be granted; None if it is free."""
    owner = plan.owners.get(partition)
    if owner is not None and owner in live:
        return Leaving(owner, number)  # it may have read what gave it the partition
    left = plan.leaving.get(partition)
    if left is not None:
        # A name's new process has seen nothing yet, and may open what an older plan gave it.
        is_late = left.name in live and live[left.name].seen < left.number
        if is_late or left.name in holders:
            return left
    others = [name for name in holders if name != target]
    return Leaving(others[0], number) if others else None


def _holders(members: Sequence[Member]) -> dict[Partition, list[str]]:
    """Return who says to hold each partition, in the order of names: one, but for surprises."""
    holders: dict[Partition, list[str]] = {}
    for member in sorted(members, key=lambda each: each.name):
        for partition in member.holds:
            holders.setdefault(partition, []).append(member.name)
    return holders
