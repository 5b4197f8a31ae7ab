"""The offset store's protocol on versioned nodes: claim, begin, move, commit. No I/O.

Everything here is a generator of requests (`partition.offsets.requests`). It guarantees, whatever
the network does:

- A claim raises the epoch in the offset's own node by compare-and-set on its version, so
  whoever read the node before can write it no more. A session is not needed for that: an
  ephemeral owner node made anew has version 0 again, which a zombie takes for its own.
- The offset node itself could be deleted and made anew by an operator, too, and reach the
  version that a zombie knows. So a node below it bears a name that is drawn once
  (`incarnation`), and every write checks that it is there: it dies with the node.
- A write whose reply did not come is neither done nor failed: its node is read back and the
  writer named in it compared with this process. If it is done late, it is done for a version
  that this process writes or has written with the very same content, or not at all.
- Nothing is deleted, and only `move` lowers an offset.
"""

import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, cast

import structlog

from partition.errors import (
    Fenced,
    OffsetWouldMoveBack,
    OwnershipLost,
    StoreConflict,
    StoreCorrupt,
    StoreError,
    StoreForeign,
    StoreMissing,
)
from partition.interfaces import Claim, Progress, StoredOffset
from partition.offsets.ownership import Access, Holdings, KnownNode, NodeNames, owner_of
from partition.offsets.requests import (
    CheckNode,
    CreateNode,
    NodeChanged,
    NodeExists,
    Operation,
    OutcomeUnknown,
    SessionEnded,
    SetNode,
    Steps,
    size_of,
)
from partition.offsets.znode import OffsetNode, Writer, decode, encode, incarnation_path
from partition.records import Partition, Position, Transactions

log = structlog.get_logger()

MAX_OPERATIONS = 1000  # per write; a partition's are two
# Half of ZooKeeper's default jute.maxbuffer (1 MiB): a server closes the connection on a larger
# request without an error, and a commit that is sent again as it was would never succeed.
MAX_REQUEST_BYTES = 512 * 1024


class OffsetNodes:
    """One process's offsets. Not thread-safe. Claims may run together, all else one by one.

    The generators raise what `OffsetStore`'s methods of the same name raise; StoreUnavailable
    and StoreError are raised in them and pass through. `process` tells this process's writes
    from everyone else's: letters, digits and hyphens, never used before.
    """

    def __init__(self, names: NodeNames, process: str | None = None) -> None:
        self._names = names
        self._held = Holdings(process or str(uuid.uuid4()))

    def session_ended(self) -> None:
        """Drop every ownership. A generator under way must get SessionEnded next."""
        self._held.end_session()

    def load(self, partition: Partition) -> Steps[StoredOffset | None]:
        while True:
            try:
                known = yield from self._access().node(partition)
            except SessionEnded:
                continue
            return None if known is None else known.node.stored

    def claim(
        self,
        partition: Partition,
        *,
        adopt: bool = False,
        again: bool = False,
        anew: bool = True,
    ) -> Steps[Claim]:
        while True:
            try:
                return (yield from claim(self._access(), partition, adopt=adopt, again=again))
            except SessionEnded:
                if not anew:
                    raise self._held.drop(partition, OwnershipLost(partition)) from None

    def begin(
        self,
        partition: Partition,
        position: Position,
        partitions: int | None = None,
        transactions: Transactions | None = None,
    ) -> Steps[None]:
        yield from self._first(partition, position, partitions, transactions, restore=False)

    def move(
        self,
        partition: Partition,
        position: Position,
        reason: str,
        transactions: Transactions | None = None,
    ) -> Steps[None]:
        """Set an owned partition's node; or make it, after a claim that found no offset."""
        known = self._held.owned(partition)
        if known is None and partition not in self._held.damaged:
            raise self._held.refusal(partition)
        if known is None:
            yield from self._first(partition, position, None, transactions, restore=True)
        else:
            refused: dict[Partition, StoreError] = {}
            at = self._access()
            change = change_to(at, partition, known, position, transactions)
            yield from set_all(at, [change], refused)
            if partition in refused:
                raise refused[partition]
            _tell_dropped(partition, known.node.stored, transactions)
        log.info(
            "offset_moved",
            partition=str(partition),
            before=known.node.stored.offset if known else None,
            offset=position.offset,
            reason=reason,
        )

    def commit(self, progress: Mapping[Partition, Progress]) -> Steps[dict[Partition, StoreError]]:
        """Write in as few requests as the limits allow."""
        refused: dict[Partition, StoreError] = {}
        changes: list[Change] = []
        at = self._access()
        for partition, each in progress.items():
            asked, transactions = each.position, each.transactions
            known = self._held.owned(partition)
            if known is None:
                refused[partition] = self._held.refusal(partition)
                continue
            stored = known.node.stored
            before = stored.position
            if asked.offset < before.offset:
                refused[partition] = OffsetWouldMoveBack(partition, before.offset, asked.offset)
                continue
            position = _merged(before, asked)
            if (position, transactions) != (before, stored.transactions):
                changes.append(change_to(at, partition, known, position, transactions))
        for batch in _batches(changes):
            yield from set_all(at, batch, refused)
        for change in changes:
            if change.node.stored.transactions is None and change.partition not in refused:
                _tell_dropped(change.partition, change.known.node.stored, None)
        return refused

    def _access(self) -> Access:
        return Access(self._names, self._held, self._held.session)

    def _first(
        self,
        partition: Partition,
        position: Position,
        partitions: int | None,
        transactions: Transactions | None,
        *,
        restore: bool,
    ) -> Steps[None]:
        at = self._access()
        try:
            yield from make(at, partition, position, partitions, transactions, restore=restore)
        except SessionEnded:  # it may have been done
            raise self._held.drop(partition, OwnershipLost(partition)) from None


