"""One process's way to one table: `sinks.writer`, whose threads have no place here."""

from collections import deque
from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from partition.offsets.requests import OutcomeUnknown
from sinks.writer import BatchCommitted, BatchStaged, FencesRaised
from tests.simulation.network import Message, Network
from tests.simulation.transaction_sink import SimTable
from topology.errors import SinkBusy, SinkFailed, SinkFenced
from topology.sink import Batch, Fence, Staged

if TYPE_CHECKING:
    from tests.simulation.life import Life

Done: TypeAlias = FencesRaised | BatchStaged | BatchCommitted
_Work: TypeAlias = Generator[Callable[[], Any], Any, Done]


class SimWriter:
    """Does what it is asked in order, and tries again what it does not know."""

    def __init__(
        self, table: SimTable, network: Network, life: "Life", on_done: Callable[[Done], None]
    ) -> None:
        self.table = table
        self._life = life
        self._committing = _Hand(network, life, on_done)
        self._staging = _Hand(network, life, on_done)

    def fence(self, fences: Sequence[Fence]) -> None:
        """See `SinkWriter.fence`."""
        self._committing.ask(self._fence(tuple(fences)))

    def stage(self, group: Batch) -> None:
        """See `SinkWriter.stage`."""
        self._staging.ask(self._stage(group))

    def commit(self, staged: Staged) -> None:
        """See `SinkWriter.commit`."""
        self._committing.ask(self._commit(staged))

    def discard(self, staged: Staged) -> None:
        """Nothing was made for it."""

    def _fence(self, fences: tuple[Fence, ...]) -> _Work:
        while True:
            try:
                found = yield lambda: self.table.fence(fences)
            except (OutcomeUnknown, SinkBusy):
                continue
            except (SinkFenced, SinkFailed) as error:
                return FencesRaised(fences, [], error)
            return FencesRaised(fences, found, None)

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

    def __init__(self, network: Network, sender: "Life", on_done: Callable[[Done], None]) -> None:
        self._network = network
        self._sender = sender
        self._on_done = on_done
        self._queue: deque[_Work] = deque()
        self._is_busy = False

    def ask(self, work: _Work) -> None:
        self._queue.append(work)
        if not self._is_busy:
            self._next()

    def _next(self) -> None:
        if self._queue:
            self._is_busy = True
            self._go_on(None)

    def _go_on(self, reply: Any) -> None:
        work = self._queue[0]
        try:
            call = work.throw(reply) if isinstance(reply, Exception) else work.send(reply)
        except StopIteration as stop:
            self._queue.popleft()
            self._is_busy = False
            self._on_done(stop.value)
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
