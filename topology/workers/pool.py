"""The worker pool: calls the bolts that the executor stops at."""

import time
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from itertools import repeat
from typing import Any, cast

import numpy as np

from topology.bolt import Bolt, Kind
from topology.errors import BoltError
from topology.histogram import CallTimes, Distribution, Histogram, distributions_of
from topology.steps import BoltStep, Key, Order
from topology.workers.call import Answers, Call, Inputs, TickFailed
from topology.workers.lifecycle import EventLoop
from topology.workers.runners import (
    AsyncRunner,
    BoltTask,
    InlineRunner,
    Runner,
    RunnerStatistics,
    ThreadRunner,
)

_COUNTED_TOGETHER = 1_000  # times of calls: to count one takes longer than a call


class WorkerPool:
    """Calls the bolts of some steps, with a runner for each task of a step.

    `steps` are those the executor stops at, without advanced bolts. The owner thread calls
    everything. `put` is called on any thread, and must only hand over (a queue's).
    A call that outlives its step's `timeout_seconds`, or without one `timeout_seconds`, fails
    with TimeoutError, unless it runs on the owner thread.

    A call that fails and is retried holds its key until its record comes again. So the owner
    must `release` every record that is complete, and now and then those of the `holders` that
    do not come again: a call of an earlier try may fail when its record is complete already, or
    has become another process's.
    """

    def __init__(
        self,
        steps: Sequence[BoltStep],
        put: Callable[[Answers | TickFailed], object],
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
        self._runners: dict[str, list[Runner]] = {
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
        if step.kind is Kind.BLOCKING:
            return ThreadRunner(task)
        if step.kind in (Kind.FUNCTION, Kind.FAN_OUT):
            return InlineRunner(task)
        raise ValueError(f"step '{step.name}' is {step.kind.value}; no runner calls such a bolt")

    def open(self) -> None:
        """Start the event loop, if there is any async bolt. Threads start as they are needed."""
        if any(step.kind is Kind.ASYNC for step in self._steps.values()):
            self.loop.open()

    def stop(self, timeout_seconds: float = 5.0) -> None:
        """Cancel the calls and end the threads; what then still runs is left alone, and logged.

        The event loop goes on: bolts are closed there next.
        """
        deadline = time.monotonic() + timeout_seconds
        for runner in self._all:
            runner.close(deadline)

    def close(self, timeout_seconds: float = 5.0) -> None:
        """End the event loop, after `stop`."""
        self.loop.close(time.monotonic() + timeout_seconds)

    def submit(self, step: BoltStep, inputs: Inputs) -> None:
        """Have the step's bolt called for each value; the answers come as they end.

        A value whose record id is negative is dropped: its tree has resolved.
        """
        runners = self._runners[step.name]
        calls, tasks = self._calls(step, inputs)
        if len(runners) == 1:
            runners[0].submit(calls)
            return
        if tasks is None:
            raise ValueError(f"step '{step.name}' has {len(runners)} tasks; name each value's")
        shares: list[list[Call]] = [[] for _ in runners]
        for call, task in zip(calls, tasks, strict=True):
            shares[task].append(call)
        for runner, share in zip(runners, shares, strict=True):
            if share:
                runner.submit(share)

    def _calls(self, step: BoltStep, inputs: Inputs) -> tuple[list[Call], list[int] | None]:
        """Return a call for each value, and its task; those that have no key have failed."""
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
        return _calls(inputs, keys), inputs.tasks

    def backlog(self, step: BoltStep) -> int:
        """Count the values that could start were there a free worker.

        Those behind their own key do not count: other keys and partitions go on.
        """
        return sum(len(runner.queue.ready) for runner in self._runners[step.name])

    def num_waiting(self, step: BoltStep) -> int:
        """Count the values whose call has not started, also those behind their own key."""
        return sum(runner.queue.num_waiting for runner in self._runners[step.name])

    def waiting(self) -> Iterator[tuple[BoltStep, list[int]]]:
        """Give the trees of the values that wait for each step: slow, but not lost."""
        for name, runners in self._runners.items():
            trees: list[int] = []
            for runner in runners:
                with runner.lock:
                    trees += runner.queue.waiting()
            yield self._steps[name], trees

    def blocked(self) -> list[int]:
        """Return the trees of the values that cannot go on before a record comes again."""
        trees: list[int] = []
        for runner in self._all:
            with runner.lock:
                trees += [call.tree for calls in runner.queue.blocked() for call in calls]
        return trees

    @property
    def num_blocked(self) -> int:
        """Number of values of those trees. Cheap, where `blocked` lists them all."""
        count = 0
        for runner in self._all:
            with runner.lock:
                count += sum(map(len, runner.queue.blocked()))
        return count

    @property
    def held(self) -> bool:
        """Whether any key waits for a record to come again. Cheap when none does."""
        return any(runner.queue.held for runner in self._all)

    def holders(self) -> set[int]:
        """Return the ids of the records that keys wait for."""
        return {record_id for runner in self._all for record_id in list(runner.queue.held)}

    def release(self, record_ids: Iterable[int]) -> None:
        """Free the keys that these records hold, because they will not come again."""
        holding = [runner for runner in self._all if runner.queue.held]
        gone = list(record_ids) if holding else []
        for runner in holding:
            with runner.changing() as queue:
                queue.release(gone)

    def suspend(self, partition: int) -> None:
        """Start no call of a partition until `resume`: it may be another process's."""
        for runner in self._all:
            with runner.changing() as queue:
                queue.suspend(partition)

    def resume(self, partition: int) -> None:
        """Let the calls of a partition start again."""
        for runner in self._all:
            with runner.changing() as queue:
                queue.resume(partition)

    def drop(self, is_gone: Callable[[Call], bool]) -> None:
        """Drop the calls that are gone and have not started, and free the keys such ones hold."""
        for runner in self._all:
            with runner.changing() as queue:
                queue.drop(is_gone)

    def holds(self, partition: int) -> bool:
        """Whether a key is held, or may come to be, by a record of a partition."""
        for runner in self._all:
            with runner.lock:
                if runner.queue.holds(partition):
                    return True
        return False

    def poll(self, now: float) -> None:
        """Fail the calls that take too long. To be called each turn of the loop."""
        for runner in self._all:
            runner.poll(now)
        self._count_times(_COUNTED_TOGETHER)

    def tick(self, step: BoltStep) -> None:
        """Have every task's `tick` called where its `process` is."""
        for runner in self._runners[step.name]:
            runner.tick()

    def statistics(self, step: BoltStep) -> RunnerStatistics:
        """Figures of this moment, of all tasks together."""
        return sum((runner.statistics() for runner in self._runners[step.name]), RunnerStatistics())

    def figures(self) -> dict[str, RunnerStatistics]:
        """Figures of every step, by its name."""
        return {name: self.statistics(step) for name, step in self._steps.items()}

    def call_times(self) -> dict[str, Distribution]:
        """Seconds of the calls that have ended, by step."""
        self._count_times(1)
        return distributions_of(self._times)

    def _count_times(self, at_least: int) -> None:
        for step, runners in self._runners.items():
            for runner in runners:
                if runner.num_timed >= at_least:
                    self._times[step].add_each(*runner.take_seconds())


def _calls(inputs: Inputs, keys: Iterable[Hashable]) -> list[Call]:
    columns = (inputs.trees, inputs.edges, inputs.record_ids, inputs.partitions)
    return list(map(Call, inputs.values, *(column.tolist() for column in columns), keys))


def _keys(step: BoltStep, values: list[Any]) -> tuple[list[Hashable], dict[int, Exception]]:
    """Return each value's key, and by its index why it has none."""
    key = cast("Key", step.key)
    try:
        keys: list[Hashable] = list(map(key, values))
        deque(map(hash, keys), 0)
    except Exception:  # noqa: BLE001  # the user's code may raise anything
        return _keys_one_by_one(step.name, key, values)
    else:
        return keys, {}


def _keys_one_by_one(
    step: str, key: Key, values: list[Any]
) -> tuple[list[Hashable], dict[int, Exception]]:
    keys: list[Hashable] = [None] * len(values)
    errors: dict[int, Exception] = {}
    for index, value in enumerate(values):
        try:
            found = key(value)
            hash(found)
            keys[index] = found
        except Exception as error:  # noqa: BLE001  # the user's code may raise anything
            reason = str(error) if isinstance(error, BoltError) else repr(error)
            failed = BoltError(f"bolt '{step}': the key of its value could not be told: {reason}")
            failed.__cause__ = error
            errors[index] = failed
    return keys, errors
