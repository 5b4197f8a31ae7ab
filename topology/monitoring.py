"""Monitoring: histograms of durations, and the rate-limited log of repeated failures."""

import time
from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import structlog

# From a call of a plain function to a batch that waits for a slow table, in seconds.
BOUNDS = (
    0.000_001, 0.000_01, 0.000_1, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0, 120.0,
)  # fmt: skip
_BOUNDS = np.array(BOUNDS)


@dataclass(frozen=True, slots=True)
class Distribution:
    """Snapshot: `counts[i]` took at most `BOUNDS[i]` seconds, the last ones longer."""

    counts: tuple[int, ...] = (0,) * (len(BOUNDS) + 1)
    seconds: float = 0.0

    @property
    def count(self) -> int:
        return sum(self.counts)


class Histogram:
    """Histogram with one writing thread."""

    def __init__(self) -> None:
        self._counts = [0] * (len(BOUNDS) + 1)
        self._seconds = 0.0

    def add(self, seconds: float, count: int = 1) -> None:
        """Count calls that took `seconds` together, each with their mean."""
        if count > 0:
            self._counts[bisect_left(BOUNDS, seconds / count)] += count
            self._seconds += seconds

    def add_each(self, seconds: list[float], others: int = 0) -> None:
        """Count durations, and `others` that were not measured and are distributed alike."""
        indices = np.searchsorted(_BOUNDS, np.array(seconds), side="left")
        counts = np.bincount(indices, minlength=len(self._counts))
        more = 1 + others / len(seconds)
        spread = np.diff(np.rint(np.cumsum(counts) * more), prepend=0).astype(int)
        self._counts = [old + new for old, new in zip(self._counts, spread.tolist(), strict=True)]
        self._seconds += sum(seconds) * more

    def distribution(self) -> Distribution:
        return Distribution(tuple(self._counts), self._seconds)


CallTimes: TypeAlias = defaultdict[str, Histogram]
"""Call times by step."""


def distributions_of(times: CallTimes) -> dict[str, Distribution]:
    return {step: each.distribution() for step, each in times.items()}


log = structlog.get_logger()

EVERY_SECONDS = 10.0
_RECENT = 50
_MAX_CHARACTERS = 500

_Cause: TypeAlias = tuple[str, str, str]  # event, place, class of the error


@dataclass(frozen=True, slots=True)
class RecentFailure:
    """A logged line: `count` failures of a kind, and the text of one of them."""

    at: float  # by the clock of `FailureLog`
    event: str
    step: str
    error_class: str
    error: str
    count: int


@dataclass(slots=True)
class _LoggedKind:
    at: float
    count: int = 0
    error: str = ""


class FailureLog:
    """Logs a failure at once, and further ones of its kind at most every 10 seconds.

    A kind is an event, step and error class. `count` is the number since the last line.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._told: dict[_Cause, _LoggedKind] = {}
        self._recent: deque[RecentFailure] = deque(maxlen=_RECENT)

    def record(self, event: str, step: str, error: BaseException) -> None:
        """Count a failure, and log it if it is due."""
        cause = event, step, type(error).__name__
        now = self._clock()
        told = self._told.get(cause)
        if told is not None and now - told.at < EVERY_SECONDS:
            if not told.count:
                told.error = line_of(error)
            told.count += 1
            return
        count = 1 if told is None else told.count + 1
        self._told[cause] = _LoggedKind(now)
        self._log(cause, count, line_of(error), now)

    def log_due(self, *, all_of_it: bool = False) -> None:
        """Log the lines that are due, or `all_of_it`. Called often."""
        now = self._clock()
        for cause, told in list(self._told.items()):
            if not all_of_it and now - told.at < EVERY_SECONDS:
                continue
            del self._told[cause]
            if told.count:
                self._told[cause] = _LoggedKind(now)
                self._log(cause, told.count, told.error, now)

    def recent(self) -> tuple[RecentFailure, ...]:
        """Log the lines that are due; return the last 50, oldest first."""
        self.log_due()
        return tuple(self._recent)

    def _log(self, cause: _Cause, count: int, error: str, now: float) -> None:
        event, step, kind = cause
        self._recent.append(RecentFailure(now, event, step, kind, error, count))
        log.warning(event, step=step, error_class=kind, error=error, count=count)


def text_of(error: BaseException) -> str:
    """Return an error's text, or its class if it has no readable text."""
    try:
        return str(error) or type(error).__name__
    except Exception:  # noqa: BLE001  # an error whose text raises must stop nothing
        return type(error).__name__


def line_of(error: BaseException) -> str:
    """Return the first line of an error's text, shortened."""
    lines = text_of(error).strip().splitlines()
    return (lines[0] if lines else type(error).__name__)[:_MAX_CHARACTERS]
