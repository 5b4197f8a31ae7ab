"""The offset nodes that a process owns: names, known states, claims."""

import uuid
from dataclasses import dataclass, replace
from typing import cast

from partition.errors import (
    Fenced,
    OwnershipLost,
    StoreConflict,
    StoreCorrupt,
    StoreError,
    StoreForeign,
    StoreMissing,
)
from partition.interfaces import Claimed, StoredOffset
from partition.offsets.requests import (
    CheckNode,
    CreateNode,
    NodeChanged,
    NodeExists,
    Operation,
    Pause,
    Read,
    Reply,
    ReplyLost,
    Request,
    SessionEnded,
    SetNode,
    Steps,
    Write,
    ZNode,
)
from partition.offsets.znode import (
    OffsetNode,
    TopicNode,
    Writer,
    decode,
    decode_topic,
    encode,
    encode_topic,
    incarnation_path,
    node_path,
    topic_path,
)
from partition.records import Partition, Position, Transactions

_RETRY_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class NodeNames:
    """The paths of a pipeline's nodes, and the topology named in each."""

    root: str
    pipeline: str
    topology_id: str
    topology_name: str = ""

    def path(self, partition: Partition) -> str:
        return node_path(self.root, self.pipeline, partition)

    def topic_path(self, topic: str) -> str:
        return topic_path(self.root, self.pipeline, topic)

    def stored(
        self, position: Position, epoch: int = 0, transactions: Transactions | None = None
    ) -> StoredOffset:
        """Return a position, and its open transactions, as this topology's own."""
        name = self.topology_name or self.topology_id
        return StoredOffset(position, self.topology_id, name, epoch, transactions)


@dataclass(frozen=True, slots=True)
class KnownNode:
    """A node as it was read or written last."""

    version: int
    node: OffsetNode


class Holdings:
    """The partitions that a process owns, and why it lost others. Not thread-safe.

    `process` marks our writes. `damaged` holds the partitions whose claim found no offset: the
    unreadable node's version, or None where there is no node. `begun` caches the topics' nodes.
    """

    def __init__(self, process: str | None = None) -> None:
        self.process = process or str(uuid.uuid4())
        self.session = 0  # grows with each session that ended
        self.damaged: dict[Partition, int | None] = {}
        self.begun: dict[str, frozenset[int]] = {}
        self._sequence = 0
        self._owned: dict[Partition, KnownNode] = {}
        self._refusals: dict[Partition, StoreError] = {}
        # (version, sequence) of our writes that may be what the node holds now.
        self._writes: dict[Partition, set[tuple[int, int]]] = {}

    def end_session(self) -> None:
        """Drop every ownership, but not what was written."""
        self.session += 1
        self._owned.clear()
        self._refusals.clear()
        self.damaged.clear()
        self.begun.clear()

    def next_writer(self) -> Writer:
        self._sequence += 1
        return Writer(self.process, self._sequence)

    def owned(self, partition: Partition) -> KnownNode | None:
        return self._owned.get(partition)

    def refusal(self, partition: Partition) -> StoreError:
        return self._refusals.get(partition) or OwnershipLost(partition)

    def take(self, partition: Partition, known: KnownNode) -> None:
        self._owned[partition] = known
        self._refusals.pop(partition, None)
        self.damaged.pop(partition, None)
        writer = known.node.writer
        self._writes[partition] = {(known.version, writer.sequence)} if writer else set()

    def drop(self, partition: Partition, reason: StoreError) -> StoreError:
        self._owned.pop(partition, None)
        self._refusals[partition] = reason
        return reason

    def wrote(self, partition: Partition, version: int, writer: Writer) -> None:
        self._writes.setdefault(partition, set()).add((version, writer.sequence))

    def is_last_write(self, partition: Partition, found: KnownNode) -> bool:
        """Whether nobody wrote since we did."""
        writer = found.node.writer
        return (
            writer is not None
            and writer.process == self.process
            and (found.version, writer.sequence) in self._writes.get(partition, ())
        )


@dataclass(frozen=True, slots=True)
class Access:
    """Requests of one session. Everything raises SessionEnded once it has ended."""

    names: NodeNames
    held: Holdings
    session: int

    def ask(self, request: Request) -> Steps[Reply]:
        if self.session != self.held.session:
            raise SessionEnded
        reply = yield request
        if self.session != self.held.session:
            raise SessionEnded
        return reply

    def pause(self) -> Steps[None]:
        yield from self.ask(Pause(_RETRY_SECONDS))

    def read(self, path: str) -> Steps[ZNode | None]:
        while True:
            try:
                return cast("ZNode | None", (yield from self.ask(Read(path))))
            except ReplyLost:
                yield from self.pause()

    def write(self, operations: list[Operation]) -> Steps[dict[str, int]]:
        """Return versions by path. Raises NodeChanged, NodeExists, ReplyLost."""
        reply = yield from self.ask(Write(tuple(operations)))
        paths = [operation.path for operation in operations]
        return dict(zip(paths, cast("list[int]", reply), strict=True))

    def node(self, partition: Partition) -> Steps[KnownNode | None]:
        """Return a partition's node. Raises StoreCorrupt."""
        path = self.names.path(partition)
        raw = yield from self.read(path)
        return None if raw is None else KnownNode(raw.version, decode(path, raw.data))

    def topic(self, topic: str) -> Steps[tuple[TopicNode, int | None]]:
        """Return a topic's node and its version; None if there is no node. Raises StoreCorrupt."""
        path = self.names.topic_path(topic)
        raw = yield from self.read(path)
        node = TopicNode() if raw is None else decode_topic(path, raw.data)
        self.held.begun[topic] = node.begun
        return node, None if raw is None else raw.version

    def note_begun(
        self, partition: Partition, partitions: int | None = None
    ) -> Steps[list[Operation]]:
        """Return the write that notes in the topic's node that a partition was begun, if needed.

        `partitions` is how many the topic has; it is noted with the first.
        """
        if partition.number in self.held.begun.get(partition.topic, ()):
            return []
        node, version = yield from self.topic(partition.topic)
        if partition.number in node.begun:
            return []
        first = node.first if node.begun else partitions
        data = encode_topic(replace(node, begun=node.begun | {partition.number}, first=first))
        path = self.names.topic_path(partition.topic)
        return [CreateNode(path, data) if version is None else SetNode(path, data, version)]


