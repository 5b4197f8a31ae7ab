"""Concurrent bolts run over the chunks that come next, while the owner works on the last one."""

import queue
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, wait
from typing import NamedTuple, TypeAlias

from topology.calls import Outcome
from topology.record import Message
from topology.steps import Source

THREADS = 2
_LEAST_RECORDS = 500  # fewer are done sooner than handed over


class _Begun(NamedTuple):
    """A chunk that the threads have been given."""

    source: Source
    messages: Sequence[Message]  # the same list as long as it is kept here
    outcome: "Future[Outcome]"


_Tasks: TypeAlias = "queue.SimpleQueue[_Begun | None]"


class Prefetcher:
    """Runs the concurrent bolts that read topics, on threads of its own.

    What they give may be made before the chunk is emitted, and forgotten if it never is. The
    owner thread calls everything; `run` is called by the threads, several at once.
    """

    def __init__(
        self, sources: Iterable[Source], run: Callable[[Source, Sequence[Message]], Outcome]
    ) -> None:
        """`sources` are those that a concurrent bolt reads."""
        self._run = run
        self._sources = frozenset(sources)
        self._tasks: _Tasks = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._begun: dict[int, _Begun] = {}
        self._forgotten: list[Future[Outcome]] = []  # those under way that nobody will take

    def open(self) -> None:
        """Start the threads."""
        for number in range(THREADS):
            thread = threading.Thread(target=self._work, name=f"prefetch-{number}", daemon=True)
            thread.start()
            self._threads.append(thread)

    def prefetch(self, upcoming: Sequence[tuple[Source, Sequence[Message]]]) -> None:
        """Begin what comes next, and forget what was begun and does not come any more.

        A chunk that comes alone is left to the owner, who would only wait for it.
        """
        kept: dict[int, _Begun] = {}
        for source, messages in upcoming:
            key = id(messages)
            is_long = source in self._sources and len(messages) >= _LEAST_RECORDS
            if key in self._begun:
                kept[key] = self._begun.pop(key)
            elif is_long and len(upcoming) > 1:
                kept[key] = _Begun(source, messages, Future())
                self._tasks.put(kept[key])
        self._forget()
        self._begun = kept

    def take(self, messages: Sequence[Message]) -> Outcome | None:
        """Return what came of a chunk, once it is there; None if it was not begun.

        Raises what a bolt raised that is no failure of a record.
        """
        begun = self._begun.pop(id(messages), None)
        return None if begun is None else begun.outcome.result()

    def _forget(self) -> None:
        """Begin nothing that was not begun yet, and take nothing of what was."""
        self._forgotten = [outcome for outcome in self._forgotten if not outcome.done()]
        self._forgotten += [e.outcome for e in self._begun.values() if not e.outcome.cancel()]
        self._begun = {}

    def wait_idle(self) -> None:
        """Forget all, and wait until no bolt is at work."""
        self._forget()
        wait(self._forgotten)

    def close(self, timeout_seconds: float) -> bool:
        """End the threads; False if one did not end in time. It is a daemon."""
        self._forget()
        for _ in self._threads:
            self._tasks.put(None)
        deadline = time.monotonic() + timeout_seconds
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def _work(self) -> None:
        while (begun := self._tasks.get()) is not None:
            if begun.outcome.set_running_or_notify_cancel():
                try:
                    begun.outcome.set_result(self._run(begun.source, begun.messages))
                except BaseException as error:  # noqa: BLE001 - it is the owner's
                    begun.outcome.set_exception(error)
            del begun
