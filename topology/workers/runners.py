"""Runners: each calls one task of one step, at once, in threads, or on the event loop."""

import asyncio
import contextlib
import inspect
import math
import queue
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import CancelledError
from dataclasses import astuple, dataclass
from functools import partial
from typing import Any

import structlog

from topology.bolt import Bolt
from topology.calls import failure_of
from topology.monitoring import CallTimes
from topology.steps import BoltStep, Order
from topology.workers.key_queue import (
    Answers,
    Call,
    CallQueue,
    KeyQueue,
    Many,
    Ticked,
    finish,
    process_of,
    values_of_tick,
)
from topology.workers.lifecycle import EventLoop

log = structlog.get_logger()

_TIMED = 16  # jobs whose calls are timed: timing costs a fiftieth of a call
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
        *counts, ended = zip(astuple(self), astuple(other), strict=True)
        since = min((each for each in ended if each is not None), default=None)
        totals: list[Any] = [*map(sum, counts), since]
        return RunnerStatistics(*totals)


@dataclass(frozen=True, slots=True)
class BoltTask:
    """One instance of a step's bolt. Calls end in `answers`, ticks in `put` (any thread).

    A call that takes longer than `timeout_seconds` by `clock` fails, if its runner can abandon it.
    """

    step: BoltStep
    bolt: Bolt[Any, Any]
    answers: Answers
    put: Callable[[Ticked], object]
    timeout_seconds: float | None
    clock: Callable[[], float] = time.monotonic


class Runner(ABC):
    """Calls one task as its queue allows. The owner thread calls the public methods."""

    is_ticking = False
    """Whether a tick is due, or runs on another thread. Any thread may read it."""

    def __init__(self, task: BoltTask) -> None:
        self.queue = CallQueue() if task.step.order is Order.NONE else KeyQueue()
        self.lock = threading.Lock()  # of the queue
        self._bolt = task.bolt
        self._answers = task.answers
        self._step = task.step.name
        self._put = task.put
        self._clock = task.clock
        self._is_closing = False
        self._took: list[float] = []  # seconds of ended calls, until they are counted
        self._untimed = 0  # ended calls that were not timed; it only grows
        self._untimed_counted = 0

    def change(self, work: Callable[[CallQueue], object]) -> None:
        """Change the queue, then start the calls that became ready."""
        with self.lock:
            work(self.queue)
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

    def _ticked(self, values: Sequence[Any], error: BaseException | None = None) -> None:
        if values or error is not None:
            failure = None if error is None else failure_of(self._step, error)
            self._put(Ticked(self._step, values, failure))

    def statistics(self) -> RunnerStatistics:
        return RunnerStatistics(waiting=self.queue.num_waiting, held=len(self.queue.held))

    def count_times(self, times: CallTimes, at_least: int) -> None:
        """Count the calls that ended since the last time, if so many of them were timed."""
        count = len(self._took)  # other threads add to it
        if count >= at_least:
            taken = self._took[:count]
            del self._took[:count]
            untimed = self._untimed
            times[self._step].add_each(taken, untimed - self._untimed_counted)
            self._untimed_counted = untimed

    @abstractmethod
    def close(self, deadline: float) -> None:
        """Start no more calls, and end those that can be ended, by this monotonic time."""


class InlineRunner(Runner):
    """Calls a plain bolt on the owner thread as soon as a value comes, unless its key is held.

    Calls run one at a time, so only those that wait for a retry need the queue.
    """

    def __init__(self, task: BoltTask) -> None:
        super().__init__(task)
        self._process = process_of(self._step, task.bolt)

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
            self._ticked(values_of_tick(self._bolt.tick()))
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001  # it may raise anything
            self._ticked((), error)

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
    """A thread, or a task of the event loop, that makes one call after the other.

    It writes `started` and then `call`; others must read `call` first.
    """

    __slots__ = ("call", "started")

    def __init__(self) -> None:
        self.call: Call | None = None
        self.started = 0.0


