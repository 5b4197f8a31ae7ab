"""How transactions are cut: by record on the local engine, by range on the spark engine."""

from dataclasses import dataclass

from partition.transaction import TransactionKind


@dataclass(frozen=True, slots=True)
class TransactionPolicy:
    """Of one partition's line. Seconds are of the owner's monotonic clock."""

    kind: TransactionKind = "transactional"
    max_active: int = 3  # one is committed, one is being processed to its end, one fills
    records: int = 66_000  # so many fill a transaction
    plan_records: int = 16_000  # so many that wait are planned at once
    plan_seconds: float = 0.05  # or after so long, if fewer wait


@dataclass(frozen=True, slots=True)
class RangePolicy:
    """Of the spark engine's ranges, all partitions together. Seconds are of the owner's clock.

    Records are counted as offsets, which is what can be known of a range that nobody has read.
    """

    records: int = 1_000_000  # at most so many in one group of ranges; so many are planned at once
    seconds: float = 1.0  # or after so long, if fewer wait
    max_active: int = 2  # groups in flight: one is committed while the next is processed
