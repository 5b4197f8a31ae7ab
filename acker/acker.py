"""The XOR acker: detects when everything that came out of a record is processed.

Each tuple that travels has a random 64-bit edge id, XORed into its tree's value once when it
is emitted and once when it is acked, so the value is 0 when every edge has come back. Pure:
no I/O, no clock, no lock; the owner thread drives it.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from acker.slots import (
    FAILED,
    FLAG_SHIFT,
    HIGHEST_FLAGS,
    INIT,
    Edges,
    Flags,
    Owners,
    Slots,
    SlotTable,
    Tags,
    Trees,
    turned_back,
)

__all__ = ["Acker", "AckerStatistics", "Edges", "Flags", "Owners", "Resolved", "Trees"]

Item = TypeVar("Item", bound=np.generic)

_BYTE = 0xFF
_TICKS = 254  # a byte tells 255 ticks ahead from each other; one of them is the one that runs
_TICKS_PER_TIMEOUT = 8
_ROUNDING = 1e-9


class TooManyTrees(Exception):
    """More trees would be in flight than the acker may hold."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"{limit} trees are in flight; no more are allowed")


@dataclass(frozen=True, slots=True)
class AckerStatistics:
    in_flight: int
    capacity: int
    bytes_held: int
    acked: int
    failed: int
    expired: int
    ignored: int  # late, repeated or unknown messages
    unanchored: int  # tuples that were emitted outside any tree


@dataclass(frozen=True, slots=True)
class Resolved:
    """The owners of trees that resolved, by outcome, and the flags of those that were acked."""

    acked: Owners
    acked_flags: Flags
    failed: Owners
    expired: Owners

    def __bool__(self) -> bool:
        return bool(len(self.acked) or len(self.failed) or len(self.expired))


_NO_OWNERS: Owners = np.empty(0, np.int64)
_NOTHING = Resolved(_NO_OWNERS, np.empty(0, np.uint8), _NO_OWNERS, _NO_OWNERS)


