"""Topics in memory, as much of Kafka as this room sees of it."""

import threading
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from partition.errors import TopicMissing
from partition.interfaces import Log, Topic
from partition.records import Partition, Position

_CREATE_TIME = 1  # Kafka's TIMESTAMP_CREATE_TIME


@dataclass(frozen=True, slots=True)
class MemoryMessage:
    """A record, with the methods of confluent_kafka's Message."""

    partition_: Partition
    offset_: int
    value_: bytes | None = None
    key_: bytes | None = None
    headers_: tuple[tuple[str, bytes | None], ...] = ()
    timestamp_ms: int = 0
    epoch_: int = 0

    def __len__(self) -> int:
        return 0 if self.value_ is None else len(self.value_)

    def value(self) -> bytes | None:
        """The payload; None for a tombstone."""
        return self.value_

    def key(self) -> bytes | None:
        """The key, or None."""
        return self.key_

    def topic(self) -> str:
        """The topic's name."""
        return self.partition_.topic

    def partition(self) -> int:
        """The partition's number."""
        return self.partition_.number

    def offset(self) -> int:
        """The offset."""
        return self.offset_

    def timestamp(self) -> tuple[int, int]:
        """The kind of time stamp (1: the producer's) and milliseconds since 1970."""
        return _CREATE_TIME, self.timestamp_ms

    def headers(self) -> list[tuple[str, bytes | None]] | None:
        """The headers, or None when there are none."""
        return list(self.headers_) or None

    def error(self) -> None:
        """Nothing: a record is no error."""

    def leader_epoch(self) -> int | None:
        """The epoch of the leader that wrote it."""
        return self.epoch_


@dataclass(slots=True)
class _Log:
    start: int = 0
    end: int = 0
    messages: list[MemoryMessage] = field(default_factory=list)
    corrupt: set[int] = field(default_factory=set)
    # (leader epoch, its first offset), ascending; the last one is the present leader's.
    epochs: list[tuple[int, int]] = field(default_factory=lambda: [(0, 0)])


