"""What may be emitted and fetched of each partition now, and which partitions are paused."""

import math
from collections.abc import Iterable
from typing import Any

import structlog

from partition.fetcher import Fetcher
from partition.held import Held
from partition.manager import Allowance, PartitionManager
from service.pacing import Pacing

log = structlog.get_logger()

_COMMIT_SECONDS = 0.001  # how soon the end of a commit is noticed for which records wait
_PLAN_SECONDS = 0.01  # how soon it is that something that waits has been planned


class Flow:
    """Keeps what waits bounded where records may not be emitted. The owner thread calls everything.

    A partition is paused at its window's end, while it is not ours, and when enough of it
    waits while others may go on. A pause costs what the client has prefetched. So when none
    may, nothing is fetched instead, and a pause lasts until half of what waited is emitted.

    At most once no more is stored ahead of each partition than is emitted soon: one fetch, and
    what its source's rate allows in a second; of a source that is held back nothing more.

    Exactly once what waits may be emitted once it is planned and that is stored. So meanwhile
    as much is fetched as is planned next, and a partition is paused only when no more of it
    can be planned.
    """

    def __init__(self, fetcher: Fetcher, pacing: Pacing, fetch_records: int) -> None:
        self._fetcher = fetcher
        self._pacing = pacing
        self._fetch_records = fetch_records
        self._free = Allowance(ahead=fetch_records)
        self._paused: list[Held] = []
        self._is_ending = False
        self.is_paused = False
        """Whether nothing new is emitted or fetched: an operator has said so."""
        self.is_free = not pacing.has_limits  # whether only the partitions' own limits hold back
        self.wake = math.inf  # when a record that waits may be emitted, as far as time tells

    def hold_back(self, topics: frozenset[str], silent: frozenset[str]) -> None:
        """Let these topics emit nothing new, those `silent` nothing at all; all others go on."""
        self.is_free = not (topics or silent or self._pacing.has_limits)
        self._pacing.hold_back(topics, silent)

    def end(self) -> None:
        """Let what is stored ahead be emitted as soon as it can be taken on: the run ends."""
        self._is_ending = True

    def allowance(self, held: Held, manager: PartitionManager[Any], now: float) -> Allowance:
        """What a partition may emit now."""
        if self.is_free and not (self.is_paused or held.is_leaving):
            return self._free
        topic = held.partition.topic
        if self._pacing.is_silent(topic):
            return Allowance(retries=False, new=0)
        if self.is_paused or held.is_leaving:
            # What must not be left is emitted: what is stored as read, or planned.
            return Allowance(new=None if manager.delivery.stores_first else 0)
        if self._is_ending:
            return Allowance()
        if self._pacing.is_held_back(topic):
            return Allowance(new=0)
        allowed = self._pacing.allows(topic, now)
        if allowed == 0 and manager.waiting:
            self.wake = min(self.wake, now + self._pacing.seconds_left(topic))
        ahead = int(min(self._fetch_records, self._pacing.most_per_second(topic)))
        return Allowance(new=allowed, ahead=ahead)

    def emitted(self, topic: str, count: int) -> None:
        """Learn that so many records were emitted for the first time."""
        if not (self.is_free or self._is_ending):
            self._pacing.take(topic, count)

    def await_commit(
        self, manager: PartitionManager[Any], now: float, commit: float | None
    ) -> None:
        """Wake soon if a commit lets records be emitted that wait, or will in a moment.

        `commit` says for how many seconds one has been under way.
        """
        if commit is not None:
            self.wake = min(self.wake, now + max(_COMMIT_SECONDS, commit))
        elif manager.accepts_more:
            self.wake = min(self.wake, now + _PLAN_SECONDS)

    def is_held_up(self, topic: str, now: float) -> bool:
        """Whether nothing new of a topic may be emitted now, by its rate or by backpressure."""
        return self._pacing.is_held_back(topic) or self._pacing.allows(topic, now) == 0

    def has_room(self, partitions: Iterable[Held], now: float) -> bool:
        """Whether something is to be fetched; pauses those of which enough waits."""
        if self.is_paused:
            return False
        sated: list[tuple[Held, PartitionManager[Any]]] = []
        waiting, enough, is_open = 0, self._fetch_records, False
        for held in partitions:
            manager = held.manager
            if manager is None or not held.is_read or held.is_paused:
                continue
            stores_first = manager.delivery.stores_first
            if self.is_free and not stores_first:
                return True
            enough = self._enough(manager)
            if self._is_open(held, manager, now):
                is_open = True
                if stores_first and not manager.may_emit and manager.has_enough(enough):
                    return False  # a commit is under way, or begins with this turn's end
                continue
            waiting += manager.waiting
            if manager.has_enough(enough):
                sated.append((held, manager))
        if not is_open:
            return waiting < enough and not sated
        for held, manager in sated:
            self._pause(held, manager)
        return True

    def _enough(self, manager: PartitionManager[Any]) -> int:
        return manager.delivery.buffer_records or self._fetch_records

    def _is_open(self, held: Held, manager: PartitionManager[Any], now: float) -> bool:
        """Whether new records of a partition may be emitted, if there are some."""
        if not held.is_owned or not manager.accepts_more:
            return False
        return not self.is_held_up(held.partition.topic, now)

    def pause_if_full(self, held: Held) -> None:
        """Pause a partition that can emit nothing new of what it has."""
        manager = held.manager
        if manager is None or not held.is_read or held.is_paused or not manager.waiting:
            return
        if not held.is_owned or (not manager.delivery.stores_first and manager.is_full):
            self._pause(held, manager)

    def _pause(self, held: Held, manager: PartitionManager[Any]) -> None:
        self._fetcher.pause(held.partition)
        held.is_paused = True
        self._paused.append(held)
        log.info("partition_paused", partition=str(held.partition), frontier=manager.frontier)

    def resume(self) -> None:
        """Read on where there is room again."""
        if not self._paused:
            return
        for held in self._paused:
            manager = held.manager
            if not held.is_paused or not held.is_owned or manager is None:
                continue
            # With more, a session that ends again and again would let them grow each time.
            if manager.accepts_more and manager.waiting <= self._enough(manager) // 2:
                self._fetcher.resume(held.partition)
                held.is_paused = False
                log.info("partition_unpaused", partition=str(held.partition))
        self._paused = [held for held in self._paused if held.is_paused]
