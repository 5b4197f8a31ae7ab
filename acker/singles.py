"""Trees that are begun one by one: a small dictionary in front of the slots.

A numpy array costs more per access than a dictionary when one tree is touched at a time.
So the first 2,048 trees in flight that were begun by single calls live in a dictionary, and
have handles of their own: bit 31 is set, where a slot's number never is, and the other bits
count up, so none is ever given twice. What goes beyond has slots like everything else.
"""

from collections import deque
from collections.abc import Iterator

from acker.arrays import SLOT_BITS, turned_back_one
from acker.errors import TooManyTrees
from acker.outcomes import Outcomes
from acker.slots import FAILED, FLAG_SHIFT, HIGHEST_FLAGS, INIT, SlotTable, checked_flags
from acker.wheel import Wheel

Entry = list[int]

MOST = 2048
_LEAST_ROOM = 64
_SERIAL_BITS = 31
_SERIAL = (1 << _SERIAL_BITS) - 1
_BEGUN = -1
_FAILED = HIGHEST_FLAGS + 1  # in an entry's flags
_DEADLINE_SHIFT = 8  # above them: the tick at which it expires, if its time was reset


class Singles:
    """The single calls. An entry is [value, owner, flags]; ~value until its init has come."""

    def __init__(
        self, table: SlotTable, wheel: Wheel, outcomes: Outcomes, *, max_trees: int
    ) -> None:
        self.entries: dict[int, Entry] = {}
        self._handles: Iterator[int] = iter(())
        self._serial = 0
        self._table = table
        self._wheel = wheel
        self._outcomes = outcomes
        self._acked = outcomes.acked_ones
        self._max_trees = max_trees
        # The first handle that was not given before each of the last ticks began.
        self._begun_before: deque[int] = deque(maxlen=wheel.timeout_advances)

    def begin_one(self, owner: int) -> int:
        """Open one tree and return its handle. Raises TooManyTrees."""
        try:
            tree = next(self._handles)
        except StopIteration:
            return self._begin_more(owner)
        self.entries[tree] = [_BEGUN, owner, 0]
        return tree

    def init_one(self, tree: int, edge: int, flags: int = 0) -> None:
        """What `init` does, for one tree."""
        try:
            entry = self.entries[tree]
        except KeyError:
            self._init_slot(tree, edge, checked_flags(flags))
            return
        if entry[0] == _BEGUN and edge and not flags and not entry[2]:
            entry[0] = edge
            return
        if entry[0] >= 0:
            self._outcomes.ignored += 1
            return
        entry[2] |= checked_flags(flags)
        entry[0] = ~entry[0] ^ edge
        if entry[2] & _FAILED:
            self._outcomes.failed.add_one(self.entries.pop(tree)[1])
        elif not entry[0]:
            del self.entries[tree]
            self._outcomes.ack_one(entry[1], entry[2] & HIGHEST_FLAGS)

    def ack_one(self, tree: int, edge: int) -> None:
        """What `ack` does, for one edge of one tree."""
        try:
            entry = self.entries[tree]
        except KeyError:
            self._ack_slot(tree, edge)
            return
        if entry[0] == edge:
            del self.entries[tree]
            if entry[2]:
                self._outcomes.ack_one(entry[1], entry[2] & HIGHEST_FLAGS)
            else:
                self._acked.append(entry[1])
        else:
            entry[0] ^= edge

    def fail_one(self, tree: int) -> None:
        """What `fail` does, for one tree."""
        entry = self.entries.get(tree)
        if entry is None:
            self._fail_slot(tree)
        elif entry[0] >= 0:
            self._outcomes.failed.add_one(self.entries.pop(tree)[1])
        elif entry[2] & _FAILED:
            self._outcomes.ignored += 1
        else:
            entry[2] |= _FAILED

    def mark(self, trees: list[int], flags: int) -> None:
        """Set flags on those of the trees that are here; the others are ignored."""
        for tree in trees:
            entry = self.entries.get(tree)
            if entry is None:
                self._outcomes.ignored += 1
            else:
                entry[2] |= flags

    def flags(self, tree: int) -> int:
        """The flags of a tree; 0 if it is not here."""
        entry = self.entries.get(tree)
        return 0 if entry is None else entry[2] & HIGHEST_FLAGS

    def reset(self, trees: list[int], advances: int) -> None:
        """Give those of the trees that are here time anew; the others are ignored."""
        deadline = self._wheel.current + advances
        for tree in trees:
            entry = self.entries.get(tree)
            if entry is None:
                self._outcomes.ignored += 1
            elif entry[2] >> _DEADLINE_SHIFT < deadline:
                entry[2] = entry[2] & (1 << _DEADLINE_SHIFT) - 1 | deadline << _DEADLINE_SHIFT

    def expire(self) -> None:
        """Fail what is due at the tick that has just begun."""
        self.stop_giving()
        self._begun_before.append(self._next_handle())
        if len(self._begun_before) < self._wheel.timeout_advances:
            return
        due = []
        for tree, entry in self.entries.items():  # in the order of their handles
            if tree >= self._begun_before[0]:
                break
            if entry[2] >> _DEADLINE_SHIFT <= self._wheel.current:
                due.append(tree)
        for tree in due:
            self._outcomes.expired.add_one(self.entries.pop(tree)[1])

    def stop_giving(self) -> None:
        """Let the next tree ask anew how many may begin."""
        self._handles = iter(())

    def _begin_more(self, owner: int) -> int:
        """Make handles ready, as many as there is room for, or take a slot."""
        in_flight = self._table.in_use + len(self.entries)
        if in_flight >= self._max_trees:
            raise TooManyTrees(self._max_trees)
        room = min(MOST - len(self.entries), self._max_trees - in_flight)
        if room < _LEAST_ROOM:
            wheel = self._wheel
            deadline = wheel.current + wheel.timeout_advances & 0xFF
            return self._table.take_one(owner, deadline, self._max_trees)
        first = self._next_handle()
        count = min(room, _SERIAL + 1 - (self._serial & _SERIAL))
        self._serial += count
        self._handles = iter(range(first, first + count))
        return self.begin_one(owner)

    def _next_handle(self) -> int:
        serial = self._serial
        return serial >> _SERIAL_BITS << SLOT_BITS | 1 << _SERIAL_BITS | serial & _SERIAL

    # Trees that have slots

    def _init_slot(self, tree: int, edge: int, flags: int) -> None:
        table = self._table
        slot = table.find_one(tree)
        values, owners, tags, _deadlines = table.views()
        if slot < 0 or tags[slot] & INIT:
            self._outcomes.ignored += 1
            return
        tag = tags[slot] | INIT | flags << FLAG_SHIFT
        value = values[slot] ^ edge
        table.waiting -= 1
        if tag & FAILED:
            table.doomed -= 1
            self._outcomes.failed.add_one(turned_back_one(owners[slot]))
            table.release_one(slot)
        elif value:
            values[slot], tags[slot] = value, tag
        else:
            self._ack_resolved(slot, tag)

    def _ack_slot(self, tree: int, edge: int) -> None:
        table = self._table
        slot = table.find_one(tree)
        if slot < 0:
            self._outcomes.ignored += 1
            return
        values, _owners, tags, _deadlines = table.views()
        value = values[slot] ^ edge
        tag = tags[slot]
        if value or not tag & INIT:
            values[slot] = value
        else:
            self._ack_resolved(slot, tag)

    def _fail_slot(self, tree: int) -> None:
        table = self._table
        slot = table.find_one(tree)
        _values, owners, tags, _deadlines = table.views()
        if slot < 0 or tags[slot] & FAILED:
            self._outcomes.ignored += 1
        elif tags[slot] & INIT:
            self._outcomes.failed.add_one(turned_back_one(owners[slot]))
            table.release_one(slot)
        else:
            tags[slot] |= FAILED
            table.doomed += 1

    def _ack_resolved(self, slot: int, tag: int) -> None:
        owner = turned_back_one(self._table.views()[1][slot])
        self._outcomes.ack_one(owner, tag >> FLAG_SHIFT)
        self._table.release_one(slot)
