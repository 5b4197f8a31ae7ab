"""What may be emitted and fetched of each partition now, and which partitions are paused."""

import math
from collections.abc import Iterable

import structlog

from partition.chunk import Chunk
from partition.fetcher import Fetcher
from partition.held import Held
from partition.manager import PartitionManager
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
    as much is fetched as is planned next, and a partition is paused only when its gate is shut.
    """

    def __init__(
        self,
        fetcher: Fetcher,
        pacing: Pacing,
        fetch_records: int,
        *,
        commit_ahead: bool,
        plan_records: int | None = None,
    ) -> None:
        """`plan_records` of a partition are planned at once; None: there are no gates."""
        self._fetcher = fetcher
        self._pacing = pacing
        self._fetch_records = fetch_records
        self._enough = fetch_records if plan_records is None else 2 * plan_records
        self._commit_ahead = commit_ahead
        self._has_gates = plan_records is not None
        self._paused: list[Held] = []
        self._is_ending = False
        self.is_paused = False
        """Whether nothing new is emitted or fetched: an operator has said so."""
        self.is_free = not (pacing.has_limits or commit_ahead)  # whether only windows hold back
        self.wake = math.inf  # when a record that waits may be emitted, as far as time tells

    def hold_back(self, topics: frozenset[str], silent: frozenset[str]) -> None:
        """Let these topics emit nothing new, those `silent` nothing at all; all others go on."""
        self.is_free = not (topics or silent or self._pacing.has_limits or self._commit_ahead)
        self._pacing.hold_back(topics, silent)

    def end(self) -> None:
        """Let what is stored ahead be emitted as soon as it can be taken on: the run ends."""
        self._is_ending = True

    def next_of(
        self, held: Held, manager: PartitionManager, now: float, limit: int, commit: float | None
    ) -> Chunk | None:
        """At most `limit` records of a partition: due retries, else as many new ones as may be.

        `commit` says for how many seconds a commit has been under way.
        """
        if self.is_paused or held.is_leaving:
            return self._last_of(held, manager, now, limit)
        if self.is_free:
            chunk = manager.next(now, limit)
            if chunk is None and self._has_gates:
                self._await(manager, now, commit)
            return chunk
        topic = held.partition.topic
        if self._commit_ahead:
            manager.allow_ahead(self._ahead(topic))
        if self._pacing.is_silent(topic):
            return None
        chunk = manager.next_retries(now, limit)
        if chunk is not None or not manager.has_waiting:
            return chunk
        if self._is_ending:
            return manager.next_new(limit)
        return self._new_of(topic, manager, now, limit, commit)

    def _last_of(
        self, held: Held, manager: PartitionManager, now: float, limit: int
    ) -> Chunk | None:
        """Retries, and what must not be left: what is stored as read, or planned."""
        if self._pacing.is_silent(held.partition.topic):
            return None
        if self._commit_ahead:
            manager.allow_ahead(0)
        elif not self._has_gates:
            return manager.next_retries(now, limit)
        return manager.next(now, limit)

    def _new_of(
        self, topic: str, manager: PartitionManager, now: float, limit: int, commit: float | None
    ) -> Chunk | None:
        if self._pacing.is_held_back(topic):
            return None
        allowed = self._pacing.allows(topic, now)
        if allowed == 0:
            self.wake = min(self.wake, now + self._pacing.seconds_left(topic))
            return None
        chunk = manager.next_new(limit if allowed is None else min(limit, allowed))
        if chunk is not None:
            self._pacing.take(topic, len(chunk))
        elif self._commit_ahead or self._has_gates:
            self._await(manager, now, commit)
        return chunk

    def _await(self, manager: PartitionManager, now: float, commit: float | None) -> None:
        """Wake soon if a commit lets records be emitted that wait, or will in a moment."""
        if commit is not None:
            self.wake = min(self.wake, now + max(_COMMIT_SECONDS, commit))
        elif self._has_gates and manager.takes_more:
            self.wake = min(self.wake, now + _PLAN_SECONDS)

    def _ahead(self, topic: str) -> int:
        """How many records of a partition may be stored and not emitted yet."""
        if self._pacing.is_held_back(topic):
            return 0
        return int(min(self._fetch_records, self._pacing.most_per_second(topic)))

    def is_held_up(self, topic: str, now: float) -> bool:
        """Whether nothing new of a topic may be emitted now, by its rate or by backpressure."""
        return self._pacing.is_held_back(topic) or self._pacing.allows(topic, now) == 0

    def has_room(self, partitions: Iterable[Held], now: float) -> bool:
        """Whether something is to be fetched; pauses those of which enough waits."""
        if self.is_paused:
            return False
        if self.is_free and not self._has_gates:
            return True
        sated: list[tuple[Held, PartitionManager]] = []
        waiting, is_open = 0, False
        for held in partitions:
            manager = held.manager
            if manager is None or not held.is_read or held.is_paused:
                continue
            if self._is_open(held, manager, now):
                is_open = True
                stores_first = self._commit_ahead or self._has_gates
                if stores_first and not manager.may_emit and self._has_enough(manager):
                    return False  # a commit is under way, or begins with this turn's end
                continue
            waiting += manager.waiting
            if self._has_enough(manager):
                sated.append((held, manager))
        if not is_open:
            return waiting < self._enough and not sated
        for held, manager in sated:
            self._pause(held, manager)
        return True

    def _has_enough(self, manager: PartitionManager) -> bool:
        return manager.has_enough(self._enough)

    def _is_open(self, held: Held, manager: PartitionManager, now: float) -> bool:
        """Whether new records of a partition may be emitted, if there are some."""
        if not held.is_owned or not manager.takes_more:
            return False
        return not self.is_held_up(held.partition.topic, now)

    def pause_if_full(self, held: Held) -> None:
        """Pause a partition that can emit nothing new of what it has."""
        manager = held.manager
        if manager is None or not held.is_read or held.is_paused:
            return
        is_full = manager.is_full and not self._has_gates  # else `has_room` sees to it
        if manager.has_waiting and (is_full or not held.is_owned):
            self._pause(held, manager)

    def _pause(self, held: Held, manager: PartitionManager) -> None:
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
            if manager.takes_more and manager.waiting <= self._enough // 2:
                self._fetcher.resume(held.partition)
                held.is_paused = False
                log.info("partition_unpaused", partition=str(held.partition))
        self._paused = [held for held in self._paused if held.is_paused]
