"""How transactions are cut."""

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
