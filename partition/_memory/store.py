"""An offset store in memory, for the test kit and for tests.

Its nodes stand in for ZooKeeper's; what is written to them and when is `partition.nodes`,
as with the real one. One contract suite runs against both (`tests/contract`).
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import Future

from partition.chunk import Partition
from partition.errors import StoreUnavailable
from partition.nodes import NodeChanged, NodeExists, NodeNames, OffsetNodes, OutcomeUnknown, SetNode
from partition.store import StoredOffset


class MemoryNodes:
    """Nodes in memory, shared by the stores that are opened on it: a ZooKeeper's part.

    `away` makes every request unanswered; `lose_replies` carries out that many of the
    next writes and loses their replies.
    """

    def __init__(self) -> None:
        self.nodes: dict[str, tuple[bytes, int]] = {}
        self.writes = 0  # requests that changed something
        self.lose_replies = 0
        self._away = False
        self.waiting: list[MemoryStore] = []

    @property
    def away(self) -> bool:
        """Whether nothing is answered. Setting it to False carries out what waits."""
        return self._away

    @away.setter
    def away(self, away: bool) -> None:
        self._away = away
        if not away:
            waiting, self.waiting = self.waiting, []
            for store in waiting:
                store.wake()

    def put(self, path: str, data: bytes) -> None:
        """Write a node as someone else would."""
        self.nodes[path] = (data, self.nodes[path][1] + 1 if path in self.nodes else 0)

    def read(self, path: str, end: float) -> tuple[bytes, int] | None:  # noqa: ARG002
        """See `partition.nodes.Connection`."""
        self._answer(path)
        return self.nodes.get(path)

    def create(self, path: str, data: bytes, end: float) -> None:  # noqa: ARG002
        """See `partition.nodes.Connection`."""
        self._answer(path)
        if path in self.nodes:
            raise NodeExists
        self.nodes[path] = (data, 0)
        self._written()

    def set_all(self, writes: Sequence[SetNode]) -> list[int]:
        """See `partition.nodes.Connection`."""
        self._answer(writes[0].path)
        if any(self.nodes.get(w.path, (b"", -1))[1] != w.version for w in writes):
            raise NodeChanged
        for write in writes:
            self.nodes[write.path] = (write.data, write.version + 1)
        self._written()
        return [write.version + 1 for write in writes]

    def pause(self, seconds: float) -> None:
        """Do not wait: nothing here becomes better with time."""

    def _answer(self, path: str) -> None:
        if self._away:
            raise StoreUnavailable(f"for {path}", "it is away")

    def _written(self) -> None:
        self.writes += 1
        if self.lose_replies:
            self.lose_replies -= 1
            raise OutcomeUnknown


class MemoryStore:
    """An `OffsetStore` on MemoryNodes. A commit is done at once, unless they are away."""

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
        self._waiting: list[tuple[Future[None], Mapping[Partition, int]]] = []

    @property
    def available(self) -> bool:
        """Whether the nodes are there."""
        return not self._server.away

    def open(self) -> None:
        """Start as a new writer. Raises StoreUnavailable."""
        if self._server.away:
            raise StoreUnavailable("in memory", "it is away")
        self._nodes = self._nodes or OffsetNodes(self._server, self._names)

    def close(self) -> None:
        """Fail what waits."""
        self._nodes = None
        waiting, self._waiting = self._waiting, []
        for future, _ in waiting:
            future.set_exception(StoreUnavailable("a commit", "the store is closed"))

    def load(self, partition: Partition) -> StoredOffset | None:
        """Return the stored offset; None only when there is none."""
        return self._open_nodes(self._names.path(partition)).load(partition, 0)

    def create(self, partition: Partition, offset: int) -> None:
        """Store a first offset. Raises StoreConflict, StoreUnavailable."""
        self._open_nodes(self._names.path(partition)).create(partition, offset, 0)

    def commit(self, offsets: Mapping[Partition, int]) -> Future[None]:
        """Store offsets; see `OffsetStore.commit`."""
        future: Future[None] = Future()
        self._waiting.append((future, dict(offsets)))
        if self._server.away and self._nodes is not None:
            self._server.waiting.append(self)
        else:
            self.wake()
        return future

    def wake(self) -> None:
        """Carry out the commits that wait."""
        waiting, self._waiting = self._waiting, []
        for future, offsets in waiting:
            try:
                self._open_nodes("a commit").commit(offsets)
            except Exception as error:  # noqa: BLE001 - the future's owner hears of it
                future.set_exception(error)
            else:
                future.set_result(None)

    def _open_nodes(self, what: str) -> OffsetNodes:
        if self._nodes is None:
            raise StoreUnavailable(f"for {what}", "the store is not open")
        return self._nodes
