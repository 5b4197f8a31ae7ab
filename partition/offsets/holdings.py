"""The offset nodes that a process owns: their names, their known states, its own writes."""

import uuid
from dataclasses import dataclass

from partition.errors import OwnershipLost, StoreError
from partition.interfaces import StoredOffset
from partition.offsets.znode import OffsetNode, Writer
from partition.records import Partition, Position, Transactions


@dataclass(frozen=True, slots=True)
class NodeNames:
    """The paths of a pipeline's nodes, and the topology named in each."""

    root: str
    pipeline: str
    topology_id: str
    topology_name: str = ""

    def topic_path(self, topic: str) -> str:
        return f"{self.root.rstrip('/')}/{self.pipeline}/{topic}"

    def path(self, partition: Partition) -> str:
        return f"{self.topic_path(partition.topic)}/partition_{partition.number}"

    def stored(
        self, position: Position, epoch: int = 0, transactions: Transactions | None = None
    ) -> StoredOffset:
        name = self.topology_name or self.topology_id
        return StoredOffset(position, self.topology_id, name, epoch, transactions)


@dataclass(frozen=True, slots=True)
class KnownNode:
    version: int
    node: OffsetNode

    @property
    def owner(self) -> str:
        stored, writer = self.node.stored, self.node.writer
        by = f", process {writer.process}" if writer else ""
        return f"topology '{stored.topology_id}'{by}, epoch {stored.epoch}, offset {stored.offset}"


class Holdings:
    """The partitions that a process owns, and why it lost others. Not thread-safe.

    `process` marks our writes. `damaged` holds the partitions whose claim found no offset: the
    unreadable node's version, or None where there is no node. `begun` caches the topics' nodes.
    """

    def __init__(self, process: str | None = None) -> None:
        self.process = process or str(uuid.uuid4())
        self.damaged: dict[Partition, int | None] = {}
        self.begun: dict[str, frozenset[int]] = {}
        self.owned: dict[Partition, KnownNode] = {}
        self._sequence = 0
        self._refusals: dict[Partition, StoreError] = {}
        # (version, sequence) of our writes that may be what the node holds now.
        self._writes: dict[Partition, set[tuple[int, int]]] = {}

    def end_session(self) -> None:
        """Drop every ownership, but not what was written."""
        for known in (self.owned, self._refusals, self.damaged, self.begun):
            known.clear()

    def next_writer(self) -> Writer:
        self._sequence += 1
        return Writer(self.process, self._sequence)

    def refusal(self, partition: Partition) -> StoreError:
        return self._refusals.get(partition) or OwnershipLost(partition)

    def take(self, partition: Partition, known: KnownNode) -> None:
        self.owned[partition] = known
        self._refusals.pop(partition, None)
        self.damaged.pop(partition, None)
        writer = known.node.writer
        self._writes[partition] = {(known.version, writer.sequence)} if writer else set()

    def drop(self, partition: Partition, reason: StoreError) -> StoreError:
        self.owned.pop(partition, None)
        self._refusals[partition] = reason
        return reason

    def wrote(self, partition: Partition, version: int, writer: Writer) -> None:
        self._writes.setdefault(partition, set()).add((version, writer.sequence))

    def is_last_write(self, partition: Partition, found: KnownNode) -> bool:
        """Whether nobody wrote since we did."""
        writer = found.node.writer
        if writer is None or writer.process != self.process:
            return False
        return (found.version, writer.sequence) in self._writes.get(partition, ())
