"""The ports of the partition package: fetcher, catalogue, offset store."""

import re
from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol, TypeAlias

from partition.errors import KafkaError
from partition.records import Chunk, Partition, Position, Transactions


@dataclass(frozen=True, slots=True)
class Fetched:
    """Records of one call of `fetch`: at most one chunk per partition.

    `ends` holds the next offset to read of partitions whose log end was reached: it lies past
    compacted records and transaction markers (promise 11), and past the chunk. `failures` holds
    the OffsetOutOfRange, CorruptRecord or TopicMissing that stopped a partition: once, after all
    its good records. Nothing of it is delivered until it is removed and added again.
    """

    chunks: list[Chunk] = field(default_factory=list)
    ends: dict[Partition, int] = field(default_factory=dict)
    failures: dict[Partition, KafkaError] = field(default_factory=dict)


class LogReader(Protocol):
    """A follower of the logs of partitions that are ours."""

    def add(self, positions: Mapping[Partition, Position]) -> None:
        """Follow these partitions too, each from its position on; none of them is paused.

        A log that was cut off and written anew before the offset (by its leader epoch) is
        OffsetOutOfRange, with `diverged_at` where the broker tells it.
        """

    def remove(self, partitions: Iterable[Partition]) -> None:
        """Follow these partitions no more, and deliver nothing of them; ignore unknown ones."""

    def log_range(self, partition: Partition) -> tuple[int | None, int] | None:
        """Return the log's last known first offset and end; asks nobody.

        None when nothing is known yet, or the partition is not read; the first offset is None
        where only ends are asked for.
        """


class Fetcher(LogReader, Protocol):
    """Read the assigned partitions. The owner thread calls everything."""

    @property
    def available(self) -> bool:
        """Whether the source answered when it was last heard of."""

    @property
    def mirror_failures(self) -> int:
        """Failed commits of `mirror` since the start, counted by partition."""

    def open(self) -> None:
        """Make the client; does not wait for a broker. Raises KafkaMisconfigured."""

    def fetch(self, max_records: int, timeout_seconds: float) -> Fetched:
        """Return records as soon as there are some, at most `max_records`, or none in time.

        A source that is away gives nothing. Raises KafkaFailed when nothing can be read any more
        (credentials, rights).
        """

    def pause(self, partition: Partition) -> None:
        """Stop delivering a partition's records, without losing its place."""

    def resume(self, partition: Partition) -> None:
        """Deliver a paused partition's records again."""

    def transaction_wait_seconds(self, partition: Partition) -> float:
        """Return how long an open transaction of a producer has blocked readers; else 0."""

    def mirror(self, positions: Mapping[Partition, Position]) -> None:
        """Commit positions to the consumer group too, for lag tools; failures are only counted."""

    def close(self) -> None:
        """Let go of everything, in bounded time. Idempotent."""


@dataclass(frozen=True, slots=True)
class AtTimestamp:
    """Start at the first record with this time stamp or a later one (milliseconds, UTC)."""

    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class AtOffset:
    offset: int


TopicName: TypeAlias = str | re.Pattern[str]
StartFrom: TypeAlias = Literal["earliest", "latest"] | AtTimestamp | AtOffset


@dataclass(frozen=True, slots=True)
class Topic:
    name: str
    topic_id: str | None  # None: the cluster has no topic ids (Kafka before 2.8)
    partitions: tuple[int, ...]  # ascending, those without a leader included


@dataclass(frozen=True, slots=True)
class Log:
    """A partition's log at one moment. `end` is the next offset to be written."""

    start: int
    end: int
    topic_id: str | None = None
    at_timestamp: int | None = None  # the offset asked for; `end` if no record is so young
    leader_epoch: int | None = None  # of who leads it now; None: not known


class LogEnd(NamedTuple):
    """A log's end, and its leader's epoch: no record before has a later one."""

    offset: int  # the next to be written
    leader_epoch: int | None = None  # None: not known


class Catalogue(Protocol):
    """Answer questions about the cluster, on a thread of its own; any thread may ask.

    Futures fail in bounded time with KafkaUnavailable (asking again can help), KafkaFailed
    (it cannot) or TopicMissing (after some seconds: it may have just been created).
    """

    def open(self) -> None:
        """Make the client; does not wait for a broker. Raises KafkaMisconfigured."""

    def topics(self) -> Future[Mapping[str, Topic]]:
        """Every topic that the client may see, by name; Kafka's own ones left out."""

    def topic(self, name: str) -> Future[Topic]:
        """One topic. Raises TopicMissing."""

    def log(self, partition: Partition, timestamp_ms: int | None = None) -> Future[Log]:
        """A partition's log now, and where records of a time stamp begin in it."""

    def ends(self, partitions: Collection[Partition]) -> Future[Mapping[Partition, LogEnd]]:
        """Logs' ends now, without those that are not known or whose leader cannot be asked."""

    def close(self) -> None:
        """Let go of everything, in bounded time; questions without an answer fail. Idempotent."""


@dataclass(frozen=True, slots=True)
class StoredOffset:
    """A partition's stored position, the topology that stored it, and the ownership's epoch."""

    position: Position
    topology_id: str
    topology_name: str = ""
    epoch: int = 0  # grows with each claim; 0: storm-kafka wrote it
    transactions: Transactions | None = None  # None: nothing of it is exactly-once

    @property
    def offset(self) -> int:
        return self.position.offset


@dataclass(frozen=True, slots=True)
class Progress:
    position: Position
    transactions: Transactions | None = None  # open ones, from there on; None: none are kept
    restarts: int = field(default=0, compare=False)  # of the manager by then; not stored


@dataclass(frozen=True, slots=True)
class Claimed:
    """A partition that is ours now, under a new epoch, and what was stored of it."""

    stored: StoredOffset | None  # None: it was never begun, so there is no epoch either
    topic_begun: bool = False  # partitions of its topic were begun before
    was_there: bool = False  # it was among the topic's partitions when the first was begun
    foreign: bool = False  # another topology stored the offset
    uninterrupted: bool = False  # nobody else wrote since this store held it last
