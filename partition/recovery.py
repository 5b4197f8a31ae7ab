"""Open a partition, claim it again, and go on after records were lost."""

from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Literal, Protocol, TypeAlias, TypeVar

import structlog

from partition.errors import (
    CorruptRecord,
    Fenced,
    KafkaError,
    OffsetOutOfRange,
    ReplayDiffers,
    SourceLost,
    StoreBehind,
    StoreConflict,
    TopicMissing,
)
from partition.interfaces import (
    AtOffset,
    AtTimestamp,
    Catalogue,
    Claimed,
    Log,
    StartFrom,
    StoredOffset,
)
from partition.manager import PartitionManager
from partition.offsets.offset_store import OffsetStore
from partition.records import (
    OpenTransaction,
    Partition,
    Position,
    Resumed,
    TransactionKind,
    Transactions,
)

Reason: TypeAlias = Literal["expired", "truncated", "recreated", "behind", "corrupt"]


@dataclass(frozen=True, slots=True)
class Loss:
    """Records that will not be read, or are not what they were.

    `lost` counts offsets: `expired`, `behind` and `corrupt` ones were never read; `truncated` ones
    had been read, and others stand in their place; of a topic `recreated` those left unread, if
    its end was seen.
    """

    partition: Partition
    reason: Reason
    position: Position  # where we were
    resume: Position  # where reading can go on
    lost: int
    found: str  # the log as it is now, in words


def loss_of(
    partition: Partition,
    position: Position,
    log: Log,
    *,
    diverged_at: int | None = None,
    known_end: int | None = None,
) -> Loss | None:
    """Compare a resume key with the log; None when nothing is lost (Kafka's KIP-320, KIP-516).

    `diverged_at` is where the broker says that the log was cut off; `known_end` its last known end.
    """
    found = f"and the log holds {log.start} to {log.end}"
    offset = position.offset
    resume = Position(log.start, log.leader_epoch, log.topic_id)
    if position.topic_id and log.topic_id and position.topic_id != log.topic_id:
        lost = max(0, (known_end or 0) - offset)
        found = f"but the topic was deleted and created again, {found}"
        return Loss(partition, "recreated", position, resume, lost, found)
    if offset < log.start:
        return Loss(partition, "expired", position, resume, log.start - offset, found)
    cut = log.end if diverged_at is None else max(log.start, min(diverged_at, log.end))
    if diverged_at is not None or offset > log.end:
        found = f"but the log was cut off at {cut}, {found}"
        # With the old epoch: the log may have been cut off again since, and lower. But not where
        # its start has passed the cut: the old epoch would tell of the same cut for ever.
        known = position.leader_epoch is not None and diverged_at in {None, cut}
        epoch = position.leader_epoch if known else log.leader_epoch
        resume = replace(resume, offset=cut, leader_epoch=epoch)
        return Loss(partition, "truncated", position, resume, max(0, offset - cut), found)
    return None


def behind(partition: Partition, position: Position, log: Log, most: int) -> Loss | None:
    resume = max(position.offset, log.end - most)
    if resume == position.offset:
        return None
    found = f"more than max_offset_behind = {most} before the log's end {log.end}"
    there = Position(resume, log.leader_epoch, log.topic_id)
    return Loss(partition, "behind", position, there, resume - position.offset, found)


def corrupt(partition: Partition, position: Position) -> Loss:
    resume = replace(position, offset=position.offset + 1)
    return Loss(partition, "corrupt", position, resume, 1, "and its checksum is wrong")


T = TypeVar("T")
Chain: TypeAlias = Generator[Future[Any] | None, Any, T]


class FutureChain(Generic[T]):
    """Drive a generator that yields futures, and None to be asked again later.

    The thread that calls `poll` runs the generator; a future that failed is raised in it.
    """

    def __init__(self, chain: Chain[T]) -> None:
        self._chain = chain
        self._waits_for: Future[Any] | None = None

    def poll(self) -> tuple[T] | None:
        """Return the result, or None while something is awaited."""
        while True:
            future = self._waits_for
            if future is not None and not future.done():
                return None
            try:
                self._waits_for = self._go_on(future)
            except StopIteration as stop:
                return (stop.value,)
            if self._waits_for is None:
                return None

    def _go_on(self, future: Future[Any] | None) -> Future[Any] | None:
        if future is None:
            return next(self._chain)
        error = future.exception()
        if error is not None:
            return self._chain.throw(error)
        return self._chain.send(future.result())


