"""An offset store in memory, for the test kit and for tests.

Its nodes stand in for ZooKeeper's; as with the real one, `partition.offsets.offset_nodes` decides
what is written to them. One contract suite runs against both (`tests/contract`).
"""

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

from partition.errors import OwnershipLost, StoreError, StoreUnavailable
from partition.interfaces import Claim, Progress, StoredOffset
from partition.offsets.offset_nodes import OffsetNodes
from partition.offsets.ownership import NodeNames
from partition.offsets.requests import (
    ANY_VERSION,
    Children,
    CreateEphemeral,
    CreateNode,
    DeleteNode,
    NodeChanged,
    NodeExists,
    Operation,
    OutcomeUnknown,
    Pause,
    Read,
    Reply,
    Request,
    SessionEnded,
    SetNode,
    Steps,
    ZNode,
    missing_parents,
)
from partition.records import Partition, Position, Transactions

T = TypeVar("T")


class MemoryNodes:
    """Nodes in memory, shared by the stores that are opened on it: a ZooKeeper's part.

    `away` makes every request unanswered; `lose_replies` carries out that many of the
    next writes and loses their replies.
    """

    def __init__(self) -> None:
        self.nodes: dict[str, tuple[bytes, int]] = {}
        self._made: dict[str, int] = {}  # when a node was made, in writes and puts
        self._sessions: dict[str, object] = {}  # with which an ephemeral node ends
        self._clock = 0
        self.writes = 0  # requests that changed something
        self.lose_replies = 0
        self._away = False
        self.stores: list[MemoryStore] = []

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
        """End the session of every store that is open."""
        for store in list(self.stores):
            store.end_session()

    def put(self, path: str, data: bytes) -> None:
        """Write a node as someone else would."""
        self._clock += 1
        self._made.setdefault(path, self._clock)
        self.nodes[path] = (data, self.nodes[path][1] + 1 if path in self.nodes else 0)

    def delete(self, path: str) -> None:
        """Delete a node and all below it, as an operator would."""
        for each in [each for each in self.nodes if f"{each}/".startswith(f"{path}/")]:
            self._remove(each)

    def drop(self, session: object) -> None:
        """Delete what ends with a session."""
        for path in [path for path, its in self._sessions.items() if its is session]:
            self._remove(path)

    def answer(self, request: Request, session: object = None) -> Reply:
        """Carry out a request. Raises NodeExists, NodeChanged, OutcomeUnknown."""
        if isinstance(request, Read):
            return self._stat(request.path, session)
        if isinstance(request, Children):
            return self._children(request.path)
        if isinstance(request, Pause):
            return None  # nothing here becomes better with time
        return self._write(request.operations, session)

    def _stat(self, path: str, session: object) -> ZNode | None:
        if path not in self.nodes:
            return None
        is_ours = path in self._sessions and self._sessions[path] is session
        return ZNode(*self.nodes[path], self._made[path], is_ours)

    def _children(self, path: str) -> list[str] | None:
        if path not in self.nodes:
            return None
        names = (each[len(path) + 1 :] for each in self.nodes if each.startswith(f"{path}/"))
        return [name for name in names if "/" not in name]

    def _remove(self, path: str) -> None:
        del self.nodes[path], self._made[path]
        self._sessions.pop(path, None)

    def _write(self, operations: Sequence[Operation], session: object) -> list[int]:
        changes: dict[str, tuple[bytes, int] | None] = {}  # None: deleted
        made: dict[str, object] = {}  # and the session with which it ends
        for parent in missing_parents(operations):
            names = parent.split("/")
            paths = ["/".join(names[:count]) for count in range(2, len(names) + 1)]
            missing = [path for path in paths if path not in self.nodes]
            changes.update((path, (b"", 0)) for path in missing)
            made.update((path, None) for path in missing)
        for operation in operations:
            path = operation.path
            found = changes[path] if path in changes else self.nodes.get(path)
            if isinstance(operation, CreateNode | CreateEphemeral):
                if found is not None:
                    raise NodeExists
                parent = operation.path.rpartition("/")[0]
                if parent not in changes and parent not in self.nodes:
                    raise NodeChanged
                changes[path] = (operation.data, 0)
                made[path] = session if isinstance(operation, CreateEphemeral) else None
            elif found is None:
                raise NodeChanged
            elif isinstance(operation, SetNode | DeleteNode):
                changes[path] = _changed(operation, found[1])
        self._apply(changes, made)
        self.writes += 1
        if self.lose_replies:
            self.lose_replies -= 1
            raise OutcomeUnknown
        return [
            0 if isinstance(each, DeleteNode) else self.nodes[each.path][1] for each in operations
        ]

    def _apply(
        self, changes: Mapping[str, tuple[bytes, int] | None], made: Mapping[str, object]
    ) -> None:
        self._clock += 1
        for path, node in changes.items():
            if node is None or path in made:
                self._made.pop(path, None)
                self._sessions.pop(path, None)
            if node is None:
                del self.nodes[path]
                continue
            self.nodes[path] = node
            self._made.setdefault(path, self._clock)
            if made.get(path) is not None:
                self._sessions[path] = made[path]


def _changed(operation: SetNode | DeleteNode, version: int) -> tuple[bytes, int] | None:
    if operation.version not in {version, ANY_VERSION}:
        raise NodeChanged
    return (operation.data, version + 1) if isinstance(operation, SetNode) else None


