"""Runners: each calls one task of one step, at once, in threads, or on the event loop."""

import asyncio
import contextlib
import inspect
import math
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from dataclasses import dataclass
from functools import partial
from typing import Any

import structlog

from topology.bolt import Bolt
from topology.calls import failure_of
from topology.monitoring import CallTimes
from topology.record import SKIP
from topology.steps import BoltStep, Order
from topology.workers.key_queue import (
    Answers,
    Call,
    CallQueue,
    KeyQueue,
    TickFailed,
    finish,
    process_of,
)
from topology.workers.lifecycle import EventLoop, Threads

log = structlog.get_logger()

_STUCK_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class RunnerStatistics:
    """Snapshot of a step's calls; `timeouts` and `late` are counters."""

    in_flight: int = 0  # calls that run
    waiting: int = 0  # values whose call has not started
    held: int = 0  # records that others of their keys wait for
    abandoned: int = 0  # calls past their timeout that have not returned yet
    timeouts: int = 0
    late: int = 0  # calls that returned after their timeout, to no effect
    ended_since: float | None = None  # when a task lost its last job and could start no other

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
class BoltTask:
    """One instance of a step's bolt. Calls end in `answers`, failed ticks in `put` (any thread).

    A call that takes longer than `timeout_seconds` by `clock` fails, if its runner can abandon it.
    """

    step: BoltStep
    bolt: Bolt[Any, Any]
    answers: Answers
    put: Callable[[TickFailed], object]
    timeout_seconds: float | None
    clock: Callable[[], float] = time.monotonic


class Runner(ABC):
    """Calls one task as its queue allows. The owner thread calls the public methods."""

    def __init__(self, task: BoltTask) -> None:
        self.queue = CallQueue() if task.step.order is Order.NONE else KeyQueue()
        self.lock = threading.Lock()  # of the queue
        self._bolt = task.bolt
        self._answers = task.answers
        self._step = task.step.name
        self._process = process_of(self._step, task.bolt)
        self._put = task.put
        self._clock = task.clock
        self._is_closing = False
        self._took: list[float] = []  # seconds of ended calls, until they are counted

    @contextlib.contextmanager
    def changing(self) -> Iterator[CallQueue]:
        """Hold the lock while the queue changes, then start the calls that became ready."""
        with self.lock:
            yield self.queue
            self._start_ready()

    def submit(self, calls: list[Call]) -> None:
        with self.lock:
            self.queue.add(calls)
            self._start_ready()

    @abstractmethod
    def _start_ready(self) -> None:
        """Start the calls that became ready. The lock is held."""

    def poll(self, now: float) -> None:  # noqa: B027 - inline, a call cannot be cut short
        """Fail the calls that take too long."""

    @abstractmethod
    def tick(self) -> None:
        """Have the bolt's `tick` called where its `process` is, unless one is due already."""

    def _tick_failed(self, error: BaseException) -> None:
        self._put(TickFailed(self._step, failure_of(self._step, error)))

    def statistics(self) -> RunnerStatistics:
        return RunnerStatistics(waiting=self.queue.num_waiting, held=len(self.queue.held))

    def count_times(self, times: CallTimes, at_least: int) -> None:
        """Count the calls that ended since the last time, if they are so many."""
        count = len(self._took)  # other threads add to it
        if count >= at_least:
            times[self._step].add_each(self._took[:count])
            del self._took[:count]

    @abstractmethod
    def close(self, deadline: float) -> None:
        """Start no more calls, and end those that can be ended, by this monotonic time."""


class InlineRunner(Runner):
    """Calls a plain bolt on the owner thread as soon as a value comes, unless its key is held.

    Calls run one at a time, so only those that wait for a retry need the queue.
    """

    def submit(self, calls: list[Call]) -> None:
        queue, started = self.queue, self._clock()
        for index, call in enumerate(calls):
            if queue.held or queue.suspended or self._is_closing:
                self._note(started, index)
                super().submit(calls[index:])  # at once: one record may have several of them
                return
            self._run(call)
            if call.comes_again:
                queue.add((call,))
                queue.take()
                queue.end(call)
        self._note(started, len(calls))

    def _note(self, started: float, count: int) -> None:
        """Note the seconds of calls; each counts with their mean."""
        if count:
            self._took += [(self._clock() - started) / count] * count

    def tick(self) -> None:
        try:
            self._bolt.tick()
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001  # it may raise anything
            self._tick_failed(error)

    def close(self, deadline: float) -> None:  # noqa: ARG002
        self._is_closing = True

    def _start_ready(self) -> None:
        while not self._is_closing and (call := self.queue.take()) is not None:
            started = self._clock()
            self._run(call)
            self._note(started, 1)
            self.queue.end(call)

    def _run(self, call: Call) -> None:
        try:
            value = self._process(call.value)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001  # it may raise anything
            call.error = failure_of(self._step, error)
        else:
            finish(self._step, call, value)
        self._answers.add(call)


