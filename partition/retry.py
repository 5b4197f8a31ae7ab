"""The retry queue: failed records by when they are due, up to a limit.

Pure: time and randomness are arguments. It follows Storm's ExponentialBackoffMsgRetryManager,
without its overflow (the delay saturates), with jitter, and with a limit that leads to the dead
letters instead of to nothing.
"""

import heapq
import math
import random
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Protocol


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
    raise ValueError(f"RetryPolicy has {name}={given!r}; a {allowed} from 0 {up_to} is allowed")


class RetryQueue:
    """Failed records of one partition, ordered by when they are due."""

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
