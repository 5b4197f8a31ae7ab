"""Latencies of committed records: since Kafka's time stamp, and since their fetch. Pure."""

from bisect import bisect_left
from dataclasses import dataclass
from operator import add, sub
from typing import ClassVar, NamedTuple


@dataclass(frozen=True, slots=True)
class Latencies:
    """Records by latency: `counts[i]` took at most `bounds[i]` seconds, the last ones longer."""

    bounds: ClassVar = (
        0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 1.5, 2.5, 5.0, 7.5, 10.0, 15.0, 30.0, 60.0,
        300.0, 900.0, 3_600.0, 21_600.0, 86_400.0,
    )  # fmt: skip
    counts: tuple[int, ...] = (0,) * (len(bounds) + 1)
    seconds: float = 0.0

    @property
    def count(self) -> int:
        return sum(self.counts)

    def __add__(self, other: "Latencies") -> "Latencies":
        return Latencies(tuple(map(add, self.counts, other.counts)), self.seconds + other.seconds)

    def __sub__(self, earlier: "Latencies") -> "Latencies":
        counts = tuple(map(sub, self.counts, earlier.counts))
        return Latencies(counts, self.seconds - earlier.seconds)

    def plus(self, seconds: float, count: int) -> "Latencies":
        """Count records that took `seconds` each."""
        counts = list(self.counts)
        counts[bisect_left(self.bounds, seconds)] += count
        return Latencies(tuple(counts), self.seconds + seconds * count)

    def quantile(self, share: float) -> float | None:
        """Estimate a quantile as Prometheus does, linearly in a bucket; None without records."""
        left = share * self.count
        if not left:
            return None
        for low, high, count in zip((0.0, *self.bounds), self.bounds, self.counts, strict=False):
            if left <= count:
                return low + (high - low) * left / count
            left -= count
        return self.bounds[-1]


class UncommittedChunk(NamedTuple):
    """Fetched records that no committed offset covers yet.

    `ages`: of the first and the last one, by Kafka's time stamps, at the fetch; () if unknown.
    """

    last_offset: int
    records: int
    fetched_at: float
    ages: tuple[float, ...]


class CommitLatency(NamedTuple):
    """Latencies until the commit: end to end since Kafka's time stamp, processing since the fetch.

    A chunk's records are counted together. Half of them have the age of its first record, the
    others that of its last: nothing is read of those in between.
    """

    end_to_end: Latencies = Latencies()
    processing: Latencies = Latencies()

    def with_chunk(self, chunk: UncommittedChunk, now: float) -> "CommitLatency":
        """Count a chunk that is committed now."""
        waited = max(0.0, now - chunk.fetched_at)
        half = chunk.records // 2
        end_to_end = self.end_to_end
        for age, count in zip(chunk.ages, (half, chunk.records - half), strict=False):
            end_to_end = end_to_end.plus(age + waited, count) if count else end_to_end
        return CommitLatency(end_to_end, self.processing.plus(waited, chunk.records))
