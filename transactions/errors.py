"""What can go wrong in the transactions room.

LineError
├── BrokenLine      what is recorded of open transactions has a hole, or no attempt
├── TooManyActive   as many transactions as are allowed are open
├── OutcomePending  a commit is under way whose outcome is not known
└── OutOfOrder      a transaction was said to be committed before the one below it

All are mistakes of the caller, but BrokenLine. What differs between the offset store, a sink and
the log is partition.errors.TransactionError, since it halts a partition.
"""


class LineError(Exception):
    """A line's transactions cannot go on so."""


class BrokenLine(LineError):
    """What is recorded does not follow from the last txid committed."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"the recorded transactions do not follow: {reason}")
        self.reason = reason


class TooManyActive(LineError):
    """Another transaction was to begin, and as many as are allowed are open."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"{limit} transactions are open; no more are allowed")
        self.limit = limit


class OutcomePending(LineError):
    """A transaction cannot fail while it is not known whether it is committed."""

    def __init__(self, txid: int) -> None:
        super().__init__(f"transaction {txid} is being committed; its outcome is not known yet")
        self.txid = txid


class OutOfOrder(LineError):
    """A transaction cannot be committed before the one below it."""

    def __init__(self, txid: int, lowest: int) -> None:
        super().__init__(f"transaction {txid} cannot be committed; {lowest} is to come first")
        self.txid = txid
        self.lowest = lowest
