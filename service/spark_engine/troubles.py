"""What a task says of a partition, as the partition's owner takes it. Pure."""

from partition.errors import CorruptRecord, KafkaError, OffsetOutOfRange, TopicMissing
from partition.records import Position
from service.spark_engine.task import TaskFailed


def trouble_of(failure: TaskFailed, position: Position, begins: Position) -> KafkaError:
    """Why nothing more of a partition can be read; its range was asked for at `position`.

    `begins` is where its lowest open range does, and where reading would go on. A log that was
    cut off behind that place has good records there still: they are to be read before the cut.
    """
    partition = failure.partition
    if partition is None:
        raise ValueError(failure.error)
    if failure.error_class == TopicMissing.__name__:
        return TopicMissing(partition.topic)
    if failure.error_class == CorruptRecord.__name__:
        return CorruptRecord(partition, position.offset, failure.error)
    cut = failure.diverged_at
    cut = cut if cut is not None and cut <= begins.offset else None
    if _is_earlier(position.leader_epoch, begins.leader_epoch):
        cut = None  # what was read up to `begins` meanwhile was written behind the cut
    return OffsetOutOfRange(partition, position.offset, failure.error, cut)


def _is_earlier(epoch: int | None, other: int | None) -> bool:
    return epoch is not None and other is not None and epoch < other
