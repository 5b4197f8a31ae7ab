"""Transactions that remember what is stored of them, as their partition does."""

from collections.abc import Callable

from partition.interfaces import Progress
from partition.ledger import CommitProgress, Ledger
from partition.records import Partition, Position, Resumed, Transactions
from transactions.partition_transactions import PartitionTransactions, TransactionPolicy


class NotingTransactions(PartitionTransactions):
    """Knows whether something is to be stored; a test says how many more records have room."""

    def __init__(
        self,
        partition: Partition,
        resumed: Resumed,
        policy: TransactionPolicy,
        room: Callable[[], int] = int,
    ) -> None:
        offset = resumed.position.offset
        super().__init__(partition, Ledger(offset), CommitProgress(offset), resumed, policy)
        self.room = room
        self.standing: Transactions | None = None

    def on_stored(self, progress: Progress) -> None:
        super().on_stored(progress)
        self.standing = progress.transactions

    def stored(self, transactions: Transactions) -> None:
        """Let these be stored."""
        self.on_stored(Progress(Position(0), transactions))

    @property
    def has_to_store(self) -> bool:
        return self.standing != self.to_store()

    @property
    def is_shut(self) -> bool:
        return not self.accepts_more(self.room())

    @property
    def begins_at(self) -> int | None:
        """Where the lowest open one begins."""
        return self.to_store().first
