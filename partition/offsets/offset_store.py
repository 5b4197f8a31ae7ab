"""The offset store: one position per partition, which only one writer at a time moves. No I/O.

What is done is a generator of requests (`partition.offsets.requests`); a subclass sends them. It
guarantees, whatever the network does:

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

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import NamedTuple, TypeVar, cast

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
from partition.interfaces import Claimed, Progress, StoredOffset
from partition.offsets.holdings import Holdings, KnownNode, NodeNames
from partition.offsets.requests import (
    RETRY_SECONDS,
    CheckNode,
    CreateNode,
    NodeChanged,
    NodeExists,
    Operation,
    Pause,
    ReplyLost,
    SessionEnded,
    SetNode,
    Steps,
    Write,
    read,
    size_of,
    through_sessions,
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
)
from partition.records import Partition, Position, Transactions

log = structlog.get_logger()
T = TypeVar("T")

MAX_OPERATIONS = 1000  # per write; a partition's are two
# Half of ZooKeeper's default jute.maxbuffer (1 MiB): a server closes the connection on a larger
# request without an error, and a commit that is sent again as it was would never succeed.
MAX_REQUEST_BYTES = 512 * 1024


class OffsetStore(ABC):
    """Keep one position per partition.

    Every write is a compare-and-set on what this store read or wrote last, under an epoch that
    only grows (promise 9). Offsets never move back, except by `move` (promise 2). No answer is
    never taken for no offset (promise 8). Any thread may wait for the futures. While the store
    is away they wait and try again, until `close` fails them with StoreUnavailable. A session
    that ends takes every ownership with it: a write is refused with OwnershipLost until the
    partition is claimed again.
    """

    def __init__(self, names: NodeNames, process: str | None = None) -> None:
        """`process` marks this process's writes: letters, digits and hyphens, never used before."""
        self._names = names
        self._held = Holdings(process)

    @property
    @abstractmethod
    def available(self) -> bool:
        """Whether the store answered when it was last heard of."""

    @property
    @abstractmethod
    def session(self) -> int:
        """A number that changes when a session has ended: what was claimed before is lost."""

    @abstractmethod
    def _submit(self, steps: Steps[T], *, claims: Partition | None = None) -> Future[T]:
        """Run requests to their end. Claims may run together, all else one by one."""

    @abstractmethod
    def open(self) -> None:
        """Connect. Raises StoreUnavailable in bounded time; may then be called again."""

    @abstractmethod
    def close(self) -> None:
        """Disconnect in bounded time; what is unfinished fails. Idempotent."""

    @abstractmethod
    def load(self, partition: Partition) -> StoredOffset | None:
        """Return the stored offset; None only when there certainly is none. For operators.

        Raises StoreUnavailable within a bounded time, and StoreCorrupt.
        """

    def claim(
        self, partition: Partition, *, adopt: bool = False, again: bool = False
    ) -> Future[Claimed]:
        """Raise a partition's epoch, so that whoever held it can write no more.

        Nothing but epoch and writer changes: open transactions stay. An offset that another
        topology stored is refused, unless `adopt`. Raises StoreForeign, StoreMissing (an offset
        was stored once and is gone), StoreCorrupt, Fenced (someone else claimed it at the same
        moment), and OwnershipLost: the session in which it was asked has ended, so the partition
        may be another's by right.

        With `again` the claim goes on in the next session, as it changes nothing if somebody
        wrote since this store held the partition: it raises Fenced then, and StoreMissing where
        nothing says any more that an offset was stored.
        """
        if again:
            steps = through_sessions(partial(self._claim, partition, again=True))
        else:
            steps = self._in_session(partition, self._claim(partition, adopt=adopt), self.session)
        return self._submit(steps, claims=partition)

    def begin(
        self,
        partition: Partition,
        position: Position,
        partitions: int | None = None,
        transactions: Transactions | None = None,
    ) -> Future[None]:
        """Store the first position of a partition, under epoch 1 (promise 7).

        `partitions` is how many its topic has. It is kept with the first that is begun, so that
        those added later can be told. Raises StoreConflict when there is a position already.
        """
        steps = self._make(partition, position, partitions, transactions)
        return self._submit(self._in_session(partition, steps, self.session))

    def move(
        self,
        partition: Partition,
        position: Position,
        reason: str,
        transactions: Transactions | None = None,
    ) -> Future[None]:
        """Store a position wherever it lies, also before the stored one: by policy or operator.

        It becomes this topology's own. Open transactions that are not among `transactions` are
        dropped: their rows may come twice, and `transactions_dropped` is logged. Logs
        `offset_moved` with both offsets and the reason. Raises as `commit` refuses.
        """
        steps = self._move(partition, position, reason, transactions)
        return self._submit(self._in_session(partition, steps, self.session))

    def commit(
        self, progress: Mapping[Partition, Progress]
    ) -> Future[Mapping[Partition, StoreError]]:
        """Store the progress of partitions; return those that were refused, with their errors.

        All others are stored then, each position and its transactions together or not at all.
        Progress without transactions leaves none; open ones are logged as
        `transactions_dropped`. Refused is with Fenced, OwnershipLost, OffsetWouldMoveBack,
        StoreMissing, StoreCorrupt. The caller keeps one commit outstanding. Raises ValueError,
        and stores nothing, if transactions do not go on from their position
        (`Transactions.checked`); StoreUnavailable (after `close`), or StoreError when the store
        refuses everything (rights, size).
        """
        return self._submit(self._commit(dict(progress)))

    def session_ended(self) -> None:
        """A generator under way must get SessionEnded next."""
        self._held.end_session()

    # Reading

    def _load(self, partition: Partition) -> Steps[StoredOffset | None]:
        known = yield from through_sessions(partial(self._node, partition))
        return None if known is None else known.node.stored

    def _node(self, partition: Partition) -> Steps[KnownNode | None]:
        path = self._names.path(partition)
        raw = yield from read(path)
        return None if raw is None else KnownNode(raw.version, decode(path, raw.data))

    def _topic(self, topic: str) -> Steps[tuple[TopicNode, int | None]]:
        path = self._names.topic_path(topic)
        raw = yield from read(path)
        node = TopicNode() if raw is None else decode_topic(path, raw.data)
        self._held.begun[topic] = node.begun
        return node, None if raw is None else raw.version

    # Writing

    def _write(self, operations: Sequence[Operation]) -> Steps[dict[str, int]]:
        versions = yield Write(tuple(operations))
        paths = [operation.path for operation in operations]
        return dict(zip(paths, cast("list[int]", versions), strict=True))

    def _in_session(self, partition: Partition, steps: Steps[T], session: int) -> Steps[T]:
        with suppress(SessionEnded):  # it may have been done
            if self.session == session:
                return (yield from steps)
        raise self._held.drop(partition, OwnershipLost(partition))

    def _note_begun(
        self, partition: Partition, partitions: int | None = None
    ) -> Steps[list[Operation]]:
        """Return the write that notes in the topic's node that a partition was begun, if needed."""
        if partition.number in self._held.begun.get(partition.topic, ()):
            return []
        node, version = yield from self._topic(partition.topic)
        if partition.number in node.begun:
            return []
        first = node.first if node.begun else partitions
        data = encode_topic(replace(node, begun=node.begun | {partition.number}, first=first))
        path = self._names.topic_path(partition.topic)
        return [CreateNode(path, data) if version is None else SetNode(path, data, version)]

    # Claims

    def _claim(
        self, partition: Partition, *, adopt: bool = False, again: bool = False
    ) -> Steps[Claimed]:
        path, held = self._names.path(partition), self._held
        tried: dict[Writer, Claimed] = {}
        epoch: int | None = None
        while True:
            found = yield from self._found(partition, again=again)
            if isinstance(found, Claimed):
                return found
            stored, writer = found.node.stored, found.node.writer
            if writer in tried:  # its reply was lost
                held.take(partition, found)
                return tried[writer]
            last = held.is_last_write(partition, found)
            # Else the former owner committed meanwhile; and `again` may fence nobody.
            if epoch not in {None, stored.epoch} or (again and not last):
                raise held.drop(partition, Fenced(partition, found.owner))
            epoch = stored.epoch
            foreign = stored.topology_id != self._names.topology_id
            if foreign and not adopt:
                raise StoreForeign(path, stored.topology_id, self._names.topology_id)
            attempt = held.next_writer()
            incarnation, operations = yield from _incarnation(path, found.node, attempt)
            operations += yield from self._note_begun(partition)
            node = OffsetNode(replace(stored, epoch=epoch + 1), attempt, incarnation)
            taken = Claimed(node.stored, topic_begun=True, foreign=foreign, uninterrupted=last)
            tried[attempt] = taken
            if last:  # else a claim that begins anew must not take this write for an old one
                held.wrote(partition, found.version + 1, attempt)
            operations.append(SetNode(path, encode(partition, node), found.version))
            # The topic's node before the partition's, and that before what is below it.
            operations.sort(key=lambda operation: operation.path.count("/"))
            try:
                versions = yield from self._write(operations)
            except (NodeChanged, NodeExists):
                continue
            except ReplyLost:
                yield Pause(RETRY_SECONDS)
            else:
                held.take(partition, KnownNode(versions[path], node))
                return taken

    def _found(self, partition: Partition, *, again: bool) -> Steps[KnownNode | Claimed]:
        """Read the node to claim, or end the claim of a partition that was never begun.

        One that was ours (`again`) was begun, whatever the server says: all of it was deleted.
        """
        path, damaged = self._names.path(partition), self._held.damaged
        for is_second in (False, True):
            raw = yield from read(path)
            if raw is not None:
                try:
                    return KnownNode(raw.version, decode(path, raw.data))
                except StoreCorrupt:
                    damaged[partition] = raw.version
                    raise
            if is_second or again:
                break
            topic = (yield from self._topic(partition.topic))[0]
            if partition.number not in topic.begun:
                damaged[partition] = None
                was_there = topic.first is not None and partition.number < topic.first
                return Claimed(None, topic_begun=bool(topic.begun), was_there=was_there)
            # It may have been begun between the two readings.
        damaged[partition] = None
        raise self._held.drop(partition, StoreMissing(path))

    # First positions, moves, commits

    def _make(
        self,
        partition: Partition,
        position: Position,
        partitions: int | None = None,
        transactions: Transactions | None = None,
        *,
        restore: bool = False,
    ) -> Steps[None]:
        """Store a first position; with `restore` also where a node was lost or is unreadable."""
        path, held = self._names.path(partition), self._held
        corrupt = held.damaged.get(partition) if restore else None
        # Each rise of the epoch is one of the version, so this is above any there was.
        epoch = 1 if corrupt is None else corrupt + 2
        writer = held.next_writer()
        incarnation = _drawn(writer)
        node = OffsetNode(self._names.stored(position, epoch, transactions), writer, incarnation)
        data = encode(partition, node)
        write = CreateNode(path, data) if corrupt is None else SetNode(path, data, corrupt)
        while True:
            held.begun.pop(partition.topic, None)  # the operator may have cleared it
            operations = yield from self._note_begun(partition, partitions)
            begun = not operations
            if restore or not begun:
                below = CreateNode(incarnation_path(path, incarnation), b"")
                try:
                    versions = yield from self._write([*operations, write, below])
                except (NodeChanged, NodeExists):
                    pass
                except ReplyLost:
                    yield Pause(RETRY_SECONDS)
                else:
                    held.take(partition, KnownNode(versions[path], node))
                    return
            raw = yield from read(path)
            if raw is None:
                if corrupt is not None or (begun and not restore):
                    raise StoreMissing(path)
            elif raw.version != corrupt:
                found = KnownNode(raw.version, decode(path, raw.data))
                if found.node.writer != writer:
                    raise StoreConflict(path, f"offset {found.node.stored.offset}")
                held.take(partition, found)  # ours, its reply was lost
                return

    def _move(
        self,
        partition: Partition,
        position: Position,
        reason: str,
        transactions: Transactions | None,
    ) -> Steps[None]:
        known = self._held.owned.get(partition)
        if known is None and partition not in self._held.damaged:
            raise self._held.refusal(partition)
        if known is None:
            yield from self._make(partition, position, None, transactions, restore=True)
        else:
            refused: dict[Partition, StoreError] = {}
            yield from self._set([self._update(partition, known, position, transactions)], refused)
            if partition in refused:
                raise refused[partition]
            _log_dropped(partition, known.node.stored, transactions)
        log.info(
            "offset_moved",
            partition=str(partition),
            before=known.node.stored.offset if known else None,
            offset=position.offset,
            reason=reason,
        )

    def _commit(
        self, progress: Mapping[Partition, Progress]
    ) -> Steps[Mapping[Partition, StoreError]]:
        refused: dict[Partition, StoreError] = {}
        changes: list[Update] = []
        for partition, each in progress.items():
            known = self._held.owned.get(partition)
            if known is None:
                refused[partition] = self._held.refusal(partition)
                continue
            stored, asked = known.node.stored, each.position
            before = stored.position
            if asked.offset < before.offset:
                refused[partition] = OffsetWouldMoveBack(partition, before.offset, asked.offset)
                continue
            position = _merged(before, asked)
            if (position, each.transactions) != (before, stored.transactions):
                changes.append(self._update(partition, known, position, each.transactions))
        try:
            for batch in _batches(changes):
                yield from self._set(batch, refused)
        except SessionEnded:  # what is stored of them is stored once more when they are ours again
            return {each.partition: OwnershipLost(each.partition) for each in changes} | refused
        for change in changes:
            if change.node.stored.transactions is None and change.partition not in refused:
                _log_dropped(change.partition, change.known.node.stored, None)
        return refused

    def _update(
        self,
        partition: Partition,
        known: KnownNode,
        position: Position,
        transactions: Transactions | None,
    ) -> "Update":
        stored = self._names.stored(position, known.node.stored.epoch, transactions)
        node = OffsetNode(stored, self._held.next_writer(), known.node.incarnation)
        return Update(partition, self._names.path(partition), known, node, encode(partition, node))

    def _set(self, batch: Sequence["Update"], refused: dict[Partition, StoreError]) -> Steps[None]:
        """Write until each is known to be done, or known to be impossible: then it is `refused`."""
        held = self._held
        for each in batch:
            held.wrote(each.partition, each.known.version + 1, cast("Writer", each.node.writer))
        pending = {each.partition: each for each in batch}
        while pending:
            tried = list(pending.values())
            operations = [each for change in tried for each in change.operations()]
            try:
                versions = yield from self._write(operations)
            except (NodeChanged, ReplyLost) as reason:
                log.warning("commit_read_back", partitions=len(tried), reason=type(reason).__name__)
            else:
                for each in tried:
                    held.take(each.partition, KnownNode(versions[each.path], each.node))
                return
            yield from self._read_back(tried, pending, refused)
            if pending:
                yield Pause(RETRY_SECONDS)

    def _read_back(
        self,
        tried: Sequence["Update"],
        pending: dict[Partition, "Update"],
        refused: dict[Partition, StoreError],
    ) -> Steps[None]:
        """Remove from `pending` what has landed, and what never can."""
        for change in tried:
            partition = change.partition
            try:
                found = yield from self._node(partition)
            except StoreCorrupt as error:
                reason: StoreError | None = error
            else:
                if found is not None and found.node.writer == change.node.writer:
                    self._held.take(partition, found)
                    del pending[partition]
                    continue
                reason = yield from _why_not(change, found)
            if reason is not None:
                refused[partition] = self._held.drop(partition, reason)
                del pending[partition]