log = structlog.get_logger()

_TRIES = 3
_FIRST_EPOCH = 1  # under which `begin` stores

OnTrouble: TypeAlias = Literal["halt", "skip"]


@dataclass(frozen=True, slots=True)
class StartPolicy:
    """The first position of a partition, and what to do where its log is not what it was."""

    start_from: StartFrom = "earliest"
    ignore_stored_offsets: bool = False  # those of another topology; our own always count
    max_offset_behind: int | None = None  # offsets; None: however far behind, nothing is skipped
    on_data_loss: OnTrouble = "halt"
    on_corrupt_record: OnTrouble = "halt"


class Fencing(Protocol):
    """The sinks' side of a partition's opening, where transactions are kept (exactly once)."""

    kind: TransactionKind

    def fence(self, partition: Partition, epoch: int) -> Chain[Mapping[str, int]]:
        """Let no lower epoch commit from now on; return by sink the txid that it has committed.

        Raises Fenced when a sink knows a higher epoch, and what ends the run.
        """

    def resume(
        self, partition: Partition, stored: StoredOffset, committed: Mapping[str, int]
    ) -> Resumed:
        """Return what is replayed. Raises TransactionError when the sinks and the store differ."""


@dataclass(frozen=True, slots=True)
class Ways:
    """The ports that a chain asks: store, cluster, notices of losses, sinks."""

    store: OffsetStore
    catalogue: Catalogue
    notify: Callable[[Loss], Future[None]]
    fencing: Fencing | None = None  # None: no transactions are kept


@dataclass(frozen=True, slots=True)
class Opened:
    """A partition that may be read from `position` on; its log ended at `end` then."""

    position: Position
    end: int
    losses: tuple[Loss, ...] = field(default=())
    epoch: int | None = None  # of the ownership; None: what it was
    resumed: Resumed | None = None  # how its transactions go on; None: none are kept
    reads_on: bool = False  # what was fetched stays, and `position` comes behind it


def opening(
    partition: Partition, partitions: int, ways: Ways, policy: StartPolicy
) -> Chain[Opened]:
    """Claim a partition, one of so many of its topic, and find where to read it.

    Its first position is stored before this ends (promise 7), and so is every jump. With
    `fencing` the sinks refuse former owners before it is asked what they have committed, and
    only then is the log looked at (promise 9). Raises what the store, the catalogue and the
    fencing raise, StoreBehind when the store was put back, OffsetOutOfRange, SourceLost, and
    ReplayDiffers when the log does not hold what is to be replayed, whatever policy says.
    """
    at, fencing = policy.start_from, ways.fencing
    timestamp = at.timestamp_ms if isinstance(at, AtTimestamp) else None
    while True:
        claim: Claimed = yield ways.store.claim(partition, adopt=policy.ignore_stored_offsets)
        stored = claim.stored
        resumed: Resumed | None = None
        committed: Mapping[str, int] = {}
        if fencing is not None and stored is not None:
            committed = yield from _fenced(partition, stored.epoch, ways, fencing)
            if not claim.foreign:
                resumed = fencing.resume(partition, stored, committed)
        found: Log = yield ways.catalogue.log(partition, timestamp)
        if stored is not None:
            break
        first = _first(partition, at, claim, found)
        transactions = None if fencing is None else Transactions(fencing.kind)
        try:
            yield ways.store.begin(partition, first, partitions, transactions)
        except StoreConflict:
            continue  # another process began it meanwhile
        _log_position("partition_started", partition, first, start_from=str(at))
        if fencing is not None:
            committed = yield from _fenced(partition, _FIRST_EPOCH, ways, fencing)
            stored = StoredOffset(first, "", epoch=_FIRST_EPOCH, transactions=transactions)
            resumed = fencing.resume(partition, stored, committed)
        return Opened(first, found.end, epoch=_FIRST_EPOCH, resumed=resumed)
    if claim.foreign:
        position = _first(partition, at, claim, found)
        transactions = None
        if fencing is not None:
            # Its own transactions come after those that the sinks have under the same name.
            transactions = Transactions(fencing.kind, max(committed.values(), default=0))
            resumed = Resumed(position, transactions, least_attempt=stored.epoch)
        yield ways.store.move(partition, position, "ignore_stored_offsets", transactions)
        _log_position("partition_started", partition, position, start_from=str(at))
        return Opened(position, found.end, epoch=stored.epoch, resumed=resumed)
    position = stored.position if resumed is None else resumed.position
    opened = yield from _resuming(partition, position, resumed, found, ways, policy)
    return replace(opened, epoch=stored.epoch)


