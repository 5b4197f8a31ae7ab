"""Slots: 19 bytes for each tree, in flat arrays that grow in place."""

import sys
from typing import Any

import numpy as np

from acker.arrays import (
    CHECK_SHIFT,
    CHECKED,
    GENERATION,
    SLOT,
    SLOT_BITS,
    Edges,
    Flags,
    Owners,
    Slots,
    Tags,
    Trees,
    turned,
    turned_one,
)
from acker.errors import FlagsTooHigh

# The high byte of a tag; the low one is the generation.
FREE, INIT, FAILED = 1 << 8, 1 << 9, 1 << 10
FLAG_SHIFT = 11
HIGHEST_FLAGS = 31
_NOT_LIVE = FREE | GENERATION

_DOUBLES_UP_TO = 1 << 14
_GROWS_BY = 64  # a part of the capacity, above that
_SMALL_STACK = 1 << 12


def checked_flags(flags: int) -> int:
    """The flags, if a tree has bits for them. Raises FlagsTooHigh."""
    if not 0 <= flags <= HIGHEST_FLAGS:
        raise FlagsTooHigh(flags, HIGHEST_FLAGS)
    return flags


class SlotTable:
    """Which slot belongs to which tree, and the arrays with what is known of it.

    A slot's arrays: `values` (the XOR of its edges), `owners` (turned, see acker.arrays),
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
        self._views: tuple[memoryview, memoryview, memoryview, memoryview] | None = None

    @property
    def in_use(self) -> int:
        """How many slots have a tree."""
        return self.capacity - self._num_free

    @property
    def bytes_held(self) -> int:
        """The bytes of all arrays."""
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
        """Slots, tags and turned owners of those trees that live; a mask of them, or None for all.

        A handle is of a live tree if its slot is not free and has its generation and the
        check bits of its owner.
        """
        slots: Slots = trees & SLOT
        try:
            tags = self.tags.take(slots)
            owners = self.owners.take(slots)
        except IndexError:  # handles of slots that never were, or of trees that have none
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
        """Slots without repetition, of trees whose value no longer counts: it is overwritten."""
        if len(slots) < 2:  # noqa: PLR2004
            return slots
        places = np.arange(len(slots), dtype=np.uint64)
        self.values[slots] = places
        once: Slots = slots[self.values.take(slots) == places]
        return once

    def due(self, deadline: int) -> Slots:
        """The slots in use that expire at this tick."""
        slots = np.flatnonzero(self.deadlines == deadline)
        used: Slots = slots[self.tags.take(slots) & FREE == 0]
        return used

    # One slot at a time, through memoryviews: they give plain integers, and sooner than an
    # array gives a numpy scalar.

    def views(self) -> tuple[memoryview, memoryview, memoryview, memoryview]:
        """Values, owners, tags and deadlines, until the table grows."""
        if self._views is None:
            self._views = (
                memoryview(self.values),  # type: ignore[arg-type]
                memoryview(self.owners),  # type: ignore[arg-type]
                memoryview(self.tags),  # type: ignore[arg-type]
                memoryview(self.deadlines),  # type: ignore[arg-type]
            )
        return self._views

    def take_one(self, owner: int, deadline: int, most: int) -> int:
        """Give one owner a slot and return the handle."""
        if not self._num_free:
            self._grow(1, most)
        values, owners, tags, deadlines = self.views()
        self._num_free -= 1
        slot = int(self._free[self._num_free])
        generation = tags[slot] & GENERATION
        kept = turned_one(owner)
        values[slot], owners[slot], tags[slot], deadlines[slot] = 0, kept, generation, deadline
        self.waiting += 1
        return kept & CHECKED | generation << SLOT_BITS | slot

    def find_one(self, tree: int) -> int:
        """The slot of a tree, or -1 if it does not live."""
        slot = tree & SLOT
        if slot >= self.capacity:
            return -1
        _values, owners, tags, _deadlines = self._views or self.views()
        if tags[slot] & _NOT_LIVE != tree >> SLOT_BITS & GENERATION:
            return -1
        return slot if (owners[slot] ^ tree) >> CHECK_SHIFT == 0 else -1

    def release_one(self, slot: int) -> None:
        """Free one slot."""
        tags = self.views()[2]
        tags[slot] = tags[slot] + 1 & GENERATION | FREE
        if self._num_free == len(self._free):
            size = min(self._num_free + self._num_free // 2 + 1, self.capacity)
            self._free.resize(size, refcheck=False)
        self._free[self._num_free] = slot
        self._num_free += 1

    def _grow(self, count: int, most: int) -> None:
        """Make room for so many more trees: twice as much while small, then little by little."""
        old = self.capacity
        step = old if old < _DOUBLES_UP_TO else old // _GROWS_BY
        capacity = min(max(old + step, self.in_use + count), most)
        self._views = None  # a resized array may have moved
        for array in (self.values, self.owners, self.tags, self.deadlines):
            array.resize(capacity, refcheck=False)
        self.tags[old:] = FREE
        new = np.arange(old, capacity, dtype=np.uint32)
        free = np.concatenate([new, self._free[: self._num_free]])
        self._free, self._num_free, self.capacity = free, len(free), capacity


def bytes_of(entries: dict[int, list[Any]]) -> int:
    """About how many bytes a dictionary of lists of integers holds."""
    held = sys.getsizeof(entries)
    for tree, entry in entries.items():
        held += sys.getsizeof(tree) + sys.getsizeof(entry)
        held += sum(sys.getsizeof(part) for part in entry if part is not None and part > GENERATION)
    return held
