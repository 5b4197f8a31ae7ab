"""Histograms of times, counted into a few bounded buckets. Pure."""

from bisect import bisect_left
from collections import defaultdict
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

# From a call of a plain function to a batch that waits for a slow table, in seconds.
BOUNDS = (
    0.000_001, 0.000_01, 0.000_1, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0, 120.0,
)  # fmt: skip
_BOUNDS = np.array(BOUNDS)


@dataclass(frozen=True, slots=True)
class Distribution:
    """Figures of one moment: `counts[i]` took at most `BOUNDS[i]`, the last ones longer."""

    counts: tuple[int, ...] = (0,) * (len(BOUNDS) + 1)
    seconds: float = 0.0

    @property
    def count(self) -> int:
        return sum(self.counts)


class Histogram:
    """Counts times. One thread adds."""

    def __init__(self) -> None:
        self._counts = [0] * (len(BOUNDS) + 1)
        self._seconds = 0.0

    def add(self, seconds: float, count: int = 1) -> None:
        """Count `count` calls that took `seconds` together, each with the mean."""
        if count > 0:
            self._counts[bisect_left(BOUNDS, seconds / count)] += count
            self._seconds += seconds

    def add_each(self, seconds: list[float], others: int = 0) -> None:
        """Count single times, and others that were not measured and are distributed like these."""
        indices = np.searchsorted(_BOUNDS, np.array(seconds), side="left")
        counts = np.bincount(indices, minlength=len(self._counts))
        more = 1 + others / len(seconds)
        spread = np.diff(np.rint(np.cumsum(counts) * more), prepend=0).astype(int)
        self._counts = [old + new for old, new in zip(self._counts, spread.tolist(), strict=True)]
        self._seconds += sum(seconds) * more

    def figures(self) -> Distribution:
        return Distribution(tuple(self._counts), self._seconds)


CallTimes: TypeAlias = defaultdict[str, Histogram]
"""Call times by step."""


def distributions_of(times: CallTimes) -> dict[str, Distribution]:
    return {step: each.figures() for step, each in times.items()}
