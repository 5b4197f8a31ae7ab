"""The offset store in memory, with what befalls one: outages, lost replies, ended sessions."""

import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

from partition.errors import StoreUnavailable
from partition.interfaces import StoredOffset
from partition.memory.ports import MemoryNodes, MemoryStore
from partition.offsets.requests import (
    ANY_VERSION,
    Children,
    CreateNode,
    DeleteNode,
    NodeChanged,
    NodeExists,
    Operation,
    Read,
    Reply,
    ReplyLost,
    Request,
    Run,
    SessionEnded,
    Steps,
    ZNode,
)
from partition.records import Partition

T = TypeVar("T")


def carry_out(steps: Steps[T], answer: Callable[[Any], Any]) -> T:
    """Run a generator of requests to its end; what `answer` raises is raised in it."""
    reply: Any = None
    while True:
        try:
            request = steps.throw(reply) if isinstance(reply, Exception) else steps.send(reply)
        except StopIteration as stop:
            return stop.value
        try:
            reply = answer(request)
        except Exception as error:  # noqa: BLE001 - the generator is told, whatever it is
            reply = error


class FaultyNodes(MemoryNodes):
    """MemoryNodes with sessions.

    `away` makes every request unanswered; `lose_replies` carries out that many of the
    next writes and loses their replies.
    """

    def __init__(self) -> None:
        super().__init__()
        self._made: dict[str, int] = {}  # when a node was made, in writes and puts
        self._sessions: dict[str, object] = {}  # with which an ephemeral node ends
        self._session: object = None  # of the request under way
        self._clock = 0
        self.writes = 0  # requests that changed something
        self.lose_replies = 0
        self._away = False
        self.stores: list[FaultyStore] = []

    @property
    def away(self) -> bool:
        """Whether nothing is answered. Setting it to False carries out what waits."""
        return self._away

    @away.setter
    def away(self, away: bool) -> None:
        self._away = away
        if not away:
            for store in list(self.stores):
                store.wake()

    def end_session(self) -> None:
        for store in list(self.stores):
            store.end_session()

    def put(self, path: str, data: bytes) -> None:
        self._clock += 1
        self._made.setdefault(path, self._clock)
        found = self.nodes.get(path)
        self.nodes[path] = ZNode(data, 0 if found is None else found.version + 1)

    def delete(self, path: str) -> None:
        for each in [each for each in self.nodes if f"{each}/".startswith(f"{path}/")]:
            self._remove(each)

    def drop(self, session: object) -> None:
        for path in [path for path, its in self._sessions.items() if its is session]:
            self._remove(path)

    def answer(self, request: Request, session: object = None) -> Reply:
        """Carry out a request. Raises NodeExists, NodeChanged, ReplyLost."""
        self._session = session
        if isinstance(request, Read):
            path, found = request.path, self.nodes.get(request.path)
            is_ours = path in self._sessions and self._sessions[path] is session
            return (
                None if found is None else found._replace(created=self._made[path], is_ours=is_ours)
            )
        if isinstance(request, Children):
            if request.path not in self.nodes:
                return None
            below = [each for each in self.nodes if each.rpartition("/")[0] == request.path]
            return [each.rpartition("/")[2] for each in below]
        return super().answer(request)

    def write(self, operations: Sequence[Operation]) -> list[int]:
        """See `MemoryNodes.write`. Raises ReplyLost where the reply is lost."""
        made, sessions = dict(self._made), dict(self._sessions)
        try:
            versions = super().write(operations)
        except (NodeExists, NodeChanged):
            self._made, self._sessions = made, sessions
            raise
        self._clock += 1
        self._made.update(dict.fromkeys(self.nodes.keys() - self._made.keys(), self._clock))
        self.writes += 1
        if self.lose_replies:
            self.lose_replies -= 1
            raise ReplyLost
        return versions

    def change(self, operation: Operation) -> None:
        path, found = operation.path, self.nodes.get(operation.path)
        if isinstance(operation, DeleteNode):
            if found is None or operation.version not in {found.version, ANY_VERSION}:
                raise NodeChanged
            self._remove(path)
        else:
            super().change(operation)
            if isinstance(operation, CreateNode) and operation.ends_with_session:
                self._sessions[path] = self._session

    def _remove(self, path: str) -> None:
        for kept in (self.nodes, self._made, self._sessions):
            kept.pop(path, None)


class FaultyStore(MemoryStore):
    """A MemoryStore on FaultyNodes: it waits while they are away, and its session may end."""

    def __init__(
        self,
        nodes: FaultyNodes | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        **names: str,
    ) -> None:
        self.server = nodes or FaultyNodes()
        super().__init__(self.server, **names)
        self._clock = clock
        self._jobs: deque[Run[Any]] = deque()
        self._running = self._has_ended = False
        self._lives = object()  # the session, as the nodes know it
        self.session = 0
        self.last_contact: float | None = None

    @property
    def available(self) -> bool:  # type: ignore[override]
        return not self.server.away

    def open(self) -> None:
        """Start as a new writer. Raises StoreUnavailable."""
        if self.server.away:
            raise StoreUnavailable("in memory", "it is away")
        if not self._is_open:
            self.server.stores.append(self)
        super().open()

    def close(self) -> None:
        if self._is_open:
            self.server.stores.remove(self)
            self.server.drop(self._lives)
        super().close()
        error = StoreUnavailable("a request", "the store is closed")
        for run in self._jobs:
            if run.request is not None:
                run.take(error)
            elif not run.future.done():
                run.future.set_exception(error)

    def end_session(self) -> None:
        self.session += 1
        self.server.drop(self._lives)
        self._lives = object()
        if self._is_open:
            self.session_ended()
        self._has_ended = bool(self._jobs) and self._jobs[0].request is not None
        self.wake()

    def load(self, partition: Partition) -> StoredOffset | None:
        what = f"for {self._names.path(partition)}"
        if self.server.away:
            raise StoreUnavailable(what, "it is away")
        if not self._is_open:
            raise StoreUnavailable(what, "the store is not open")
        run = Run(self._load(partition))
        run.start()
        self._go_on(run, session=None)
        return run.future.result(0)

    def submit(self, steps: Steps[T]) -> Future[T]:
        return self._submit(steps)

    def wake(self) -> None:
        if self._running:  # a future's callback asked for more
            return
        self._running = True
        try:
            while self._jobs and self._is_done(self._jobs[0]):
                self._jobs.popleft()
        finally:
            self._running = False
        if not self.server.away:
            self.last_contact = self._clock()

    def _is_done(self, run: Run[Any]) -> bool:
        if run.request is None and not run.future.done():  # else failed by `close`
            run.start()
        elif self._has_ended:
            self._has_ended = False
            run.take(SessionEnded())
        self._go_on(run, self._lives)
        return run.request is None

    def _go_on(self, run: Run[Any], session: object) -> None:
        while run.request is not None and not self.server.away:
            try:
                reply: Reply | Exception = self.server.answer(run.request, session)
            except (NodeExists, NodeChanged, ReplyLost) as error:
                reply = error
            run.take(reply)

    def _submit(self, steps: Steps[T], *, claims: Partition | None = None) -> Future[T]:
        run = Run(steps)
        if not self._is_open:
            run.future.set_exception(StoreUnavailable("a request", "the store is not open"))
            return run.future
        self._jobs.append(run)
        self.wake()
        return run.future
