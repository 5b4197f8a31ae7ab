"""The ledger: the state of each in-flight record of one partition, and the retries of those failed.

Pure: no I/O, no lock; time and randomness are arguments. The owner thread drives it.
"""

import heapq
import math
import random
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Protocol

import numpy as np
import numpy.typing as npt

from partition.records import Offsets

RESOLVED, WAITING, EMITTED, FAILED, PROCESSED = 0, 1, 2, 3, 4

_INITIAL_CAPACITY = 1024


@dataclass(frozen=True, slots=True)
class LedgerStatistics:
    """Figures of a ledger. Counts are records, offsets are the next to read."""

    last_completed_offset: int
    emitted_to: int
    fetched_to: int
    emitted_count: int  # records from there to emitted_to, resolved ones included
    pending: int  # fetched or emitted, not yet resolved (waiting and failed included)
    waiting: int
    failed: int
    ignored: int  # resolutions of records that were not in flight: late, repeated, unknown


class Ledger:
    """One state byte per record in flight, beside a sorted array of offsets.

    Gaps of any size cost nothing, because a record's index is its position in the
    array and not its offset. The last completed offset is always the next offset to read.
    """

    def __init__(self, position: int) -> None:
        self._offsets: Offsets = np.empty(_INITIAL_CAPACITY, np.int64)
        self._states: npt.NDArray[np.uint8] = np.empty(_INITIAL_CAPACITY, np.uint8)
        self._head = 0  # first record that is not resolved
        self._cursor = 0  # first record that waits
        self._tail = 0  # past the last record
        self.fetched_to = position
        self.pending = 0
        self._failed = 0
        self._ignored = 0

    @property
    def last_completed_offset(self) -> int:
        """The lowest pending offset, or `emitted_to` if none: the offset to commit, as in Storm."""
        return int(self._offsets[self._head]) if self.pending else self.fetched_to

    @property
    def emitted_to(self) -> int:
        """The next offset to emit: the lowest waiting one, or `fetched_to` if none waits."""
        return self.emitted_after(0)

    def emitted_after(self, count: int) -> int:
        index = self._cursor + count
        return int(self._offsets[index]) if index < self._tail else self.fetched_to

    @property
    def processed_to(self) -> int:
        """The lowest emitted offset that is neither processed nor resolved, or `emitted_to`."""
        states = self._states[self._head : self._cursor]
        left = (states == EMITTED) | (states == FAILED)
        first = int(np.argmax(left)) if left.any() else len(left)
        return int(self._offsets[self._head + first]) if first < len(left) else self.emitted_to

    def waiting_below(self, offset: int) -> int:
        waiting = self._offsets[self._cursor : self._tail]
        return int(np.searchsorted(waiting, offset))

    @property
    def emitted_count(self) -> int:
        """Records emitted from the last completed offset on, resolved ones included."""
        return self._cursor - self._head

    @property
    def waiting(self) -> int:
        return self._tail - self._cursor

    def fetched(self, offsets: Offsets) -> None:
        """They must lie at or after `fetched_to`."""
        if not len(offsets):
            return
        if offsets[0] < self.fetched_to:
            message = f"offset {offsets[0]} was fetched again; {self.fetched_to} is next"
            raise ValueError(message)
        end = self._tail + len(offsets)
        if end > len(self._offsets):
            self._make_room(len(offsets))
            end = self._tail + len(offsets)
        self._offsets[self._tail : end] = offsets
        self._states[self._tail : end] = WAITING
        self._tail = end
        self.pending += len(offsets)
        self.fetched_to = int(offsets[-1]) + 1

    def emit(self, limit: int) -> Offsets:
        end = min(self._tail, self._cursor + limit)
        offsets = self._offsets[self._cursor : end].copy()
        if len(offsets):
            self._states[self._cursor : end] = EMITTED
            self._cursor = end
        return offsets

    def resolve(self, offsets: Offsets) -> int:
        """Mark records as resolved; return how many were in flight. The rest is ignored."""
        indices = self._indices(offsets)
        if not isinstance(indices, slice) and (indices[1:] <= indices[:-1]).any():
            indices = np.unique(indices)
        before = self._resolve(indices)
        self._ignored += len(offsets) - before
        return before

    def resolve_below(self, offset: int) -> int:
        """Mark every emitted record below an offset as resolved; return how many were in flight."""
        end = self._head + int(np.searchsorted(self._offsets[self._head : self._cursor], offset))
        return self._resolve(slice(self._head, end))

    def _resolve(self, indices: "slice | npt.NDArray[np.intp]") -> int:
        states = self._states[indices]
        before = int(np.count_nonzero(states))
        if self._failed:
            self._failed -= int(np.count_nonzero(states == FAILED))
        self._states[indices] = RESOLVED
        self.pending -= before
        self._advance()
        return before

    def processed(self, offsets: Offsets) -> None:
        """Mark emitted records as done but for their transaction: they do not fail any more."""
        indices = self._indices(offsets)
        states = self._states[indices]
        self._states[indices] = np.where(states == EMITTED, PROCESSED, states)

    def fail(self, offset: int) -> bool:
        """Mark an emitted record as failed; False (and counted) if it is not emitted."""
        return self._change(offset, EMITTED, FAILED)

    def retry(self, offset: int) -> bool:
        """Emit a failed record again; False (and counted) if it is not failed."""
        return self._change(offset, FAILED, EMITTED)

    def comes_again(self, offset: int) -> bool:
        index = self._find(offset)
        return index is not None and self._states[index] not in (RESOLVED, PROCESSED)

    def pass_gap(self, offset: int) -> None:
        """Note that only fetched records lie before `offset` (promise 11)."""
        self.fetched_to = max(self.fetched_to, offset)

    def statistics(self) -> LedgerStatistics:
        return LedgerStatistics(
            last_completed_offset=self.last_completed_offset,
            emitted_to=self.emitted_to,
            fetched_to=self.fetched_to,
            emitted_count=self.emitted_count,
            pending=self.pending,
            waiting=self.waiting,
            failed=self._failed,
            ignored=self._ignored,
        )

    def _find(self, offset: int) -> int | None:
        index = int(np.searchsorted(self._offsets[self._head : self._tail], offset)) + self._head
        return index if index < self._tail and self._offsets[index] == offset else None

    def _change(self, offset: int, before: int, after: int) -> bool:
        index = self._find(offset)
        if index is None or self._states[index] != before:
            self._ignored += 1
            return False
        self._states[index] = after
        self._failed += 1 if after == FAILED else -1
        return True

    def _indices(self, offsets: Offsets) -> "slice | npt.NDArray[np.intp]":
        if not len(offsets):
            return slice(0, 0)
        if not (offsets[1:] > offsets[:-1]).all():
            offsets = np.sort(offsets)
        live = self._offsets[self._head : self._cursor]
        first = int(np.searchsorted(live, offsets[0]))
        end = first + len(offsets)
        if end <= len(live) and np.array_equal(live[first:end], offsets):
            return slice(self._head + first, self._head + end)
        indices = np.searchsorted(live, offsets)
        inside = indices < len(live)
        indices, offsets = indices[inside], offsets[inside]
        known: npt.NDArray[np.intp] = indices[live[indices] == offsets] + self._head
        return known

    def _advance(self) -> None:
        if not self.pending:
            self._head = self._cursor = self._tail
            return
        step = 4096
        while True:
            states = self._states[self._head : min(self._head + step, self._tail)]
            first = int(np.argmax(states != RESOLVED))
            if states[first] != RESOLVED:
                self._head += first
                return
            self._head += len(states)

    def _make_room(self, count: int) -> None:
        live = self._tail - self._head
        capacity = len(self._offsets)
        while capacity < 2 * (live + count):
            capacity *= 2
        offsets, states = self._offsets, self._states
        self._offsets = np.empty(capacity, np.int64)
        self._states = np.empty(capacity, np.uint8)
        self._offsets[:live] = offsets[self._head : self._tail]
        self._states[:live] = states[self._head : self._tail]
        self._cursor -= self._head
        self._head, self._tail = 0, live


