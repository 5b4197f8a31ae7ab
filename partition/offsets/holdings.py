"""What one process knows of the partitions it holds: versions, epochs, its own writes."""

from dataclasses import dataclass

from partition.chunk import Partition
from partition.errors import OwnershipLost, StoreError
from partition.offsets.znode import OffsetNode, Writer


@dataclass(frozen=True, slots=True)
class Known:
    """A node as it was read or written last."""

    version: int
    node: OffsetNode


class Holdings:
    """The partitions that are ours, and why others are not any more. Not thread-safe.

    `process` tells our writes from everyone else's. `damaged` holds the partitions whose
    claim found no offset to go on from: the unreadable node's version, or None where there
    is no node.
    """

    def __init__(self, process: str) -> None:
        self.process = process
        self.session = 0  # grows with each session that ended
        self.damaged: dict[Partition, int | None] = {}
        self._sequence = 0
        self._owned: dict[Partition, Known] = {}
        self._refusals: dict[Partition, StoreError] = {}
        # (version, sequence) of our writes that may be what the node holds now.
        self._writes: dict[Partition, set[tuple[int, int]]] = {}

    def end_session(self) -> None:
        """Drop every ownership; what we wrote is remembered."""
        self.session += 1
        self._owned.clear()
        self._refusals.clear()
        self.damaged.clear()

    def next_writer(self) -> Writer:
        """Return the mark of a new write."""
        self._sequence += 1
        return Writer(self.process, self._sequence)

    def owned(self, partition: Partition) -> Known | None:
        """Return the node of a partition that is ours, else None."""
        return self._owned.get(partition)

    def refusal(self, partition: Partition) -> StoreError:
        """Say why a partition is not ours."""
        return self._refusals.get(partition) or OwnershipLost(partition)

    def take(self, partition: Partition, known: Known) -> None:
        """The node is ours and known to be so."""
        self._owned[partition] = known
        self._refusals.pop(partition, None)
        self.damaged.pop(partition, None)
        writer = known.node.writer
        self._writes[partition] = {(known.version, writer.sequence)} if writer else set()

    def drop(self, partition: Partition, reason: StoreError) -> StoreError:
        """The partition is not ours any more, for this reason; returns it."""
        self._owned.pop(partition, None)
        self._refusals[partition] = reason
        return reason

    def wrote(self, partition: Partition, version: int, writer: Writer) -> None:
        """A write is on its way that gives the node this version."""
        self._writes.setdefault(partition, set()).add((version, writer.sequence))

    def is_last_write(self, partition: Partition, found: Known) -> bool:
        """Whether nobody wrote since we did."""
        writer = found.node.writer
        return (
            writer is not None
            and writer.process == self.process
            and (found.version, writer.sequence) in self._writes.get(partition, ())
        )