def _fenced(
    partition: Partition, epoch: int, ways: Ways, fencing: Fencing
) -> Chain[Mapping[str, int]]:
    """Fence the sinks. Raises Fenced, and StoreBehind where no later owner has been in the store.

    A later owner raises the epoch there before it fences a sink. So if nobody wrote there since
    we claimed, what the sink knows is of a state of the store that is gone.
    """
    try:
        return (yield from fencing.fence(partition, epoch))
    except Fenced as error:
        yield ways.store.claim(partition, again=True)
        raise StoreBehind(partition, epoch, str(error)) from error


def _resuming(
    partition: Partition,
    position: Position,
    resumed: Resumed | None,
    found: Log,
    ways: Ways,
    policy: StartPolicy,
) -> Chain[Opened]:
    losses = []
    loss = loss_of(partition, position, found)
    resumed = _replayed(partition, resumed, found, loss)
    transactions = None if resumed is None else resumed.transactions
    if loss is not None and not _asks_where(loss):
        losses.append(loss)
        position = yield from _jump(loss, ways, policy.on_data_loss, transactions)
    if policy.max_offset_behind is not None and not (transactions and transactions.open):
        loss = behind(partition, position, found, policy.max_offset_behind)
        if loss is not None:
            losses.append(loss)
            position = yield from _jump(loss, ways, "skip", transactions)
    _log_position("partition_resumed", partition, position)
    # Where the stored key did not name the topic's id, the next commit will.
    position = replace(position, topic_id=found.topic_id)
    resumed = None if resumed is None else replace(resumed, position=position)
    return Opened(position, found.end, tuple(losses), resumed=resumed)


def _replayed(
    partition: Partition, resumed: Resumed | None, found: Log, loss: Loss | None
) -> Resumed | None:
    """Return the transactions to go on with in the log as it is.

    Where it lacks records of open ranges, those that were only planned are planned anew, behind
    the loss; for others it raises ReplayDiffers.
    """
    if resumed is None:
        return None
    is_lost = loss is not None and not _asks_where(loss)
    known = resumed.transactions.open
    those = known if is_lost else _lacking(known, found)
    first = next(iter(those), None)
    if first is None:
        return resumed
    if not resumed.transactions.is_promised:
        return resumed.anew()
    holds = f"the log holds {found.start} to {found.end}"
    if loss is not None and is_lost:
        holds = loss.found.removeprefix("and ").removeprefix("but ")
    raise ReplayDiffers(partition, first.txid, str(first.range), holds)


def _lacking(known: Sequence[OpenTransaction], found: Log) -> list[OpenTransaction]:
    return [each for each in known if each.range.end > found.end]


def recovering(
    manager: PartitionManager[Any],
    trouble: KafkaError | None,
    in_vain: tuple[int, int],
    known_end: int | None,
    ways: Ways,
    policy: StartPolicy,
) -> Chain[Opened]:
    """Find the position at which to go on where the log does not hold what is to be read next.

    What was read before resolves first; exactly once it is committed, unless a transaction is
    replayed of which records are still to come: then they are asked for again. Ranges that are
    only planned are planned anew behind a loss, or where the log still ends within them after some
    attempts.

    `trouble` is the fetcher's OffsetOutOfRange, CorruptRecord or TopicMissing; None when the
    topic's id has changed. `in_vain` is an offset, and how often nothing was found to be wrong
    there: trouble may pass, so it is raised after some attempts only. TopicMissing may come of one
    broker that has not heard of the topic yet: reading goes on unless the catalogue says so too.
    Raises SourceLost when policy says halt, ReplayDiffers when the log has lost records of a
    transaction that is replayed, and what the store raises.
    """
    manager.is_moving = False
    if isinstance(trouble, TopicMissing):
        there: Log = yield ways.catalogue.log(manager.partition)
        position = manager.fetch_position
        if loss_of(manager.partition, position, there, known_end=known_end) is None:
            return Opened(position, there.end, reads_on=True)
        trouble = None
    while (lost := manager.delivery.replay_error(log_moved=True)) is None and not manager.is_idle:
        yield None
    # `lost`, also before the first record of the replay came: the rest is read if the log has it.
    manager.is_moving = lost is None
    position = manager.position if lost is None else manager.fetch_position
    found: Log = yield ways.catalogue.log(manager.partition)
    diverged_at = trouble.diverged_at if isinstance(trouble, OffsetOutOfRange) else None
    loss = loss_of(manager.partition, position, found, diverged_at=diverged_at, known_end=known_end)
    offset, count = in_vain
    may_pass = offset != position.offset or count < _TRIES
    if loss is not None and not (diverged_at is None and may_pass and _asks_where(loss)):
        if lost is not None:
            raise lost
        position = yield from _jump(loss, ways, policy.on_data_loss, _transactions(manager))
        return _gone_on(manager, position, found, loss)
    open_ones = manager.open_transactions
    is_open = lost is not None or bool(open_ones)
    if trouble is None or may_pass:
        if not is_open:
            return _gone_on(manager, position, found)
        manager.is_moving = False
        return Opened(position, found.end, reads_on=True)
    if lost is None and _lacking(open_ones, found):
        # No sink has any of it, or it would not have come here: as a restart goes on.
        return _gone_on(manager, position, found)
    # Where in an open range the record lies is not known here: the next one may be a good one.
    if isinstance(trouble, CorruptRecord) and policy.on_corrupt_record == "skip" and not is_open:
        loss = corrupt(manager.partition, position)
        position = yield from _jump(loss, ways, "skip", _transactions(manager))
        return _gone_on(manager, position, found, loss)
    raise trouble


