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
from typing import NamedTuple, TypeVar, cast

import structlog

from partition.errors import (
    Fenced,
    OffsetWouldMoveBack,
    OwnershipLost,
    StoreCorrupt,
    StoreError,
    StoreMissing,
)
from partition.interfaces import Claimed, Progress, StoredOffset
from partition.offsets.ownership import (
    Access,
    Holdings,
    KnownNode,
    NodeNames,
    claim,
    make,
    owner_of,
)
from partition.offsets.requests import (
    CheckNode,
    NodeChanged,
    Operation,
    ReplyLost,
    SessionEnded,
    SetNode,
    Steps,
    size_of,
)
from partition.offsets.znode import OffsetNode, Writer, encode, incarnation_path
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
        return self._submit(self._claim(partition, self.session, adopt, again), claims=partition)

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
        steps = self._first(partition, position, partitions, transactions, restore=False)
        return self._submit(steps)

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
        return self._submit(self._move(partition, position, reason, transactions))

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
        """Drop every ownership. A generator under way must get SessionEnded next."""
        self._held.end_session()

    def _load(self, partition: Partition) -> Steps[StoredOffset | None]:
        while True:
            try:
                known = yield from self._access().node(partition)
            except SessionEnded:
                continue
            return None if known is None else known.node.stored

    def _claim(
        self, partition: Partition, asked_in: int, adopt: bool, again: bool
    ) -> Steps[Claimed]:
        while again or self.session == asked_in:
            try:
                return (yield from claim(self._access(), partition, adopt=adopt, again=again))
            except SessionEnded:
                if not again:
                    break
        raise self._held.drop(partition, OwnershipLost(partition))

    def _move(
        self,
        partition: Partition,
        position: Position,
        reason: str,
        transactions: Transactions | None,
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

    def _commit(
        self, progress: Mapping[Partition, Progress]
    ) -> Steps[Mapping[Partition, StoreError]]:
        refused: dict[Partition, StoreError] = {}
        changes: list[Update] = []
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
    """Return `asked`, at the same offset with the fields that only `stored` has."""
    if asked.offset != stored.offset:
        return asked
    leader_epoch = stored.leader_epoch if asked.leader_epoch is None else asked.leader_epoch
    return Position(asked.offset, leader_epoch, asked.topic_id or stored.topic_id)


class Update(NamedTuple):
    """An owned node to be set."""

    partition: Partition
    path: str
    known: KnownNode
    node: OffsetNode
    data: bytes

    def operations(self) -> Iterator[Operation]:
        yield SetNode(self.path, self.data, self.known.version)
        if self.node.incarnation is not None:
            yield CheckNode(incarnation_path(self.path, self.node.incarnation))


def change_to(
    at: Access,
    partition: Partition,
    known: KnownNode,
    position: Position,
    transactions: Transactions | None,
) -> Update:
    """Return the update that stores a position and its transactions. Raises ValueError."""
    stored = at.names.stored(position, known.node.stored.epoch, transactions)
    node = OffsetNode(stored, at.held.next_writer(), known.node.incarnation)
    data = encode(partition, node)
    return Update(partition, at.names.path(partition), known, node, data)


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


def set_all(
    at: Access, batch: Sequence[Update], refused: dict[Partition, StoreError]
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
            except (NodeChanged, ReplyLost) as reason:
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
    tried: Sequence[Update],
    pending: dict[Partition, Update],
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


def _why_not(at: Access, change: Update, found: KnownNode | None) -> Steps[StoreError | None]:
    """Return why a write can never land; None while it can."""
    if found is None:
        return StoreMissing(change.path)
    if found != change.known:
        return Fenced(change.partition, owner_of(found.node))
    if found.node.incarnation is not None:
        below = incarnation_path(change.path, found.node.incarnation)
        if (yield from at.read(below)) is None:
            return Fenced(change.partition, f"{change.path} was deleted and made anew")
    return None
