"""One replica's offset store: the real OffsetStore, each request travelling the network."""

from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any, NamedTuple

from partition.errors import PartitionError, StoreUnavailable
from partition.interfaces import StoredOffset
from partition.offsets.offset_store import OffsetStore
from partition.offsets.ownership import NodeNames
from partition.offsets.requests import OutcomeUnknown, Pause, Read, Request, SessionEnded
from partition.records import Partition, Position
from tests.simulation.network import Message, Network
from tests.simulation.zookeeper import SimZooKeeper


class _Operation(NamedTuple):
    steps: Any
    future: "Future[Any]"
    name: str
    claims: Partition | None  # what it makes ours


class SimStore(OffsetStore):
    """A store that runs one operation after the other, as the real one's worker does."""

    session: Any = 0

    def __init__(
        self,
        server: SimZooKeeper,
        network: Network,
        process: str,
        sender: object,
        refused: Callable[[Mapping[Partition, PartitionError]], None],
        clock: Callable[[], float],
        seen: Callable[[str], None],
        ended: Callable[[], None],
    ) -> None:
        self._server = server
        self._network = network
        super().__init__(NodeNames("/r", "p", "p"), process)
        self._sender = sender
        self._refused = refused
        self._clock = clock
        self._seen = seen
        self._ended = ended  # hears that a session has ended
        self._queue: deque[_Operation] = deque()
        self._running: _Operation | None = None
        self._message: Message | None = None
        self._wakes_at: float | None = None
        self._closed = False
        self.moves: dict[Partition, list[tuple[Position, str]]] = {}  # asked for, with reasons
        self.claimed: dict[Partition, int] = {}  # and in which session
        self.owned: dict[Partition, int] = {}  # and in which session its claim ended well

    @property
    def available(self) -> bool:
        """Whether the network is there."""
        return self._sender not in self._network.down

    @property
    def operation(self) -> str | None:
        """The operation that is under way."""
        return None if self._running is None else self._running.name

    @property
    def move_has_landed(self) -> bool:
        """Whether a move is done of which nobody here has heard."""
        message = self._message
        if self.operation != "move" or message is None or not message.answered:
            return False
        return isinstance(message.reply, list)

    def open(self) -> None:
        """Begin a session."""
        self.session = self._server.open_session()

    def close(self) -> None:
        """Fail what is unfinished; what was sent may still be carried out."""
        self._closed = True
        if self._message is not None:
            self._message.given_up = True
        self._server.end_session(self.session)
        running, self._running = self._running, None
        for operation in [*([running] if running else []), *self._queue]:
            operation.future.set_exception(StoreUnavailable("an operation", "the store is closed"))
        self._queue.clear()

    def load(self, partition: Partition) -> StoredOffset | None:
        """Not for pipelines."""
        raise NotImplementedError

    def claim(self, partition: Partition, **named: bool) -> Any:
        """See `OffsetStore.claim`."""
        return self._named("claim", partition, super().claim, partition, **named)

    def begin(self, partition: Partition, *first: Any) -> Any:
        """See `OffsetStore.begin`."""
        return self._named("begin", partition, super().begin, partition, *first)

    def move(self, partition: Partition, position: Position, reason: str, *rest: Any) -> Any:
        """See `OffsetStore.move`."""
        self.moves.setdefault(partition, []).append((position, reason))
        return self._named("move", None, super().move, partition, position, reason, *rest)

    def commit(self, progress: Any) -> Any:
        """See `OffsetStore.commit`."""
        return self._named("commit", None, super().commit, progress)

    def _named(
        self, name: str, claims: Partition | None, ask: Any, *given: Any, **named: Any
    ) -> Any:
        self._asked = name, claims
        return ask(*given, **named)

    def _submit(self, steps: Any, *, claims: Partition | None = None) -> "Future[Any]":
        del claims
        return self._begin(steps, *self._asked)

    def _begin(self, steps: Any, name: str, claims: Partition | None = None) -> "Future[Any]":
        future: Future[Any] = Future()
        if self._closed:
            future.set_exception(StoreUnavailable(name, "the store is closed"))
            return future
        self._queue.append(_Operation(steps, future, name, claims))
        if self._running is None:
            self._next()
        return future

    def _next(self) -> None:
        if self._queue and self._running is None:
            self._running = self._queue.popleft()
            self._note_claim()
            self._go_on(None)

    def _note_claim(self) -> None:
        if self._running is not None and self._running.claims is not None:
            self.claimed[self._running.claims] = self.session

    def _go_on(self, reply: Any) -> None:
        """Give a reply to the operation under way; send what it asks for next."""
        self._message, self._wakes_at = None, None
        if self._running is None:
            return
        steps, future, name, claims = self._running
        try:
            request = steps.throw(reply) if isinstance(reply, Exception) else steps.send(reply)
        except StopIteration as stop:
            self._running = None
            if name == "commit":
                self._refused(stop.value)
            if claims is not None and (name == "begin" or stop.value.stored is not None):
                self.owned[claims] = self.session
            future.set_result(stop.value)
        except PartitionError as error:
            self._running = None
            self._seen(f"store_{type(error).__name__}")
            future.set_exception(error)
        else:
            self._send(request)
            return
        self._next()

    def _send(self, request: Request) -> None:
        if isinstance(request, Pause):
            self._wakes_at = self._clock() + request.seconds
            return
        session = self.session
        if isinstance(request, Read):
            path = request.path
            message = Message(
                self._sender,
                lambda: self._server.read(session, path),
                self._deliver,
                lambda: self._go_on(OutcomeUnknown()),
            )
        else:
            operations = request.operations
            message = Message(
                self._sender,
                lambda: self._server.write_in(session, self._sender, operations),
                self._deliver,
                lambda: self._lost(message),
            )
        self._message = message
        self._network.send(message)

    def _deliver(self, reply: Any) -> None:
        if isinstance(reply, SessionEnded):
            self.learn_of_session_end()
        else:
            self._go_on(reply)

    def _lost(self, message: Message) -> None:
        landed = message.answered and not isinstance(message.reply, Exception)
        self._seen("lost_reply_that_had_landed" if landed else "lost_request_that_had_not")
        self._go_on(OutcomeUnknown())

    def learn_of_session_end(self) -> None:
        """The client is back at a server: the session is over, another one is established."""
        if self._closed or self.session in self._server.sessions:
            return
        self._seen("session_ended")
        if self.operation == "commit":
            self._seen("session_ended_inside_a_commit")
        elif self.operation in {"claim", "begin", "move"}:
            self._seen("session_ended_inside_a_claim")
        self._ended()
        self.session = self._server.open_session()
        self.session_ended()
        if self._message is not None:
            self._message.given_up = True
        if self._running is not None:
            claim = self._running
            self._go_on(SessionEnded())
            if self._running is claim and self.operation == "claim":  # it goes on in this session
                self._note_claim()

    def wake(self) -> None:
        """Let time pass."""
        if self._wakes_at is not None and self._wakes_at <= self._clock():
            self._go_on(None)
