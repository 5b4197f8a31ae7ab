"""Offsets as versioned nodes: compare-and-set, and what to do when a reply is lost.

A write whose reply did not come is neither done nor failed: its node is read back and
the writer named in it compared with ourselves. Waiting, sending and receiving are a
`Connection`'s business; who calls, and on which thread, a store's.
"""

import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import structlog

from partition.chunk import Partition
from partition.errors import Fenced, OffsetWouldMoveBack, StoreConflict, StoreError
from partition.store import StoredOffset
from partition.znode import Broker, OffsetNode, Writer, decode, encode, node_path

log = structlog.get_logger()

MAX_OPERATIONS = 500  # per write
MAX_REQUEST_BYTES = 512 * 1024  # per write; ZooKeeper takes 1 MiB
NEVER = float("inf")

_RETRY_SECONDS = 0.1


class SetNode(NamedTuple):
    """One operation of a write: set a node if it still has this version."""

    path: str
    data: bytes
    version: int


class NodeExists(Exception):
    """The node to be created is there."""


class NodeChanged(Exception):
    """A node of a write is gone or has another version; nothing was written."""


class OutcomeUnknown(Exception):
    """A request was sent and no reply came: it may have been done, or be done yet."""


class Connection(Protocol):
    """A way to nodes. `end` is when to give up, on the connection's clock.

    Everything raises StoreUnavailable when closed, or when `end` comes before a request
    could be sent, and StoreError when it is refused for good (rights, size).
    """

    def read(self, path: str, end: float) -> tuple[bytes, int] | None:
        """Return a node's data and version as the leader knows them, or None; tries till `end`."""

    def create(self, path: str, data: bytes, end: float) -> None:
        """Create a node and its parents. Raises NodeExists, OutcomeUnknown."""

    def set_all(self, writes: Sequence[SetNode]) -> list[int]:
        """Set all nodes or none, once there is a connection; return their new versions.

        Raises NodeChanged, OutcomeUnknown.
        """

    def pause(self, seconds: float) -> None:
        """Wait before another try, but not past the end of the connection."""


@dataclass(frozen=True, slots=True)
class NodeNames:
    """Where the nodes lie and what is written in each."""

    root: str
    pipeline: str
    topology_id: str
    topology_name: str = ""
    broker: Broker = field(default_factory=Broker)

    def path(self, partition: Partition) -> str:
        """Return a partition's path."""
        return node_path(self.root, self.pipeline, partition)


@dataclass(frozen=True, slots=True)
class _Known:
    """A node as it was read or written last."""

    version: int
    node: OffsetNode


@dataclass(frozen=True, slots=True)
class _Write:
    partition: Partition
    path: str
    node: OffsetNode
    data: bytes


class OffsetNodes:
    """What one process knows of the nodes, and its writes to them. Not thread-safe.

    `process` tells its writes from everyone else's.
    """

    def __init__(self, connection: Connection, names: NodeNames) -> None:
        self.process = str(uuid.uuid4())
        self._connection = connection
        self._names = names
        self._sequence = 0
        self._known: dict[Partition, _Known] = {}

    def load(self, partition: Partition, end: float) -> StoredOffset | None:
        """Read a partition's offset and remember its version; None if there is no node."""
        known = self._read(self._names.path(partition), end)
        if known is None:
            self._known.pop(partition, None)
            return None
        self._known[partition] = known
        return known.node.stored

    def create(self, partition: Partition, offset: int, end: float) -> None:
        """Store a first offset. Raises StoreConflict when there is one already."""
        write = self._write(partition, offset)
        while True:
            try:
                self._connection.create(write.path, write.data, end)
            except OutcomeUnknown:
                self._connection.pause(_RETRY_SECONDS)
            except NodeExists as error:
                found = self._read(write.path, end)
                if found is None:
                    continue
                if found.node.writer != write.node.writer:
                    there = f"offset {found.node.stored.offset}"
                    raise StoreConflict(write.path, there) from error
                self._known[partition] = found  # ours, its reply was lost
                return
            else:
                self._known[partition] = _Known(0, write.node)
                return

    def commit(self, offsets: Mapping[Partition, int]) -> None:
        """Store offsets of known partitions, in as few writes as the server's limits allow."""
        writes = []
        for partition, offset in offsets.items():
            if partition not in self._known:
                raise StoreError(f"{self._names.path(partition)} was neither loaded nor created")
            stored = self._known[partition].node.stored.offset
            if offset < stored:
                raise OffsetWouldMoveBack(partition, stored, offset)
            if offset > stored:
                writes.append(self._write(partition, offset))
        for batch in _batches(writes):
            self._set(batch)

    def _set(self, batch: Sequence[_Write]) -> None:
        """Write until it is known to be done, or known to be impossible."""
        while True:
            operations = [
                SetNode(write.path, write.data, self._known[write.partition].version)
                for write in batch
            ]
            try:
                versions = self._connection.set_all(operations)
            except (OutcomeUnknown, NodeChanged) as reason:
                log.warning(
                    "commit_read_back", partitions=len(batch), reason=f"{type(reason).__name__}"
                )
            else:
                for write, version in zip(batch, versions, strict=True):
                    self._known[write.partition] = _Known(version, write.node)
                return
            if self._has_landed(batch):
                return
            self._connection.pause(_RETRY_SECONDS)

    def _has_landed(self, batch: Sequence[_Write]) -> bool:
        """Whether the nodes carry our write. Raises Fenced when someone else has written."""
        landed = True
        for write in batch:
            found = self._read(write.path, NEVER)
            if found is None:
                raise Fenced(write.partition, f"{write.path} was deleted")
            if found.node.writer == write.node.writer:
                self._known[write.partition] = found
            elif found.version == self._known[write.partition].version:
                landed = False
            else:
                raise Fenced(write.partition, _whose(found.node))
        return landed

    def _read(self, path: str, end: float) -> _Known | None:
        found = self._connection.read(path, end)
        return None if found is None else _Known(found[1], decode(path, found[0]))

    def _write(self, partition: Partition, offset: int) -> _Write:
        self._sequence += 1
        names = self._names
        stored = StoredOffset(offset, names.topology_id, names.topology_name or names.topology_id)
        node = OffsetNode(stored, Writer(self.process, self._sequence))
        return _Write(partition, names.path(partition), node, encode(partition, node, names.broker))


def _whose(node: OffsetNode) -> str:
    by = f", process {node.writer.process}" if node.writer else ""
    return f"topology '{node.stored.topology_id}'{by}, stored offset {node.stored.offset}"


def _batches(writes: Sequence[_Write]) -> Iterator[list[_Write]]:
    batch: list[_Write] = []
    size = 0
    for write in writes:
        length = len(write.data) + len(write.path)
        if batch and (len(batch) == MAX_OPERATIONS or size + length > MAX_REQUEST_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(write)
        size += length
    if batch:
        yield batch