class _Job:
    """A thread, or a task of the event loop, that makes calls until none is ready."""

    __slots__ = ("call", "started", "task")

    def __init__(self) -> None:
        self.call: Call | None = None
        self.started = 0.0
        self.task: asyncio.Task[None] | None = None


class _PoolRunner(Runner):
    """Runs at most `workers` jobs at once, and abandons at most as many.

    A call that exceeds `timeout_seconds` fails. Its job cannot be stopped reliably, so it is
    abandoned until the call returns, and another job takes its slot.
    """

    def __init__(self, task: BoltTask, workers: int) -> None:
        super().__init__(task)
        self._workers = workers
        self._timeout_seconds = task.timeout_seconds
        self._take = self.queue.take
        # The lock guards the following attributes, too.
        self._jobs: set[_Job] = set()
        self._abandoned: set[_Job] = set()
        self._look_at = -math.inf  # no call can be overdue before
        self._stuck_since: float | None = None
        self._ended_since: float | None = None
        self._timeouts = 0
        self._late = 0

    def poll(self, now: float) -> None:
        timeout = self._timeout_seconds
        if timeout is not None and now >= self._look_at:
            with self.lock:
                running = [(job.started, job, job.call) for job in self._jobs if job.call]
            overdue = [(job, call) for started, job, call in running if now - started >= timeout]
            if overdue:
                self._expire(overdue, timeout)
            in_time = [started for started, _, _ in running if now - started < timeout]
            self._look_at = min(in_time, default=now) + timeout
        self._watch(now)

    def _expire(self, overdue: list[tuple[_Job, Call]], timeout: float) -> None:
        """Abandon the calls that have not ended since."""
        with self.lock:
            for job, call in overdue:
                if job in self._jobs and job.call is call:
                    self._abandon(job, call, timeout)
            self._start_ready()

    def _watch(self, now: float) -> None:
        """Note since when no job is left; log it once after a second."""
        if self._jobs or self._num_free > 0:
            self._ended_since = None
        elif self._ended_since is None:
            self._ended_since = now
        if len(self._abandoned) < self._workers:
            self._stuck_since = None
        elif self._stuck_since is None:
            self._stuck_since = now
        elif now - self._stuck_since > _STUCK_SECONDS:
            self._stuck_since = math.inf
            log.warning("bolt_calls_never_end", step=self._step, abandoned=len(self._abandoned))

    def statistics(self) -> RunnerStatistics:
        return RunnerStatistics(
            in_flight=sum(job.call is not None for job in list(self._jobs)),
            waiting=self.queue.num_waiting,
            held=len(self.queue.held),
            abandoned=len(self._abandoned),
            timeouts=self._timeouts,
            late=self._late,
            ended_since=self._ended_since,
        )

    @property
    def _num_free(self) -> int:
        """Number of jobs that may start."""
        active = len(self._jobs)
        return min(self._workers, 2 * self._workers - len(self._abandoned)) - active

    # The lock is held around the next methods.

    def _start_ready(self) -> None:
        ready = self._num_ready()
        if ready and not self._is_closing:
            wanted = ready - sum(job.call is None for job in self._jobs)  # they start just now
            if jobs := [_Job() for _ in range(min(wanted, self._num_free))]:
                self._jobs.update(jobs)
                self._start(jobs)

    @abstractmethod
    def _start(self, jobs: list[_Job]) -> None:
        """Have jobs run: each takes calls by `_advance` until it returns None."""

    @abstractmethod
    def _cancel(self, job: _Job) -> None:
        """End the call of an abandoned job, if that is possible."""

    def _abandon(self, job: _Job, call: Call, seconds: float) -> None:
        self._jobs.remove(job)
        self._abandoned.add(job)
        self._timeouts += 1
        call.error = TimeoutError(f"bolt '{self._step}' took longer than its {seconds:g} seconds")
        self._end(call, self._clock() - job.started)
        self._cancel(job)

    def _num_ready(self) -> int:
        return len(self.queue.ready)

    def _end(self, call: Call, seconds: float) -> None:
        self._took.append(seconds)
        self.queue.end(call)
        self._answers.add(call)

    def _advance(self, job: _Job, value: Any = None, error: Exception | None = None) -> Call | None:
        """End a job's call, if it has one; return its next one, or None: the job must end.

        Takes the lock itself.
        """
        with self.lock:
            now, call = self._clock(), job.call
            if job not in self._jobs:  # timed out: its result is dropped
                self._abandoned.discard(job)
                self._late += 1
                self._start_ready()
                return None
            if call is not None:
                if error is None:
                    finish(self._step, call, value)
                else:
                    call.error = error
                self._end(call, now - job.started)
            job.started = now
            job.call = call = None if self._is_closing else self._take()
            if call is None:
                self._jobs.remove(job)
            return call


class _Tick(Call):
    """A call of the bolt's `tick`."""


