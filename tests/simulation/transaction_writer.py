"""One process's way to one table: `sinks.writer`, whose threads have no place here."""

from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, TypeAlias

from partition.offsets.requests import OutcomeUnknown
from sinks.writer import BatchCommitted, BatchStaged
from tests.simulation.network import Message, Network
from tests.simulation.transaction_sink import SimTable
from topology.errors import SinkBusy, SinkFailed, SinkFenced
from topology.sink import Batch, Committed, Fence, Staged

if TYPE_CHECKING:
    from tests.simulation.life import Life

Done: TypeAlias = BatchStaged | BatchCommitted
_Work: TypeAlias = Generator[Callable[[], Any], Any, Any]


class SimWriter:
    """Does what it is asked in order, and tries again what it does not know."""

    def __init__(
        self, table: SimTable, network: Network, life: "Life", on_done: Callable[[Done], None]
    ) -> None:
        self.table = table
        self._life = life
        self._on_done = on_done
        self._committing = _Hand(network, life)
        self._staging = _Hand(network, life)

    def fence(self, fences: Sequence[Fence]) -> Future[list[Committed]]:
        """See `SinkWriter.fence`."""
        answer: Future[list[Committed]] = Future()

        def end(found: list[Committed] | Exception) -> None:
            if isinstance(found, Exception):
                answer.set_exception(found)
            else:
                answer.set_result(found)

        self._committing.ask(self._fence(tuple(fences)), end)
        return answer

    def stage(self, group: Batch) -> None:
        """See `SinkWriter.stage`."""
        self._staging.ask(self._stage(group), self._on_done)

    def commit(self, staged: Staged) -> None:
        """See `SinkWriter.commit`."""
        self._committing.ask(self._commit(staged), self._on_done)

    def discard(self, staged: Staged) -> None:
        """Nothing was made for it."""

    def _fence(self, fences: tuple[Fence, ...]) -> _Work:
        while True:
            try:
                found = yield lambda: self.table.fence(fences)
            except (OutcomeUnknown, SinkBusy):
                continue
            except (SinkFenced, SinkFailed) as error:
                return error
            return found

    def _stage(self, group: Batch) -> _Work:
        while True:
            try:
                staged = yield lambda: self.table.stage(group)
            except (OutcomeUnknown, SinkBusy):
                continue
            except SinkFailed as error:
                return BatchStaged(group, None, error)
            return BatchStaged(group, staged, None)

    def _commit(self, staged: Staged) -> _Work:
        is_unknown = False
        while True:
            try:
                if is_unknown:
                    is_there = self.table.has_all(staged.shares)
                    how = "found_in_the_sink" if is_there else "sent_again"
                    self._life.world.seen(f"lost_commit_{how}")
                yield lambda: self.table.commit(self._life, staged)
            except SinkBusy:
                continue
            except OutcomeUnknown:
                is_unknown = True
            except (SinkFenced, SinkFailed) as error:
                return BatchCommitted(staged, error, 0.0)
            else:
                return BatchCommitted(staged, None, 0.0)


class _Hand:
    """A thread of the writer: one thing after the other, each of its calls over the network."""

    def __init__(self, network: Network, sender: "Life") -> None:
        self._network = network
        self._sender = sender
        self._queue: deque[tuple[_Work, Callable[[Any], None]]] = deque()
        self._is_busy = False

    def ask(self, work: _Work, on_done: Callable[[Any], None]) -> None:
        self._queue.append((work, on_done))
        if not self._is_busy:
            self._next()

    def _next(self) -> None:
        if self._queue:
            self._is_busy = True
            self._go_on(None)

    def _go_on(self, reply: Any) -> None:
        work, on_done = self._queue[0]
        try:
            call = work.throw(reply) if isinstance(reply, Exception) else work.send(reply)
        except StopIteration as stop:
            self._queue.popleft()
            self._is_busy = False
            on_done(stop.value)
            if not self._is_busy:
                self._next()
            return
        self._network.send(
            Message(
                self._sender,
                lambda: _outcome(call),
                self._go_on,
                lambda: self._go_on(OutcomeUnknown()),
            )
        )


def _outcome(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except (SinkBusy, SinkFenced, SinkFailed) as error:
        return error
