"""Slots: 19 bytes for each tree, in flat arrays that grow in place.

A tree's handle is a non-negative 64-bit integer: the slot in the low 32 bits, the slot's
generation in the 8 above, and the low 23 bits of the owner in the 23 above those. Slots
keep the owner turned by 23 bits, so that both sets of check bits lie in one place and one
XOR compares them.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

Trees = npt.NDArray[np.int64]  # handles
Edges = npt.NDArray[np.uint64]
Owners = npt.NDArray[np.int64]
Flags = npt.NDArray[np.uint8]
Slots = npt.NDArray[np.int64]
Tags = npt.NDArray[np.uint16]

SLOT_BITS = 32
SLOT = (1 << SLOT_BITS) - 1
GENERATION = 0xFF
CHECK_SHIFT = 40
CHECK_BITS = 23
_CHECK = (1 << CHECK_BITS) - 1
_REST = (1 << CHECK_SHIFT) - 1
CHECKED = _CHECK << CHECK_SHIFT  # the bits of a handle, and of a turned owner, that are checked

# The high byte of a tag; the low one is the generation.
FREE, INIT, FAILED = 1 << 8, 1 << 9, 1 << 10
FLAG_SHIFT = 11
HIGHEST_FLAGS = 31
_NOT_LIVE = FREE | GENERATION

_DOUBLES_UP_TO = 1 << 14
_GROWS_BY = 64  # a part of the capacity, above that
_SMALL_STACK = 1 << 12


def turned(owners: Owners) -> Owners:
    """Return owners with their low 23 bits above the other 40."""
    high: Owners = owners & _CHECK
    high <<= CHECK_SHIFT
    high |= owners >> CHECK_BITS
    return high


def turned_back(owners: Owners) -> Owners:
    """Undo `turned`."""
    high: Owners = owners & _REST
    high <<= CHECK_BITS
    high |= owners >> CHECK_SHIFT
    return high


class SlotTable:
    """The slots of trees, and the arrays with the state of each.

    A slot's arrays: `values` (the XOR of its edges), `owners` (turned),
    `tags` (state bits, flags, generation) and `deadlines` (the tick at which it expires, as
    a byte). What a free slot holds means nothing, but for its tag. The stack of free slots is
    as long as there are free slots, so it is short when memory matters.
    """

    def __init__(self, capacity: int) -> None:
        self.values: Edges = np.zeros(capacity, np.uint64)
        self.owners: Owners = np.zeros(capacity, np.int64)
        self.tags: Tags = np.full(capacity, FREE, np.uint16)
        self.deadlines: Flags = np.zeros(capacity, np.uint8)
        self.capacity = capacity
        self.waiting = 0  # trees whose init has not come
        self.doomed = 0  # those of them that have failed
        self._free: np.ndarray[Any, np.dtype[np.uint32]] = np.arange(capacity, dtype=np.uint32)
        self._num_free = capacity

    @property
    def in_use(self) -> int:
        return self.capacity - self._num_free

    @property
    def bytes_held(self) -> int:
        arrays = (self.values, self.owners, self.tags, self.deadlines, self._free)
        return sum(array.nbytes for array in arrays)

    def take(self, owners: Owners, deadline: int, most: int) -> Trees:
        """Give each owner a slot and return the handles; the table grows to at most `most`."""
        count = len(owners)
        if count > self._num_free:
            self._grow(count, most)
        self._num_free -= count
        slots = self._free[self._num_free : self._num_free + count].astype(np.int64)
        if len(self._free) > _SMALL_STACK and self._num_free < len(self._free) // 4:
            self._free.resize(max(2 * self._num_free, _SMALL_STACK), refcheck=False)
        tags = self.tags.take(slots) & GENERATION
        kept = turned(owners)
        self.tags[slots] = tags
        self.values[slots] = 0
        self.owners[slots] = kept
        self.deadlines[slots] = deadline
        self.waiting += count
        generations = tags.astype(np.int64)
        generations <<= SLOT_BITS
        slots |= generations
        kept &= CHECKED
        slots |= kept
        return slots

    def find(self, trees: Trees) -> tuple[Slots, Tags, Owners, Any]:
        """Return slots, tags and turned owners of live trees, and a mask of them (None: all live).

        A handle is of a live tree if its slot is not free and has its generation and the
        check bits of its owner.
        """
        slots: Slots = trees & SLOT
        try:
            tags = self.tags.take(slots)
            owners = self.owners.take(slots)
        except IndexError:  # handles of slots that never were
            there = slots < self.capacity
            found, tags, owners, live = self.find(trees[there])
            mask = np.zeros(len(trees), np.bool_)
            mask[there] = True if live is None else live
            return found, tags, owners, mask
        other = owners ^ trees
        other >>= CHECK_SHIFT
        generations = (trees >> SLOT_BITS).astype(np.uint16)
        generations &= GENERATION
        stale = (tags & _NOT_LIVE) != generations
        if not np.count_nonzero(other) and not np.count_nonzero(stale):
            return slots, tags, owners, None
        live = ~(stale | (other != 0))
        return slots[live], tags[live], owners[live], live

    def release(self, slots: Slots, tags: Tags) -> None:
        """Free slots, each standing here once; their handles are stale from now on."""
        tags = tags + 1
        tags &= GENERATION
        tags |= FREE
        self.tags[slots] = tags
        end = self._num_free + len(slots)
        if end > len(self._free):
            self._free.resize(min(end + end // 2, self.capacity), refcheck=False)
        self._free[self._num_free : end] = slots
        self._num_free = end

    def once_each(self, slots: Slots) -> Slots:
        """Return slots without repetition. Overwrites the trees' values."""
        if len(slots) < 2:  # noqa: PLR2004
            return slots
        places = np.arange(len(slots), dtype=np.uint64)
        self.values[slots] = places
        once: Slots = slots[self.values.take(slots) == places]
        return once

    def due(self, deadline: int) -> Slots:
        """Return the slots in use that expire at this tick."""
        slots = np.flatnonzero(self.deadlines == deadline)
        used: Slots = slots[self.tags.take(slots) & FREE == 0]
        return used

    def used(self) -> Slots:
        return np.flatnonzero(self.tags & FREE == 0)

    def drop(self, slots: Slots) -> None:
        """Free slots whatever state their trees are in."""
        tags = self.tags.take(slots)
        self.waiting -= int(np.count_nonzero(tags & INIT == 0))
        self.doomed -= int(np.count_nonzero(tags & FAILED))
        self.release(slots, tags)

    def _grow(self, count: int, most: int) -> None:
        """Make room for `count` more trees: double while small, then grow in small steps."""
        old = self.capacity
        step = old if old < _DOUBLES_UP_TO else old // _GROWS_BY
        capacity = min(max(old + step, self.in_use + count), most)
        for array in (self.values, self.owners, self.tags, self.deadlines):
            array.resize(capacity, refcheck=False)
        self.tags[old:] = FREE
        new = np.arange(old, capacity, dtype=np.uint32)
        free = np.concatenate([new, self._free[: self._num_free]])
        self._free, self._num_free, self.capacity = free, len(free), capacity