class ThreadRunner(_PoolRunner):
    """Calls a blocking bolt in threads. The result of an abandoned call is dropped."""

    def __init__(self, task: BoltTask) -> None:
        # An instance with state is called by one thread at a time.
        super().__init__(task, task.step.workers if len(task.step.bolts) == 1 else 1)
        self._take = self._take_tick_or_call
        self._threads = Threads(f"bolt-{self._step}")
        self._tick: _Tick | None = None  # due or running
        self._tick_is_due = False

    def tick(self) -> None:
        with self.lock:
            if self._tick is None:
                self._tick = _Tick(None, -1, 0, -1, -1)
                self._tick_is_due = True
                self._start_ready()

    def close(self, deadline: float) -> None:
        with self.lock:
            self._is_closing = True
        if left := self._threads.close(deadline):
            log.warning("blocking_bolt_still_runs", step=self._step, threads=left)

    def _start(self, jobs: list[_Job]) -> None:
        for job in jobs:
            self._threads.submit(partial(self._work, job), len(self._jobs) + len(self._abandoned))

    def _cancel(self, job: _Job) -> None:
        """Do nothing: a thread cannot be stopped."""

    def _num_ready(self) -> int:
        return super()._num_ready() + self._tick_is_due

    def _take_tick_or_call(self) -> Call | None:
        if self._tick_is_due:
            self._tick_is_due = False
            return self._tick
        return self.queue.take()

    def _end(self, call: Call, seconds: float) -> None:
        if not isinstance(call, _Tick):
            super()._end(call, seconds)
            return
        self._tick = None
        if call.error is not None:
            self._tick_failed(call.error)

    def _work(self, job: _Job) -> None:
        call = self._advance(job)
        while call is not None:
            value, error = None, None
            try:
                if isinstance(call, _Tick):
                    self._bolt.tick()
                    value = SKIP
                else:
                    value = self._process(call.value)
            except BaseException as raised:  # noqa: BLE001  # it must not end the thread in silence
                error = failure_of(self._step, raised)
            call = self._advance(job, value, error)


class AsyncRunner(_PoolRunner):
    """Awaits an async bolt on the event loop.

    A call past its timeout fails at once and is cancelled. If a bolt cancels all tasks of the
    loop, new jobs are started.
    """

    def __init__(self, task: BoltTask, loop: EventLoop) -> None:
        super().__init__(task, task.step.workers)
        self._loop = loop
        self._ticking: set[asyncio.Task[None]] = set()  # of the event loop's thread

    def tick(self) -> None:
        self._loop.call(self._start_tick)

    def close(self, deadline: float) -> None:
        self._is_closing = True
        if self._loop.is_open:
            # A call that does not end is logged when the loop is closed.
            with contextlib.suppress(TimeoutError, CancelledError):
                self._loop.run(self._cancel_all(), deadline)

    def _start(self, jobs: list[_Job]) -> None:
        self._loop.call(self._start_tasks, jobs)

    def _expire(self, overdue: list[tuple[_Job, Call]], timeout: float) -> None:
        # Behind those that have ended: a call that blocks the loop delays all others.
        self._loop.call(super()._expire, overdue, timeout)

    def _cancel(self, job: _Job) -> None:
        self._loop.call(self._cancel_task, job)

    # The next methods run on the event loop's thread.

    def _start_tasks(self, jobs: list[_Job]) -> None:
        for job in jobs:
            job.task = asyncio.get_running_loop().create_task(self._work(job))
            job.task.add_done_callback(partial(self._task_ended, job))

    def _cancel_task(self, job: _Job) -> None:
        if job.task is not None:
            job.task.cancel()

    async def _cancel_all(self) -> None:
        with self.lock:
            jobs = [*self._jobs, *self._abandoned]
        tasks = [*(job.task for job in jobs if job.task is not None), *self._ticking]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _task_ended(self, job: _Job, _task: "asyncio.Task[None]") -> None:
        """Free the slot of a job that was cancelled, perhaps before it began."""
        if job in self._jobs or job in self._abandoned:
            with self.lock:
                self._jobs.discard(job)
                self._abandoned.discard(job)
                self._start_ready()

    async def _work(self, job: _Job) -> None:
        process = self._process
        call = self._advance(job)
        while call is not None:
            value, error = None, None
            try:
                value = await process(call.value)
            except asyncio.CancelledError:
                if self._is_closing or job in self._abandoned:
                    return
                error = self._cancelled(job)
            except BaseException as raised:  # noqa: BLE001  # else a job or the loop would end
                error = failure_of(self._step, raised)
            call = self._advance(job, value, error)

    def _cancelled(self, job: _Job) -> Exception:
        while job.task is not None and job.task.cancelling():
            job.task.uncancel()
        return RuntimeError(f"the call of bolt '{self._step}' was cancelled from within")

    def _start_tick(self) -> None:
        if not self._ticking and not self._is_closing:
            task = asyncio.get_running_loop().create_task(self._tick())
            task.add_done_callback(self._ticking.discard)
            self._ticking.add(task)

    async def _tick(self) -> None:
        try:
            async with asyncio.timeout(self._timeout_seconds):
                result = self._bolt.tick()
                if inspect.isawaitable(result):
                    await result
        except BaseException as error:  # it may raise anything
            if isinstance(error, asyncio.CancelledError) and self._is_closing:
                raise
            self._tick_failed(error)
