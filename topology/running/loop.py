"""The event loop that async bolts run on, and its thread."""

import asyncio
import contextlib
import os
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any

import structlog

_new_loop: Callable[[], asyncio.AbstractEventLoop]
try:
    from uvloop import new_event_loop as _new_loop
except ImportError:  # there is none for Windows
    _new_loop = asyncio.new_event_loop

log = structlog.get_logger()

_DESCRIPTORS = 16  # that a loop takes, and some


class EventLoop:
    """One event loop on a thread of its own. The owner thread calls everything."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    @property
    def is_open(self) -> bool:
        """Whether it takes anything."""
        return self._loop is not None

    def open(self) -> None:
        """Start the thread. Raises OSError when there are no file descriptors for it."""
        _check_descriptors()
        self._loop = _new_loop()
        self._thread = threading.Thread(
            target=_run, args=(self._loop,), name="headrace-async", daemon=True
        )
        self._thread.start()

    def call(self, function: Callable[..., object], *args: Any) -> None:
        """Have something called on the loop's thread; nothing once it is closed."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(function, *args)

    def run(self, work: Coroutine[Any, Any, object], deadline: float | None = None) -> None:
        """Have something awaited on the loop's thread, and wait for it until that time.

        Raises what it raises, and TimeoutError after the deadline; it is then cancelled.
        """
        if self._loop is None:
            work.close()
            raise RuntimeError("the event loop is not open")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            future.result(None if deadline is None else max(deadline - time.monotonic(), 0.0))
        except BaseException:  # also a Ctrl-C while it waits
            future.cancel()
            raise

    def close(self, deadline: float) -> None:
        """Cancel what still runs and end the thread, by that time of the monotonic clock."""
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
    """Raise OSError where libuv, without them, would end the process without a word."""
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
