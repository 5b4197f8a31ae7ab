"""Fetched records on their way to their partitions, and the ends of logs not fetched from."""

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

from partition.assignment import Assignment
from partition.catalogue import Catalogue, LogEnd
from partition.chunk import Chunk, Partition
from partition.errors import KafkaError
from partition.fetcher import Fetcher
from partition.held import Held
from service.commits import Commits
from service.flow import Flow

_ASK_SECONDS = 2.0
_PAUSE = 4  # times as long as the last answer took


class LogEnds:
    """Where logs end of which fetching learns nothing. The owner thread calls everything.

    They are asked for every two seconds: a partition that is stuck is not fetched, and it is then
    that its lag counts. Where an answer takes long (a leader is away), more rarely: other questions
    wait behind it.
    """

    def __init__(self, catalogue: Catalogue, assignment: Assignment) -> None:
        self._catalogue = catalogue
        self._assignment = assignment
        self._due = 0.0
        self._asked_at = 0.0
        self._asked: Future[Mapping[Partition, LogEnd]] | None = None
        self._ends: Mapping[Partition, LogEnd] = {}

    def poll(self, now: float) -> None:
        """Take an answer, and ask again when it is time."""
        if self._asked is not None and self._asked.done():
            asked, self._asked = self._asked, None
            self._due = max(self._due, now + _PAUSE * (now - self._asked_at))
            with suppress(KafkaError):  # what was known is the best that is known
                self._ends = asked.result()
        if self._asked is not None or now < self._due:
            return
        self._due, self._asked_at = now + _ASK_SECONDS, now
        unfetched = [held.partition for held in self._assignment if _is_unfetched(held)]
        if unfetched:
            self._asked = self._catalogue.ends(unfetched)
        else:
            self._ends = {}

    def later(self, partition: Partition, known: int | None) -> int | None:
        """The later one of the end that is known by fetching, and the one that was told."""
        asked = self._ends.get(partition)
        return known if asked is None else max(asked.offset, known or 0)


def _is_unfetched(held: Held) -> bool:
    """Whether nothing of a partition is fetched now, or perhaps not: enough of it waits."""
    manager = held.manager
    return manager is not None and (not held.is_read or held.is_paused or manager.waiting > 0)


class Fetches:
    """Gives what the fetcher has to the partitions' managers. The owner thread calls everything."""

    def __init__(
        self,
        fetcher: Fetcher,
        assignment: Assignment,
        flow: Flow,
        commits: Commits,
        num_records: int,
        wall_clock: Callable[[], float],
        sleep: Callable[[float], object],
    ) -> None:
        """At most `num_records` are taken at once. `wall_clock` is what records are stamped by."""
        self._fetcher = fetcher
        self._assignment = assignment
        self._flow = flow
        self._commits = commits
        self._num_records = num_records
        self._wall_clock = wall_clock
        self._sleep = sleep
        self._latency: dict[Partition, float] = {}

    def fetch(self, now: float, timeout_seconds: float) -> bool:
        """Take what the fetcher has; True if there was anything.

        It takes nothing, and waits, if what waits already is enough for every partition.
        """
        timeout_seconds = min(timeout_seconds, max(0.0, self._flow.wake - now))
        if not self._flow.has_room(self._assignment, now):
            self._sleep(timeout_seconds)
            return False
        fetched = self._fetcher.fetch(self._num_records, timeout_seconds)
        for chunk in fetched.chunks:
            self._offer(chunk, now)
        for partition, end in fetched.ends.items():
            held = self._assignment[partition]
            if held.manager is not None:
                held.manager.log_end(end)
                self._check(held)
                held.goal = end if held.goal is None else held.goal
                held.in_vain = (-1, 0)  # the place was read
        for chunk in fetched.chunks:
            self._flow.pause_if_full(self._assignment[chunk.partition])
        for partition, trouble in fetched.failures.items():
            self._assignment.fail(partition, trouble)
        return bool(fetched.chunks)

    def latency_of(self, partition: Partition) -> float | None:
        """Seconds from a partition's newest record's time stamp to its fetch; None: of none yet."""
        return self._latency.get(partition)

    def _check(self, held: Held) -> None:
        """Halt a partition that did not give the records of an open transaction again."""
        if held.manager is None:
            return
        error = held.manager.delivery.replay_error(log_moved=False)
        if error is not None and held.halted is None:
            self._assignment.halt(held.partition, error)

    def _offer(self, chunk: Chunk, now: float) -> None:
        held = self._assignment[chunk.partition]
        manager = held.manager
        if manager is None:
            return
        manager.fetched(chunk, now)
        self._check(held)
        newest: Any = chunk.messages[-1]
        written_ms = newest.timestamp()[1]
        if written_ms > 0:
            latency = self._wall_clock() - written_ms / 1000
            self._latency[chunk.partition] = max(0.0, latency)
        self._commits.look_at(manager)