def _tell_dropped(
    partition: Partition, before: StoredOffset, transactions: Transactions | None
) -> None:
    """Log open transactions that no commit finished: their rows may come twice."""
    if before.transactions is None:
        return
    kept = set() if transactions is None else {each.txid for each in transactions.open}
    done = 0 if transactions is None else transactions.committed
    txids = [each.txid for each in before.transactions.open]
    dropped = [txid for txid in txids if txid > done and txid not in kept]
    if dropped:
        log.warning("transactions_dropped", partition=str(partition), txids=dropped)


def _merged(stored: Position, asked: Position) -> Position:
    """Return the asked position; at the same offset with what only the stored one knows."""
    if asked.offset != stored.offset:
        return asked
    leader_epoch = stored.leader_epoch if asked.leader_epoch is None else asked.leader_epoch
    return Position(asked.offset, leader_epoch, asked.topic_id or stored.topic_id)


class Change(NamedTuple):
    """An owned node to be set."""

    partition: Partition
    path: str
    known: KnownNode
    node: OffsetNode
    data: bytes

    def operations(self) -> Iterator[Operation]:
        """Return operations that set the node if it is still the same node."""
        yield SetNode(self.path, self.data, self.known.version)
        if self.node.incarnation is not None:
            yield CheckNode(incarnation_path(self.path, self.node.incarnation))


def change_to(
    at: Access,
    partition: Partition,
    known: KnownNode,
    position: Position,
    transactions: Transactions | None,
) -> Change:
    """Return the change that stores a position, and its open transactions, under the epoch.

    Raises ValueError if they do not fit.
    """
    stored = at.names.stored(position, known.node.stored.epoch, transactions)
    node = OffsetNode(stored, at.held.next_writer(), known.node.incarnation)
    data = encode(partition, node)
    return Change(partition, at.names.path(partition), known, node, data)


def _batches(changes: Iterable[Change]) -> Iterator[list[Change]]:
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
                    held.take(change.partition, KnownNode(versions[change.path], change.node))
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
    """Remove from `pending` what has landed, and what never can."""
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


def _why_not(at: Access, change: Change, found: KnownNode | None) -> Steps[StoreError | None]:
    """Return why a write cannot land any more; None when it still can."""
    if found is None:
        return StoreMissing(change.path)
    if found != change.known:
        return Fenced(change.partition, owner_of(found.node))
    if found.node.incarnation is not None:
        below = incarnation_path(change.path, found.node.incarnation)
        if (yield from at.read(below)) is None:
            return Fenced(change.partition, f"{change.path} was deleted and made anew")
    return None


def claim(at: Access, partition: Partition, *, adopt: bool, again: bool = False) -> Steps[Claim]:
    """Raise the epoch; see `OffsetStore.claim`. Raises SessionEnded too."""
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
            raise held.drop(partition, Fenced(partition, owner_of(found.node)))
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
        data = encode(partition, node)
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
            held.take(partition, KnownNode(versions[path], node))
            return taken


def _found(at: Access, partition: Partition, *, again: bool) -> Steps[KnownNode | Claim]:
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
            return Claim(None, topic_begun=bool(topic.begun), was_there=was_there)
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
            except OutcomeUnknown:
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
