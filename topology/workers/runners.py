"""What every runner can do. A runner has one task of one step."""

import asyncio
import contextlib
import inspect
import math
import queue
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import CancelledError
from dataclasses import dataclass
from functools import partial
from typing import Any

import structlog

from topology.bolt import Bolt
from topology.calls import failure_of
from topology.record import SKIP
from topology.steps import Order
from topology.workers.call import (
    Answers,
    Call,
    TickFailed,
    async_process_of,
    finish,
    overdue,
    process_of,
)
from topology.workers.key_queue import Lane
from topology.workers.lifecycle import EventLoop


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


class InlineRunner(Runner):
    """Calls a bolt as soon as a value comes, unless the value's key is held.

    Nothing runs beside it, so an order keeps itself; only what waits for a retry needs the lane.
    """

    def __init__(self, duty: Duty) -> None:
        super().__init__(duty)
        self._clock = duty.clock
        self._process = process_of(self._step, duty.bolt)
        self._is_closing = False

    def submit(self, calls: list[Call]) -> None:
        """Call the bolt for each whose key is free."""
        started = self._clock()
        for place, call in enumerate(calls):
            if self._lane.held or self._lane.is_suspended or self._is_closing:
                self._note(started, place)
                self._lane.add(calls[place:])  # at once: one record may have several of them
                self._go_on()
                return
            self._run(call)
            if call.comes_again:
                self._lane.add((call,))
                self._lane.take()
                self._lane.end(call)
        self._note(started, len(calls))

    def _note(self, started: float, count: int) -> None:
        """Note how long so many calls took: one look at the clock for all, each had the mean."""
        if count:
            self._took += [(self._clock() - started) / count] * count

    def backlog(self) -> int:
        """None: what could start has been called."""
        return 0

    def poll(self, now: float) -> None:
        """Nothing: a call on the owner thread cannot be cut short."""

    def tick(self) -> None:
        """Call the bolt's `tick`."""
        try:
            self._bolt.tick()
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001  # it may raise anything
            self._tick_failed(TickFailed(self._step, failure_of(self._step, error)))

    def statistics(self) -> RunnerStatistics:
        """Figures of this moment."""
        return RunnerStatistics(waiting=self.num_waiting, held=self._lane.held)

    def close(self, deadline: float) -> None:  # noqa: ARG002
        """Take no more calls: what waits comes again after the next start."""
        self._is_closing = True

    def _go_on(self) -> None:
        while not self._is_closing and (call := self._lane.take()) is not None:
            started = self._clock()
            self._run(call)
            self._note(started, 1)
            self._lane.end(call)

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


class _Tick(Call):
    """A call of the bolt's `tick`."""


