"""How fast the sources may give new records: rate limits, and the backpressure of each."""

import math
from collections.abc import Mapping, Sequence

from partition.discovery import TopicName
from partition.throttle import Throttle
from topology.topology import Topology


class Pacing:
    """Says of each topic how many new records may be emitted now. Pure; time is an argument.

    A limit is a source's: all partitions of all its topics share it. A topic that several
    sources match belongs to the one that names it, else to the first.
    """

    def __init__(
        self, sources: Sequence[TopicName], records_per_second: Mapping[TopicName, float]
    ) -> None:
        """Raises ValueError for a limit that is no number above 0, or no source's."""
        unknown = [source for source in records_per_second if source not in sources]
        if unknown:
            message = f"records_per_second limits {unknown[0]!r}; allowed are {list(sources)}"
            raise ValueError(message)
        self._sources = sources
        self._throttles = {source: Throttle(rate) for source, rate in records_per_second.items()}
        self._of_topic: dict[str, Throttle | None] = {}
        self._held_back: frozenset[str] = frozenset()
        self._silent: frozenset[str] = frozenset()

    @property
    def has_limits(self) -> bool:
        """Whether a source has a rate limit."""
        return bool(self._throttles)

    def hold_back(self, topics: frozenset[str], silent: frozenset[str]) -> None:
        """Let these topics emit nothing new, and all others go on, until it is said anew.

        Those that are `silent` emit no retries either.
        """
        self._held_back = topics | silent
        self._silent = silent

    def is_held_back(self, topic: str) -> bool:
        """Whether a topic may emit nothing new."""
        return topic in self._held_back

    def is_silent(self, topic: str) -> bool:
        """Whether a topic may emit nothing, retries included."""
        return topic in self._silent

    def allows(self, topic: str, now: float) -> int | None:
        """How many new records may be emitted now; None: any number."""
        throttle = self._throttle(topic)
        return None if throttle is None else throttle.allows(now)

    def most_per_second(self, topic: str) -> float:
        """How many new records its limit lets pass in a second, at least one; else infinite."""
        throttle = self._throttle(topic)
        return math.inf if throttle is None else throttle.most_per_second

    def take(self, topic: str, count: int) -> None:
        """Learn that so many new records were emitted."""
        throttle = self._throttle(topic)
        if throttle is not None:
            throttle.take(count)

    def seconds_left(self, topic: str) -> float:
        """How long, from the last `allows` on, until new records may be emitted."""
        throttle = self._throttle(topic)
        return math.inf if throttle is None else throttle.seconds_left()

    def _throttle(self, topic: str) -> Throttle | None:
        if not self._throttles:
            return None
        if topic not in self._of_topic:
            self._of_topic[topic] = self._throttles.get(self._source_of(topic))
        return self._of_topic[topic]

    def _source_of(self, topic: str) -> TopicName:
        """The source of a topic, as `Topology.source_of` tells it."""
        if topic in self._sources:
            return topic
        patterns = (source for source in self._sources if not isinstance(source, str))
        return next((pattern for pattern in patterns if pattern.fullmatch(topic)), topic)


def limits_of(topology: Topology) -> dict[TopicName, float]:
    """The rate limits of a topology's sources."""
    return {
        source.topic: source.records_per_second
        for source in topology.sources
        if source.records_per_second is not None
    }
