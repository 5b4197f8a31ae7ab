"""Which ranges go together into one task. Pure."""

from collections.abc import Mapping, Sequence

from partition.records import Partition
from service.spark_engine.task import TaskRange

_EXCESS = 1.25  # so much more than its part a slot may get for a partition it had before


def dealt(
    ranges: Sequence[TaskRange], slots: int, before: Mapping[Partition, int] | None = None
) -> list[list[TaskRange]]:
    """Deal ranges out to at most so many tasks, all about as large, as far as offsets tell.

    `before` says in which slot partitions were last time. A partition stays in its slot if that
    does not make the slot much larger than others: where Spark gives the task to the same worker
    again, that has its records prefetched. Slots that get nothing are left out by the caller.
    The largest come first, so that what is left over is small.
    """
    before = before or {}
    slots = max(1, min(slots, len(ranges)))
    tasks: list[list[TaskRange]] = [[] for _ in range(slots)]
    loads = [0] * slots
    fair = sum(_size(each) for each in ranges) / slots
    for each in sorted(ranges, key=lambda each: (-_size(each), each.partition)):
        slot = before.get(each.partition, slots)
        fits = slot < slots and (not tasks[slot] or loads[slot] + _size(each) <= _EXCESS * fair)
        if not fits:
            slot = loads.index(min(loads))
        tasks[slot].append(each)
        loads[slot] += _size(each)
    return tasks


def _size(each: TaskRange) -> int:
    return each.end - each.position.offset