def owner_of(node: OffsetNode) -> str:
    by = f", process {node.writer.process}" if node.writer else ""
    stored = node.stored
    return f"topology '{stored.topology_id}'{by}, epoch {stored.epoch}, offset {stored.offset}"


def claim(at: Access, partition: Partition, *, adopt: bool, again: bool = False) -> Steps[Claimed]:
    """Raise the epoch; see `OffsetStore.claim`. Raises SessionEnded too."""
    path, held = at.names.path(partition), at.held
    tried: dict[Writer, Claimed] = {}
    epoch: int | None = None
    while True:
        found = yield from _found(at, partition, again=again)
        if isinstance(found, Claimed):
            return found
        stored, writer = found.node.stored, found.node.writer
        if writer in tried:  # its reply was lost
            held.take(partition, found)
            return tried[writer]
        last = held.is_last_write(partition, found)
        # Else the former owner committed meanwhile; and `again` may fence nobody.
        if epoch not in {None, stored.epoch} or (again and not last):
            raise held.drop(partition, Fenced(partition, owner_of(found.node)))
        epoch = stored.epoch
        foreign = stored.topology_id != at.names.topology_id
        if foreign and not adopt:
            raise StoreForeign(path, stored.topology_id, at.names.topology_id)
        attempt = held.next_writer()
        incarnation, operations = yield from _incarnation(at, path, found.node, attempt)
        operations += yield from at.note_begun(partition)
        node = OffsetNode(replace(stored, epoch=epoch + 1), attempt, incarnation)
        taken = Claimed(node.stored, topic_begun=True, foreign=foreign, uninterrupted=last)
        tried[attempt] = taken
        if last:  # else a claim that begins anew must not take this write for an old one
            held.wrote(partition, found.version + 1, attempt)
        data = encode(partition, node)
        operations.append(SetNode(path, data, found.version))
        # The topic's node before the partition's, and that before what is below it.
        operations.sort(key=lambda operation: operation.path.count("/"))
        try:
            versions = yield from at.write(operations)
        except (NodeChanged, NodeExists):
            continue
        except ReplyLost:
            yield from at.pause()
        else:
            held.take(partition, KnownNode(versions[path], node))
            return taken


def _found(at: Access, partition: Partition, *, again: bool) -> Steps[KnownNode | Claimed]:
    """Read the node to claim, or end the claim of a partition that was never begun.

    One that was ours (`again`) was begun, whatever the server says: all of it was deleted.
    """
    path, damaged = at.names.path(partition), at.held.damaged
    for is_second in (False, True):
        raw = yield from at.read(path)
        if raw is not None:
            try:
                return KnownNode(raw.version, decode(path, raw.data))
            except StoreCorrupt:
                damaged[partition] = raw.version
                raise
        if is_second or again:
            break
        topic = (yield from at.topic(partition.topic))[0]
        if partition.number not in topic.begun:
            damaged[partition] = None
            was_there = topic.first is not None and partition.number < topic.first
            return Claimed(None, topic_begun=bool(topic.begun), was_there=was_there)
        # It may have been begun between the two readings.
    damaged[partition] = None
    raise at.held.drop(partition, StoreMissing(path))


def _incarnation(
    at: Access, path: str, node: OffsetNode, attempt: Writer
) -> Steps[tuple[str, list[Operation]]]:
    """Return the name of the node's incarnation, and operations that make or check it."""
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
    data = encode(partition, node)
    while True:
        at.held.begun.pop(partition.topic, None)  # the operator may have cleared it
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
            except ReplyLost:
                yield from at.pause()
            else:
                held.take(partition, KnownNode(versions[path], node))
                return
        raw = yield from at.read(path)
        if raw is None:
            if corrupt is not None or (begun and not restore):
                raise StoreMissing(path)
        elif raw.version != corrupt:
            found = KnownNode(raw.version, decode(path, raw.data))
            if found.node.writer != writer:
                raise StoreConflict(path, f"offset {found.node.stored.offset}")
            held.take(partition, found)  # ours, its reply was lost
            return


def _drawn(writer: Writer) -> str:
    """Name an incarnation after the write that makes it: no other has the name."""
    return f"{writer.process}-{writer.sequence}"