def _transactions(manager: PartitionManager[Any]) -> Transactions | None:
    goes_on = manager.delivery.resume_state(manager.position)
    return None if goes_on is None else goes_on.transactions


def _gone_on(
    manager: PartitionManager[Any], position: Position, found: Log, *losses: Loss
) -> Opened:
    resumed = manager.delivery.resume_state(position)
    return Opened(position, found.end, losses, resumed=resumed)


def reclaiming(partition: Partition, ways: Ways) -> Chain[int]:
    """Take a partition up again after its session has ended; return the new epoch.

    Nobody may have had it in between, so no sink is fenced. Raises Fenced when someone has had
    it, and StoreMissing when nothing is known of it any more.
    """
    claim: Claimed = yield ways.store.claim(partition, again=True)
    if not claim.uninterrupted or claim.stored is None:
        found = "nothing is stored" if claim.stored is None else f"offset {claim.stored.offset}"
        raise Fenced(partition, found)
    return claim.stored.epoch


def _first(partition: Partition, start_from: StartFrom, claim: Claimed, found: Log) -> Position:
    if claim.topic_begun and not claim.was_there:
        offset = found.start  # it came after the first start: "latest" would skip its beginning
    elif isinstance(start_from, AtTimestamp):
        offset = found.end if found.at_timestamp is None else found.at_timestamp
    elif isinstance(start_from, AtOffset):
        offset = start_from.offset
        if not found.start <= offset <= found.end:
            held = f"start_from names it, but the log holds {found.start} to {found.end}"
            raise OffsetOutOfRange(partition, offset, held)
    else:
        offset = found.start if start_from == "earliest" else found.end
    # No record was read, so there is no epoch of one; the leader's tells as well whether the
    # log is cut off below from now on.
    return Position(offset, found.leader_epoch, found.topic_id)


def _asks_where(loss: Loss) -> bool:
    """Whether the broker can tell where the log was cut off, as the leader epoch is known.

    Its end need not be the place: what was cut off lower may have grown again. The fetcher
    asks when it is told to read there.
    """
    return loss.reason == "truncated" and loss.position.leader_epoch is not None


def _jump(
    loss: Loss, ways: Ways, policy: OnTrouble, transactions: Transactions | None
) -> Chain[Position]:
    """Skip what is lost: told in the dead letters, then stored. Raises SourceLost."""
    if policy == "halt":
        raise SourceLost(loss.partition, loss.reason, loss.position.offset, loss.found)
    yield ways.notify(loss)
    yield ways.store.move(loss.partition, loss.resume, loss.reason, transactions)
    log.warning(
        "source_lost_records",
        partition=str(loss.partition),
        reason=loss.reason,
        offset=loss.position.offset,
        resume=loss.resume.offset,
        lost=loss.lost,
    )
    return loss.resume


def _log_position(event: str, partition: Partition, position: Position, **facts: str) -> None:
    log.info(event, partition=str(partition), offset=position.offset, **facts)
