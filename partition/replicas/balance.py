"""Which member each partition is meant for. Pure, and the same whatever the arguments' order."""

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from zlib import crc32

from partition.chunk import Partition

_ORDINAL = re.compile(r".*-([0-9]{1,9})", re.DOTALL)


def balanced(
    members: Collection[str],
    partitions: Collection[Partition],
    previous: Mapping[Partition, str],
) -> dict[Partition, str]:
    """Return a member for every partition; {} without members.

    Members get the same count of partitions, or one more. As few as possible move away from
    their `previous` owner. Those that must go somewhere go round the members if they can, so
    that a topic is spread as well. O(P log P).
    """
    names = sorted(set(members))
    if not names:
        return {}
    ordered = sorted(set(partitions))
    kept: dict[str, list[Partition]] = {name: [] for name in names}
    for partition in ordered:
        owner = previous.get(partition)
        if owner is not None and owner in kept:
            kept[owner].append(partition)
    room = _quotas(kept, len(ordered))
    owners: dict[Partition, str] = {}
    for name in names:
        # The highest numbers move, of all topics: not all the partitions of the last topic.
        stays = sorted(kept[name], key=lambda each: (each.number, each.topic))[: room[name]]
        owners.update((partition, name) for partition in stays)
        room[name] -= len(stays)
    for place, partition in enumerate(ordered):
        name = names[place % len(names)]
        if partition not in owners and room[name]:
            owners[partition] = name
            room[name] -= 1
    seats = iter([name for name in names for _ in range(room[name])])
    return {each: owners[each] if each in owners else next(seats) for each in ordered}


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


def of_ordinal(name: str, count: int, partitions: Collection[Partition]) -> frozenset[Partition]:
    """Return the partitions of a replica that is one of `count`, by the number in its name.

    That is what stands behind the name's last "-", as a StatefulSet names its pods. Raises
    ValueError if there is none, or if it is not below `count`.
    """
    found = _ORDINAL.fullmatch(name)
    ordinal = -1 if found is None else int(found[1])
    if not 0 <= ordinal < count:
        raise ValueError(
            f"replica {name!r} is to be one of {count}: its name must end in "
            f'"-" and a number from 0 to {count - 1}'
        )
    # By the topic too: else replica 0 had one more of every topic that does not divide evenly.
    return frozenset(
        each for each in partitions if (crc32(each.topic.encode()) + each.number) % count == ordinal
    )


def _quotas(kept: Mapping[str, Collection[Partition]], total: int) -> dict[str, int]:
    """Return how many partitions each member gets.

    Those that have more than their share already get the one more: fewer partitions move.
    """
    share, left_over = divmod(total, len(kept))
    ranked = sorted(kept, key=lambda name: (len(kept[name]) <= share, name))
    return {name: share + (place < left_over) for place, name in enumerate(ranked)}