class Acker:
    """Storm's init, ack and fail (org.apache.storm.daemon.Acker), for arrays of trees.

    `begin` gives handles; `init`, `ack` and `fail` may then come in any order
    (promise 6). A tree resolves exactly once (promise 5): messages that come later, or for
    trees that never began, are counted and ignored. `drain` returns what resolved since its
    last call. An owner is any 63-bit number of the caller's, an edge any 64-bit one.

    Differences from Storm's: a tree opens with `begin`, which bounds how many are in flight, and
    has a handle instead of a random root id, so a message for no live tree makes no entry. A
    failed tree never completes; Storm's is acked if its value happens to be 0. Trees expire
    here alone; Storm's spout keeps a second timeout beside the acker's.

    A handle holds its slot, the slot's generation (8 bits) and the owner's low 23 bits. So
    a stale handle can be mistaken for a live one only if its slot has been used again exactly
    256 times, or a multiple of it, and its tree is now of an owner whose low 23 bits are
    the same: the same record tried again, or one whose offset (in any partition) is the
    same modulo 8,388,608. An ack so mistaken spoils the tree's value, and it expires.

    One batch call counts as one message per tree. That a live tree's edge is acked twice
    cannot be seen in a sum of XORs: its value never gets to 0 by it, so the tree expires, and
    its record is tried again.
    """

    def __init__(
        self,
        *,
        timeout_seconds: float,
        longest_seconds: float | None = None,
        max_trees: int = 1 << 24,
        capacity: int = 1024,
    ) -> None:
        """`longest_seconds` is the longest of the bolts' own timeouts, if they have any."""
        self._max_trees = max_trees
        self._wheel = Wheel(timeout_seconds, longest_seconds)
        self.tick_seconds = self._wheel.tick_seconds
        """Length of a tick: a timeout may be exceeded by it."""
        self._table = SlotTable(min(capacity, max_trees))
        self._acked, self._failed, self._expired = _Ended(), _Ended(), _Ended()
        self._acked_tags: list[Tags] = []
        self._ignored = 0
        self.unanchored = 0
        """Tuples that were emitted outside any tree: nobody waits for them."""

    def begin(self, owners: Owners) -> Trees:
        """Open a tree for each owner and return its handle. Raises TooManyTrees."""
        if self.in_flight + len(owners) > self._max_trees:
            raise TooManyTrees(self._max_trees)
        wheel = self._wheel
        deadline = wheel.current + wheel.timeout_advances & _BYTE
        return self._table.take(owners, deadline, self._max_trees)

    def init(self, trees: Trees, edges: Edges, flags: Flags | None = None) -> None:
        """XOR in the first edges of each tree; from now on it may resolve.

        A tree without edges (0) is complete at once. Each tree stands here once; an init
        that is repeated later is ignored. Each tree's `flags` are set as by `mark`.
        """
        table = self._table
        slots, tags, owners, live = table.find(trees)
        if flags is None:
            flags = np.zeros(len(trees), np.uint8)
        if live is not None:
            self._ignored += len(trees) - len(slots)
            edges, flags = edges[live], flags[live]
        if np.count_nonzero(tags & INIT):
            new = tags & INIT == 0
            self._ignored += len(slots) - int(np.count_nonzero(new))
            slots, tags, owners = slots[new], tags[new], owners[new]
            edges, flags = edges[new], flags[new]
        table.waiting -= len(slots)
        tags |= flags.astype(np.uint16) << FLAG_SHIFT
        tags |= INIT
        values = table.values.take(slots) ^ edges
        if table.doomed:
            failed = tags & FAILED != 0
            table.doomed -= int(np.count_nonzero(failed))
            self._failed.add(owners[failed])
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

    def ack(self, trees: Trees, edges: Edges) -> None:
        """XOR edges into their trees; a tree whose value reaches 0 is complete.

        The edges of a tuple and of those that were emitted from it may be XORed before: one
        message, as Storm's bolts send. To anchor a tuple is the same XOR. A tuple under several
        trees (a join) is several pairs of tree and edge, and is acked, or failed, in all of them.
        An edge may be acked before it is anchored; its input may not.
        """
        if not len(trees):
            return
        table = self._table
        slots, tags, owners, live = table.find(trees)
        if live is not None:
            self._ignored += len(trees) - len(slots)
            edges = edges[live]
        np.bitwise_xor.at(table.values, slots, edges)
        values = table.values.take(slots)
        undone = int(np.count_nonzero(values))
        if undone or table.waiting:
            if undone == len(values):
                return
            done = (values == 0) & (tags & INIT != 0)
            slots, tags, owners = slots[done], tags[done], owners[done]
        once = table.once_each(slots)
        if len(once) < len(slots):
            slots = once
            tags, owners = table.tags.take(slots), table.owners.take(slots)
        self._complete(slots, tags, owners)

    def fail(self, trees: Trees) -> None:
        """Fail trees. No later ack revives them (promise 4)."""
        table = self._table
        slots, tags, _owners, _live = table.find(trees)
        slots = table.once_each(slots[tags & FAILED == 0])
        self._ignored += len(trees) - len(slots)
        tags = table.tags.take(slots) | np.uint16(FAILED)
        table.tags[slots] = tags
        ready = tags & INIT != 0
        gone = slots[ready]
        table.doomed += len(slots) - len(gone)
        self._failed.add(table.owners.take(gone))
        table.release(gone, tags[ready])

    def mark(self, trees: Trees, flags: int) -> None:
        """Set flag bits (1 to 16) on trees; `drain` returns them. Raises ValueError."""
        if not 0 <= flags <= HIGHEST_FLAGS:
            raise ValueError(f"flags {flags}, expected 0 to {HIGHEST_FLAGS}")
        slots, tags, _owners, _live = self._table.find(trees)
        self._ignored += len(trees) - len(slots)
        self._table.tags[slots] = tags | np.uint16(flags << FLAG_SHIFT)

    def flags(self, trees: Trees) -> Flags:
        """Return the flags of trees; 0 for those that have resolved or never began."""
        _slots, tags, _owners, live = self._table.find(trees)
        found: Flags = (tags >> FLAG_SHIFT).astype(np.uint8)
        if live is None:
            return found
        flags: Flags = np.zeros(len(trees), np.uint8)
        flags[live] = found
        return flags

    def owners(self, trees: Trees) -> Owners:
        """Return the owners of trees; -1 for those that have resolved or never began."""
        _slots, _tags, turned, live = self._table.find(trees)
        found = turned_back(turned)
        if live is None:
            return found
        owners: Owners = np.full(len(trees), -1, np.int64)
        owners[live] = found
        return owners

    def reset_timeout(self, trees: Trees, seconds: float | None = None) -> None:
        """Restart the timeout of trees: what they wait for is slow, not lost.

        A bolt may have its own timeout, `seconds`, shorter or longer than the topology's. The
        time that a tree has left is never shortened. Raises ValueError above `longest_seconds`.
        """
        wheel, table = self._wheel, self._table
        advances = wheel.timeout_advances if seconds is None else wheel.advances(seconds)
        slots, _tags, _owners, _live = table.find(trees)
        self._ignored += len(trees) - len(slots)
        current = np.uint8(wheel.current & _BYTE)
        left = table.deadlines.take(slots) - current  # modulo 256, as the ticks are
        table.deadlines[slots] = np.maximum(left, np.uint8(advances)) + current

    def expire(self, now: float) -> None:
        """Fail every tree whose timeout has passed.

        With calls at most `d` seconds apart, a timeout of T seconds and n = T/tick (8, if
        no bolt has a much longer one), an unresolved tree expires at the earliest T after
        `begin` (or `reset_timeout`), at the latest T + tick + (n + 1) * d after it. A bolt's own
        timeout counts as a whole number of ticks, rounded up. One call ends at most one tick: a
        caller that stood still fails no tree by that.
        """
        if not self._wheel.advance(now):
            return
        table = self._table
        due = table.due(self._wheel.current & _BYTE)
        if len(due):
            self._expired.add(table.owners.take(due))
            table.drop(due)

    def discard(self, chosen: Callable[[Owners], Any]) -> None:
        """Drop the trees of the owners for which `chosen` gives a true mask, without an outcome.

        Later messages for them are late, and ignored.
        """
        table = self._table
        slots = table.used()
        table.drop(slots[chosen(turned_back(table.owners.take(slots)))])

    def drain(self) -> Resolved:
        """Return the trees that resolved since the last call, each once."""
        if not self._has_outcomes:
            return _NOTHING
        tags, self._acked_tags = self._acked_tags, []
        flags: Flags = (_joined(tags, np.uint16) >> FLAG_SHIFT).astype(np.uint8)
        return Resolved(self._acked.drain(), flags, self._failed.drain(), self._expired.drain())

    @property
    def _has_outcomes(self) -> bool:
        return bool(self._acked.parts or self._failed.parts or self._expired.parts)

    @property
    def in_flight(self) -> int:
        return self._table.in_use

    def statistics(self) -> AckerStatistics:
        return AckerStatistics(
            in_flight=self.in_flight,
            capacity=self._table.capacity,
            bytes_held=self._table.bytes_held,
            acked=self._acked.count,
            failed=self._failed.count,
            expired=self._expired.count,
            ignored=self._ignored,
            unanchored=self.unanchored,
        )

    def _complete(self, slots: Slots, tags: Tags, owners: Owners) -> None:
        if len(slots):
            self._acked.add(owners)
            self._acked_tags.append(tags)
            self._table.release(slots, tags)


