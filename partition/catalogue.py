"""What a Kafka cluster holds: topics, their ids, and where their logs begin and end."""

from collections.abc import Collection, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol, TypeAlias

from partition.records import Partition


@dataclass(frozen=True, slots=True)
class AtTimestamp:
    """Start at the first record with this time stamp or a later one (milliseconds, UTC)."""

    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class AtOffset:
    """Start at this offset of every partition."""

    offset: int


StartFrom: TypeAlias = Literal["earliest", "latest"] | AtTimestamp | AtOffset


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic as the cluster knows it now."""

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
    """Where a log ends, and the epoch of who leads it: no record before has a later one."""

    offset: int  # the next to be written
    leader_epoch: int | None = None  # None: not known


class Catalogue(Protocol):
    """Answers questions about the cluster, on a thread of its own; any thread may ask.

    Futures end in bounded time: with KafkaUnavailable (asking again can help), KafkaFailed
    (it cannot) or TopicMissing. A topic that has just been created may be missing for some
    seconds, and is waited for.
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
        """Where logs end now, as `log` says, in one question; those not known are left out.

        A partition whose leader cannot be asked is left out too: the next question may know it.
        """

    def close(self) -> None:
        """Let go of everything, in bounded time; questions without an answer fail. Idempotent."""