class _PoolRunner(Runner):
    """Runs at most `workers` jobs at once, and abandons at most as many.

    Jobs start on demand and stay: starting one costs more than many a call. A call that exceeds
    `timeout_seconds` fails. Its job cannot be stopped reliably, so it is abandoned until the
    call returns, and another job takes its slot.
    """

    def __init__(self, task: BoltTask, workers: int) -> None:
        super().__init__(task)
        self._workers = workers
        self._timeout_seconds = task.timeout_seconds
        self._jobs: set[_Job] = set()
        self._look_at = -math.inf  # no call can be overdue before
        self._stuck_since: float | None = None
        self._ended_since: float | None = None
        self._abandoned = 0
        self._timeouts = 0
        self._late = 0

    @property
    def _can_grow(self) -> bool:
        active = len(self._jobs)
        return active < self._workers and active + self._abandoned < 2 * self._workers

    def poll(self, now: float) -> None:
        timeout = self._timeout_seconds
        if timeout is not None and now >= self._look_at:
            oldest = now
            for job in list(self._jobs):
                call, started = job.call, job.started
                if call is None:
                    continue
                if now - started >= timeout:
                    self._expire(job, call)
                else:
                    oldest = min(oldest, started)
            self._look_at = oldest + timeout
        self._watch(now)

    @abstractmethod
    def _expire(self, job: _Job, call: Call) -> None:
        """Fail a call that took too long, unless it has ended in the meantime."""

    def _abandon(self, job: _Job, call: Call) -> None:
        self._took.append(self._clock() - job.started)
        seconds = self._timeout_seconds or 0.0
        call.error = TimeoutError(f"bolt '{self._step}' took longer than its {seconds:g} seconds")
        job.call = None
        self._jobs.remove(job)
        self._abandoned += 1
        self._timeouts += 1

    def _watch(self, now: float) -> None:
        """Note since when no job is left; log it once after a second."""
        if self._jobs or self._can_grow:
            self._ended_since = None
        elif self._ended_since is None:
            self._ended_since = now
        if self._abandoned < self._workers:
            self._stuck_since = None
        elif self._stuck_since is None:
            self._stuck_since = now
        elif now - self._stuck_since > _STUCK_SECONDS:
            self._stuck_since = math.inf
            log.warning("bolt_calls_never_end", step=self._step, abandoned=self._abandoned)

    def statistics(self) -> RunnerStatistics:
        return RunnerStatistics(
            in_flight=sum(job.call is not None for job in list(self._jobs)),
            waiting=self.queue.num_waiting,
            held=len(self.queue.held),
            abandoned=self._abandoned,
            timeouts=self._timeouts,
            late=self._late,
            ended_since=self._ended_since,
        )


class _Tick(Call):
    """A call of the bolt's `tick`."""


