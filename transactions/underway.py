"""An open transaction's records: what is stored of them, emitted, processed. Pure."""

from dataclasses import dataclass, field

from partition.transaction import OpenTransaction, Range
from transactions.coordinator import Attempt
from transactions.digest import RangeDigest


@dataclass(slots=True, eq=False)
class UnderWay:
    """One open transaction of a line. Counts are records, each counted once per attempt."""

    attempt: Attempt
    range: Range
    since: float | None = None  # when its first record was planned; None: it is replayed
    digest: RangeDigest = field(default_factory=RangeDigest)  # of those offered since the start
    stored: Range | None = None  # what stands in the store under this attempt
    emitted: int = 0
    processed: int = 0
    is_closed: bool = False  # it grows no more
    is_taken: bool = False  # it is being committed

    @property
    def unemitted(self) -> int:
        """Records that are planned and were not emitted."""
        return self.range.count - self.emitted

    @property
    def is_processed(self) -> bool:
        """Whether it is closed, stands in the store as it is, and all of it is processed.

        One that was replayed has then come again whole, since all of it was emitted.
        """
        is_through = self.processed == self.range.count
        return self.is_closed and is_through and self.stored == self.range

    @property
    def has_come_again(self) -> bool:
        """Whether a replayed one was offered the records that it had, and no others."""
        same = self.digest.count == self.range.count
        return same and self.digest.hex() == self.range.digest

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

    def open(self) -> OpenTransaction:
        """What is to stand of it in the store."""
        return OpenTransaction(self.attempt.txid, self.attempt.number, self.range)
