"""A transaction as sinks are told of it."""

from topology.sink import Share
from transactions.partition_transactions import Transaction


def share_of(line: str, epoch: int, transaction: Transaction) -> Share:
    """A transaction's share of a group, no row counted yet; `line` is its partition's name.

    Raises ValueError for a range that is only planned: nobody may commit it.
    """
    txid, attempt, covers = transaction.txid, transaction.attempt, transaction.range
    if covers.digest is None:
        raise ValueError(f"{line} transaction {txid} is not sealed: it is of {covers}")
    return Share(line, epoch, txid, attempt, covers.first, covers.end, covers.digest, 0)
