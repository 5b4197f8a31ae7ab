"""What becomes of partitions that are ours no more: their counts, and their places."""

import math
from collections.abc import Iterator
from typing import Any

from partition.held import Held
from partition.manager import PartitionManager
from partition.statistics import Departed

_ASK_SECONDS = 1.0  # to ask costs a look at every tree


class Departures:
    """Keeps partitions that were given up, for what may still be told of them. Pure.

    A record is named by its partition's place and its offset, and nothing in that name tells one
    partition of a place from the next. So the place of a partition that was given up stays its
    own until nothing is left that could name a record of it, however long that takes: a sink or a
    bolt may be away for longer than any time-out. One that was released in order has nothing in
    flight, and keeps its place for the next time.
    """

    def __init__(self) -> None:
        self._ask_at = -math.inf
        self.retired: list[Held] = []
        self._read = self._retried = self._given_up = 0
        self.free_places: list[int] = []
        """Places that others may have."""

    def release(self, held: Held) -> None:
        """Forget a partition of which nothing is in flight."""
        self._count(held)
        held.renew()

    def retire(self, held: Held) -> None:
        """Keep one that was given up with what is in flight of it."""
        held.is_retired = True
        self.retired.append(held)

    def to_ask(self, now: float) -> list[int]:
        """Places of which it is time to ask whether anything is left; none most of the time."""
        if now < self._ask_at:
            return []
        self._ask_at = now + _ASK_SECONDS
        return [held.place for held in self.retired]

    def forget(self, place: int) -> None:
        """Let go of a partition of which nothing is left: its place is free then."""
        (held,) = (each for each in self.retired if each.place == place)
        self.retired.remove(held)
        self._count(held)
        held.manager = None
        self.free_places.append(place)

    @property
    def total(self) -> Departed:
        """What was read of all of them."""
        kept = list(self._managers())
        return Departed(
            read=self._read + sum(each.read for each in kept),
            retried=self._retried + sum(each.retried for each in kept),
            given_up=self._given_up + sum(each.in_flight for each in kept),
        )

    def _managers(self) -> Iterator[PartitionManager[Any]]:
        for held in self.retired:
            if held.manager is not None:
                yield held.manager

    def _count(self, held: Held) -> None:
        manager = held.manager
        if manager is not None:
            self._read += manager.read
            self._retried += manager.retried
            self._given_up += manager.in_flight
