"""How a partition becomes ours: its epoch raised, or its node made."""

from dataclasses import replace

from partition.errors import Fenced, StoreConflict, StoreCorrupt, StoreForeign, StoreMissing
from partition.interfaces import Claim
from partition.offsets.access import Access, Known, whose
from partition.offsets.requests import (
    CheckNode,
    CreateNode,
    NodeChanged,
    NodeExists,
    Operation,
    OutcomeUnknown,
    SetNode,
    Steps,
)
from partition.offsets.znode import OffsetNode, Writer, decode, encode, incarnation_path
from partition.records import Partition, Position, Transactions


def claim(at: Access, partition: Partition, *, adopt: bool, again: bool = False) -> Steps[Claim]:
    """Raise the epoch; see `OffsetStore.claim`. Raises SessionEnded too.

    What is open stays as it is stored: it is the new owner's to finish.
    """
    path, held = at.names.path(partition), at.held
    tried: dict[Writer, Claim] = {}
    epoch: int | None = None
    while True:
        found = yield from _found(at, partition, again=again)
        if isinstance(found, Claim):
            return found
        stored, writer = found.node.stored, found.node.writer
        if writer in tried:  # its reply was lost
            held.take(partition, found)
            return tried[writer]
        last = held.is_last_write(partition, found)
        # Else the former owner committed meanwhile; and `again` may fence nobody.
        if epoch not in {None, stored.epoch} or (again and not last):
            raise held.drop(partition, Fenced(partition, whose(found.node)))
        epoch = stored.epoch
        foreign = stored.topology_id != at.names.topology_id
        if foreign and not adopt:
            raise StoreForeign(path, stored.topology_id, at.names.topology_id)
        attempt = held.next_writer()
        incarnation, operations = yield from _incarnation(at, path, found.node, attempt)
        operations += yield from at.note_begun(partition)
        node = OffsetNode(replace(stored, epoch=epoch + 1), attempt, incarnation)
        taken = Claim(node.stored, topic_begun=True, foreign=foreign, uninterrupted=last)
        tried[attempt] = taken
        if last:  # else a claim that begins anew must not take this write for an old one
            held.wrote(partition, found.version + 1, attempt)
        data = encode(partition, node, at.names.broker)
        operations.append(SetNode(path, data, found.version))
        # The topic's node before the partition's, and that before what is below it.
        operations.sort(key=lambda operation: operation.path.count("/"))
        try:
            versions = yield from at.write(operations)
        except (NodeChanged, NodeExists):
            continue
        except OutcomeUnknown:
            yield from at.pause()
        else:
            held.take(partition, Known(versions[path], node))
            return taken


def _found(at: Access, partition: Partition, *, again: bool) -> Steps[Known | Claim]:
    """Read the node to claim, or end the claim of a partition that was never begun.

    One that was ours (`again`) was begun, whatever the server says: all of it was deleted.
    """
    path, damaged = at.names.path(partition), at.held.damaged
    for is_second in (False, True):
        raw = yield from at.read(path)
        if raw is not None:
            try:
                return Known(raw[1], decode(path, raw[0]))
            except StoreCorrupt:
                damaged[partition] = raw[1]
                raise
        if is_second or again:
            break
        topic = (yield from at.topic(partition.topic))[0]
        if partition.number not in topic.begun:
            damaged[partition] = None
            was_there = topic.first is not None and partition.number < topic.first
            return Claim(None, topic_begun=bool(topic.begun), was_there=was_there)
        # It may have been begun between the two readings.
    damaged[partition] = None
    raise at.held.drop(partition, StoreMissing(path))


def _incarnation(
    at: Access, path: str, node: OffsetNode, attempt: Writer
) -> Steps[tuple[str, list[Operation]]]:
    """Give the name of the node's incarnation, and what makes or checks it."""
    if node.incarnation is not None:
        below = incarnation_path(path, node.incarnation)
        if (yield from at.read(below)) is not None:
            return node.incarnation, [CheckNode(below)]
    drawn = _drawn(attempt)  # for Storm's node, or one that was put back by hand
    return drawn, [CreateNode(incarnation_path(path, drawn), b"")]


def make(
    at: Access,
    partition: Partition,
    position: Position,
    partitions: int | None,
    transactions: Transactions | None,
    *,
    restore: bool,
) -> Steps[None]:
    """Store a first position; see `OffsetStore.begin`. Raises SessionEnded too.

    With `restore` also where a node was lost, or in an unreadable one's place.
    """
    path, held = at.names.path(partition), at.held
    corrupt = held.damaged.get(partition) if restore else None
    # Each rise of the epoch is one of the version, so this is above any there was.
    epoch = 1 if corrupt is None else corrupt + 2
    writer = held.next_writer()
    incarnation = _drawn(writer)
    node = OffsetNode(at.names.stored(position, epoch, transactions), writer, incarnation)
    data = encode(partition, node, at.names.broker)
    while True:
        at.begun.pop(partition.topic, None)  # the operator may have cleared it
        operations = yield from at.note_begun(partition, partitions)
        begun = not operations
        if restore or not begun:
            operations.append(
                CreateNode(path, data) if corrupt is None else SetNode(path, data, corrupt)
            )
            operations.append(CreateNode(incarnation_path(path, incarnation), b""))
            try:
                versions = yield from at.write(operations)
            except (NodeChanged, NodeExists):
                pass
            except OutcomeUnknown:
                yield from at.pause()
            else:
                held.take(partition, Known(versions[path], node))
                return
        raw = yield from at.read(path)
        if raw is None:
            if corrupt is not None or (begun and not restore):
                raise StoreMissing(path)
        elif raw[1] != corrupt:
            found = Known(raw[1], decode(path, raw[0]))
            if found.node.writer != writer:
                raise StoreConflict(path, f"offset {found.node.stored.offset}")
            held.take(partition, found)  # ours, its reply was lost
            return


def _drawn(writer: Writer) -> str:
    """Name an incarnation after the write that makes it: no other has the name."""
    return f"{writer.process}-{writer.sequence}"
