"""The runners of a topology: what the pipeline knows of them."""

import time
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from itertools import repeat
from typing import Any, cast

import numpy as np

from topology.bolt import Bolt, Kind
from topology.errors import BoltError
from topology.histogram import CallTimes, Distribution
from topology.steps import BoltStep, Key, Order
from topology.workers.call import Answers, Call, Inputs, TickFailed
from topology.workers.key_queue import Lane, OrderedLane
from topology.workers.lifecycle import EventLoop
from topology.workers.runners import (
    AsyncRunner,
    Duty,
    InlineRunner,
    Runner,
    RunnerStatistics,
    ThreadRunner,
)

_COUNTED_TOGETHER = 1_000  # times of calls: to count one takes longer than a call


class Runners:
    """Runs the bolts of some steps, each task of a step by a runner of its own.

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
        put: Callable[[Answers | TickFailed], None],
        timeout_seconds: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._put = put
        self._loop = EventLoop()
        self._timeout_seconds = timeout_seconds
        self._clock = clock
        self._steps = {step.name: step for step in steps}
        self._answers = {step.name: Answers(step, put) for step in steps}
        self._runners: dict[str, list[Runner]] = {
            step.name: [self._runner(step, cast("Bolt[Any, Any]", bolt)) for bolt in step.bolts]
            for step in steps
        }
        self._times = CallTimes()
        self._all = [runner for runners in self._runners.values() for runner in runners]

    def open(self) -> None:
        """Start the event loop, if there is any async bolt. Threads start as they are needed."""
        if any(step.kind is Kind.ASYNC for step in self._steps.values()):
            self._loop.open()

    @property
    def loop(self) -> EventLoop:
        """The event loop of the async bolts."""
        return self._loop

    def stop(self, timeout_seconds: float = 5.0) -> None:
        """Cancel the calls and end the threads; what then still runs is left alone, and logged.

        The event loop goes on: bolts are closed there next.
        """
        deadline = time.monotonic() + timeout_seconds
        for runner in self._all:
            runner.close(deadline)

    def close(self, timeout_seconds: float = 5.0) -> None:
        """End the event loop, after `stop`."""
        self._loop.close(time.monotonic() + timeout_seconds)

    def submit(self, step: BoltStep, inputs: Inputs) -> None:
        """Have the step's bolt called for each value; the answers come as they end.

        A value whose owner is negative is dropped: its tree has resolved.
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

    def backlog(self, step: BoltStep) -> int:
        """Values that could start were there a free worker.

        Those behind their own key do not count: other keys and partitions go on.
        """
        return sum(runner.backlog() for runner in self._runners[step.name])

    def num_waiting(self, step: BoltStep) -> int:
        """Values whose call has not started, also those behind their own key."""
        return sum(runner.num_waiting for runner in self._runners[step.name])

    def waiting(self) -> Iterator[tuple[BoltStep, list[int]]]:
        """The trees of the values that wait for each step: slow, but not lost."""
        for name, runners in self._runners.items():
            yield self._steps[name], [tree for runner in runners for tree in runner.waiting()]

    def blocked(self) -> list[int]:
        """The trees of the values that cannot go on before a record comes again."""
        return [tree for runner in self._all for tree in runner.blocked()]

    @property
    def num_blocked(self) -> int:
        """How many values those trees have here. Cheap, where `blocked` lists them all."""
        return sum(runner.num_blocked for runner in self._all)

    @property
    def held(self) -> bool:
        """Whether any key waits for a record to come again. Cheap when none does."""
        return any(runner.holders() for runner in self._all)

    def holders(self) -> set[int]:
        """The records that keys wait for."""
        return {record_id for runner in self._all for record_id in runner.holders()}

    def release(self, record_ids: Iterable[int]) -> None:
        """Free the keys that these records hold, because they will not come again."""
        holding = [runner for runner in self._all if runner.holders()]
        if holding:
            gone = list(record_ids)
            for runner in holding:
                runner.release(gone)

    def suspend(self, partition: int) -> None:
        """Start no call of a partition until `resume`: it may be another process's."""
        for runner in self._all:
            runner.suspend(partition)

    def resume(self, partition: int) -> None:
        """Let the calls of a partition start again."""
        for runner in self._all:
            runner.resume(partition)

    def drop(self, is_gone: Callable[[Call], bool]) -> None:
        """Drop the calls that are gone and have not started, and free the keys such ones hold."""
        for runner in self._all:
            runner.drop(is_gone)

    def holds(self, partition: int) -> bool:
        """Whether a key is held, or may come to be, by a record of a partition."""
        return any(runner.holds(partition) for runner in self._all)

    def poll(self, now: float) -> None:
        """Fail the calls that take too long. To be called each turn of the loop."""
        for runner in self._all:
            runner.poll(now)
        self._count_times(_COUNTED_TOGETHER)

    def tick(self, step: BoltStep) -> None:
        """Have every task's `tick` called where its `process` is; what it raises is counted."""
        for runner in self._runners[step.name]:
            runner.tick()

    def statistics(self, step: BoltStep) -> RunnerStatistics:
        """Figures of this moment, of all tasks together."""
        return sum((runner.statistics() for runner in self._runners[step.name]), RunnerStatistics())

    def figures(self) -> dict[str, RunnerStatistics]:
        """The figures of every step, by its name."""
        return {name: self.statistics(step) for name, step in self._steps.items()}

    def call_times(self) -> dict[str, Distribution]:
        """How long the calls took that have ended, by step."""
        self._count_times(1)
        return self._times.figures()

    def _count_times(self, at_least: int) -> None:
        for step, runners in self._runners.items():
            for runner in runners:
                if runner.num_timed >= at_least:
                    self._times.add_each(step, *runner.take_seconds())

    def _runner(self, step: BoltStep, bolt: Bolt[Any, Any]) -> Runner:
        timeout = step.timeout_seconds
        # An instance with state of its own is called by one thread at a time.
        is_shared = step.kind is not Kind.BLOCKING or len(step.bolts) == 1
        duty = Duty(
            bolt,
            Lane() if step.order is Order.NONE else OrderedLane(),
            self._answers[step.name],
            self._put,
            step.workers if is_shared else 1,
            self._timeout_seconds if timeout is None else timeout,
            self._clock,
        )
        if step.kind is Kind.ASYNC:
            return AsyncRunner(duty, self._loop)
        if step.kind is Kind.BLOCKING:
            return ThreadRunner(duty)
        if step.kind in (Kind.FUNCTION, Kind.FAN_OUT):
            return InlineRunner(duty)
        raise ValueError(f"step '{step.name}' is {step.kind.value}; no runner calls such a bolt")

    def _calls(self, step: BoltStep, every: Inputs) -> tuple[list[Call], list[int] | None]:
        """A call for each value, and its task; those whose key cannot be told have failed."""
        inputs = _live(every)
        partitions = inputs.partitions.tolist()
        errors: dict[int, Exception] = {}
        keys: Iterable[Hashable] = repeat(None)
        if step.order is Order.PARTITION:
            keys = partitions
        elif step.order is Order.KEY:
            keys, errors = _keys(step, inputs.values)
        columns = (
            inputs.trees.tolist(),
            inputs.edges.tolist(),
            inputs.record_ids.tolist(),
            partitions,
        )
        calls = list(map(Call, inputs.values, *columns, keys))
        if not errors:
            return calls, inputs.tasks
        for place, error in errors.items():
            calls[place].error = error
            self._answers[step.name].add(calls[place])
        places = [place for place in range(len(calls)) if place not in errors]
        tasks = inputs.tasks
        return [calls[p] for p in places], None if tasks is None else [tasks[p] for p in places]


def _live(inputs: Inputs) -> Inputs:
    """Those of the values whose trees have not resolved."""
    live = inputs.record_ids >= 0
    if live.all():
        return inputs
    places = np.flatnonzero(live).tolist()
    return Inputs(
        [inputs.values[place] for place in places],
        inputs.trees[live],
        inputs.edges[live],
        inputs.record_ids[live],
        inputs.partitions[live],
        None if inputs.tasks is None else [inputs.tasks[place] for place in places],
    )


def _keys(step: BoltStep, values: list[Any]) -> tuple[list[Hashable], dict[int, Exception]]:
    """Each value's key, and by its place why one could not be told."""
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
    for place, value in enumerate(values):
        try:
            found = key(value)
            hash(found)
            keys[place] = found
        except Exception as error:  # noqa: BLE001  # the user's code may raise anything
            reason = str(error) if isinstance(error, BoltError) else repr(error)
            failed = BoltError(f"bolt '{step}': the key of its value could not be told: {reason}")
            failed.__cause__ = error
            errors[place] = failed
    return keys, errors
