"""A log in memory, and a fetcher on it, for the test kit and for tests.

It keeps the promises that Kafka keeps through this room: one contract suite runs against
both (`tests/contract`). The offset store's counterpart is `partition.memory_store`.
"""

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from partition.chunk import Chunk, Partition
from partition.errors import KafkaUnavailable, OffsetOutOfRange, TopicMissing
from partition.fetcher import Fetched, StartFrom
from partition.memory_store import MemoryNodes, MemoryStore

__all__ = ["MemoryFetcher", "MemoryLog", "MemoryMessage", "MemoryNodes", "MemoryStore"]

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
        """Nothing: no leader ever changes."""
        return None


@dataclass(slots=True)
class _Log:
    start: int = 0
    end: int = 0
    messages: list[MemoryMessage] = field(default_factory=list)


class MemoryLog:
    """Topics in memory. Any thread may append; fetchers that wait are woken."""

    def __init__(self, topics: Mapping[str, int] | None = None) -> None:
        self.changed = threading.Condition()
        self.away = False  # as if no broker answered
        self._logs: dict[Partition, _Log] = {}
        for topic, partitions in (topics or {}).items():
            self.create_topic(topic, partitions)

    def create_topic(self, topic: str, partitions: int = 1) -> None:
        """Add an empty topic."""
        for number in range(partitions):
            self._logs[Partition(topic, number)] = _Log()

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
            message = MemoryMessage(partition, log.end, value, key, tuple(headers), timestamp_ms)
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
            log.messages = [m for m in log.messages if m.offset_ >= log.start]

    def delete_record(self, partition: Partition, offset: int) -> None:
        """Drop one record, as compaction does."""
        with self.changed:
            log = self._logs[partition]
            log.messages = [m for m in log.messages if m.offset_ != offset]

    def partitions(self, topic: str) -> list[Partition]:
        """List a topic's partitions in order. Raises TopicMissing."""
        found = sorted(partition for partition in self._logs if partition.topic == topic)
        if not found:
            raise TopicMissing(topic)
        return found

    def log_range(self, partition: Partition) -> tuple[int, int]:
        """Return the first offset and the next to be written."""
        if partition not in self._logs:
            raise TopicMissing(partition.topic)
        log = self._logs[partition]
        return log.start, log.end

    def read(self, partition: Partition, offset: int, limit: int) -> list[MemoryMessage]:
        """Return at most `limit` records from `offset` on."""
        messages = self._logs[partition].messages
        low, high = 0, len(messages)
        while low < high:
            middle = (low + high) // 2
            if messages[middle].offset_ < offset:
                low = middle + 1
            else:
                high = middle
        return messages[low : low + limit]


class MemoryFetcher:
    """A `Fetcher` on a MemoryLog."""

    def __init__(self, log: MemoryLog) -> None:
        self._log = log
        self._next: dict[Partition, int] = {}
        self._ends: dict[Partition, int] = {}  # the log ends told already
        self._paused: set[Partition] = set()
        self._failure: OffsetOutOfRange | None = None

    @property
    def available(self) -> bool:
        """Whether the log is there."""
        return not self._log.away

    def open(self) -> None:
        """Do nothing: the log is there."""

    def close(self) -> None:
        """Forget the assignment."""
        self._next = {}

    def partitions(self, topic: str) -> list[Partition]:
        """List a topic's partitions in order. Raises TopicMissing, KafkaUnavailable."""
        self._ask(f"for topic '{topic}'")
        return self._log.partitions(topic)

    def log_range(self, partition: Partition) -> tuple[int, int]:
        """Return the first offset and the next to be written. Raises KafkaUnavailable."""
        self._ask(f"for the offsets of {partition}")
        return self._log.log_range(partition)

    def start_offset(self, partition: Partition, start_from: StartFrom) -> int:
        """Return where a partition without a stored offset starts."""
        start, end = self.log_range(partition)
        return start if start_from == "earliest" else end

    def assign(self, positions: Mapping[Partition, int]) -> None:
        """Read exactly these partitions from now on, each from its offset on."""
        self._next = dict(positions)
        self._ends = {}
        self._paused = set()
        self._failure = None

    def pause(self, partition: Partition) -> None:
        """Stop delivering a partition's records."""
        self._paused.add(partition)

    def resume(self, partition: Partition) -> None:
        """Deliver them again."""
        self._paused.discard(partition)

    def fetch(self, max_records: int, timeout_seconds: float) -> Fetched:
        """Return records as soon as there are some; see `Fetcher.fetch`."""
        end = time.monotonic() + timeout_seconds
        with self._log.changed:
            while True:
                fetched = Fetched() if self._log.away else self._take(max_records)
                if fetched.chunks or fetched.ends:
                    return fetched
                failure, self._failure = self._failure, None
                if failure is not None:
                    raise failure
                remaining = end - time.monotonic()
                if remaining <= 0:
                    return fetched
                self._log.changed.wait(remaining)

    def _take(self, max_records: int) -> Fetched:
        fetched = Fetched()
        for partition in [p for p in self._next if p not in self._paused]:
            position = self._next[partition]
            start, log_end = self._log.log_range(partition)
            if not start <= position <= log_end:
                self._failure = OffsetOutOfRange(partition, position, f"it has {start}..{log_end}")
                continue
            messages = self._log.read(partition, position, max_records)
            max_records -= len(messages)
            if messages:
                offsets = np.fromiter((m.offset_ for m in messages), np.int64, len(messages))
                fetched.chunks.append(Chunk(partition, offsets, list(messages)))
                position = int(offsets[-1]) + 1
            if not self._log.read(partition, position, 1) and self._ends.get(partition) != log_end:
                fetched.ends[partition] = self._ends[partition] = position = log_end
            self._next[partition] = position
            if max_records <= 0:
                break
        # The next call begins with another partition.
        for partition in list(self._next)[: len(fetched.chunks)]:
            self._next[partition] = self._next.pop(partition)
        return fetched

    def _ask(self, what: str) -> None:
        if self._log.away:
            raise KafkaUnavailable(what, "the log is away")