class ThreadRunner(_PoolRunner):
    """Calls a blocking bolt in threads. The result of an abandoned call is dropped.

    Own threads, as a stuck call in a ThreadPoolExecutor would delay the interpreter's exit.
    """

    def __init__(self, task: BoltTask) -> None:
        # An instance with state is called by one thread at a time.
        super().__init__(task, task.step.workers if len(task.step.bolts) == 1 else 1)
        self._process = process_of(self._step, task.bolt)
        # The lock guards the following attributes, and those of _PoolRunner.
        self._begun = 0
        self._idle = 0
        self._wakes: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._job_ended = threading.Condition(self.lock)
        self._tick: _Tick | None = None  # due or running
        self._tick_is_due = False

    def tick(self) -> None:
        with self.lock:
            if self._tick is None:
                self._tick = _Tick(None, -1, 0, -1, -1)
                self._tick_is_due = self.is_ticking = True
                self._start_ready()

    def close(self, deadline: float) -> None:
        with self.lock:
            self._is_closing = True
            for _ in range(self._idle):
                self._wakes.put(None)
            seconds = max(deadline - time.monotonic(), 0.0)
            self._job_ended.wait_for(lambda: not self._jobs, seconds)
            left = len(self._jobs) + self._abandoned
        if left:
            log.warning("blocking_bolt_still_runs", step=self._step, threads=left)

    def _expire(self, job: _Job, call: Call) -> None:
        with self.lock:
            if job.call is call:
                self._abandon(job, call)
                self._end(call)
                self._start_ready()

    # The lock is held around the next methods.

    def _start_ready(self) -> None:
        wanted = len(self.queue.ready) + self._tick_is_due
        while wanted > 0 and self._idle:
            self._idle -= 1
            self._wakes.put(None)
            wanted -= 1
        while wanted > 0 and self._can_grow and not self._is_closing:
            job = _Job()
            self._jobs.add(job)
            self._begun += 1
            name = f"bolt-{self._step}-{self._begun}"
            threading.Thread(target=self._work, args=(job,), name=name, daemon=True).start()
            wanted -= 1

    def _take(self) -> Call | None:
        if self._tick_is_due:
            self._tick_is_due = False
            return self._tick
        return self.queue.take()

    def _end(self, call: Call) -> None:
        if not isinstance(call, _Tick):
            self.queue.end(call)
            self._answers.add(call)
            return
        self._tick = None
        self._ticked(call.value or (), call.error)
        self.is_ticking = False

    # The next methods run on the threads.

    def _work(self, job: _Job) -> None:
        while True:
            with self.lock:
                if self._is_closing:
                    self._jobs.remove(job)
                    self._job_ended.notify_all()
                    return
                call = self._take()
                if call is None:
                    self._idle += 1
                else:
                    job.started = self._clock()
                    job.call = call
            if call is None:
                self._wakes.get()
                continue
            value, error = self._call(call)
            with self.lock:
                if job.call is not call:  # timed out
                    self._abandoned -= 1
                    self._late += 1
                    self._start_ready()
                    return
                job.call = None
                if not isinstance(call, _Tick):
                    self._took.append(self._clock() - job.started)
                if error is None:
                    finish(self._step, call, value)
                else:
                    call.error = error
                self._end(call)

    def _call(self, call: Call) -> tuple[Any, Exception | None]:
        try:
            if isinstance(call, _Tick):
                return Many(values_of_tick(self._bolt.tick())), None
            return self._process(call.value), None
        except BaseException as error:  # noqa: BLE001  # it must not end the thread in silence
            return None, failure_of(self._step, error)