class _Job(Generic[T]):
    """A generator under way, and the future that it completes."""

    def __init__(self, steps: Steps[T]) -> None:
        self.steps = steps
        self.future: Future[T] = Future()
        self.request: Request | None = None  # what it waits for an answer to
        self.session_ended = False

    def run(self, nodes: MemoryNodes, session: object = None) -> bool:
        """Go on as far as the nodes answer; return whether it is done."""
        if self.future.done():  # failed by `close`
            return True
        try:
            if self.request is None:
                self.request = next(self.steps)
            elif self.session_ended:
                self.session_ended = False
                self.request = self.steps.throw(SessionEnded())
            while not nodes.away:
                try:
                    reply = nodes.answer(self.request, session)
                except (NodeExists, NodeChanged, OutcomeUnknown) as error:
                    self.request = self.steps.throw(error)
                else:
                    self.request = self.steps.send(reply)
        except StopIteration as stop:
            self.future.set_result(stop.value)
        except Exception as error:  # noqa: BLE001 - the future's owner hears of it
            self.future.set_exception(error)
        return self.future.done()

    def fail(self, error: StoreError) -> None:
        """End it."""
        if not self.future.done():
            self.steps.close()
            self.future.set_exception(error)


class MemoryStore:
    """An `OffsetStore` on MemoryNodes. Everything is done at once, unless they are away."""

    def __init__(
        self,
        nodes: MemoryNodes | None = None,
        *,
        pipeline: str = "memory",
        topology_id: str = "memory",
        root: str = "/headrace",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._server = nodes or MemoryNodes()
        self._names = NodeNames(root, pipeline, topology_id)
        self._nodes: OffsetNodes | None = None
        self._jobs: deque[_Job[Any]] = deque()
        self._running = False
        self._lives = object()  # the session, as the nodes know it
        self.session = 0
        self.last_contact: float | None = None
        """When a request was answered last, on the clock."""

    @property
    def available(self) -> bool:
        """Whether the nodes are there."""
        return not self._server.away

    def open(self) -> None:
        """Start as a new writer. Raises StoreUnavailable."""
        if self._server.away:
            raise StoreUnavailable("in memory", "it is away")
        if self._nodes is None:
            self._nodes = OffsetNodes(self._names)
            self._server.stores.append(self)

    def close(self) -> None:
        """Fail what waits."""
        if self._nodes is not None:
            self._server.stores.remove(self)
            self._server.drop(self._lives)
        self._nodes = None
        for job in self._jobs:
            job.fail(StoreUnavailable("a request", "the store is closed"))

    def end_session(self) -> None:
        """Drop every ownership, as when a session expires."""
        self.session += 1
        self._server.drop(self._lives)
        self._lives = object()
        if self._nodes is not None:
            self._nodes.session_ended()
        for job in self._jobs:
            job.session_ended = job.request is not None
        self.wake()

    def load(self, partition: Partition) -> StoredOffset | None:
        """Return the stored offset; None only when there is none."""
        what = f"for {self._names.path(partition)}"
        if self._server.away:
            raise StoreUnavailable(what, "it is away")
        if self._nodes is None:
            raise StoreUnavailable(what, "the store is not open")
        job: _Job[StoredOffset | None] = _Job(self._nodes.load(partition))
        job.run(self._server)
        return job.future.result(0)

    def claim(
        self,
        partition: Partition,
        *,
        adopt: bool = False,
        again: bool = False,
        anew: bool = True,
    ) -> Future[Claim]:
        """Take a partition over; see `OffsetStore.claim`."""
        asked_in = self.session

        def claim(nodes: OffsetNodes) -> Steps[Claim]:
            if not anew and self.session != asked_in:
                raise OwnershipLost(partition)
            return (yield from nodes.claim(partition, adopt=adopt, again=again, anew=anew))

        return self._run("a claim", claim)

    def begin(
        self,
        partition: Partition,
        position: Position,
        partitions: int | None = None,
        transactions: Transactions | None = None,
    ) -> Future[None]:
        """Store a first position; see `OffsetStore.begin`."""
        return self._run(
            "a first offset",
            lambda nodes: nodes.begin(partition, position, partitions, transactions),
        )

    def move(
        self,
        partition: Partition,
        position: Position,
        reason: str,
        transactions: Transactions | None = None,
    ) -> Future[None]:
        """Store a position wherever it lies; see `OffsetStore.move`."""
        return self._run(
            "a move", lambda nodes: nodes.move(partition, position, reason, transactions)
        )

    def commit(
        self, progress: Mapping[Partition, Progress]
    ) -> Future[Mapping[Partition, StoreError]]:
        """Store what partitions have come to; see `OffsetStore.commit`."""
        asked = dict(progress)
        return self._run("a commit", lambda nodes: nodes.commit(asked))

    def submit(self, steps: Steps[T]) -> Future[T]:
        """Carry out requests in the offsets' own session; see `ZooKeeperStore.submit`."""
        return self._run("a beat", lambda _: steps)

    def wake(self) -> None:
        """Carry out what waits, one after the other."""
        if self._running:  # a future's callback asked for more
            return
        self._running = True
        try:
            while self._jobs and self._jobs[0].run(self._server, self._lives):
                self._jobs.popleft()
        finally:
            self._running = False
        if not self._server.away:
            self.last_contact = self._clock()

    def _run(self, what: str, work: Callable[[OffsetNodes], Steps[T]]) -> Future[T]:
        if self._nodes is None:
            future: Future[T] = Future()
            future.set_exception(StoreUnavailable(what, "the store is not open"))
            return future
        job = _Job(work(self._nodes))
        self._jobs.append(job)
        self.wake()
        return job.future
