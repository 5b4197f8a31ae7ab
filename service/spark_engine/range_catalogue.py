"""The catalogue of a task: its ranges are all that there is of a topic and its partitions."""

from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future
from typing import TypeVar

from partition.catalogue import Log, LogEnd, Topic
from partition.chunk import Partition
from partition.errors import TopicMissing
from service.spark_engine.task import TaskRange

Answer = TypeVar("Answer")


class RangeCatalogue:
    """A `Catalogue` in which each partition's log begins and ends with a range, one of each.

    So whoever starts at the earliest record starts where the range does, with its resume key.
    Any thread may ask; the answers are there at once.
    """

    def __init__(self, ranges: Sequence[TaskRange]) -> None:
        self._ranges = {each.partition: each for each in ranges}

    def open(self) -> None:
        """Do nothing: the driver has asked the cluster."""

    def close(self) -> None:
        """Do nothing."""

    def topics(self) -> Future[Mapping[str, Topic]]:
        """The topics that have ranges, by name."""
        names = sorted({each.topic for each in self._ranges})
        return _answered({name: self._topic(name) for name in names})

    def topic(self, name: str) -> Future[Topic]:
        """A topic and those of its partitions that have a range. Raises TopicMissing."""
        if any(each.topic == name for each in self._ranges):
            return _answered(self._topic(name))
        return _failed(TopicMissing(name))

    def log(self, partition: Partition, timestamp_ms: int | None = None) -> Future[Log]:  # noqa: ARG002 - nobody starts at a time here
        """A partition's range as its log. Raises TopicMissing."""
        found = self._ranges.get(partition)
        if found is None:
            return _failed(TopicMissing(partition.topic))
        at = found.position
        return _answered(Log(at.offset, found.end, at.topic_id, leader_epoch=at.leader_epoch))

    def ends(self, partitions: Collection[Partition]) -> Future[Mapping[Partition, LogEnd]]:
        """Where the ranges of these partitions end; those without one are left out."""
        known = [each for each in partitions if each in self._ranges]
        return _answered({each: LogEnd(self._ranges[each].end) for each in known})

    def _topic(self, name: str) -> Topic:
        ours = [each for partition, each in self._ranges.items() if partition.topic == name]
        ids = {each.position.topic_id for each in ours}
        numbers = tuple(sorted(each.partition.number for each in ours))
        return Topic(name, ids.pop() if len(ids) == 1 else None, numbers)


def _answered(answer: Answer) -> Future[Answer]:
    future: Future[Answer] = Future()
    future.set_result(answer)
    return future


def _failed(error: TopicMissing) -> Future[Answer]:
    future: Future[Answer] = Future()
    future.set_exception(error)
    return future