class MemoryLog:
    """Topics in memory. Any thread may change them; fetchers that wait are woken."""

    def __init__(self, topics: Mapping[str, int] | None = None) -> None:
        self.changed = threading.Condition()
        self.away = False  # as if no broker answered
        self.mirrored: dict[Partition, Position] = {}  # what a consumer group would hold
        self._logs: dict[Partition, _Log] = {}
        self._ids: dict[str, str] = {}
        self._made = 0
        for topic, partitions in (topics or {}).items():
            self.create_topic(topic, partitions)

    def create_topic(self, topic: str, partitions: int = 1) -> None:
        """Add an empty topic, with an id that no topic had before."""
        with self.changed:
            self._made += 1
            self._ids[topic] = f"{topic}-{self._made}"
            for number in range(partitions):
                self._logs[Partition(topic, number)] = _Log()
            self.changed.notify_all()

    def delete_topic(self, topic: str) -> None:
        """Remove a topic and its records. Raises TopicMissing."""
        with self.changed:
            for partition in self.partitions(topic):
                del self._logs[partition]
            del self._ids[topic]
            self.changed.notify_all()

    def recreate_topic(self, topic: str, partitions: int = 1) -> None:
        """Delete a topic and create it again: empty, with another id. Raises TopicMissing."""
        with self.changed:
            self.delete_topic(topic)
            self.create_topic(topic, partitions)

    def add_partitions(self, topic: str, count: int = 1) -> None:
        """Give a topic so many partitions more. Raises TopicMissing."""
        with self.changed:
            present = len(self.partitions(topic))
            for number in range(present, present + count):
                self._logs[Partition(topic, number)] = _Log()
            self.changed.notify_all()

    def append(
        self,
        partition: Partition,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Sequence[tuple[str, bytes | None]] = (),
        timestamp_ms: int = 0,
    ) -> int:
        """Add a record; return its offset."""
        with self.changed:
            log = self._logs[partition]
            epoch = log.epochs[-1][0]
            message = MemoryMessage(
                partition, log.end, value, key, tuple(headers), timestamp_ms, epoch
            )
            log.messages.append(message)
            log.end += 1
            self.changed.notify_all()
            return message.offset_

    def append_gap(self, partition: Partition, count: int = 1) -> None:
        """Use up offsets that no reader sees, as transaction markers do."""
        with self.changed:
            self._logs[partition].end += count
            self.changed.notify_all()

    def delete_before(self, partition: Partition, offset: int) -> None:
        """Drop the log's beginning, as retention does."""
        with self.changed:
            log = self._logs[partition]
            log.start = max(log.start, offset)
            log.end = max(log.end, log.start)
            log.messages = [m for m in log.messages if m.offset_ >= log.start]
            log.corrupt = {each for each in log.corrupt if each >= log.start}

    def delete_record(self, partition: Partition, offset: int) -> None:
        """Drop one record, as compaction does."""
        with self.changed:
            log = self._logs[partition]
            log.messages = [m for m in log.messages if m.offset_ != offset]
            log.corrupt.discard(offset)

    def corrupt(self, partition: Partition, offset: int) -> None:
        """Make a record unreadable."""
        with self.changed:
            self._logs[partition].corrupt.add(offset)

    def elect(self, partition: Partition) -> int:
        """Give a partition a new leader; return its epoch, which later records have."""
        with self.changed:
            log = self._logs[partition]
            epoch = log.epochs[-1][0] + 1
            log.epochs.append((epoch, log.end))
            return epoch

    def truncate(self, partition: Partition, end: int) -> None:
        """Cut the log off, as an unclean election does; what follows has a new epoch."""
        with self.changed:
            log = self._logs[partition]
            epoch = log.epochs[-1][0] + 1
            log.messages = [m for m in log.messages if m.offset_ < end]
            log.corrupt = {offset for offset in log.corrupt if offset < end}
            log.end = min(log.end, end)
            log.start = min(log.start, log.end)
            log.epochs = [each for each in log.epochs if each[1] < end]
            log.epochs.append((epoch, log.end))
            self.changed.notify_all()

    def topic(self, name: str) -> Topic:
        """Describe a topic. Raises TopicMissing."""
        with self.changed:
            numbers = tuple(partition.number for partition in self.partitions(name))
            return Topic(name, self._ids[name], numbers)

    def topics(self) -> dict[str, Topic]:
        """Describe all topics."""
        with self.changed:
            return {name: self.topic(name) for name in sorted(self._ids)}

    def partitions(self, topic: str) -> list[Partition]:
        """List a topic's partitions in order. Raises TopicMissing."""
        with self.changed:
            if topic not in self._ids:
                raise TopicMissing(topic)
            return sorted(partition for partition in self._logs if partition.topic == topic)

    def log(self, partition: Partition, timestamp_ms: int | None = None) -> Log:
        """Describe a partition's log. Raises TopicMissing."""
        with self.changed:
            start, end = self.log_range(partition)
            at = None
            if timestamp_ms is not None:
                messages = self._logs[partition].messages
                young = (m.offset_ for m in messages if m.timestamp_ms >= timestamp_ms)
                at = next(young, end)
            epoch = self._logs[partition].epochs[-1][0]
            return Log(start, end, self._ids[partition.topic], at, epoch)

    def log_range(self, partition: Partition) -> tuple[int, int]:
        """Return the first offset and the next to be written. Raises TopicMissing."""
        with self.changed:
            if partition not in self._logs:
                raise TopicMissing(partition.topic)
            log = self._logs[partition]
            return log.start, log.end

    def epoch_end(self, partition: Partition, epoch: int) -> int | None:
        """Return where the log goes on under a later epoch, or its end; as KIP-320 asks.

        None when no leader of this log ever had the epoch or a later one.
        """
        with self.changed:
            log = self._logs[partition]
            if epoch > log.epochs[-1][0]:
                return None
            return next((start for later, start in log.epochs if later > epoch), log.end)

    def first_corrupt(self, partition: Partition, offset: int) -> int | None:
        """Return the first record at or after an offset that cannot be read."""
        with self.changed:
            bad = self._logs[partition].corrupt
            return min((each for each in bad if each >= offset), default=None)

    def read(self, partition: Partition, offset: int, limit: int) -> list[MemoryMessage]:
        """Return at most `limit` records from `offset` on."""
        with self.changed:
            messages = self._logs[partition].messages
            low = bisect_left(messages, offset, key=lambda message: message.offset_)
            return messages[low : low + limit]
