"""Crews: the workers of one task, what each has in hand, and what takes too long. Pure."""

import math
from collections.abc import Iterator

import structlog

from topology.running.call import Call

log = structlog.get_logger()

_STUCK_SECONDS = 1.0


class Worker:
    """What one thread, or one task of the event loop, has in hand.

    Its own thread writes `started` and then `call`; whoever reads `call` first and then
    `started` never thinks a call older than it is.
    """

    __slots__ = ("call", "started")

    def __init__(self) -> None:
        self.call: Call | None = None
        self.started = 0.0


class Crew:
    """At most `size` workers that take calls, beside as many that are stuck in theirs.

    A call that outlives `timeout_seconds` has failed. What runs it cannot be ended for sure, so
    it is left alone: it is abandoned until it returns, and another worker takes its place. Not
    thread-safe, but for `overdue` and `in_flight`, which only read.
    """

    def __init__(self, size: int, timeout_seconds: float | None) -> None:
        self._size = size
        self._timeout_seconds = timeout_seconds
        self._workers: list[Worker] = []
        self._stuck_since: float | None = None
        self._look_at = -math.inf  # nothing can be overdue before
        self.abandoned = 0
        self.timeouts = 0
        self.late = 0  # abandoned calls that came to an end of their own
        self.ended_since: float | None = None  # when no worker was left, and none may be added

    @property
    def can_grow(self) -> bool:
        """Whether there may be one worker more."""
        active = len(self._workers)
        return active < self._size and active + self.abandoned < 2 * self._size

    @property
    def in_flight(self) -> int:
        """Calls that run, without the abandoned ones."""
        return sum(worker.call is not None for worker in list(self._workers))

    def hire(self) -> Worker:
        """Add a worker; `can_grow` must be true."""
        worker = Worker()
        self._workers.append(worker)
        return worker

    def overdue(self, now: float) -> Iterator[tuple[Worker, Call]]:
        """The calls that have taken too long, and who has them."""
        timeout = self._timeout_seconds
        if timeout is None or now < self._look_at:
            return
        oldest = now
        for worker in list(self._workers):
            call, started = worker.call, worker.started
            if call is None:
                continue
            if now - started >= timeout:
                yield worker, call
            else:
                oldest = min(oldest, started)
        self._look_at = oldest + timeout

    def dismiss(self, worker: Worker) -> None:
        """Count a worker out that has no call."""
        self._workers.remove(worker)

    def abandon(self, worker: Worker) -> None:
        """Count a worker out that is stuck in its call, which has failed."""
        worker.call = None
        self._workers.remove(worker)
        self.abandoned += 1
        self.timeouts += 1

    def watch(self, step: str, now: float) -> None:
        """Note since when no worker is left; log it, once, when they have been few for a second."""
        if self._workers or self.can_grow:
            self.ended_since = None
        elif self.ended_since is None:
            self.ended_since = now
        if self.abandoned < self._size:
            self._stuck_since = None
        elif self._stuck_since is None:
            self._stuck_since = now
        elif now - self._stuck_since > _STUCK_SECONDS:
            self._stuck_since = math.inf
            log.warning("bolt_calls_never_end", step=step, abandoned=self.abandoned)

    def returned(self, worker: Worker, *, late: bool) -> bool:
        """Note that an abandoned worker has come back. True if it is needed again.

        `late` says that its call came to an end of its own, to no effect.
        """
        self.abandoned -= 1
        self.late += late
        if len(self._workers) >= self._size:
            return False
        self._workers.append(worker)
        return True
