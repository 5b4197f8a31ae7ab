"""Sends records and lets time pass, until everything has settled."""

import time
from collections.abc import Iterable, Sequence
from functools import cache

from partition.records import Partition
from service.testing.bench import Bench

_TURN_SECONDS = 0.005
_TURNS_OF_REST = 3  # a call that has just ended is on its way from its thread to ours
_EXPIRY_SECONDS = 1.0
_PATTERN = "the first source is a pattern; say which topic is meant with topic="


class NotSettled(AssertionError):
    """Records were still on their way when the test kit's patience ended."""


class Driver:
    """Turns the loop of the pipeline under test. The owner thread calls everything.

    What moves anything opens the bench first, and raises NotSettled when records are still on
    their way after `patience_seconds`.
    """

    def __init__(self, bench: Bench, patience_seconds: float) -> None:
        self._bench = bench
        self._patience = patience_seconds
        self._source_of = cache(bench.topology.source_of)
        self._sent_to: set[Partition] = set()

    def append(
        self,
        place: Partition,
        payloads: Iterable[bytes | None],
        *,
        key: bytes | None,
        headers: Sequence[tuple[str, bytes | None]],
        timestamp_ms: int,
    ) -> None:
        """Append records to a partition, which is made if it is not there yet.

        Raises ValueError for a partition that cannot be.
        """
        self._make(place)
        self._sent_to.add(place)
        for payload in payloads:
            self._bench.log.append(
                place, payload, key=key, headers=tuple(headers), timestamp_ms=timestamp_ms
            )

    def topic(self, name: str | None) -> str:
        """The topic of this name, or the first source's.

        Raises ValueError if none is read, or if the first source is a pattern.
        """
        topology = self._bench.topology
        topic = name or topology.sources[0].topic
        if not isinstance(topic, str):
            raise ValueError(_PATTERN)  # noqa: TRY004 - the value of `topic` is missing
        try:
            self._source_of(topic)
        except KeyError:
            labels = ", ".join(source.label for source in topology.sources)
            raise ValueError(f"topic '{topic}' is not read; allowed are {labels}") from None
        return topic

    def advance(self, seconds: float) -> None:
        """Let time pass, stopping where something falls due."""
        bench = self._bench
        bench.open()
        end = bench.now + seconds
        while (due := self._next_due()) is not None and bench.now < due <= end:
            bench.now = due
            self.settle()
        bench.now = end
        self.settle()

    def settle(self, *, drain: bool = False) -> None:
        """Turn the loop until nothing is on its way."""
        self._bench.open()
        patience_ends = time.monotonic() + self._patience
        pipeline = self._bench.pipeline
        enough = _TURNS_OF_REST if self._bench.works_elsewhere else 1
        resting = 0
        while True:
            moved = pipeline.step(flush=True, drain=drain)
            resting = resting + 1 if not moved and self._bench.rests else 0
            if resting and self._is_all_taken() and (pipeline.is_idle or resting >= enough):
                return
            if time.monotonic() > patience_ends:
                raise NotSettled(f"records are still on their way after {self._patience} s")
            if not moved:
                pipeline.results.wait(_TURN_SECONDS)

    def _make(self, place: Partition) -> None:
        if place.number < 0:
            raise ValueError(f"partition={place.number}; 0 or more is allowed")
        topics, log = self._bench.topics, self._bench.log
        if place.topic not in topics:
            topics[place.topic] = 1
            log.create_topic(place.topic)
        if place.number >= topics[place.topic]:
            log.add_partitions(place.topic, place.number + 1 - topics[place.topic])
            topics[place.topic] = place.number + 1

    def _next_due(self) -> float | None:
        """When something happens next by itself, or None."""
        bench = self._bench
        dues = [bench.reader.next_due(), bench.pipeline.router.next_tick]
        if bench.unresolved > bench.retrying:
            dues.append(bench.now + _EXPIRY_SECONDS)
        return min((due for due in dues if due is not None), default=None)

    def _is_all_taken(self) -> bool:
        """Whether every record that was sent is done or on its way, or may not set out yet."""
        reader, now = self._bench.reader, self._bench.now
        parts = list(reader.statistics(now))
        return (
            reader.assignment.is_settled
            and self._sent_to <= {part.partition for part in parts}
            and all(
                reader.is_held_up(part.partition.topic, now)
                or (
                    part.ledger.fetched_to == self._bench.log.log_range(part.partition)[1]
                    and not part.ledger.waiting
                )
                for part in parts
            )
        )
