"""Async bolts: many calls at once, on one event loop's thread."""

import asyncio
import contextlib
import inspect
from concurrent.futures import CancelledError
from functools import partial

from topology.calls import failure_of
from topology.order import Order
from topology.running.call import Call, TickFailed
from topology.running.calling import async_process_of, finish, overdue
from topology.running.crew import Crew, Worker
from topology.running.loop import EventLoop
from topology.running.runner import Duty, Runner, RunnerStatistics

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
