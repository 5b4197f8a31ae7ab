"""The XOR acker: tells when everything that came out of a record is processed.

Storm's algorithm (org.apache.storm.daemon.Acker): each tuple that travels has a random
64-bit edge id, XORed into its tree's value once when it is emitted and once when it is
acked, so the value is 0 when every edge has come back. Pure: no I/O, no clock, no lock;
the owner thread drives it. Unlike Storm's, a failed tree never completes, and late
messages make no ghost entries, because a handle tells its tree from the slot's next one.
"""

from dataclasses import dataclass

import numpy as np

from acker.arrays import Edges, Flags, Owners, Slots, Tags, Trees, turned_back
from acker.errors import TooManyTrees
from acker.outcomes import Outcomes, Resolved
from acker.singles import MOST, Singles
from acker.slots import FAILED, FLAG_SHIFT, INIT, SlotTable, bytes_of, checked_flags
from acker.wheel import Wheel

__all__ = ["Acker", "AckerStatistics", "Edges", "Flags", "Owners", "Resolved", "Trees"]

_BYTE = 0xFF


@dataclass(frozen=True, slots=True)
class AckerStatistics:
    """What the acker holds and has seen, in trees and messages."""

    in_flight: int
    capacity: int
    bytes_held: int
    acked: int
    failed: int
    expired: int
    ignored: int  # late, repeated or unknown messages
    unanchored: int  # tuples that were emitted outside any tree


