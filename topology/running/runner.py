"""What every runner can do. A runner has one task of one step."""

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from topology.bolt import Bolt
from topology.running.call import Answers, Call, TickFailed
from topology.running.lane import Lane


@dataclass(frozen=True, slots=True)
class RunnerStatistics:
    """What becomes of a step's calls at one moment; `timeouts` and `late` only grow."""

    in_flight: int = 0  # calls that run
    waiting: int = 0  # values whose call has not started
    held: int = 0  # records that others of their keys wait for
    abandoned: int = 0  # calls past their time-out that have not returned yet
    timeouts: int = 0
    late: int = 0  # calls that returned after their time-out, to no effect
    ended_since: float | None = None  # when a task's last worker was abandoned; none is left

    def __add__(self, other: "RunnerStatistics") -> "RunnerStatistics":
        ended = [each.ended_since for each in (self, other) if each.ended_since is not None]
        return RunnerStatistics(
            self.in_flight + other.in_flight,
            self.waiting + other.waiting,
            self.held + other.held,
            self.abandoned + other.abandoned,
            self.timeouts + other.timeouts,
            self.late + other.late,
            min(ended, default=None),
        )


@dataclass(frozen=True, slots=True)
class Duty:
    """What one runner is there for.

    It calls one instance of a bolt with what is in `lane`, at most `workers` calls at once, and
    puts them into `answers`. A call that takes longer than `timeout_seconds` by `clock` fails,
    if the runner can leave it alone. `tick_failed` is told of ticks, on any thread.
    """

    bolt: Bolt[Any, Any]
    lane: Lane
    answers: Answers
    tick_failed: Callable[[TickFailed], object]
    workers: int
    timeout_seconds: float | None
    clock: Callable[[], float] = time.monotonic


class Runner(ABC):
    """Calls one instance of a bolt, as its lane allows. The owner thread calls what is public."""

    def __init__(self, duty: Duty) -> None:
        self._bolt = duty.bolt
        self._lane = duty.lane
        self._answers = duty.answers
        self._step = duty.answers.step.name
        self._tick_failed = duty.tick_failed
        self._lock = threading.Lock()  # of the lane
        self._took: list[float] = []  # seconds of calls that have ended, until they are taken
        self._untimed = 0  # calls that have ended and were not timed; it only grows
        self._untimed_taken = 0

    def submit(self, calls: list[Call]) -> None:
        """Have the bolt called for each; the answers come as they end."""
        with self._lock:
            self._lane.add(calls)
            self._go_on()

    def backlog(self) -> int:
        """Calls that could start were there a free worker."""
        return len(self._lane.ready)

    @property
    def num_waiting(self) -> int:
        """Calls that have not started, also those behind their own key."""
        return self._lane.num_waiting

    def waiting(self) -> list[int]:
        """The trees of the calls that have not started."""
        with self._lock:
            return self._lane.waiting()

    def blocked(self) -> list[int]:
        """The trees of those that cannot start before a record comes again."""
        with self._lock:
            return self._lane.blocked()

    @property
    def num_blocked(self) -> int:
        """How many of them there are."""
        with self._lock:
            return self._lane.num_blocked

    def holders(self) -> list[int]:
        """The records that keys wait for."""
        return self._lane.holders()

    def release(self, record_ids: Iterable[int]) -> None:
        """Free the keys that these records hold."""
        with self._lock:
            self._lane.release(record_ids)
            self._go_on()

    def suspend(self, partition: int) -> None:
        """Start no call of a partition until `resume`."""
        with self._lock:
            self._lane.suspend(partition)
            self._go_on()

    def resume(self, partition: int) -> None:
        """Let the calls of a partition start again."""
        with self._lock:
            self._lane.resume(partition)
            self._go_on()

    def drop(self, is_gone: Callable[[Call], bool]) -> list[Call]:
        """Drop the calls that are gone and have not started, and free the keys such ones hold."""
        with self._lock:
            dropped = self._lane.drop(is_gone)
            self._go_on()
        return dropped

    def holds(self, partition: int) -> bool:
        """Whether a key is held, or may come to be, by a record of a partition."""
        with self._lock:
            return self._lane.holds(partition)

    @abstractmethod
    def _go_on(self) -> None:
        """See to what has become ready. The lock is held."""

    @abstractmethod
    def poll(self, now: float) -> None:
        """Fail the calls that take too long."""

    @abstractmethod
    def tick(self) -> None:
        """Have the bolt's `tick` called where its `process` is; not again while one is due."""

    @property
    def num_timed(self) -> int:
        """How many calls were timed that `take_seconds` has not given yet."""
        return len(self._took)

    def take_seconds(self) -> tuple[list[float], int]:
        """How long calls took that have ended since this was asked last, and how many others did.

        Of many workers only some are timed, of which at least one call must have ended.
        """
        count = len(self._took)  # other threads add to it
        taken = self._took[:count]
        del self._took[:count]
        untimed = self._untimed
        others, self._untimed_taken = untimed - self._untimed_taken, untimed
        return taken, others

    @abstractmethod
    def statistics(self) -> RunnerStatistics:
        """Figures of this moment."""

    @abstractmethod
    def close(self, deadline: float) -> None:
        """Take no more calls and end what can be ended, by that time of the monotonic clock."""
