"""A linearizable ZooKeeper, a replica's store over the real OffsetNodes, and the network between.

Requests and replies are lost, late, doubled and reordered as the tape says.
"""

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, NamedTuple

from partition.errors import PartitionError, StoreUnavailable
from partition.memory.ports import MemoryNodes
from partition.offsets.holdings import NodeNames
from partition.offsets.offset_store import OffsetStore
from partition.offsets.requests import (
    CheckNode,
    NodeChanged,
    NodeExists,
    Pause,
    Read,
    ReplyLost,
    SessionEnded,
    ZNode,
)
from partition.records import Partition


class SimZooKeeper(MemoryNodes):
    """The servers, as one. `written` hears of each change: sender, path, before, after."""

    def __init__(self, written):
        super().__init__()
        self.written = written
        self.sessions = set()
        self._session = 0

    def open_session(self):
        self._session += 1
        self.sessions.add(self._session)
        return self._session

    def end_session(self, session):
        self.sessions.discard(session)

    def read(self, session, path):
        return self.nodes.get(path) if session in self.sessions else SessionEnded()

    def write_in(self, session, sender, operations):
        if session not in self.sessions:
            return SessionEnded()
        before = dict(self.nodes)
        try:
            versions = self.write(operations)
        except (NodeExists, NodeChanged) as error:
            return error
        for each in operations:
            if not isinstance(each, CheckNode):
                self.written(sender, each.path, _data(before.get(each.path)), each.data)
        return versions

    def put(self, path, data):
        node = self.nodes.get(path)
        self.nodes[path] = ZNode(data, 0 if node is None else node.version + 1)
        self.written(None, path, _data(node), data)

    def delete(self, path):
        node = self.nodes.pop(path, None)
        if node is not None:
            self.written(None, path, node.data, None)


def _data(node):
    return None if node is None else node.data


class _Operation(NamedTuple):
    steps: Any
    future: "Future[Any]"
    name: str
    claims: Partition | None  # what it makes ours


class SimStore(OffsetStore):
    """A store that runs one operation after the other, as the real one's worker does."""

    session = 0

    def __init__(self, server, network, process, sender, refused, clock, seen, ended):
        self._server = server
        self._network = network
        super().__init__(NodeNames("/r", "p", "p"), process)
        self._sender = sender
        self._refused = refused
        self._clock = clock
        self._seen = seen
        self._ended = ended  # hears that a session has ended
        self._queue = deque()
        self._running = None
        self._message = None
        self._wakes_at = None
        self._closed = False
        self.moves = {}  # asked for, with reasons
        self.claimed = {}  # and in which session
        self.owned = {}  # and in which session its claim ended well

    @property
    def available(self):
        return self._sender not in self._network.down

    @property
    def operation(self):
        return None if self._running is None else self._running.name

    @property
    def move_has_landed(self):
        message = self._message
        if self.operation != "move" or message is None or not message.answered:
            return False
        return isinstance(message.reply, list)

    def open(self):
        self.session = self._server.open_session()

    def close(self):
        self._closed = True
        if self._message is not None:
            self._message.given_up = True
        self._server.end_session(self.session)
        running, self._running = self._running, None
        for operation in [*([running] if running else []), *self._queue]:
            operation.future.set_exception(StoreUnavailable("an operation", "the store is closed"))
        self._queue.clear()

    def load(self, partition):
        raise NotImplementedError

    def claim(self, partition, **named):
        return self._named("claim", partition, super().claim, partition, **named)

    def begin(self, partition, *first):
        return self._named("begin", partition, super().begin, partition, *first)

    def move(self, partition, position, reason, *rest):
        self.moves.setdefault(partition, []).append((position, reason))
        return self._named("move", None, super().move, partition, position, reason, *rest)

    def commit(self, progress):
        return self._named("commit", None, super().commit, progress)

    def _named(self, name, claims, ask, *given, **named):
        self._asked = name, claims
        return ask(*given, **named)

    def _submit(self, steps, *, claims=None):
        del claims
        return self._begin(steps, *self._asked)

    def _begin(self, steps, name, claims=None):
        future = Future()
        if self._closed:
            future.set_exception(StoreUnavailable(name, "the store is closed"))
            return future
        self._queue.append(_Operation(steps, future, name, claims))
        if self._running is None:
            self._next()
        return future

    def _next(self):
        if self._queue and self._running is None:
            self._running = self._queue.popleft()
            self._note_claim()
            self._go_on(None)

    def _note_claim(self):
        if self._running is not None and self._running.claims is not None:
            self.claimed[self._running.claims] = self.session

    def _go_on(self, reply):
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

    def _send(self, request):
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
                lambda: self._go_on(ReplyLost()),
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

    def _deliver(self, reply):
        if isinstance(reply, SessionEnded):
            self.learn_of_session_end()
        else:
            self._go_on(reply)

    def _lost(self, message):
        landed = message.answered and not isinstance(message.reply, Exception)
        self._seen("lost_reply_that_had_landed" if landed else "lost_request_that_had_not")
        self._go_on(ReplyLost())

    def learn_of_session_end(self):
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

    def wake(self):
        if self._wakes_at is not None and self._wakes_at <= self._clock():
            self._go_on(None)


@dataclass(slots=True, eq=False)
class Message:
    """A request, or its reply once `execute` has been called at the server."""

    sender: object
    execute: Callable[[], Any]
    deliver: Callable[[Any], None]
    give_up: Callable[[], None]  # the sender stops waiting; a reply then comes to nobody
    answered: bool = False
    given_up: bool = False
    reply: Any = None


class Network:
    """Everything that is on its way. One event of the tape moves one message one step."""

    def __init__(self, seen):
        self.messages = []
        self.down = set()  # senders whose requests do not get out now
        self.frozen = set()  # senders that take no reply now
        self._seen = seen

    def send(self, message):
        self.messages.append(message)

    def advance(self, which):
        message = self._pick(which)
        if message is None or message.sender in self.down:
            return
        if not message.answered:
            message.reply = message.execute()
            message.answered = True
            if message.given_up:
                self._seen("request_carried_out_after_its_sender_gave_up")
                self.messages.remove(message)
        elif message.sender not in self.frozen:
            self.messages.remove(message)
            if not message.given_up:
                message.deliver(message.reply)

    def carry_out(self, sender):
        for message in self.messages:
            if message.sender is sender and not message.answered and not message.given_up:
                message.reply, message.answered = message.execute(), True

    def lose(self, which):
        message = self._pick(which)
        if message is None or message.sender in self.frozen:
            return
        self.messages.remove(message)
        if not message.given_up:
            message.give_up()

    def give_up(self, which):
        message = self._pick(which)
        if message is None or message.given_up or message.sender in self.frozen:
            return
        message.given_up = True
        if message.answered:
            self.messages.remove(message)
        message.give_up()

    def double(self, which):
        message = self._pick(which)
        if message is not None and not message.answered:
            self.messages.append(
                Message(message.sender, message.execute, _ignore, _nothing, given_up=True)
            )

    def forget(self, sender):
        """Nobody waits at the sender any more; what it sent may still be carried out."""
        for message in self.messages:
            if message.sender is sender:
                message.given_up = True
        self.messages = [m for m in self.messages if not (m.sender is sender and m.answered)]

    def _pick(self, which):
        return self.messages[which % len(self.messages)] if self.messages else None


def _ignore(_reply):
    pass


def _nothing():
    pass
