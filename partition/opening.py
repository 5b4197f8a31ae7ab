"""How a partition is begun, taken up again, and gone on with after records were lost.

Each function is a chain of requests to the offset store and the cluster (`partition.steps`):
pure but for the futures it is given, so nothing here waits and the owner thread runs it.
"""

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

import structlog

from partition.catalogue import AtOffset, AtTimestamp, Catalogue, Log, StartFrom
from partition.chunk import Partition
from partition.errors import (
    CorruptRecord,
    Fenced,
    KafkaError,
    OffsetOutOfRange,
    SourceLost,
    StoreConflict,
)
from partition.loss import Loss, behind, corrupt, loss_of
from partition.manager import PartitionManager
from partition.position import Position
from partition.steps import Chain
from partition.store import Claim, OffsetStore

log = structlog.get_logger()

_TRIES = 3

OnTrouble: TypeAlias = Literal["halt", "skip"]


@dataclass(frozen=True, slots=True)
class StartPolicy:
    """Where a partition starts, and what happens where its log is not what it was."""

    start_from: StartFrom = "earliest"
    ignore_stored_offsets: bool = False  # those of another topology; our own always count
    max_offset_behind: int | None = None  # offsets; None: however far behind, nothing is skipped
    on_data_loss: OnTrouble = "halt"
    on_corrupt_record: OnTrouble = "halt"


@dataclass(frozen=True, slots=True)
class Ways:
    """What a chain may ask: the store, the cluster, and the dead letters for its notices."""

    store: OffsetStore
    catalogue: Catalogue
    notify: Callable[[Loss], Future[None]]


@dataclass(frozen=True, slots=True)
class Opened:
    """A partition that may be read from `position` on; its log ended at `end` then."""

    position: Position
    end: int
    losses: tuple[Loss, ...] = field(default=())


def opening(
    partition: Partition, partitions: int, ways: Ways, policy: StartPolicy
) -> Chain[Opened]:
    """Claim a partition, one of so many of its topic, and find where to read it.

    Its first position is stored before this ends (promise 7), and so is every jump. Raises
    what the store and the catalogue raise, OffsetOutOfRange and SourceLost.
    """
    at = policy.start_from
    timestamp = at.timestamp_ms if isinstance(at, AtTimestamp) else None
    while True:
        claim: Claim = yield ways.store.claim(partition, adopt=policy.ignore_stored_offsets)
        found: Log = yield ways.catalogue.log(partition, timestamp)
        if claim.stored is not None:
            break
        first = _first(partition, policy.start_from, claim, found)
        try:
            yield ways.store.begin(partition, first, partitions)
        except StoreConflict:
            continue  # another process began it meanwhile
        _tell("partition_started", partition, first, start_from=str(policy.start_from))
        return Opened(first, found.end)
    position = claim.stored.position
    if claim.foreign:
        position = _first(partition, policy.start_from, claim, found)
        yield ways.store.move(partition, position, "ignore_stored_offsets")
        _tell("partition_started", partition, position, start_from=str(policy.start_from))
        return Opened(position, found.end)
    losses = []
    loss = loss_of(partition, position, found)
    if loss is not None and not _asks_where(loss):
        losses.append(loss)
        position = yield from _jump(loss, ways, policy.on_data_loss)
    if policy.max_offset_behind is not None:
        loss = behind(partition, position, found, policy.max_offset_behind)
        if loss is not None:
            losses.append(loss)
            position = yield from _jump(loss, ways, "skip")
    _tell("partition_resumed", partition, position)
    # Where the stored key did not name the topic's id, the next commit will.
    return Opened(replace(position, topic_id=found.topic_id), found.end, tuple(losses))


def recovering(
    manager: PartitionManager,
    trouble: KafkaError | None,
    in_vain: tuple[int, int],
    known_end: int | None,
    ways: Ways,
    policy: StartPolicy,
) -> Chain[Opened]:
    """Find where a partition goes on whose log does not hold what is to be read next.

    What was read before resolves first. `trouble` is what the fetcher told: OffsetOutOfRange
    or CorruptRecord; None when the topic's id has changed. `in_vain` is an offset and how
    often nothing was found to be wrong there: trouble may pass, so it is tried some times
    before `trouble` itself is raised. Raises SourceLost when policy says halt, and what the
    store raises.
    """
    while not manager.is_idle:
        yield None
    position = manager.position
    found: Log = yield ways.catalogue.log(manager.partition)
    diverged_at = trouble.diverged_at if isinstance(trouble, OffsetOutOfRange) else None
    loss = loss_of(manager.partition, position, found, diverged_at=diverged_at, known_end=known_end)
    offset, count = in_vain
    may_pass = offset != position.offset or count < _TRIES
    if loss is not None and not (diverged_at is None and may_pass and _asks_where(loss)):
        position = yield from _jump(loss, ways, policy.on_data_loss)
        return Opened(position, found.end, (loss,))
    if trouble is None or may_pass:
        return Opened(position, found.end)
    if isinstance(trouble, CorruptRecord) and policy.on_corrupt_record == "skip":
        loss = corrupt(manager.partition, position)
        position = yield from _jump(loss, ways, "skip")
        return Opened(position, found.end, (loss,))
    raise trouble


def reclaiming(partition: Partition, ways: Ways) -> Chain[None]:
    """Take a partition up again after the session in which it was ours has ended.

    Nobody may have had it in between. Raises Fenced when someone has.
    """
    claim: Claim = yield ways.store.claim(partition, again=True)
    if not claim.uninterrupted:
        found = "nothing is stored" if claim.stored is None else f"offset {claim.stored.offset}"
        raise Fenced(partition, found)


def _first(partition: Partition, start_from: StartFrom, claim: Claim, found: Log) -> Position:
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


def _jump(loss: Loss, ways: Ways, policy: OnTrouble) -> Chain[Position]:
    """Skip what is lost: told in the dead letters, then stored. Raises SourceLost."""
    if policy == "halt":
        raise SourceLost(loss.partition, loss.reason, loss.position.offset, loss.found)
    yield ways.notify(loss)
    yield ways.store.move(loss.partition, loss.resume, loss.reason)
    log.warning(
        "source_lost_records",
        partition=str(loss.partition),
        reason=loss.reason,
        offset=loss.position.offset,
        resume=loss.resume.offset,
        lost=loss.lost,
    )
    return loss.resume


def _tell(event: str, partition: Partition, position: Position, **facts: str) -> None:
    log.info(event, partition=str(partition), offset=position.offset, **facts)