@dataclass(slots=True)
class _Ended:
    """Trees with one outcome: their count, and the turned owners of those not drained."""

    count: int = 0
    parts: list[Owners] = field(default_factory=list)

    def add(self, owners: Owners) -> None:
        self.parts.append(owners)
        self.count += len(owners)

    def drain(self) -> Owners:
        parts, self.parts = self.parts, []
        return turned_back(_joined(parts, np.int64)) if parts else _NO_OWNERS


def _joined(parts: list[npt.NDArray[Item]], kind: type[Item]) -> npt.NDArray[Item]:
    if len(parts) == 1:
        return parts[0]
    return np.concatenate(parts) if parts else np.empty(0, kind)


class Wheel:
    """Counts ticks, and converts a timeout to a number of them.

    A tick is an eighth of the timeout, or as much longer as 254 of them need to reach
    `longest_seconds`; the timeout is a whole number of ticks. One advance ends one tick, at the
    earliest a whole tick after the advance before. A timeout of n ticks has passed after n + 1
    advances: the running tick does not count, as it may be nearly over.
    """

    def __init__(self, timeout_seconds: float, longest_seconds: float | None) -> None:
        self._longest = max(timeout_seconds, longest_seconds or 0.0)
        per_timeout = math.floor(_TICKS * timeout_seconds / self._longest + _ROUNDING)
        self.tick_seconds = (
            timeout_seconds / min(per_timeout, _TICKS_PER_TIMEOUT)
            if per_timeout
            else self._longest / _TICKS
        )
        self.current = 0
        self.timeout_advances = self.advances(timeout_seconds)
        self._ends_at: float | None = None

    def advances(self, seconds: float) -> int:
        """Return the number of advances after which `seconds` have passed for certain."""
        if seconds > self._longest:
            raise ValueError(f"timeout of {seconds} s, expected at most {self._longest} s")
        return min(max(math.ceil(seconds / self.tick_seconds - _ROUNDING), 0), _TICKS) + 1

    def advance(self, now: float) -> bool:
        """End the tick that runs, if it has lasted; the first call starts the first tick."""
        if self._ends_at is None:
            self._ends_at = now + self.tick_seconds
        if now < self._ends_at:
            return False
        self._ends_at = now + self.tick_seconds
        self.current += 1
        return True
