"""Flow control: limits on what each partition emits and fetches, and pauses."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import structlog

from partition.assigned_partition import AssignedPartition
from partition.assignment import Assignment
from partition.interfaces import Fetcher, TopicName
from partition.manager import Allowance, PartitionManager

log = structlog.get_logger()

_COMMIT_SECONDS = 0.001  # how soon the end of a commit is noticed for which records wait
_PLAN_SECONDS = 0.01  # how soon it is that something that waits has been planned
_BURST_SECONDS = 0.1  # what was left unused is kept for so long
_GROUP_SECONDS = 0.01  # so much is handed out at once: chunks, not single records
_ROUNDING = 1e-6  # by so little sums of small parts miss a whole token


class FlowControl:
    """Bound the records that wait, and those emitted per second. The owner thread calls everything.

    A partition is paused at its in-flight limit, while it is not ours, and when enough of it
    waits while others may go on. A pause costs what the client has prefetched. So when no
    partition may go on, nothing is fetched instead, and a pause lasts until half of the waiting
    records are emitted.

    At most once, a partition stores one fetch ahead, at most what its source's rate allows in a
    second, and nothing of a source that is held back. Exactly once, as much is fetched as is
    planned next, and a partition is paused only when no more of it can be planned.

    A rate limit is a source's: all partitions of all its topics share it, and retries do not
    count. A topic that several sources match belongs to the one that names it, else to the first.
    """

    def __init__(
        self,
        fetcher: Fetcher,
        assignment: Assignment,
        sources: Sequence[TopicName],
        records_per_second: Mapping[TopicName, float],
        fetch_records: int,
    ) -> None:
        self._fetcher = fetcher
        self._assignment = assignment
        self._sources = sources
        self._throttles = {source: Throttle(rate) for source, rate in records_per_second.items()}
        self._throttle_of: dict[str, Throttle | None] = {}  # by topic
        self._held_back: frozenset[str] = frozenset()
        self._silent: frozenset[str] = frozenset()
        self._fetch_records = fetch_records
        self._free = Allowance(ahead=fetch_records)
        self._paused: set[AssignedPartition] = set()  # some of them may not be any more
        self.is_free = not self._throttles  # whether only the partitions' own limits hold back
        self.wake = math.inf  # when a record that waits may be emitted, as far as time tells

    def hold_back(self, topics: frozenset[str], silent: frozenset[str] = frozenset()) -> None:
        """Let these topics emit nothing new, and `silent` ones nothing at all."""
        self.is_free = not (topics or silent or self._throttles)
        self._held_back, self._silent = topics | silent, silent

    def allowance(self, assigned: AssignedPartition, now: float) -> Allowance:
        """When the run ends, rates and holds do not count."""
        manager, ends = assigned.manager, self._assignment.ends
        is_stopped = self._assignment.is_paused or assigned.is_leaving
        if manager is None or (self.is_free and not is_stopped):
            return self._free
        topic = assigned.partition.topic
        if topic in self._silent:
            return Allowance(retries=False, new=0)
        if is_stopped:
            # What must not be left is emitted: what is stored as read, or planned.
            return Allowance(new=None if manager.delivery.stores_first else 0)
        if topic in self._held_back and not ends:
            return Allowance(new=0)
        throttle = None if ends else self._throttle(topic)
        if throttle is None:
            return self._free
        allowed = throttle.allows(now)
        if allowed == 0 and manager.ledger.waiting:
            self.wake = min(self.wake, now + throttle.seconds_left())
        ahead = int(min(self._fetch_records, throttle.most_per_second))
        return Allowance(new=allowed, ahead=ahead)

    def emitted(self, topic: str, count: int) -> None:
        throttle = self._throttle(topic) if self._throttles else None
        if throttle is not None and not self._assignment.ends:
            throttle.take(count)

    def await_commit(
        self, manager: PartitionManager[Any], now: float, commit: float | None
    ) -> None:
        """Wake soon if a commit, under way for so many seconds, lets waiting records be emitted."""
        if commit is not None:
            self.wake = min(self.wake, now + max(_COMMIT_SECONDS, commit))
        elif manager.accepts_more:
            self.wake = min(self.wake, now + _PLAN_SECONDS)

    def is_held_up(self, topic: str, now: float) -> bool:
        """Whether nothing new of a topic may be emitted now, by its rate or by backpressure."""
        throttle = self._throttle(topic)
        return topic in self._held_back or (throttle is not None and throttle.allows(now) == 0)

    def may_fetch(self, now: float) -> bool:
        """Whether to fetch now; pauses partitions of which enough waits."""
        if self._assignment.is_paused:
            return False
        sated: list[AssignedPartition] = []
        waiting, enough, is_open = 0, self._fetch_records, False
        for assigned in self._assignment:
            manager = assigned.manager
            if manager is None or not assigned.is_read or assigned.is_paused:
                continue
            stores_first = manager.delivery.stores_first
            if self.is_free and not stores_first:
                return True
            enough = manager.delivery.buffer_records or self._fetch_records
            is_up = self.is_held_up(assigned.partition.topic, now)
            if assigned.is_owned and manager.accepts_more and not is_up:
                is_open = True
                if stores_first and not manager.may_emit and manager.has_enough(enough):
                    return False  # a commit is under way, or begins with this turn's end
                continue
            waiting += manager.ledger.waiting
            if manager.has_enough(enough):
                sated.append(assigned)
        if not is_open:
            return waiting < enough and not sated
        for assigned in sated:
            self._pause(assigned)
        return True

    def pause_if_full(self, assigned: AssignedPartition) -> None:
        """Pause a partition that can emit nothing new of what it has."""
        manager = assigned.manager
        is_unpaused = assigned.is_read and not assigned.is_paused
        if manager is None or not is_unpaused or not manager.ledger.waiting:
            return
        if not assigned.is_owned or (manager.is_full and not manager.delivery.stores_first):
            self._pause(assigned)

    def _pause(self, assigned: AssignedPartition) -> None:
        self._fetcher.pause(assigned.partition)
        assigned.is_paused = True
        self._paused.add(assigned)
        completed = assigned.manager and assigned.manager.last_completed_offset
        log.info("partition_paused", partition=str(assigned.partition), last_completed=completed)

    def resume(self) -> None:
        for assigned in list(self._paused):
            manager = assigned.manager
            if manager is None or not assigned.is_paused:
                self._paused.discard(assigned)
                continue
            # With more, a session that ends again and again would let them grow each time.
            enough = manager.delivery.buffer_records or self._fetch_records
            is_few = manager.ledger.waiting <= enough // 2
            if assigned.is_owned and manager.accepts_more and is_few:
                self._fetcher.resume(assigned.partition)
                assigned.is_paused = False
                self._paused.discard(assigned)
                log.info("partition_unpaused", partition=str(assigned.partition))

    def _throttle(self, topic: str) -> "Throttle | None":
        if not self._throttles:
            return None
        if topic not in self._throttle_of:
            self._throttle_of[topic] = self._throttles.get(self._source_of(topic))
        return self._throttle_of[topic]

    def _source_of(self, topic: str) -> TopicName:
        if topic in self._sources:
            return topic
        patterns = (source for source in self._sources if not isinstance(source, str))
        return next((pattern for pattern in patterns if pattern.fullmatch(topic)), topic)


class Throttle:
    """A rate limit. Seconds are of one monotonic clock.

    In any t seconds it lets at most `records_per_second` * t records pass, and one more and
    those of `saved_seconds`, which it may have saved up.
    """

    def __init__(self, records_per_second: float, saved_seconds: float = _BURST_SECONDS) -> None:
        self._rate = records_per_second
        self.most_per_second = max(1.0, records_per_second)
        self._most = 1.0 + records_per_second * saved_seconds
        self._group = min(self._most, max(1.0, records_per_second * _GROUP_SECONDS))
        self._tokens = self._most
        self._filled_at: float | None = None

    def allows(self, now: float) -> int:
        """Return how many records may be emitted now; 0 until a group of them may."""
        if self._filled_at is None:
            self._filled_at = now
        if now > self._filled_at:
            self._tokens = min(self._most, self._tokens + (now - self._filled_at) * self._rate)
            self._filled_at = now
        tokens = self._tokens + _ROUNDING
        return int(tokens) if tokens >= self._group else 0

    def take(self, count: float) -> None:
        self._tokens -= count

    def seconds_left(self) -> float:
        return max(0.0, (self._group - self._tokens) / self._rate)
