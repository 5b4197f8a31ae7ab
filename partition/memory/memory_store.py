"""An offset store in memory, for the test kit and for tests.

Its nodes stand in for ZooKeeper's; `OffsetStore` decides what is written, as with ZooKeeper.
One contract suite runs against both (`tests/contract`).
"""

from collections.abc import Sequence
from concurrent.futures import Future
from typing import TypeVar

from partition.errors import StoreUnavailable
from partition.interfaces import StoredOffset
from partition.offsets.offset_store import OffsetStore
from partition.offsets.ownership import Holdings, NodeNames
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
from partition.records import Partition

T = TypeVar("T")


class MemoryNodes:
    """A ZooKeeper's nodes in memory, shared by the stores that are opened on them."""

    def __init__(self) -> None:
        self.nodes: dict[str, ZNode] = {}

    def answer(self, request: Request) -> Reply:
        if isinstance(request, Read):
            return self.nodes.get(request.path)
        if isinstance(request, Write):
            return self.write(request.operations)
        return None  # a pause: time changes nothing here

    def write(self, operations: Sequence[Operation]) -> list[int]:
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


class MemoryStore(OffsetStore):
    """Offsets in MemoryNodes. Its futures have ended when it returns them."""

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
        super().__init__(NodeNames(root, pipeline, topology_id))
        self._server = nodes or MemoryNodes()
        self._is_open = False

    def open(self) -> None:
        if not self._is_open:
            self._held = Holdings()
        self._is_open = True

    def close(self) -> None:
        self._is_open = False

    def load(self, partition: Partition) -> StoredOffset | None:
        return self._submit(self._load(partition)).result(0)

    def _submit(self, steps: Steps[T], *, claims: Partition | None = None) -> Future[T]:  # noqa: ARG002
        future: Future[T] = Future()
        reply: Reply | Exception = None
        if not self._is_open:
            future.set_exception(StoreUnavailable("a request", "the store is not open"))
            return future
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
