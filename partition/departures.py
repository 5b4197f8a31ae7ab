"""What becomes of partitions that are ours no more: their counts, and their places."""

from collections import deque
from collections.abc import Iterator

from partition.held import Held
from partition.manager import PartitionManager
from partition.statistics import Departed

_FORGET_SECONDS = 900.0  # by then no tree of a partition that was given up is alive


class Departures:
    """Keeps partitions that were given up, for what may still be told of them. Pure.

    Their records in flight are answered sooner or later, and must count for nothing else: so the
    place of one stays its own until no tree of it can be alive. One that was released in order
    has nothing in flight, and keeps its place for the next time.
    """

    def __init__(self) -> None:
        self._retired: deque[tuple[float, Held]] = deque()  # until when each is kept
        self._read = self._retried = self._given_up = 0
        self.free_places: list[int] = []
        """Places that others may have."""

    def release(self, held: Held) -> None:
        """Forget a partition of which nothing is in flight."""
        self._count(held)
        held.renew()

    def retire(self, held: Held, now: float) -> None:
        """Keep one that was given up with what is in flight of it."""
        held.is_retired = True
        self._retired.append((now + _FORGET_SECONDS, held))

    def forget(self, now: float) -> None:
        """Let go of those that were kept long enough: their places are free then."""
        while self._retired and now >= self._retired[0][0]:
            held = self._retired.popleft()[1]
            self._count(held)
            held.manager = None
            self.free_places.append(held.place)

    @property
    def total(self) -> Departed:
        """What was read of all of them."""
        kept = list(self._managers())
        return Departed(
            read=self._read + sum(each.read for each in kept),
            retried=self._retried + sum(each.retried for each in kept),
            given_up=self._given_up + sum(each.in_flight for each in kept),
        )

    def _managers(self) -> Iterator[PartitionManager]:
        for _, held in self._retired:
            if held.manager is not None:
                yield held.manager

    def _count(self, held: Held) -> None:
        manager = held.manager
        if manager is not None:
            self._read += manager.read
            self._retried += manager.retried
            self._given_up += manager.in_flight
