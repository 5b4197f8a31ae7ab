"""What a PartitionManager's records come from, whatever the source is."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeAlias

from partition.chunk import Chunk, Partition

StartFrom: TypeAlias = Literal["earliest", "latest"]


@dataclass(frozen=True, slots=True)
class Fetched:
    """What one call of `fetch` brought.

    There is at most one chunk per partition. `ends` holds the partitions whose log end
    was reached, with the next offset to read: it lies past compacted records and
    transaction markers (promise 11), and past the partition's chunk in `chunks`.
    """

    chunks: list[Chunk] = field(default_factory=list)
    ends: dict[Partition, int] = field(default_factory=dict)


class Fetcher(Protocol):
    """Reads the assigned partitions. One thread, the owner's, calls everything."""

    @property
    def available(self) -> bool:
        """Whether the source answered when it was last heard of."""

    def open(self) -> None:
        """Make the client; does not wait for a broker."""

    def partitions(self, topic: str) -> list[Partition]:
        """List a topic's partitions in order. Raises TopicMissing, KafkaUnavailable."""

    def log_range(self, partition: Partition) -> tuple[int, int]:
        """Return the log's first offset and the next to be written. Raises KafkaUnavailable."""

    def start_offset(self, partition: Partition, start_from: StartFrom) -> int:
        """Return where a partition without a stored offset starts. Raises as `log_range`."""

    def assign(self, positions: Mapping[Partition, int]) -> None:
        """Read exactly these partitions from now on, each from its offset on.

        Nothing fetched before is delivered afterwards; no partition stays paused.
        """

    def fetch(self, max_records: int, timeout_seconds: float) -> Fetched:
        """Return records as soon as there are some, at most `max_records`, or none in time.

        A source that is away gives nothing and raises nothing. Raises OffsetOutOfRange,
        CorruptRecord, TopicMissing and KafkaFailed; what the call had received of other
        partitions is delivered by the next call.
        """

    def pause(self, partition: Partition) -> None:
        """Stop delivering a partition's records, without losing its place."""

    def resume(self, partition: Partition) -> None:
        """Deliver a paused partition's records again."""

    def close(self) -> None:
        """Let go of everything, in bounded time. Idempotent."""
