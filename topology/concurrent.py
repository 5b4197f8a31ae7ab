"""Async bolts: many calls at once, on one event loop's thread."""

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import structlog

from acker.acker import Edges, Trees
from topology.bolt import target_of
from topology.topology import BoltStep

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Answer:
    """What one call returned or raised; `tree` and `edge` are those of its input."""

    tree: int
    edge: int
    value: Any
    error: Exception | None


@dataclass(frozen=True, slots=True)
class Answers:
    """Calls of one async bolt that have ended since its last Answers."""

    step: BoltStep
    answers: list[Answer]


@dataclass(slots=True)
class _Lane:
    """One async bolt: the values that wait for it, and its workers."""

    step: BoltStep
    waiting: deque[tuple[Any, int, int]] = field(default_factory=deque)
    ended: list[Answer] = field(default_factory=list)
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    workers: list[asyncio.Task[None]] = field(default_factory=list)


class AsyncRunner:
    """Runs async bolts, at most `workers` calls of each at once.

    `submit` is called by the owner thread and returns at once; `on_answers` is called
    on the event loop's thread and must only hand over (a queue's put). A call that
    outlives its step's `timeout_seconds`, or without one the runner's own, is cancelled
    and fails with TimeoutError. Without either, a call that never ends keeps its worker.
    """

    def __init__(
        self,
        steps: list[BoltStep],
        on_answers: Callable[[Answers], None],
        timeout_seconds: float | None = None,
    ) -> None:
        self._steps = steps
        self._on_answers = on_answers
        self._timeout_seconds = timeout_seconds
        self._lanes: dict[str, _Lane] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def open(self) -> None:
        """Start the event loop's thread, if there is any async bolt."""
        if not self._steps:
            return
        loop = self._loop = asyncio.new_event_loop()
        self._lanes = {step.name: _Lane(step) for step in self._steps}
        self._thread = threading.Thread(target=self._run, name="headrace-async", daemon=True)
        self._thread.start()
        for lane in self._lanes.values():
            loop.call_soon_threadsafe(self._start_workers, lane)

    def submit(self, step: BoltStep, values: list[Any], trees: Trees, edges: Edges) -> None:
        """Have the step's bolt called for each value; the answers come as they end."""
        lane = self._lanes[step.name]
        lane.waiting.extend(zip(values, trees.tolist(), edges.tolist(), strict=True))
        if self._loop is not None:
            self._loop.call_soon_threadsafe(lane.wake.set)

    def backlog(self, step: BoltStep) -> int:
        """Values that wait for a free worker of the step."""
        return len(self._lanes[step.name].waiting)

    def waiting(self) -> Iterator[tuple[BoltStep, list[int]]]:
        """The trees of the values that wait for each step: slow, but not lost."""
        for lane in self._lanes.values():
            yield lane.step, [tree for _value, tree, _edge in list(lane.waiting)]

    def close(self, timeout_seconds: float = 5.0) -> None:
        """Cancel what still runs and end the thread."""
        loop, thread = self._loop, self._thread
        if loop is None or thread is None:
            return
        self._loop = self._thread = None
        loop.call_soon_threadsafe(loop.stop)
        thread.join(timeout_seconds)
        if thread.is_alive():
            log.warning("async_bolt_blocks_its_loop", timeout_seconds=timeout_seconds)

    def _run(self) -> None:
        loop = self._loop
        if loop is None:
            return
        asyncio.set_event_loop(loop)
        try:
            loop.run_forever()
        finally:
            tasks = asyncio.all_tasks(loop)
            for task in tasks:
                task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.close()

    def _start_workers(self, lane: _Lane) -> None:
        loop = asyncio.get_running_loop()
        lane.workers = [loop.create_task(self._work(lane)) for _ in range(lane.step.workers)]

    async def _work(self, lane: _Lane) -> None:
        process = target_of(lane.step.bolt)
        timeout = lane.step.timeout_seconds
        if timeout is None:
            timeout = self._timeout_seconds
        while True:
            while not lane.waiting:
                lane.wake.clear()
                await lane.wake.wait()
            value, tree, edge = lane.waiting.popleft()
            try:
                if timeout is None:
                    answer = Answer(tree, edge, await process(value), None)
                else:
                    async with asyncio.timeout(timeout):
                        answer = Answer(tree, edge, await process(value), None)
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if task is None or task.cancelling():
                    raise  # the runner closes
                cause = RuntimeError("the call was cancelled from within")
                answer = Answer(tree, edge, None, cause)
            except Exception as error:  # noqa: BLE001  # the user's code may raise anything
                answer = Answer(tree, edge, None, error)
            lane.ended.append(answer)
            if len(lane.ended) == 1:  # the others that end in this turn of the loop go along
                asyncio.get_running_loop().call_soon(self._hand_over, lane)

    def _hand_over(self, lane: _Lane) -> None:
        answers, lane.ended = lane.ended, []
        self._on_answers(Answers(lane.step, answers))
