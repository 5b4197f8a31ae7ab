"""The XOR acker: tells when everything that came out of a record is processed.

Storm's algorithm (org.apache.storm.daemon.Acker): each tuple that travels has a random
64-bit edge id, XORed into its tree's value once when it is emitted and once when it is
acked, so the value is 0 when every edge has come back. Pure: no I/O, no clock, no lock;
the owner thread drives it. Unlike Storm's, a failed tree never completes, and late
messages make no ghost entries, because a tree's handle carries its slot's generation.
"""

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from acker.errors import TooManyTrees

Trees = npt.NDArray[np.int64]  # handles: generation in the high 32 bits, slot in the low
Edges = npt.NDArray[np.uint64]
Owners = npt.NDArray[np.int64]
Flags = npt.NDArray[np.uint8]
Item = TypeVar("Item", bound=np.generic)

_INIT, _FAILED, _LIVE = 1, 2, 4
_SLOT_BITS = 32
_SLOT_MASK = (1 << _SLOT_BITS) - 1
_MAX_GENERATION = (1 << 31) - 1
_BUCKETS = 8  # an unresolved tree expires between T and T * (1 + 1 / (_BUCKETS - 1))


@dataclass(frozen=True, slots=True)
class Resolved:
    """Trees that resolved: whose they are, the marks they carried, and how they ended."""

    acked: Owners
    acked_flags: Flags
    failed: Owners
    expired: Owners


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