class ThreadRunner(Runner):
    """Calls one instance of a blocking bolt from at most `workers` threads at once.

    Threads are begun as they are needed and stay. No thread can be ended from outside: one whose
    call is past its time-out is abandoned, that is, its call fails and another thread takes its
    place, and what the call comes to later is dropped. At most `workers` are abandoned at a
    time; then the values wait.
    """

    def __init__(self, duty: Duty) -> None:
        super().__init__(duty)
        self._timeout_seconds = duty.timeout_seconds
        self._clock = duty.clock
        self._process = process_of(self._step, duty.bolt)
        # What follows is guarded by the lane's lock.
        self._crew = Crew(duty.workers, duty.timeout_seconds)
        self._threads: dict[Worker, threading.Thread] = {}
        self._begun = 0
        self._idle = 0
        self._wakes: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._tick: _Tick | None = None  # due or running
        self._tick_is_due = False
        self._is_closing = False

    def poll(self, now: float) -> None:
        """Fail the calls that take too long, and abandon their threads."""
        for worker, call in self._crew.overdue(now):
            with self._lock:
                if worker.call is call:  # else it has ended in the meantime
                    self._crew.abandon(worker)
                    del self._threads[worker]
                    call.error = overdue(self._step, self._timeout_seconds or 0.0)
                    self._took.append(now - worker.started)
                    self._end(call)
                    self._go_on()
        self._crew.watch(self._step, now)

    def tick(self) -> None:
        """Have a thread call the bolt's `tick`, before what waits; not while one is due."""
        with self._lock:
            if self._tick is None:
                self._tick = _Tick(None, -1, 0, -1, -1)
                self._tick_is_due = True
                self._go_on()

    def statistics(self) -> RunnerStatistics:
        """Figures of this moment."""
        with self._lock:
            return RunnerStatistics(
                in_flight=self._crew.in_flight,
                waiting=self.num_waiting,
                held=self._lane.held,
                abandoned=self._crew.abandoned,
                timeouts=self._crew.timeouts,
                late=self._crew.late,
                ended_since=self._crew.ended_since,
            )

    def close(self, deadline: float) -> None:
        """Take no more calls, and wait for those that run, but not for abandoned ones."""
        with self._lock:
            self._is_closing = True
            for _ in range(self._idle):
                self._wakes.put(None)
            threads = list(self._threads.values())
        for thread in threads:
            thread.join(max(deadline - time.monotonic(), 0.0))
        left = sum(thread.is_alive() for thread in threads) + self._crew.abandoned
        if left:
            log.warning("blocking_bolt_still_runs", step=self._step, threads=left)

    # The lock is held around these.

    def _go_on(self) -> None:
        """Get threads for what is ready: idle ones, else new ones."""
        wanted = len(self._lane.ready) + self._tick_is_due
        while wanted > 0 and self._idle:
            self._idle -= 1
            self._wakes.put(None)
            wanted -= 1
        while wanted > 0 and self._crew.can_grow and not self._is_closing:
            self._begin_thread()
            wanted -= 1

    def _begin_thread(self) -> None:
        worker = self._crew.hire()
        self._begun += 1
        name = f"bolt-{self._step}-{self._begun}"
        thread = threading.Thread(target=self._work, args=(worker,), name=name, daemon=True)
        self._threads[worker] = thread
        thread.start()

    def _take(self, worker: Worker) -> Call | None:
        """What the worker does next; None if there is nothing, and it is idle."""
        call: Call | None
        if self._tick_is_due:
            self._tick_is_due = False
            call = self._tick
        else:
            call = self._lane.take()
        if call is None:
            self._idle += 1
        else:
            worker.started = self._clock()
            worker.call = call
        return call

    def _end(self, call: Call) -> None:
        if not isinstance(call, _Tick):
            self._lane.end(call)
            self._answers.add(call)
            return
        self._tick = None
        if call.error is not None:
            self._tick_failed(TickFailed(self._step, call.error))

    # What follows runs on the threads.

    def _work(self, worker: Worker) -> None:
        while True:
            with self._lock:
                call = None if self._is_closing else self._take(worker)
                if self._is_closing:
                    return
            if call is None:
                self._wakes.get()
                continue
            value, error = self._call(call)
            with self._lock:
                if worker.call is not call:  # it has failed already
                    if not self._crew.returned(worker, late=True):
                        return
                    self._threads[worker] = threading.current_thread()
                    continue
                worker.call = None
                if not isinstance(call, _Tick):
                    self._took.append(self._clock() - worker.started)
                if error is None:
                    finish(self._step, call, value)
                else:
                    call.error = error
                self._end(call)

    def _call(self, call: Call) -> tuple[Any, Exception | None]:
        try:
            if isinstance(call, _Tick):
                self._bolt.tick()
                return SKIP, None
            return self._process(call.value), None
        except BaseException as error:  # noqa: BLE001  # it must not end the thread in silence
            return None, failure_of(self._step, error)


TIMED = 16  # workers whose calls are timed: to time one costs a fiftieth of a call


