"""How nodes that are ours are set: all or none, until the outcome is known."""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, cast

import structlog

from partition.chunk import Partition
from partition.errors import Fenced, OwnershipLost, StoreCorrupt, StoreError, StoreMissing
from partition.offsets.access import Access, whose
from partition.offsets.holdings import Known
from partition.offsets.requests import (
    CheckNode,
    NodeChanged,
    Operation,
    OutcomeUnknown,
    SessionEnded,
    SetNode,
    Steps,
    size_of,
)
from partition.offsets.znode import OffsetNode, Writer, encode, incarnation_path
from partition.position import Position
from partition.transaction import Transactions

log = structlog.get_logger()

MAX_OPERATIONS = 1000  # per write; a partition's are two
# Half of ZooKeeper's default jute.maxbuffer (1 MiB): a server closes the connection on a larger
# request without an error, and a commit that is sent again as it was would never succeed.
MAX_REQUEST_BYTES = 512 * 1024


class Change(NamedTuple):
    """A node of ours to be set."""

    partition: Partition
    path: str
    known: Known
    node: OffsetNode
    data: bytes

    def operations(self) -> Iterator[Operation]:
        """Return what sets the node, if it is still the same node."""
        yield SetNode(self.path, self.data, self.known.version)
        if self.node.incarnation is not None:
            yield CheckNode(incarnation_path(self.path, self.node.incarnation))


def change_to(
    at: Access,
    partition: Partition,
    known: Known,
    position: Position,
    transactions: Transactions | None,
) -> Change:
    """Return the change of a node of ours that stores a position under its epoch.

    With what is open from there on, or without any. Raises ValueError if they do not fit.
    """
    stored = at.names.stored(position, known.node.stored.epoch, transactions)
    node = OffsetNode(stored, at.held.next_writer(), known.node.incarnation)
    data = encode(partition, node, at.names.broker)
    return Change(partition, at.names.path(partition), known, node, data)


def batches(changes: Iterable[Change]) -> Iterator[list[Change]]:
    """Split changes into as few writes as the limits allow; a larger change is a write alone."""
    batch: list[Change] = []
    operations = size = 0
    for change in changes:
        own = list(change.operations())
        length = sum(map(size_of, own))
        if batch and (operations + len(own) > MAX_OPERATIONS or size + length > MAX_REQUEST_BYTES):
            yield batch
            batch, operations, size = [], 0, 0
        batch.append(change)
        operations += len(own)
        size += length
    if batch:
        yield batch


def set_all(
    at: Access, batch: Sequence[Change], refused: dict[Partition, StoreError]
) -> Steps[None]:
    """Write until each is known to be done, or known to be impossible: then it is `refused`."""
    pending = {change.partition: change for change in batch}
    held = at.held
    for change in batch:
        held.wrote(change.partition, change.known.version + 1, cast("Writer", change.node.writer))
    try:
        while pending:
            tried = list(pending.values())
            operations = [each for change in tried for each in change.operations()]
            try:
                versions = yield from at.write(operations)
            except (NodeChanged, OutcomeUnknown) as reason:
                log.warning("commit_read_back", partitions=len(tried), reason=type(reason).__name__)
            else:
                for change in tried:
                    held.take(change.partition, Known(versions[change.path], change.node))
                return
            yield from _read_back(at, tried, pending, refused)
            if pending:
                yield from at.pause()
    except SessionEnded:
        refused.update((partition, OwnershipLost(partition)) for partition in pending)


def _read_back(
    at: Access,
    tried: Sequence[Change],
    pending: dict[Partition, Change],
    refused: dict[Partition, StoreError],
) -> Steps[None]:
    """Take what has landed, and what never can, out of `pending`."""
    for change in tried:
        partition = change.partition
        try:
            found = yield from at.node(partition)
        except StoreCorrupt as error:
            reason: StoreError | None = error
        else:
            if found is not None and found.node.writer == change.node.writer:
                at.held.take(partition, found)
                del pending[partition]
                continue
            reason = yield from _why_not(at, change, found)
        if reason is not None:
            refused[partition] = at.held.drop(partition, reason)
            del pending[partition]


def _why_not(at: Access, change: Change, found: Known | None) -> Steps[StoreError | None]:
    """Say why a write cannot land any more; None when it still can."""
    if found is None:
        return StoreMissing(change.path)
    if found != change.known:
        return Fenced(change.partition, whose(found.node))
    if found.node.incarnation is not None:
        below = incarnation_path(change.path, found.node.incarnation)
        if (yield from at.read(below)) is None:
            return Fenced(change.partition, f"{change.path} was deleted and made anew")
    return None