class Update(NamedTuple):
    partition: Partition
    path: str
    known: KnownNode
    node: OffsetNode
    data: bytes

    def operations(self) -> Iterator[Operation]:
        yield SetNode(self.path, self.data, self.known.version)
        if self.node.incarnation is not None:
            yield CheckNode(incarnation_path(self.path, self.node.incarnation))


def _batches(changes: Iterable[Update]) -> Iterator[list[Update]]:
    """Split changes into as few writes as the limits allow; a larger change is a write alone."""
    batch: list[Update] = []
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


def _why_not(change: Update, found: KnownNode | None) -> Steps[StoreError | None]:
    """Return why a write can never land; None while it can."""
    if found is None:
        return StoreMissing(change.path)
    if found != change.known:
        return Fenced(change.partition, found.owner)
    if found.node.incarnation is not None:
        below = incarnation_path(change.path, found.node.incarnation)
        if (yield from read(below)) is None:
            return Fenced(change.partition, f"{change.path} was deleted and made anew")
    return None


def _merged(stored: Position, asked: Position) -> Position:
    """Return `asked`, at the same offset with the fields that only `stored` has."""
    if asked.offset != stored.offset:
        return asked
    leader_epoch = stored.leader_epoch if asked.leader_epoch is None else asked.leader_epoch
    return Position(asked.offset, leader_epoch, asked.topic_id or stored.topic_id)


def _log_dropped(
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


def _incarnation(
    path: str, node: OffsetNode, attempt: Writer
) -> Steps[tuple[str, list[Operation]]]:
    if node.incarnation is not None:
        below = incarnation_path(path, node.incarnation)
        if (yield from read(below)) is not None:
            return node.incarnation, [CheckNode(below)]
    drawn = _drawn(attempt)  # for Storm's node, or one that was put back by hand
    return drawn, [CreateNode(incarnation_path(path, drawn), b"")]


def _drawn(writer: Writer) -> str:
    return f"{writer.process}-{writer.sequence}"
