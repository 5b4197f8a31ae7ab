"""What a PartitionManager's records come from, whatever the source is."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from partition.errors import KafkaError
from partition.records import Chunk, Partition, Position


@dataclass(frozen=True, slots=True)
class Fetched:
    """What one call of `fetch` brought.

    There is at most one chunk per partition. `ends` holds the partitions whose log end
    was reached, with the next offset to read: it lies past compacted records and
    transaction markers (promise 11), and past the partition's chunk in `chunks`.
    `failures` says what stopped a partition: OffsetOutOfRange, CorruptRecord, TopicMissing.
    It is told once, after all its good records, and nothing of the partition is delivered
    until it is removed and added again; all other partitions go on.
    """

    chunks: list[Chunk] = field(default_factory=list)
    ends: dict[Partition, int] = field(default_factory=dict)
    failures: dict[Partition, KafkaError] = field(default_factory=dict)


class Fetcher(Protocol):
    """Reads the assigned partitions. One thread, the owner's, calls everything."""

    @property
    def available(self) -> bool:
        """Whether the source answered when it was last heard of."""

    @property
    def mirror_failures(self) -> int:
        """Commits that `mirror` could not make, each partition's counted, since the start."""

    def open(self) -> None:
        """Make the client; does not wait for a broker. Raises KafkaMisconfigured."""

    def add(self, positions: Mapping[Partition, Position]) -> None:
        """Read these partitions too, each from its position on; none of them is paused.

        A position's leader epoch is checked: a log that was cut off and written anew before
        the offset is OffsetOutOfRange, with `diverged_at` where the broker tells it.
        """

    def remove(self, partitions: Iterable[Partition]) -> None:
        """Read these partitions no more; nothing fetched before of them is delivered.

        Those that are not read are ignored. All others keep what was prefetched.
        """

    def fetch(self, max_records: int, timeout_seconds: float) -> Fetched:
        """Return records as soon as there are some, at most `max_records`, or none in time.

        A source that is away gives nothing and raises nothing. Raises KafkaFailed when
        nothing can be read any more (credentials, rights).
        """

    def pause(self, partition: Partition) -> None:
        """Stop delivering a partition's records, without losing its place."""

    def resume(self, partition: Partition) -> None:
        """Deliver a paused partition's records again."""

    def log_range(self, partition: Partition) -> tuple[int | None, int] | None:
        """The log's first offset and its end as the client last heard of them; asks nobody.

        None when nothing was heard yet, or the partition is not read; the first offset is None
        where only ends are asked for.
        """

    def transaction_wait_seconds(self, partition: Partition) -> float:
        """How long a transaction that a producer has not ended has held readers up; else 0.

        As the client last heard of it, and only once all that lies before it is delivered.
        """

    def mirror(self, positions: Mapping[Partition, Position]) -> None:
        """Commit positions to the consumer group too, for lag tools; without waiting.

        A failure is logged and counted, never raised: the offset store is what holds.
        """

    def close(self) -> None:
        """Let go of everything, in bounded time. Idempotent."""
