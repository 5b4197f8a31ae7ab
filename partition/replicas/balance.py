"""Which member each partition is meant for. Pure, and the same whatever the arguments' order."""

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from partition.errors import CountsDiffer
from partition.records import Partition


@dataclass(frozen=True, slots=True)
class Copartitions:
    """Which topics are co-partitioned: one member has all their partitions of one number.

    `group_of` says which group a topic is of; None: of none, its partitions go singly. With
    `all_to_one` one member has everything, and the others stand by.
    """

    group_of: Callable[[str], Hashable | None] = lambda _topic: None
    all_to_one: bool = False

    def unit_of(self, partition: Partition) -> Hashable:
        """Return what is the same for partitions that go together, and for no others."""
        group = self.group_of(partition.topic)
        return partition if group is None else (group, partition.number)

    def units(self, partitions: Iterable[Partition]) -> list[list[Partition]]:
        """Return what goes together, each in order, by its first partition."""
        units: dict[Hashable, list[Partition]] = {}
        for partition in sorted(set(partitions)):
            units.setdefault(self.unit_of(partition), []).append(partition)
        return list(units.values())

    def check(self, partitions: Iterable[Partition]) -> None:
        """Raise CountsDiffer if topics of one group have not as many partitions each."""
        counts = Counter(partition.topic for partition in partitions)
        groups: dict[Hashable, list[str]] = {}
        for topic in sorted(counts):
            groups.setdefault(self.group_of(topic), []).append(topic)
        groups.pop(None, None)
        for topics in groups.values():
            if len({counts[topic] for topic in topics}) > 1:
                raise CountsDiffer({topic: counts[topic] for topic in topics})


SINGLY = Copartitions()


def balanced(
    members: Collection[str],
    partitions: Collection[Partition],
    previous: Mapping[Partition, str],
    copartitions: Copartitions = SINGLY,
) -> dict[Partition, str]:
    """Return a member for every partition; {} without members.

    What goes together counts as one. Members get the same count of what has as many partitions,
    or one more. As few as possible move away from their `previous` owner. Those that must go
    somewhere go round the members if they can, so that a topic is spread as well. O(P log P).
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
    """Return the member that has most of what goes together, the first of equals; or None."""
    held = Counter(previous[each] for each in unit if previous.get(each) in names)
    return min(held, key=lambda name: (-held[name], name), default=None)


def _dealt(
    names: Sequence[str], held: Mapping[Partition, str | None], load: Mapping[str, int]
) -> dict[Partition, str]:
    """Deal partitions, in order, to members that have so many others already."""
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
    for place, partition in enumerate(held):
        name = names[place % len(names)]
        if partition not in owners and room[name]:
            owners[partition] = name
            room[name] -= 1
    seats = iter([name for name in names for _ in range(room[name])])
    return {each: owners[each] if each in owners else next(seats) for each in held}


def one_for_all(
    members: Sequence[str],
    partitions: Collection[Partition],
    previous: Mapping[Partition, str],
) -> dict[Partition, str]:
    """Return one member for all partitions; {} without members.

    It is the previous owner of most of them, else the first; `members` are in the order in
    which they joined, and that order decides between equals.
    """
    if not members:
        return {}
    held = Counter(previous.get(partition) for partition in set(partitions))
    chosen = max(members, key=lambda name: held[name])  # the first of equals
    return dict.fromkeys(sorted(set(partitions)), chosen)


def _quotas(
    kept: Mapping[str, Collection[Partition]], total: int, load: Mapping[str, int]
) -> dict[str, int]:
    """Return how many partitions each member gets.

    Those that have more than their share already get the one more: fewer partitions move.
    """
    share, left_over = divmod(total, len(kept))
    ranked = sorted(kept, key=lambda name: (len(kept[name]) <= share, load[name], name))
    return {name: share + (place < left_over) for place, name in enumerate(ranked)}
