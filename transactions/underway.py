"""An open transaction's records: what is stored of them, emitted, processed. Pure."""

from dataclasses import dataclass, field, replace

from partition.position import later_epoch
from transactions.base_line import Opened
from transactions.digest import RangeDigest


@dataclass(slots=True, eq=False)
class UnderWay(Opened):
    """One whose records pass through here. Counts are records, each counted once per attempt."""

    since: float | None = None  # when its first record was planned; None: it is replayed
    digest: RangeDigest = field(default_factory=RangeDigest)  # of those offered since the start
    emitted: int = 0
    processed: int = 0
    is_closed: bool = False  # it grows no more
    is_awaited: bool = False  # it is replayed, and its records have not all come again

    @property
    def count(self) -> int:
        """Its records; of one that was only planned before, those that have come so far."""
        return self.digest.count if self.range.count is None else self.range.count

    @property
    def unemitted(self) -> int:
        """Records that are planned, and known, and were not emitted."""
        return self.count - self.emitted

    @property
    def may_emit(self) -> bool:
        """Whether records of it may still be emitted for the first time."""
        return self.unemitted > 0 or not self.range.is_sealed

    @property
    def is_processed(self) -> bool:
        """Whether it is closed, stands in the store as it is, and all of it is processed."""
        is_whole = self.is_closed and not self.is_awaited and self.range.is_sealed
        return is_whole and self.processed == self.count and self.stored == self.range

    @property
    def is_seal_due(self) -> bool:
        """Whether it stands in the store as it was planned, and is sealed by now."""
        stored = self.stored
        return stored is not None and self.range.is_sealed and not stored.is_sealed

    @property
    def has_come_again(self) -> bool:
        """Whether a replayed one was offered the records that it had, and no others."""
        same = self.digest.count == self.range.count
        return same and self.digest.hex() == self.range.digest

    def seal(self, leader_epoch: int | None) -> None:
        """Learn that no record of a planned range comes after those offered; who wrote the last."""
        count, digest = self.digest.count, self.digest.hex()
        epoch = later_epoch(self.range.leader_epoch, leader_epoch)
        self.range = replace(self.range, count=count, digest=digest, leader_epoch=epoch)

    def emit(self, count: int) -> int:
        """Count at most so many records as emitted; return how many."""
        part = min(count, self.unemitted)
        self.emitted += part
        return part

    def process(self, count: int) -> None:
        """Count so many records as processed. Raises ValueError if they were not emitted."""
        self.processed += count
        if self.processed > self.emitted:
            raise ValueError(
                f"{self.processed} records of transaction {self.attempt.txid} were processed, "
                f"{self.emitted} were emitted: one came twice"
            )