class Acker:
    """One 64-bit value per tree in flight, in flat slot arrays; batch calls first.

    `begin` gives handles; `init`, `ack` and `fail` may then come in any order
    (promise 6). A tree resolves exactly once (promise 5): what comes later finds a
    newer generation in the slot, is counted and changes nothing. `drain` tells what
    resolved since it was asked last. An owner is any 63-bit number of the caller's.
    """

    def __init__(
        self, *, timeout_seconds: float, max_trees: int = 1 << 24, capacity: int = 1024
    ) -> None:
        self._timeout = timeout_seconds
        self._max_trees = max_trees
        self._values: Edges = np.zeros(capacity, np.uint64)
        self._owners: Owners = np.zeros(capacity, np.int64)
        self._generations: npt.NDArray[np.uint32] = np.zeros(capacity, np.uint32)
        self._states: npt.NDArray[np.uint8] = np.zeros(capacity, np.uint8)
        self._flags: Flags = np.zeros(capacity, np.uint8)
        self._buckets: npt.NDArray[np.uint8] = np.zeros(capacity, np.uint8)
        self._free: npt.NDArray[np.uint32] = np.arange(capacity, dtype=np.uint32)
        self._num_free = capacity
        self._bucket = 0
        self._rotates_at: float | None = None
        self._acked: list[tuple[Owners, Flags]] = []
        self._failed: list[Owners] = []
        self._expired: list[Owners] = []
        self._counts = {"acked": 0, "failed": 0, "expired": 0, "ignored": 0}

    def begin(self, owners: Owners) -> Trees:
        """Open a tree for each owner and return its handle. Raises TooManyTrees."""
        count = len(owners)
        if count > self._num_free:
            self._grow(count)
        self._num_free -= count
        slots = self._free[self._num_free : self._num_free + count].astype(np.int64)
        self._values[slots] = 0
        self._owners[slots] = owners
        self._states[slots] = _LIVE
        self._flags[slots] = 0
        self._buckets[slots] = self._bucket
        trees: Trees = self._generations[slots].astype(np.int64) << _SLOT_BITS | slots
        return trees

    def init(self, trees: Trees, edges: Edges, flags: int = 0) -> None:
        """XOR in the first edges of each tree; from now on it may resolve.

        A tree without edges (0) is complete at once. Each tree stands here once.
        """
        slots = self._slots(trees)
        if len(slots) != len(trees):
            edges = edges[self._is_live(trees)]
        self._values[slots] ^= edges
        self._states[slots] |= _INIT
        if flags:
            self._flags[slots] |= flags
        self._settle(slots)

    def ack(self, trees: Trees, edges: Edges, *, distinct: bool = False) -> None:
        """XOR edges into their trees; one that reaches 0 is complete.

        `distinct` promises that no tree stands in the batch twice, which is faster.
        """
        slots = self._slots(trees)
        if len(slots) != len(trees):
            edges = edges[self._is_live(trees)]
        if distinct:
            self._values[slots] ^= edges
        else:
            np.bitwise_xor.at(self._values, slots, edges)
            slots = self._once_each(slots)
        self._settle(slots)

    def fail(self, trees: Trees) -> None:
        """Fail trees. No later ack revives them (promise 4)."""
        slots = self._once_each(self._slots(trees))
        self._states[slots] |= _FAILED
        self._settle(slots)

    def mark(self, trees: Trees, flags: int) -> None:
        """Set flag bits on trees; `drain` gives them back when they are acked."""
        self._flags[self._slots(trees)] |= flags

    def owners(self, trees: Trees) -> Owners:
        """Whose the trees are; -1 for those that have resolved."""
        return np.where(self._is_live(trees), self._owners[trees & _SLOT_MASK], -1)

    def reset_timeout(self, trees: Trees) -> None:
        """Let the trees' time start anew: what they wait for is slow, not lost."""
        self._buckets[self._slots(trees)] = self._bucket

    def expire(self, now: float) -> None:
        """Fail every tree older than the time-out.

        Storm's rotating buckets: a tree expires at the earliest `timeout_seconds` after
        `begin` (or `reset_timeout`), at the latest a seventh of that later, if this is
        called often enough. One call rotates once: when the owner itself stood still, the
        trees are not to blame.
        """
        period = self._timeout / (_BUCKETS - 1)
        if self._rotates_at is None:
            self._rotates_at = now + period
        if now < self._rotates_at:
            return
        self._rotates_at = max(self._rotates_at + period, now)
        self._bucket = (self._bucket + 1) % _BUCKETS
        old = np.flatnonzero((self._states != 0) & (self._buckets == self._bucket))
        if len(old):
            self._expired.append(self._owners[old])
            self._counts["expired"] += len(old)
            self._release(old)

    def drain(self) -> Resolved:
        """What resolved since the last call, each tree once."""
        resolved = Resolved(
            acked=_concatenate([owners for owners, _flags in self._acked], np.int64),
            acked_flags=_concatenate([flags for _owners, flags in self._acked], np.uint8),
            failed=_concatenate(self._failed, np.int64),
            expired=_concatenate(self._expired, np.int64),
        )
        self._acked, self._failed, self._expired = [], [], []
        return resolved

    @property
    def in_flight(self) -> int:
        """Trees that have begun and not resolved."""
        return len(self._free) - self._num_free

    def statistics(self) -> AckerStatistics:
        """What the acker holds and has seen."""
        arrays = (
            self._values, self._owners, self._generations, self._states,
            self._flags, self._buckets, self._free,
        )  # fmt: skip
        return AckerStatistics(
            in_flight=self.in_flight,
            capacity=len(self._free),
            bytes_held=sum(array.nbytes for array in arrays),
            **self._counts,
        )

    def _is_live(self, trees: Trees) -> npt.NDArray[np.bool_]:
        slots = trees & _SLOT_MASK
        current = self._generations[slots] == trees >> _SLOT_BITS
        live: npt.NDArray[np.bool_] = current & (self._states[slots] != 0)
        return live

    def _slots(self, trees: Trees) -> npt.NDArray[np.int64]:
        """The slots of the trees that still live; the others are counted as ignored."""
        slots: npt.NDArray[np.int64] = trees & _SLOT_MASK
        if np.array_equal(self._generations[slots], trees >> _SLOT_BITS):
            return slots  # a released slot has a new generation, so all of these live
        live = self._is_live(trees)
        self._counts["ignored"] += len(trees) - int(np.count_nonzero(live))
        return slots[live]

    def _once_each(self, slots: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The slots without repetition, in the order of their last places; no sorting."""
        if len(slots) < 2:  # noqa: PLR2004
            return slots
        places = np.arange(len(slots), dtype=np.int32)
        last = np.empty(len(self._states), np.int32)
        last[slots] = places
        once: npt.NDArray[np.int64] = slots[last[slots] == places]
        return once

    def _settle(self, slots: npt.NDArray[np.int64]) -> None:
        """Resolve those of the slots that are failed or complete; init must have come."""
        states = self._states[slots]
        failed = states == (_LIVE | _INIT | _FAILED)
        if failed.any():
            gone = slots[failed]
            self._failed.append(self._owners[gone])
            self._counts["failed"] += len(gone)
            self._release(gone)
        done = (self._values[slots] == 0) & (states == (_LIVE | _INIT))
        gone = slots if done.all() else slots[done]
        if len(gone):
            self._acked.append((self._owners[gone], self._flags[gone]))
            self._counts["acked"] += len(gone)
            self._release(gone)

    def _release(self, slots: npt.NDArray[np.int64]) -> None:
        self._states[slots] = 0
        generations = self._generations[slots] + np.uint32(1)
        generations[generations > _MAX_GENERATION] = 0
        self._generations[slots] = generations
        self._free[self._num_free : self._num_free + len(slots)] = slots
        self._num_free += len(slots)

    def _grow(self, count: int) -> None:
        capacity = len(self._free)
        target = capacity
        while target - self.in_flight < count:
            target *= 2
        if target > self._max_trees:
            raise TooManyTrees(self._max_trees)
        extra = target - capacity
        self._values = np.concatenate([self._values, np.zeros(extra, np.uint64)])
        self._owners = np.concatenate([self._owners, np.zeros(extra, np.int64)])
        self._generations = np.concatenate([self._generations, np.zeros(extra, np.uint32)])
        self._states = np.concatenate([self._states, np.zeros(extra, np.uint8)])
        self._flags = np.concatenate([self._flags, np.zeros(extra, np.uint8)])
        self._buckets = np.concatenate([self._buckets, np.zeros(extra, np.uint8)])
        free = np.empty(target, np.uint32)
        free[:extra] = np.arange(capacity, target)
        free[extra : extra + self._num_free] = self._free[: self._num_free]
        self._free = free
        self._num_free += extra


def _concatenate(parts: list[npt.NDArray[Item]], kind: type[Item]) -> npt.NDArray[Item]:
    if len(parts) == 1:
        return parts[0]
    return np.concatenate(parts) if parts else np.empty(0, kind)
