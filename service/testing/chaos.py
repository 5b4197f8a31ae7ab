"""What misbehaves when, by a seed: no clock, no global randomness.

A verdict depends on the seed, on what a call is about and on how often it was tried, never on
which thread came first. So a run with the same seed misbehaves in the same places, whatever
the chunks and threads, and a retry is judged anew.
"""

import threading
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

from topology.record import Record
from topology.signals import Reject, Retry

_REMEMBERED = 100_000  # of what was tried already: the oldest is forgotten, and tried as if new


class ChaosError(Exception):
    """A failure that was made on purpose."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is to happen in one call."""

    error: Exception | None
    late: bool  # the error comes after the work was done
    delay_seconds: float


@dataclass(slots=True)
class ChaosCounts:
    """What a ChaosBolt did: calls, and of them those that it made fail."""

    calls: int = 0
    failed: int = 0
    retried: int = 0
    rejected: int = 0

    @property
    def spoiled(self) -> int:
        """Calls that it made fail, in whichever way."""
        return self.failed + self.retried + self.rejected


@dataclass(slots=True)
class Chaos:
    """How often bolts misbehave. Any thread may ask."""

    seed: int
    fail: float
    retry: float
    reject: float
    delay_seconds: float
    counts: ChaosCounts = field(default_factory=ChaosCounts)
    _tried: dict[str, int] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        check_chances(fail=self.fail, retry=self.retry, reject=self.reject)
        if self.delay_seconds < 0:
            raise ValueError(f"delay_seconds={self.delay_seconds}; 0 or more is allowed")

    def verdict(self, what: str) -> Verdict:
        """Judge the next try of `what`, without noting it."""
        with self._lock:
            attempt = self._tried.get(what, 0) + 1
        chance, delay = draws(self.seed, what, attempt)
        error: Exception | None = None
        if chance < self.reject:
            error = Reject("chaos rejects it")
        elif chance < self.reject + self.retry:
            error = Retry("chaos asks for a retry")
        elif chance < self.reject + self.retry + self.fail:
            error = ChaosError(f"chaos fails try {attempt}")
        return Verdict(error, delay < 0.5, delay * self.delay_seconds)  # noqa: PLR2004 - a half

    def note(self, what: str, verdict: Verdict) -> None:
        """Note a try and what was made of it."""
        with self._lock:
            self._tried[what] = self._tried.get(what, 0) + 1
            if len(self._tried) > _REMEMBERED:
                del self._tried[next(iter(self._tried))]
            self.counts.calls += 1
            if isinstance(verdict.error, Reject):
                self.counts.rejected += 1
            elif isinstance(verdict.error, Retry):
                self.counts.retried += 1
            elif verdict.error is not None:
                self.counts.failed += 1

    def judge(self, value: Any) -> Verdict:
        """Judge and note the call of a bolt with this value."""
        what = identity_of(value)
        verdict = self.verdict(what)
        self.note(what, verdict)
        return verdict


def identity_of(value: Any) -> str:
    """What tells a value from others: a record's place, else its `repr`."""
    if isinstance(value, Record):
        return f"{value.topic}[{value.partition}]@{value.offset}"
    return repr(value)


def draws(seed: int, *what: object) -> tuple[float, float]:
    """Two numbers from 0 to below 1 that depend on nothing but the arguments."""
    text = "\0".join(map(str, (seed, *what)))
    digest = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
    first, second = (int.from_bytes(part) >> 11 for part in (digest[:8], digest[8:]))
    return first / (1 << 53), second / (1 << 53)


def check_chances(**chances: float) -> None:
    """Raise ValueError unless each is a probability and they exclude one another."""
    for name, chance in chances.items():
        if not 0 <= chance <= 1:
            raise ValueError(f"{name}={chance}; a probability from 0 to 1 is allowed")
    if sum(chances.values()) > 1 + 1e-9:
        named = " + ".join(chances)
        raise ValueError(f"{named} = {sum(chances.values()):g}; at most 1 is allowed")