class Acker:
    """One 64-bit value per tree in flight, in flat slot arrays; batch calls first.

    `begin` gives handles; `init`, `ack` and `fail` may then come in any order
    (promise 6). A tree resolves exactly once (promise 5): what comes later, and what was
    never begun, is counted and changes nothing. `drain` tells what resolved since it was
    asked last. An owner is any 63-bit number of the caller's, an edge any 64-bit one.

    A handle holds its slot, the slot's generation (8 bits) and the owner's low 23 bits. So
    a stale handle can be mistaken for a live one only if its slot has been used again exactly
    256 times, or a multiple of it, and its tree is now of an owner whose low 23 bits are
    the same: the same record tried again, or one whose offset (in any partition) is the
    same modulo 8,388,608. An ack so mistaken spoils the tree's value, and it expires.

    One batch call counts as one message per tree. That a live tree's edge is acked twice
    cannot be seen in a sum of XORs: its value never gets to 0 by it, so the tree expires, and
    its record is tried again.

    `begin_one`, `init_one`, `ack_one` and `fail_one` do the same for single trees, and cost
    no more than a dictionary does. All calls may be mixed.
    """

    def __init__(
        self,
        *,
        timeout_seconds: float,
        longest_seconds: float | None = None,
        max_trees: int = 1 << 24,
        capacity: int = 1024,
    ) -> None:
        """`longest_seconds` is the longest of the bolts' own time-outs, if they have any."""
        self._max_trees = max_trees
        self._wheel = Wheel(timeout_seconds, longest_seconds)
        self._table = SlotTable(min(capacity, max_trees))
        self._outcomes = Outcomes()
        self._singles = Singles(self._table, self._wheel, self._outcomes, max_trees=max_trees)
        self.begin_one = self._singles.begin_one
        self.init_one = self._singles.init_one
        self.ack_one = self._singles.ack_one
        self.fail_one = self._singles.fail_one

    def begin(self, owners: Owners) -> Trees:
        """Open a tree for each owner and return its handle. Raises TooManyTrees."""
        after = self.in_flight + len(owners)
        if after + MOST > self._max_trees:
            if after > self._max_trees:
                raise TooManyTrees(self._max_trees)
            self._singles.stop_giving()
        wheel = self._wheel
        deadline = wheel.current + wheel.timeout_advances & _BYTE
        return self._table.take(owners, deadline, self._max_trees)

    def init(self, trees: Trees, edges: Edges, flags: int = 0) -> None:
        """XOR in the first edges of each tree; from now on it may resolve.

        A tree without edges (0) is complete at once. Each tree stands here once; an init
        that is repeated later is ignored. `flags` are set as by `mark`.
        """
        table = self._table
        marks = checked_flags(flags) << FLAG_SHIFT
        slots, tags, owners, live = table.find(trees)
        if live is not None:
            for tree, edge in zip(trees[~live].tolist(), edges[~live].tolist(), strict=True):
                self.init_one(tree, edge, flags)
            edges = edges[live]
        if np.count_nonzero(tags & INIT):
            new = tags & INIT == 0
            self._outcomes.ignored += len(slots) - int(np.count_nonzero(new))
            slots, tags, owners, edges = slots[new], tags[new], owners[new], edges[new]
        table.waiting -= len(slots)
        tags |= INIT | marks
        values = table.values.take(slots) ^ edges
        if table.doomed:
            failed = tags & FAILED != 0
            table.doomed -= int(np.count_nonzero(failed))
            self._outcomes.failed.add(owners[failed])
            table.release(slots[failed], tags[failed])
            left = ~failed
            slots, tags, owners, values = slots[left], tags[left], owners[left], values[left]
        if np.count_nonzero(values) < len(values):
            done = values == 0
            self._complete(slots[done], tags[done], owners[done])
            left = ~done
            slots, tags, values = slots[left], tags[left], values[left]
        table.values[slots] = values
        table.tags[slots] = tags

    def ack(self, trees: Trees, edges: Edges, *, distinct: bool = False) -> None:
        """XOR edges into their trees; one that reaches 0 is complete.

        `distinct` promises that no tree stands in the batch twice, which is faster. The
        edges of a tuple and of those that were emitted from it may be XORed before: one
        message, as Storm's bolts send.
        """
        if not len(trees):
            return
        table = self._table
        slots, tags, owners, live = table.find(trees)
        if live is not None:
            self._ack_singly(trees[~live], edges[~live])
            edges = edges[live]
        if distinct:
            values = table.values.take(slots)
            values ^= edges
        else:
            np.bitwise_xor.at(table.values, slots, edges)
            values = table.values.take(slots)
        undone = int(np.count_nonzero(values))
        if undone or table.waiting:
            if distinct:
                table.values[slots] = values
            if undone == len(values):
                return
            done = (values == 0) & (tags & INIT != 0)
            slots, tags, owners = slots[done], tags[done], owners[done]
        if not distinct:
            once = table.once_each(slots)
            if len(once) < len(slots):
                slots = once
                tags, owners = table.tags.take(slots), table.owners.take(slots)
        self._complete(slots, tags, owners)

    def anchor(self, trees: Trees, edges: Edges) -> None:
        """XOR in the edges of tuples that are emitted while their input is not acked yet.

        A tuple under several trees (a join) is several pairs of tree and edge; it may have
        another edge in each. They are acked, or failed, in all of them. An edge may be acked
        before it is anchored, but not before it is anchored may its input be acked.
        """
        self.ack(trees, edges)

    def unanchored(self, count: int) -> None:
        """Count tuples that are emitted outside any tree: nobody waits for them."""
        self._outcomes.unanchored += count

    def fail(self, trees: Trees) -> None:
        """Fail trees. No later ack revives them (promise 4)."""
        table = self._table
        slots, tags, _owners, live = table.find(trees)
        if live is not None:
            for tree in trees[~live].tolist():
                self.fail_one(tree)
        slots = table.once_each(slots[tags & FAILED == 0])
        self._outcomes.ignored += len(tags) - len(slots)
        tags = table.tags.take(slots) | np.uint16(FAILED)
        table.tags[slots] = tags
        ready = tags & INIT != 0
        gone = slots[ready]
        table.doomed += len(slots) - len(gone)
        self._outcomes.failed.add(table.owners.take(gone))
        table.release(gone, tags[ready])

    def mark(self, trees: Trees, flags: int) -> None:
        """Set flag bits (1 to 16) on trees; `drain` gives them back. Raises FlagsTooHigh."""
        bits = checked_flags(flags)
        slots, tags, _owners, live = self._table.find(trees)
        if live is not None:
            self._singles.mark(trees[~live].tolist(), bits)
        self._table.tags[slots] = tags | np.uint16(bits << FLAG_SHIFT)

    def flags(self, trees: Trees) -> Flags:
        """The flags that were set on the trees; 0 for those that have resolved or never were."""
        _slots, tags, _owners, live = self._table.find(trees)
        found: Flags = (tags >> FLAG_SHIFT).astype(np.uint8)
        if live is None:
            return found
        flags: Flags = np.zeros(len(trees), np.uint8)
        flags[live] = found
        for place in np.flatnonzero(~live).tolist():
            flags[place] = self._singles.flags(int(trees[place]))
        return flags

    def owners(self, trees: Trees) -> Owners:
        """Whose the trees are; -1 for those that have resolved or never were."""
        _slots, _tags, turned, live = self._table.find(trees)
        found = turned_back(turned)
        if live is None:
            return found
        owners: Owners = np.full(len(trees), -1, np.int64)
        owners[live] = found
        entries = self._singles.entries
        for place in np.flatnonzero(~live).tolist() if entries else ():
            entry = entries.get(int(trees[place]))
            if entry is not None:
                owners[place] = entry[1]
        return owners

    @property
    def tick_seconds(self) -> float:
        """How long a tick is: what a time-out may be exceeded by."""
        return self._wheel.tick_seconds

    def reset_timeout(self, trees: Trees, seconds: float | None = None) -> None:
        """Let the trees' time start anew: what they wait for is slow, not lost.

        A bolt may have a time-out of its own, `seconds`, shorter or longer than the
        topology's. What a tree has left is never shortened. Raises TimeoutTooLong.
        """
        wheel, table = self._wheel, self._table
        advances = wheel.timeout_advances if seconds is None else wheel.advances(seconds)
        slots, _tags, _owners, live = table.find(trees)
        if live is not None:
            self._singles.reset(trees[~live].tolist(), advances)
        current = np.uint8(wheel.current & _BYTE)
        left = table.deadlines.take(slots) - current  # modulo 256, as the ticks are
        table.deadlines[slots] = np.maximum(left, np.uint8(advances)) + current

    def expire(self, now: float) -> None:
        """Fail every tree whose time is up.

        With calls at most `d` seconds apart, a time-out of T seconds and n = T/tick (8, if
        no bolt has a much longer one), a tree that does not resolve expires at the earliest
        T after `begin` (or `reset_timeout`), at the latest T + tick + (n + 1) * d after it.
        A bolt's own S seconds count as a whole number of ticks, rounded up. One call
        ends one tick at most: when the owner itself stood still, the trees are not to
        blame.
        """
        if not self._wheel.advance(now):
            return
        self._singles.expire()
        table = self._table
        due = table.due(self._wheel.current & _BYTE)
        if len(due):
            tags = table.tags.take(due)
            table.waiting -= int(np.count_nonzero(tags & INIT == 0))
            table.doomed -= int(np.count_nonzero(tags & FAILED))
            self._outcomes.expired.add(table.owners.take(due))
            table.release(due, tags)

    def drain(self) -> Resolved:
        """What resolved since the last call, each tree once."""
        return self._outcomes.drain()

    @property
    def in_flight(self) -> int:
        """Trees that have begun and not resolved."""
        return self._table.in_use + len(self._singles.entries)

    def statistics(self) -> AckerStatistics:
        """What the acker holds and has seen."""
        outcomes, entries = self._outcomes, self._singles.entries
        return AckerStatistics(
            in_flight=self.in_flight,
            capacity=self._table.capacity,
            bytes_held=self._table.bytes_held + (bytes_of(entries) if entries else 0),
            acked=outcomes.acked,
            failed=outcomes.failed.count,
            expired=outcomes.expired.count,
            ignored=outcomes.ignored,
            unanchored=outcomes.unanchored,
        )

    def _complete(self, slots: Slots, tags: Tags, owners: Owners) -> None:
        if len(slots):
            self._outcomes.ack(owners, tags)
            self._table.release(slots, tags)

    def _ack_singly(self, trees: Trees, edges: Edges) -> None:
        """Ack what has no live slot: trees begun by single calls, and what is ignored."""
        entries = self._singles.entries
        sums: dict[int, int] = {}
        for tree, edge in zip(trees.tolist(), edges.tolist(), strict=True):
            if tree in entries:
                sums[tree] = sums.get(tree, 0) ^ edge
            else:
                self._outcomes.ignored += 1
        for tree, edge in sums.items():
            self.ack_one(tree, edge)
