"""One process's way to one table: `sinks.transaction_writer`, whose threads have no place here."""

from collections import deque
from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from partition.offsets.requests import OutcomeUnknown
from sinks.transaction_writer import FencesRaised, GroupCommitted, GroupStaged, TransactionWriter
from tests.simulation.network import Message, Network
from tests.simulation.transaction_sink import SimTable
from topology.errors import SinkBusy, SinkFailed, SinkFenced
from topology.transactional import Committed, Fence, Group, Share, Staged

if TYPE_CHECKING:
    from tests.simulation.life import Life

Done: TypeAlias = FencesRaised | GroupStaged | GroupCommitted
_Work: TypeAlias = Generator[Callable[[], Any], Any, Done]


class SimWriter:
    """Does what it is asked in order, tries again, and reads back what it does not know."""

    def __init__(
        self, table: SimTable, network: Network, life: "Life", on_done: Callable[[Done], None]
    ) -> None:
        self.table = table
        self._life = life
        self._committing = _Hand(network, life, on_done)
        self._staging = _Hand(network, life, on_done)

    def fence(self, fences: Sequence[Fence]) -> None:
        """See `TransactionWriter.fence`."""
        self._committing.ask(self._fence(tuple(fences)))

    def stage(self, group: Group) -> None:
        """See `TransactionWriter.stage`."""
        self._staging.ask(self._stage(group))

    def commit(self, staged: Staged) -> None:
        """See `TransactionWriter.commit`."""
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

    def _stage(self, group: Group) -> _Work:
        while True:
            try:
                staged = yield lambda: self.table.stage(group)
            except (OutcomeUnknown, SinkBusy):
                continue
            except SinkFailed as error:
                return GroupStaged(group, None, error)
            return GroupStaged(group, staged, None)

    def _commit(self, staged: Staged) -> _Work:
        seen = self._life.world.seen
        is_unknown = False
        lines = [share.line for share in staged.shares]
        while True:
            try:
                if is_unknown:
                    found = yield lambda: self.table.committed(lines)
                    if _has(found, staged.shares):
                        seen("lost_commit_found_in_the_sink")
                        break
                    seen("lost_commit_not_found_and_sent_again")
                yield lambda: self.table.commit(self._life, staged)
            except SinkBusy:
                continue
            except OutcomeUnknown:
                is_unknown = True
            except (SinkFenced, SinkFailed) as error:
                return GroupCommitted(staged, error, 0.0)
            else:
                break
        return GroupCommitted(staged, None, 0.0)


def _has(found: list[Committed], shares: Sequence[Share]) -> bool:
    """What the real writer concludes from a sink's answer."""
    answered: Any = _Answered(found)
    return TransactionWriter._has(answered, shares)


class _Answered:
    """Stands for a writer whose sink has answered."""

    _of = TransactionWriter._of
    name = ""

    def __init__(self, found: list[Committed]) -> None:
        self._found = found
        self._sink = self

    def committed(self, _lines: Sequence[str]) -> list[Committed]:
        """The answer."""
        return self._found


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
