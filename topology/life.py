"""The life of a topology's bolts and hooks: opened, told of partitions, closed."""

import inspect
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import Any

import structlog

from topology.bolt import Component, Kind
from topology.errors import InvalidTopology
from topology.hooks import Hooks
from topology.running.loop import EventLoop
from topology.steps import BoltStep

log = structlog.get_logger()


class Life:
    """Opens and closes every task of every bolt, and brings the news. The owner thread calls it.

    What an async bolt has to be awaited for runs on the event loop, which is open from before
    `open` until after `close`.
    """

    def __init__(self, bolts: Iterable[BoltStep], hooks: Iterable[Hooks], loop: EventLoop) -> None:
        self._bolts = list(bolts)
        self._hooks = list(hooks)
        self._loop = loop
        self._started: list[Hooks] = []
        self._opened: list[tuple[BoltStep, Component]] = []

    def open(self) -> None:
        """Start the hooks, open the bolts. If one fails, close what is open, and pass it on."""
        try:
            for hooks in self._hooks:
                self._started.append(hooks)
                hooks.started()
            for step in self._bolts:
                for bolt in step.bolts:
                    self._opened.append((step, bolt))
                    self._call(step, bolt.open, None)
        except BaseException:
            _tell("close", self.close)
            raise

    def close(self, timeout_seconds: float = 5.0) -> None:
        """Close every opened bolt, last first, then stop the hooks.

        One that raises keeps no other open; what a bolt raised is raised when all are closed.
        Those that are awaited have the time-out together; then they are cancelled.
        """
        deadline = time.monotonic() + timeout_seconds
        with ExitStack() as closing:  # last in, first out
            for hooks in self._started:
                closing.callback(_tell, "stopped", hooks.stopped)
            for step, bolt in self._opened:
                closing.callback(self._call, step, bolt.close, deadline)
            self._started, self._opened = [], []

    def partition_assigned(self, topic: str, partition: int) -> None:
        """Tell all that a partition is read from now on."""
        for listener in self._listeners():
            _tell("partition_assigned", listener.partition_assigned, topic, partition)

    def partition_revoked(self, topic: str, partition: int) -> None:
        """Tell all that a partition is no longer ours."""
        for listener in reversed(self._listeners()):
            _tell("partition_revoked", listener.partition_revoked, topic, partition)

    def _listeners(self) -> list[Hooks | Component]:
        return [*self._started, *(bolt for _step, bolt in self._opened)]

    def _call(self, step: BoltStep, call: Callable[[], Any], deadline: float | None) -> None:
        """Call a bolt's `open` or `close`, and await it if it is to be. Its errors name it."""
        try:
            result = call()
            if not inspect.iscoroutine(result):
                return
            if step.kind is not Kind.ASYNC:  # a bolt in a bolt: the topology could not see it
                result.close()
                raise InvalidTopology("only bolts whose process is async are awaited")  # noqa: TRY301
            self._loop.run(result, deadline)
        except Exception as error:
            error.add_note(f"{call.__name__}() of bolt '{step.name}'")
            raise


def _tell(hook: str, call: Callable[..., None], *news: object) -> None:
    try:
        call(*news)
    except Exception:
        log.exception("hook_failed", hook=hook, of=getattr(call, "__qualname__", str(call)))
