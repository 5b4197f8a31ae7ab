"""What a user may see of a partition."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from partition.ledger import LedgerStatistics
from partition.records import Partition


@dataclass(frozen=True, slots=True)
class PartitionStatistics:
    """The figures of one moment. Offsets are the next to read."""

    partition: Partition
    ledger: LedgerStatistics
    committed: int
    read: int  # records emitted for the first time
    retried: int  # emissions after the first
    pending_bytes: int
    oldest_pending_seconds: float  # since the oldest unresolved record was fetched; else 0
    log_start: int | None = None  # None: not heard yet
    log_end: int | None = None
    fetch_latency_seconds: float | None = None  # from the newest record's time stamp to us
    transaction_wait_seconds: float = 0.0  # held up by one that a producer has not ended
    lost: Mapping[str, int] = field(default_factory=dict)  # records the source lost, by reason
    committed_txid: int | None = None  # None, and below: no transactions are kept
    open_transactions: int | None = None
    epoch: int = 0  # under which it is ours; 0: it never was
    commit_age_seconds: float = 0.0  # `committed` has stood still so long short of the log's end

    @property
    def lag(self) -> int:
        """Offsets between what is committed and the log's end, as far as it is known."""
        end = self.ledger.fetched_to if self.log_end is None else self.log_end
        return max(0, end - self.committed)


@dataclass(frozen=True, slots=True)
class Departed:
    """What was read here of partitions that other replicas have now, in records."""

    read: int = 0
    retried: int = 0
    given_up: int = 0  # in flight when it was given up, and not resolved since


@dataclass(frozen=True, slots=True)
class Moves:
    """How often partitions changed hands, as this process saw it."""

    taken: int = 0  # one has become ours
    released: int = 0  # one has ceased to be, for whatever reason
    fenced: int = 0  # one was refused to us, because it has a later owner


class CommitAges:
    """Remembers when each partition's stored offset moved, or was at the log's end, last.

    The owner thread calls it, as often as it takes snapshots: so exact are the ages. A partition
    that was away begins anew.
    """

    def __init__(self) -> None:
        self._since: dict[Partition, tuple[int, float]] = {}

    def of(
        self, partitions: Iterable[PartitionStatistics], now: float
    ) -> Iterator[PartitionStatistics]:
        """The same figures with their `commit_age_seconds`."""
        known, self._since = self._since, {}
        for part in partitions:
            committed, since = known.get(part.partition, (part.committed, now))
            if committed != part.committed or not part.lag:
                since = now
            self._since[part.partition] = part.committed, since
            yield replace(part, commit_age_seconds=max(0.0, now - since))
