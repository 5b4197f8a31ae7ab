"""A catalogue of topics in memory, for the test kit and for tests."""

from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from contextlib import suppress
from typing import TypeVar

from partition.errors import KafkaFailed, KafkaUnavailable, PartitionError
from partition.interfaces import Log, LogEnd, Topic
from partition.memory.log import MemoryLog
from partition.records import Partition

Answer = TypeVar("Answer")


class MemoryCatalogue:
    """A `Catalogue` of a MemoryLog; its futures have ended when it returns them."""

    def __init__(self, log: MemoryLog) -> None:
        self._log = log
        self._open = False

    def open(self) -> None:
        """Let it be asked."""
        self._open = True

    def close(self) -> None:
        """Let it be asked no more. Idempotent."""
        self._open = False

    def topics(self) -> Future[Mapping[str, Topic]]:
        """Every topic, by name."""
        return self._ask("for the topics", self._log.topics)

    def topic(self, name: str) -> Future[Topic]:
        """One topic. Raises TopicMissing."""
        return self._ask(f"for topic '{name}'", lambda: self._log.topic(name))

    def log(self, partition: Partition, timestamp_ms: int | None = None) -> Future[Log]:
        """A partition's log now, and where records of a time stamp begin in it."""
        what = f"for the offsets of {partition}"
        return self._ask(what, lambda: self._log.log(partition, timestamp_ms))

    def ends(self, partitions: Collection[Partition]) -> Future[Mapping[Partition, LogEnd]]:
        """Where logs end now; those not known are left out."""
        return self._ask("for the ends of the logs", lambda: self._ends(partitions))

    def _ends(self, partitions: Collection[Partition]) -> Mapping[Partition, LogEnd]:
        ends = {}
        for partition in partitions:
            with suppress(PartitionError):
                found = self._log.log(partition)
                ends[partition] = LogEnd(found.end, found.leader_epoch)
        return ends

    def _ask(self, what: str, answer: Callable[[], Answer]) -> Future[Answer]:
        future: Future[Answer] = Future()
        try:
            if not self._open:
                raise KafkaFailed("the catalogue is not open")
            if self._log.away:
                raise KafkaUnavailable(what, "the log is away")
            future.set_result(answer())
        except PartitionError as error:
            future.set_exception(error)
        return future
