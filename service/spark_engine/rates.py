"""How many records the sources may give, where a range is planned as a whole. Pure."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from topology.steps import Source

_SAVED_SECONDS = 2.0  # what was left unused is kept for so many groups' time


@dataclass(slots=True)
class _Budget:
    tokens: float
    filled_at: float


class Rates:
    """Shortens what may be planned to what sources with a rate limit allow.

    All partitions of all topics of a source share its limit. Records are counted as offsets.
    Seconds are of one monotonic clock.
    """

    def __init__(self, source_of: Callable[[str], Source], group_seconds: float) -> None:
        """`group_seconds` is for how long a group gathers records."""
        self._source_of = source_of
        self._group_seconds = group_seconds
        self._budgets: dict[str, _Budget] = {}

    def allowed(
        self, now: float, logs: Mapping[int, tuple[int, int]], topic_of: Mapping[int, str]
    ) -> dict[int, tuple[int, int]]:
        """What may be planned of each place: where it begins, and where it may end by now.

        What a source allows is shared out evenly among those of its partitions that have records.
        """
        allowed: dict[int, tuple[int, int]] = {}
        limited: dict[str, list[int]] = {}
        for place, (first, end) in logs.items():
            source = self._source_of(topic_of[place])
            if source.records_per_second is None:
                allowed[place] = first, end
            elif end > first:
                limited.setdefault(source.label, []).append(place)
                self._fill(source.label, source.records_per_second, now)
        for label, places in limited.items():
            left = max(0, int(self._budgets[label].tokens))
            by_need = sorted(places, key=lambda place: logs[place][1] - logs[place][0])
            for done, place in enumerate(by_need):
                first, end = logs[place]
                count = min(end - first, -(-left // (len(by_need) - done)))
                allowed[place] = first, first + count
                left -= count
        return allowed

    def take(self, topic: str, count: int) -> None:
        """Learn that so many were planned."""
        budget = self._budgets.get(self._source_of(topic).label)
        if budget is not None:
            budget.tokens -= count

    def _fill(self, label: str, rate: float, now: float) -> None:
        part = max(1.0, rate * self._group_seconds)
        budget = self._budgets.setdefault(label, _Budget(part, now))
        gained = (now - budget.filled_at) * rate
        budget.tokens = min(_SAVED_SECONDS * part, budget.tokens + gained)
        budget.filled_at = now
