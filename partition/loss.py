"""What became of the records between where we were and where the log goes on. Pure."""

from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from partition.catalogue import Log
from partition.records import Partition, Position

Reason: TypeAlias = Literal["expired", "truncated", "recreated", "behind", "corrupt"]


@dataclass(frozen=True, slots=True)
class Loss:
    """Records that will not be read, or are not what they were.

    `lost` is how many offsets the source has lost, as far as is known: `expired`, `behind`
    and `corrupt` ones were never read; `truncated` ones had been read, and others stand in
    their place; of a topic `recreated` nobody can tell how many were left unread, unless
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

    `diverged_at` is where the broker says that the log was cut off; `known_end` the end
    that the log had when it was heard of last.
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
    """The oldest records, when more than `most` offsets are left to read."""
    resume = max(position.offset, log.end - most)
    if resume == position.offset:
        return None
    found = f"more than max_offset_behind = {most} before the log's end {log.end}"
    there = Position(resume, log.leader_epoch, log.topic_id)
    return Loss(partition, "behind", position, there, resume - position.offset, found)


def corrupt(partition: Partition, position: Position) -> Loss:
    """The record at this position, whose bytes are not what was written."""
    resume = replace(position, offset=position.offset + 1)
    return Loss(partition, "corrupt", position, resume, 1, "and its checksum is wrong")