class AsyncRunner(Runner):
    """Awaits one instance of an async bolt, at most `workers` calls at once.

    Its workers are tasks that live on, and are begun as they are needed: a task per call costs
    more than many a call. A call past its time-out fails at once and is cancelled. A worker that
    a bolt has ended, as one does that cancels all tasks of the loop, is replaced.
    """

    def __init__(self, duty: Duty, loop: EventLoop) -> None:
        super().__init__(duty)
        self._loop = loop
        self._timeout_seconds = duty.timeout_seconds
        self._clock = duty.clock
        self._process = async_process_of(self._step, duty.bolt)
        self._is_closing = False
        # From here on everything belongs to the event loop's thread.
        is_ordered = duty.answers.step.order is not Order.NONE
        # Without an order a lane needs no lock: this thread takes, and nothing waits for an end.
        self._take = self._take_in_order if is_ordered else duty.lane.take
        self._end = self._end_in_order if is_ordered else duty.answers.add_quietly
        self._crew = Crew(duty.workers, duty.timeout_seconds)
        self._tasks: dict[Worker, asyncio.Task[None]] = {}
        self._idle: list[asyncio.Future[None]] = []
        self._ticking: set[asyncio.Task[None]] = set()

    def _go_on(self) -> None:
        self._loop.call(self._wake)

    def poll(self, now: float) -> None:
        """Fail the calls that take too long."""
        for worker, call in self._crew.overdue(now):
            self._loop.call(self._cut_short, worker, call)
        self._crew.watch(self._step, now)

    def tick(self) -> None:
        """Have the bolt's `tick` called on the event loop's thread; not while one still runs."""
        self._loop.call(self._start_tick)

    def statistics(self) -> RunnerStatistics:
        """Figures of this moment."""
        crew = self._crew
        return RunnerStatistics(
            in_flight=crew.in_flight,
            waiting=self.num_waiting,
            held=self._lane.held,
            abandoned=crew.abandoned,
            timeouts=crew.timeouts,
            late=crew.late,
            ended_since=crew.ended_since,
        )

    def close(self, deadline: float) -> None:
        """Take no more calls, and cancel those that run: the bolt is closed next."""
        self._is_closing = True
        if self._loop.is_open:
            # The loop tells of it when it is closed; a bolt may cancel what waits for it.
            with contextlib.suppress(TimeoutError, CancelledError):
                self._loop.run(self._cancel_all(), deadline)

    # What follows runs on the event loop's thread.

    async def _cancel_all(self) -> None:
        tasks = [*self._tasks.values(), *self._ticking]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _wake(self) -> None:
        """Get workers for what is ready: idle ones, else new ones."""
        if self._is_closing:
            return
        wanted = len(self._lane.ready)
        while wanted > 0 and self._idle:
            idle = self._idle.pop()
            if not idle.done():  # else its worker was cancelled
                idle.set_result(None)
                wanted -= 1
        while wanted > 0 and self._crew.can_grow:
            worker = self._crew.hire()
            work = self._work(worker, is_timed=len(self._tasks) < TIMED)
            task = asyncio.get_running_loop().create_task(work)
            task.add_done_callback(partial(self._replace, worker))
            self._tasks[worker] = task
            wanted -= 1

    def _replace(self, worker: Worker, _task: "asyncio.Task[None]") -> None:
        """Get another worker for one that was cancelled while it had no call."""
        if self._tasks.pop(worker, None) is not None and not self._is_closing:
            self._crew.dismiss(worker)
            self._wake()

    async def _work(self, worker: Worker, *, is_timed: bool) -> None:
        # What each call needs is looked up once: that is a sixth of what a call costs here.
        loop = asyncio.get_running_loop()
        process, clock, step = self._process, self._clock, self._step
        take, end, announce = self._take, self._end, self._answers.announce
        while not self._is_closing:
            call = take()
            if call is None:
                idle = loop.create_future()
                self._idle.append(idle)
                await idle
                continue
            worker.started = clock()
            worker.call = call
            value, error = None, None
            try:
                value = await process(call.value)
            except BaseException as raised:  # noqa: BLE001  # else a worker or the loop would end
                error = raised
            if worker.call is not call:  # it has failed already
                if self._is_needed_again(worker, error):
                    continue
                return
            worker.call = None
            if is_timed:
                self._time(worker)
            else:
                self._untimed += 1
            if error is None:
                finish(step, call, value)
            else:
                call.error = self._why(worker, error)
            if end(call):  # it is handed over with others of this turn
                loop.call_soon(announce)

    def _time(self, worker: Worker) -> None:
        self._took.append(self._clock() - worker.started)

    def _take_in_order(self) -> Call | None:
        with self._lock:
            return self._lane.take()

    def _end_in_order(self, call: Call) -> bool:
        """Let what waited for the call go on; whether `announce` must follow."""
        with self._lock:
            self._lane.end(call)
        return self._answers.add_quietly(call)

    def _cut_short(self, worker: Worker, call: Call) -> None:
        if worker.call is not call:
            return  # it has ended in the meantime
        self._time(worker)
        self._crew.abandon(worker)
        self._tasks[worker].cancel()
        call.error = overdue(self._step, self._timeout_seconds or 0.0)
        if self._end(call):
            self._answers.announce()
        self._wake()

    def _is_needed_again(self, worker: Worker, error: BaseException | None) -> bool:
        """Take back a worker whose call was cut short."""
        task = self._tasks[worker]
        while task.cancelling():
            task.uncancel()
        late = not isinstance(error, asyncio.CancelledError)
        if self._crew.returned(worker, late=late):
            return True
        del self._tasks[worker]
        return False

    def _why(self, worker: Worker, error: BaseException) -> Exception:
        """Why a call failed, also one that ended its task or tried to end the process.

        Raises what ends the task when the bolt is being closed.
        """
        if isinstance(error, Exception):
            return error
        if self._is_closing:
            raise error
        task = self._tasks[worker]
        while task.cancelling():
            task.uncancel()
        if isinstance(error, asyncio.CancelledError):
            return RuntimeError(f"the call of bolt '{self._step}' was cancelled from within")
        return failure_of(self._step, error)

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
            self._tick_failed(TickFailed(self._step, failure_of(self._step, error)))
