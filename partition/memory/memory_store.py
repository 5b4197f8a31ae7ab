"""An offset store in memory, for the test kit and for tests.

Its nodes stand in for ZooKeeper's; what is written to them and when is `OffsetNodes`, as with
ZooKeeper. One contract suite runs against both (`tests/contract`).
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import TypeVar

from partition.errors import StoreError, StoreUnavailable
from partition.interfaces import Claim, Progress, StoredOffset
from partition.offsets.offset_nodes import OffsetNodes
from partition.offsets.ownership import NodeNames
from partition.offsets.requests import (
    ANY_VERSION,
    CreateNode,
    NodeChanged,
    NodeExists,
    Operation,
    Read,
    Reply,
    Request,
    SetNode,
    Steps,
    Write,
    ZNode,
    missing_parents,
)
from partition.records import Partition, Position, Transactions

T = TypeVar("T")


class MemoryNodes:
    """A ZooKeeper's nodes in memory, shared by the stores that are opened on them."""

    def __init__(self) -> None:
        self.nodes: dict[str, ZNode] = {}

    def answer(self, request: Request) -> Reply:
        """Carry out a request. Raises NodeExists, NodeChanged."""
        if isinstance(request, Read):
            return self.nodes.get(request.path)
        if isinstance(request, Write):
            return self.write(request.operations)
        return None  # a pause: time changes nothing here

    def write(self, operations: Sequence[Operation]) -> list[int]:
        """Carry out all operations or none; return the nodes' versions."""
        before, versions = dict(self.nodes), []
        try:
            for parent in missing_parents(operations):
                names = parent.split("/")
                for count in range(2, len(names) + 1):
                    self.nodes.setdefault("/".join(names[:count]), ZNode(b""))
            for operation in operations:
                self.change(operation)
                versions.append(self.nodes.get(operation.path, ZNode(b"")).version)
        except (NodeExists, NodeChanged):
            self.nodes = before
            raise
        return versions

    def change(self, operation: Operation) -> None:
        """Carry out one operation of a write. Raises NodeExists, NodeChanged."""
        path, found = operation.path, self.nodes.get(operation.path)
        if isinstance(operation, CreateNode):
            if found is not None:
                raise NodeExists
            if path.rpartition("/")[0] not in self.nodes:
                raise NodeChanged
            self.nodes[path] = ZNode(operation.data)
        elif found is None:
            raise NodeChanged
        elif isinstance(operation, SetNode):
            if operation.version not in {found.version, ANY_VERSION}:
                raise NodeChanged
            self.nodes[path] = ZNode(operation.data, found.version + 1)


class MemoryStore:
    """An `OffsetStore` on MemoryNodes. Its futures have ended when it returns them."""

    available = True
    session = 0

    def __init__(
        self,
        nodes: MemoryNodes | None = None,
        *,
        pipeline: str = "memory",
        topology_id: str = "memory",
        root: str = "/headrace",
    ) -> None:
        self._server = nodes or MemoryNodes()
        self._names = NodeNames(root, pipeline, topology_id)
        self._nodes: OffsetNodes | None = None

    def open(self) -> None:
        """Start as a new writer."""
        if self._nodes is None:
            self._nodes = OffsetNodes(self._names)

    def close(self) -> None:
        self._nodes = None

    def load(self, partition: Partition) -> StoredOffset | None:
        what = f"for {self._names.path(partition)}"
        return self._ask(what, lambda nodes: nodes.load(partition)).result(0)

    def claim(
        self,
        partition: Partition,
        *,
        adopt: bool = False,
        again: bool = False,
        anew: bool = True,
    ) -> Future[Claim]:
        return self._ask(
            "a claim", lambda nodes: nodes.claim(partition, adopt=adopt, again=again, anew=anew)
        )

    def begin(
        self,
        partition: Partition,
        position: Position,
        partitions: int | None = None,
        transactions: Transactions | None = None,
    ) -> Future[None]:
        return self._ask(
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
        return self._ask(
            "a move", lambda nodes: nodes.move(partition, position, reason, transactions)
        )

    def commit(
        self, progress: Mapping[Partition, Progress]
    ) -> Future[Mapping[Partition, StoreError]]:
        asked = dict(progress)
        return self._ask("a commit", lambda nodes: nodes.commit(asked))

    def _ask(self, what: str, work: Callable[[OffsetNodes], Steps[T]]) -> Future[T]:
        if self._nodes is None:
            future: Future[T] = Future()
            future.set_exception(StoreUnavailable(what, "the store is not open"))
            return future
        return self._run(work(self._nodes))

    def _run(self, steps: Steps[T]) -> Future[T]:
        future: Future[T] = Future()
        reply: Reply | Exception = None
        try:
            while True:  # not by `run_all`: no reply is waited for, and nothing else runs beside
                request = steps.throw(reply) if isinstance(reply, Exception) else steps.send(reply)
                reply = self._reply(request)
        except StopIteration as stop:
            future.set_result(stop.value)
        except Exception as error:  # noqa: BLE001 - the future's owner hears of it
            future.set_exception(error)
        return future

    def _reply(self, request: Request) -> Reply | Exception:
        try:
            return self._server.answer(request)
        except Exception as error:  # noqa: BLE001 - the generator is told, whatever it is
            return error
