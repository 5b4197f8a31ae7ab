"""The event loop of async bolts, and the lifecycle of bolts and hooks."""

import asyncio
import contextlib
import inspect
import os
import threading
import time
from collections.abc import Callable, Coroutine, Iterable
from contextlib import ExitStack
from typing import Any

import structlog

from topology.bolt import Component, Hooks, Kind
from topology.errors import InvalidTopology
from topology.steps import BoltStep

_new_loop: Callable[[], asyncio.AbstractEventLoop]
try:
    from uvloop import new_event_loop as _new_loop
except ImportError:  # there is none for Windows
    _new_loop = asyncio.new_event_loop

log = structlog.get_logger()

_DESCRIPTORS = 16  # that a loop takes, and some


class EventLoop:
    """An event loop on its own thread. The owner thread calls everything."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    @property
    def is_open(self) -> bool:
        return self._loop is not None

    def open(self) -> None:
        """Start the thread. Raises OSError when file descriptors are exhausted."""
        _check_descriptors()
        self._loop = _new_loop()
        self._thread = threading.Thread(
            target=_run, args=(self._loop,), name="headrace-async", daemon=True
        )
        self._thread.start()

    def call(self, function: Callable[..., object], *args: Any) -> None:
        """Schedule a call on the loop's thread; ignored once the loop is closed."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(function, *args)

    def run(self, work: Coroutine[Any, Any, object], deadline: float | None = None) -> None:
        """Await `work` on the loop's thread, and wait for it; cancel it at the deadline.

        Raises what it raises, and TimeoutError.
        """
        if self._loop is None:
            work.close()
            raise RuntimeError("the event loop is not open")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            future.result(None if deadline is None else max(deadline - time.monotonic(), 0.0))
        except BaseException:  # also a Ctrl-C
            future.cancel()
            raise

    def close(self, deadline: float) -> None:
        """Cancel all tasks and end the thread, by this monotonic time."""
        loop, thread = self._loop, self._thread
        if loop is None or thread is None:
            return
        self._loop = self._thread = None
        loop.call_soon_threadsafe(loop.stop)
        seconds = max(deadline - time.monotonic(), 0.0)
        thread.join(seconds)
        if thread.is_alive():
            log.warning("async_bolt_blocks_its_loop", timeout_seconds=seconds)


def _check_descriptors() -> None:
    """Raise OSError if descriptors are exhausted: libuv would silently end the process."""
    taken: list[int] = []
    try:
        for _ in range(_DESCRIPTORS):
            taken.append(os.open(os.devnull, os.O_RDONLY))  # noqa: PERF401 - some may be taken
    finally:
        for each in taken:
            os.close(each)


def _run(loop: asyncio.AbstractEventLoop) -> None:
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


class Lifecycle:
    """Opens, notifies and closes every task of every bolt. The owner thread calls it.

    Coroutines of async bolts run on the event loop, which the caller opens and closes.
    """

    def __init__(self, bolts: Iterable[BoltStep], hooks: Iterable[Hooks], loop: EventLoop) -> None:
        self._bolts = list(bolts)
        self._hooks = list(hooks)
        self._loop = loop
        self._started: list[Hooks] = []
        self._opened: list[tuple[BoltStep, Component]] = []

    def open(self) -> None:
        """Start the hooks, open the bolts. If one fails, close the open ones, and re-raise."""
        try:
            for hooks in self._hooks:
                self._started.append(hooks)
                hooks.started()
            for step in self._bolts:
                for bolt in step.bolts:
                    self._opened.append((step, bolt))
                    self._call(step, bolt.open, None)
        except BaseException:
            _notify("close", self.close)
            raise

    def close(self, timeout_seconds: float = 5.0) -> None:
        """Close every opened bolt, last first, then stop the hooks.

        All are closed before an error of a bolt is raised. Coroutines share the timeout, and are
        then cancelled.
        """
        deadline = time.monotonic() + timeout_seconds
        with ExitStack() as closing:  # last in, first out
            for hooks in self._started:
                closing.callback(_notify, "stopped", hooks.stopped)
            for step, bolt in self._opened:
                closing.callback(self._call, step, bolt.close, deadline)
            self._started, self._opened = [], []

    def partition_assigned(self, topic: str, partition: int) -> None:
        """Notify hooks, then bolts."""
        for listener in self._listeners():
            _notify("partition_assigned", listener.partition_assigned, topic, partition)

    def partition_revoked(self, topic: str, partition: int) -> None:
        """Notify bolts, then hooks, in reverse order."""
        for listener in reversed(self._listeners()):
            _notify("partition_revoked", listener.partition_revoked, topic, partition)

    def _listeners(self) -> list[Hooks | Component]:
        return [*self._started, *(bolt for _step, bolt in self._opened)]

    def _call(self, step: BoltStep, call: Callable[[], Any], deadline: float | None) -> None:
        """Call a bolt's `open` or `close`, and await a coroutine. Its errors name it."""
        try:
            result = call()
            if not inspect.iscoroutine(result):
                return
            if step.kind is not Kind.ASYNC:  # a bolt in a bolt: the topology could not see it
                result.close()
                message = "it is a coroutine function, but `process` is not"
                raise InvalidTopology(message)  # noqa: TRY301
            self._loop.run(result, deadline)
        except Exception as error:
            error.add_note(f"{call.__name__}() of bolt '{step.name}'")
            raise


def _notify(hook: str, call: Callable[..., None], *news: object) -> None:
    try:
        call(*news)
    except Exception:
        log.exception("hook_failed", hook=hook, of=getattr(call, "__qualname__", str(call)))