class CommitProgress:
    """The stored offset, and the records read behind it: gaps cost nothing. Pure."""

    def __init__(self, offset: int) -> None:
        self.offset = offset  # stored last
        self.read = 0  # records emitted here, or done elsewhere, since the start
        self.read_below = 0  # those of them below `offset`
        self._submitted = (offset, 0)  # an offset that is being stored, and its `read_below`

    @property
    def stored_or_submitted(self) -> int:
        return max(self.offset, self._submitted[0])

    def submit(self, offset: int, *, behind: int) -> None:
        """Note that an offset is on its way; `behind` of the records read lie behind it."""
        self._submitted = (offset, self.read - behind)

    def mark(self, offset: int) -> None:
        self.offset = max(self.offset, offset)
        if offset == self._submitted[0]:
            self.read_below = max(self.read_below, self._submitted[1])

    def restart(self, offset: int, *, is_stored: bool) -> None:
        """Go on from an offset; `is_stored`: it is what the store holds now."""
        self._submitted = (offset, 0)
        if is_stored:
            self.offset = offset
            self.read_below = self.read


class Backoff(Protocol):
    """The delay before each retry of a failed record, and the number of retries."""

    @property
    def limit(self) -> int: ...

    def delay_seconds(self, failures: int, rng: random.Random) -> float:
        """The pause after the record's n-th failure (n from 1)."""
        ...


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Exponential backoff. `limit` counts retries: a record has `limit` + 1 attempts.

    The n-th retry waits `initial_seconds` * `multiplier` ** (n - 1), at most `max_seconds`, less a
    random part of up to `jitter` of it.
    """

    limit: int = 5
    initial_seconds: float = 1.0
    multiplier: float = 2.0
    max_seconds: float = 60.0
    jitter: float = 0.2

    def __post_init__(self) -> None:
        _require("limit", self.limit, whole=True)
        for name in ("initial_seconds", "multiplier", "max_seconds"):
            _require(name, getattr(self, name))
        _require("jitter", self.jitter, most=1.0)

    def delay_seconds(self, failures: int, rng: random.Random) -> float:
        delay = self.initial_seconds
        for _ in range(failures - 1):
            if delay >= self.max_seconds or self.multiplier <= 1:
                break
            delay *= self.multiplier
        return min(delay, self.max_seconds) * (1 - self.jitter * rng.random())


def _require(name: str, given: object, *, whole: bool = False, most: float = math.inf) -> None:
    kind = Integral if whole else Real
    if isinstance(given, kind) and 0 <= float(given) <= most and float(given) < math.inf:
        return
    allowed = "whole number" if whole else "number"
    up_to = "on" if most == math.inf else f"to {most:g}"
    raise ValueError(f"RetryPolicy has {name}={given!r}, expected a {allowed} from 0 {up_to}")


class RetryQueue:
    """Failed records of one partition, by when they are due, up to a limit.

    As Storm's ExponentialBackoffMsgRetryManager, without its overflow (the delay saturates), with
    jitter, and with a limit that leads to the dead letters instead of to nothing.
    """

    def __init__(self, policy: RetryPolicy, rng: random.Random) -> None:
        self._policy = policy
        self._rng = rng
        self.due: float | None = None  # the next retry
        self.failures: dict[int, int] = {}  # counts by offset
        self._queue: list[tuple[float, int]] = []

    def __len__(self) -> int:
        return len(self._queue)

    def failed(
        self,
        offset: int,
        now: float,
        after_seconds: float | None = None,
        policy: Backoff | None = None,
    ) -> bool:
        """Schedule a retry and return True, or return False when the limit is reached.

        `policy` is that of the step that failed; None: the queue's own. Failures of all steps
        count together. `after_seconds` replaces the policy's delay, not its limit.
        """
        policy = self._policy if policy is None else policy
        failures = self.failures.get(offset, 0) + 1
        if failures > policy.limit:
            return False
        self.failures[offset] = failures
        if after_seconds is None:
            after_seconds = policy.delay_seconds(failures, self._rng)
        heapq.heappush(self._queue, (now + after_seconds, offset))
        self.due = self._queue[0][0]
        return True

    def attempts(self, offset: int) -> int:
        return self.failures.get(offset, 0) + 1

    def take_due(self, now: float, limit: int) -> list[int]:
        due: list[int] = []
        while self._queue and len(due) < limit and self._queue[0][0] <= now:
            due.append(heapq.heappop(self._queue)[1])
        self.due = self._queue[0][0] if self._queue else None
        return due

    def forget_below(self, offset: int) -> None:
        self.failures = {o: n for o, n in self.failures.items() if o >= offset}
