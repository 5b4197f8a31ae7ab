"""The worker pool: calls the bolts that the executor stops at."""

import time
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import repeat
from typing import Any, cast

import numpy as np

from topology.bolt import Bolt, Kind
from topology.errors import BoltError
from topology.monitoring import CallTimes, Distribution, Histogram, distributions_of
from topology.steps import BoltStep, Key, Order
from topology.workers.key_queue import Answers, Call, Inputs, Ticked
from topology.workers.lifecycle import EventLoop
from topology.workers.runners import (
    AsyncRunner,
    BoltTask,
    InlineRunner,
    Runner,
    RunnerStatistics,
    ThreadRunner,
)

_COUNTED_TOGETHER = 1_000  # call times: counting one takes longer than a call


class WorkerPool:
    """Calls the bolts of some steps, with a runner for each task of a step.

    `steps` are those the executor stops at, without advanced bolts. The owner thread calls
    all methods. `put` is called on any thread, and must only hand over (a queue's).
    A call that exceeds its step's `timeout_seconds`, or without one `timeout_seconds`, fails
    with TimeoutError, unless it runs on the owner thread.

    A call that fails and is retried holds its key until its record comes again. So the owner
    must `release` every record that is complete, and now and then those of the `holders` that
    are not retried: a call of an earlier attempt may fail after its record has completed, or
    after another process took the partition.
    """

    def __init__(
        self,
        steps: Sequence[BoltStep],
        put: Callable[[Answers | Ticked], object],
        timeout_seconds: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._put = put
        self._timeout_seconds = timeout_seconds
        self._clock = clock
        self.loop = EventLoop()
        """Of the async bolts."""
        self._steps = {step.name: step for step in steps}
        self._answers = {step.name: Answers(step, put) for step in steps}
        self._runners = {
            step.name: [self._runner(step, cast("Bolt[Any, Any]", bolt)) for bolt in step.bolts]
            for step in steps
        }
        self._all = [runner for runners in self._runners.values() for runner in runners]
        self._times = CallTimes(Histogram)

    def _runner(self, step: BoltStep, bolt: Bolt[Any, Any]) -> Runner:
        own = step.timeout_seconds
        timeout_seconds = self._timeout_seconds if own is None else own
        answers = self._answers[step.name]
        task = BoltTask(step, bolt, answers, self._put, timeout_seconds, self._clock)
        if step.kind is Kind.ASYNC:
            return AsyncRunner(task, self.loop)
        return ThreadRunner(task) if step.kind is Kind.BLOCKING else InlineRunner(task)

    def open(self) -> None:
        """Start the event loop if there is an async bolt. Threads start on demand."""
        if any(step.kind is Kind.ASYNC for step in self._steps.values()):
            self.loop.open()

    def stop(self, timeout_seconds: float = 5.0) -> None:
        """Cancel the calls and end the threads; log those that do not end in time.

        The event loop goes on: bolts are closed there next.
        """
        deadline = time.monotonic() + timeout_seconds
        for runner in self._all:
            runner.close(deadline)

    def close(self, timeout_seconds: float = 5.0) -> None:
        """End the event loop, after `stop`."""
        self.loop.close(time.monotonic() + timeout_seconds)

    def submit(self, step: BoltStep, inputs: Inputs) -> None:
        """Have the step's bolt called for each value; the results come in `put`.

        A value whose record id is negative is dropped: its tree has resolved.
        """
        live = inputs.record_ids >= 0
        if not live.all():
            inputs = inputs.take(np.flatnonzero(live).tolist())
        keys: Iterable[Hashable] = repeat(None)
        if step.order is Order.PARTITION:
            keys = inputs.partitions.tolist()
        elif step.order is Order.KEY:
            keys, errors = _keys(step, inputs.values)
            if errors:
                good = [index for index in range(len(inputs.values)) if index not in errors]
                for index, error in errors.items():
                    (failed,) = _calls(inputs.take([index]), repeat(None))
                    failed.error = error
                    self._answers[step.name].add(failed)
                inputs, keys = inputs.take(good), [keys[index] for index in good]
        calls, runners = _calls(inputs, keys), self._runners[step.name]
        if len(runners) == 1:
            runners[0].submit(calls)
            return
        shares: list[list[Call]] = [[] for _ in runners]
        for call, task in zip(calls, inputs.tasks or (), strict=True):
            shares[task].append(call)
        for runner, share in zip(runners, shares, strict=True):
            if share:
                runner.submit(share)

    def backlog(self, step: BoltStep) -> int:
        """Count the values that could start if a worker were free; those behind a key could not."""
        return sum(len(runner.queue.ready) for runner in self._runners[step.name])

    def num_waiting(self, step: BoltStep) -> int:
        """Count the values whose call has not started."""
        return sum(runner.queue.num_waiting for runner in self._runners[step.name])

    def waiting(self) -> Iterator[tuple[BoltStep, list[int]]]:
        """Iterate over the steps and the trees of the values that wait for each."""
        for name, runners in self._runners.items():
            trees: list[int] = []
            for runner in runners:
                with runner.lock:
                    trees += runner.queue.waiting()
            yield self._steps[name], trees

    def blocked(self) -> list[int]:
        """Return the trees of the values that cannot start before a record is retried."""
        trees: list[int] = []
        for runner in self._all:
            with runner.lock:
                trees += [call.tree for calls in runner.queue.blocked() for call in calls]
        return trees

    @property
    def num_blocked(self) -> int:
        """Number of those values; cheaper than `blocked`."""
        count = 0
        for runner in self._all:
            with runner.lock:
                count += sum(map(len, runner.queue.blocked()))
        return count

    @property
    def held(self) -> bool:
        """Whether any key waits for the retry of a record."""
        return any(runner.queue.held for runner in self._all)

    def holders(self) -> set[int]:
        """Return the ids of the records that keys wait for."""
        return {record_id for runner in self._all for record_id in list(runner.queue.held)}

    def release(self, record_ids: Iterable[int]) -> None:
        """Free the keys that these records hold: they are not retried."""
        holding = [runner for runner in self._all if runner.queue.held]
        gone = list(record_ids) if holding else []
        for runner in holding:
            runner.change(lambda queue: queue.release(gone))

    def suspend(self, partition: int) -> None:
        """Start no call of a partition until `resume`: another process may own it."""
        for runner in self._all:
            runner.change(lambda queue: queue.suspend(partition))

    def resume(self, partition: int) -> None:
        for runner in self._all:
            runner.change(lambda queue: queue.resume(partition))

    def drop(self, is_gone: Callable[[Call], bool]) -> None:
        """Drop calls that have not started, and free the keys that such calls hold."""
        for runner in self._all:
            runner.change(lambda queue: queue.drop(is_gone))

    def poll(self, now: float) -> None:
        """Fail the calls that take too long. Called each turn of the loop."""
        for runner in self._all:
            runner.poll(now)
        self._count_times(_COUNTED_TOGETHER)

    def tick(self, step: BoltStep) -> None:
        """Have every task's `tick` called where its `process` is."""
        for runner in self._runners[step.name]:
            runner.tick()

    @property
    def is_ticking(self) -> bool:
        return any(runner.is_ticking for runner in self._all)

    def statistics(self) -> dict[str, RunnerStatistics]:
        """Return the figures of every step, all tasks together, by step name."""
        return {
            name: sum((runner.statistics() for runner in runners), RunnerStatistics())
            for name, runners in self._runners.items()
        }

    def call_times(self) -> dict[str, Distribution]:
        """Return the seconds of ended calls, by step."""
        self._count_times(1)
        return distributions_of(self._times)

    def _count_times(self, at_least: int) -> None:
        for runner in self._all:
            runner.count_times(self._times, at_least)


def _calls(inputs: Inputs, keys: Iterable[Hashable]) -> list[Call]:
    columns = (inputs.trees, inputs.edges, inputs.record_ids, inputs.partitions)
    return list(map(Call, inputs.values, *(column.tolist() for column in columns), keys))


def _keys(step: BoltStep, values: list[Any]) -> tuple[list[Hashable], dict[int, Exception]]:
    """Return each value's key, and errors by index."""
    key = cast("Key", step.key)
    keys: list[Hashable] = []
    errors: dict[int, Exception] = {}
    with suppress(Exception):  # the user's code may raise anything
        keys = list(map(key, values))
        deque(map(hash, keys), 0)
        return keys, errors
    keys = [None] * len(values)
    for index, value in enumerate(values):
        try:
            hash(found := key(value))
            keys[index] = found
        except Exception as error:  # noqa: BLE001  # the user's code may raise anything
            reason = str(error) if isinstance(error, BoltError) else repr(error)
            failed = BoltError(f"bolt '{step.name}': the key of its value is unknown: {reason}")
            failed.__cause__ = error
            errors[index] = failed
    return keys, errors
