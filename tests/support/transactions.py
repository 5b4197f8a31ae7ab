"""A partition's transactions, driven as the partition and the store drive them."""

import numpy as np

from partition.interfaces import Progress
from partition.ledger import CommitProgress, Ledger
from partition.records import WRITTEN, Partition, Position, Resumed, Transactions
from transactions.partition_transactions import PartitionTransactions
from transactions.transaction import TransactionPolicy


def resume(
    partition: Partition, resumed: Resumed, policy: TransactionPolicy
) -> PartitionTransactions:
    """Transactions of a partition of which no record is here."""
    offset = resumed.position.offset
    return PartitionTransactions(partition, Ledger(offset), CommitProgress(offset), resumed, policy)


def process(of: PartitionTransactions, *offsets: int) -> None:
    flags = np.full(len(offsets), WRITTEN, np.uint8)
    of.processed(np.array(offsets, np.int64), flags)


def store(of: PartitionTransactions, transactions: Transactions | None = None) -> None:
    """Let these be stored, or what they are now, checked as the store checks them."""
    if transactions is None:
        transactions = of.to_store()
        begins = transactions.first
        transactions.checked(of.planned_to if begins is None else begins)
    of.on_stored(Progress(Position(0), transactions))
