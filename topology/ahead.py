"""Concurrent bolts run over the chunks that come next, while the owner works on the last one."""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

from topology.executor import Outcome
from topology.record import Message
from topology.steps import Source

THREADS = 2
_LEAST_RECORDS = 500  # fewer are done sooner than handed over


class _Begun(NamedTuple):
    """A chunk that a thread has been given."""

    messages: Sequence[Message]  # the same list as long as it is kept here
    outcome: "Future[Outcome]"


class Ahead:
    """Runs the concurrent bolts that read topics, on threads of its own.

    What they give depends on nothing but the records, so it may be made before the chunk is
    emitted, and forgotten if it never is. The owner thread calls everything; `run` is called by
    the threads, several at once.
    """

    def __init__(
        self,
        sources: Iterable[Source],
        run: Callable[[Source, Sequence[Message]], Outcome],
    ) -> None:
        self._run = run
        self._sources = frozenset(
            source for source in sources if any(step.is_concurrent for step in source.children)
        )
        self._threads: ThreadPoolExecutor | None = None
        self._begun: dict[int, _Begun] = {}

    @property
    def is_needed(self) -> bool:
        """Whether a concurrent bolt reads a topic."""
        return bool(self._sources)

    def open(self) -> None:
        """Get ready; the threads start when there is something for them."""
        if self.is_needed:
            self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="ahead")

    def look(self, upcoming: Iterable[tuple[Source, Sequence[Message]]]) -> None:
        """Begin what comes next, and forget what was begun and does not come any more."""
        if self._threads is None:
            return
        kept: dict[int, _Begun] = {}
        for source, messages in upcoming:
            key = id(messages)
            if key in self._begun:
                kept[key] = self._begun[key]
            elif source in self._sources and len(messages) >= _LEAST_RECORDS:
                kept[key] = _Begun(messages, self._threads.submit(self._run, source, messages))
        for key in self._begun.keys() - kept.keys():
            self._begun[key].outcome.cancel()
        self._begun = kept

    def take(self, messages: Sequence[Message]) -> Outcome | None:
        """What came of a chunk, once it is there; None if it was not begun.

        Raises what a bolt raised that is no failure of a record.
        """
        begun = self._begun.pop(id(messages), None)
        return None if begun is None else begun.outcome.result()

    def close(self) -> None:
        """Wait for the calls under way, and end the threads."""
        threads, self._threads = self._threads, None
        self._begun.clear()
        if threads is not None:
            threads.shutdown(cancel_futures=True)