class AsyncRunner(_PoolRunner):
    """Awaits an async bolt on the event loop.

    A call past its timeout fails at once and is cancelled. If a bolt cancels all tasks of the
    loop, new jobs are started.
    """

    def __init__(self, task: BoltTask, loop: EventLoop) -> None:
        super().__init__(task, task.step.workers)
        self._loop = loop
        self._process = process_of(self._step, task.bolt)
        # The following attributes, and those of _PoolRunner, belong to the event loop's thread.
        is_ordered = task.step.order is not Order.NONE
        # An unordered queue needs no lock: only this thread takes, and no call waits for another.
        self._take = self._take_in_order if is_ordered else self.queue.take
        self._end = self._end_in_order if is_ordered else self._answers.add_quietly
        self._tasks: dict[_Job, asyncio.Task[None]] = {}
        self._idle: list[asyncio.Future[None]] = []
        self._ticking: set[asyncio.Task[None]] = set()

    def tick(self) -> None:
        self.is_ticking = not self._is_closing
        self._loop.call(self._start_tick)

    def close(self, deadline: float) -> None:
        self._is_closing = True
        if self._loop.is_open:
            # A call that does not end is logged when the loop is closed.
            with contextlib.suppress(TimeoutError, CancelledError):
                self._loop.run(self._cancel_all(), deadline)

    def _start_ready(self) -> None:
        self._loop.call(self._start_jobs)

    def _expire(self, job: _Job, call: Call) -> None:
        self._loop.call(self._cut_short, job, call)

    # The next methods run on the event loop's thread.

    async def _cancel_all(self) -> None:
        tasks = [*self._tasks.values(), *self._ticking]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _start_jobs(self) -> None:
        wanted = 0 if self._is_closing else len(self.queue.ready)
        while wanted > 0 and self._idle:
            idle = self._idle.pop()
            if not idle.done():  # else its job was cancelled
                idle.set_result(None)
                wanted -= 1
        while wanted > 0 and self._can_grow:
            job = _Job()
            work = self._work(job, is_timed=len(self._tasks) < _TIMED)
            task = asyncio.get_running_loop().create_task(work)
            task.add_done_callback(partial(self._job_ended, job))
            self._tasks[job] = task
            self._jobs.add(job)
            wanted -= 1

    def _job_ended(self, job: _Job, _task: "asyncio.Task[None]") -> None:
        """Free the slot of a job that was abandoned, or cancelled between two calls."""
        del self._tasks[job]
        if job in self._jobs:
            self._jobs.remove(job)
        else:
            self._abandoned -= 1
        self._start_jobs()

    async def _work(self, job: _Job, *, is_timed: bool) -> None:
        # Local names: attribute look-ups would be a sixth of what a call costs here.
        process, clock, step = self._process, self._clock, self._step
        take, end, announce = self._take, self._end, self._answers.announce
        loop = asyncio.get_running_loop()
        while not self._is_closing:
            call = take()
            if call is None:
                idle = loop.create_future()
                self._idle.append(idle)
                await idle
                continue
            job.started = clock()
            job.call = call
            value, error = None, None
            try:
                value = await process(call.value)
            except BaseException as raised:  # noqa: BLE001  # else a job or the loop would end
                error = raised
            if job.call is not call:  # timed out
                self._late += not isinstance(error, asyncio.CancelledError)
                return
            job.call = None
            if is_timed:
                self._took.append(clock() - job.started)
            else:
                self._untimed += 1
            if error is None:
                finish(step, call, value)
            else:
                call.error = self._failure_of(job, error)
            if end(call):  # announced together with other calls of this turn
                loop.call_soon(announce)

    def _take_in_order(self) -> Call | None:
        with self.lock:
            return self.queue.take()

    def _end_in_order(self, call: Call) -> bool:
        with self.lock:
            self.queue.end(call)
        return self._answers.add_quietly(call)

    def _cut_short(self, job: _Job, call: Call) -> None:
        if job.call is not call:
            return  # it has ended meanwhile
        self._abandon(job, call)
        self._tasks[job].cancel()
        if self._end(call):
            self._answers.announce()
        self._start_jobs()

    def _failure_of(self, job: _Job, error: BaseException) -> Exception:
        """Return the failure of a call. Raises `error` when the bolt is being closed."""
        if not isinstance(error, asyncio.CancelledError):
            return failure_of(self._step, error)
        if self._is_closing:
            raise error
        task = self._tasks[job]
        while task.cancelling():
            task.uncancel()
        return RuntimeError(f"the call of bolt '{self._step}' was cancelled from within")

    def _start_tick(self) -> None:
        if not self._ticking and not self._is_closing:
            self.is_ticking = True
            task = asyncio.get_running_loop().create_task(self._tick())
            task.add_done_callback(self._tick_ended)
            self._ticking.add(task)

    def _tick_ended(self, task: asyncio.Task[None]) -> None:
        self._ticking.discard(task)
        self.is_ticking = False

    async def _tick(self) -> None:
        try:
            async with asyncio.timeout(self._timeout_seconds):
                result: Any = self._bolt.tick()
                if isinstance(result, AsyncIterator):
                    values = [value async for value in result]
                else:
                    is_later = inspect.isawaitable(result)
                    values = values_of_tick(await result if is_later else result)
            self._ticked(values)
        except BaseException as error:  # it may raise anything
            if isinstance(error, asyncio.CancelledError) and self._is_closing:
                raise
            self._ticked((), error)
