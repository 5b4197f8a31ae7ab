"""Blocking bolts: called in threads, each of which waits for one call at a time."""

import queue
import threading
import time
from typing import Any

import structlog

from topology.calls import failure_of
from topology.running.call import Call, TickFailed
from topology.running.calling import finish, overdue, process_of
from topology.running.crew import Crew, Worker
from topology.running.runner import Duty, Runner, RunnerStatistics
from topology.signals import SKIP

log = structlog.get_logger()


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
