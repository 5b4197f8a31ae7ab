"""What the lines of both engines share: open transactions in order, and what is stored of them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from partition.chunk import Partition
from partition.transaction import OpenTransaction, Range, Resumed, Transactions
from transactions.coordinator import Active, Attempt, Coordinator
from transactions.errors import OutOfOrder
from transactions.policy import TransactionPolicy


class Transaction(NamedTuple):
    """A transaction that can be committed."""

    txid: int
    attempt: int
    range: Range


@dataclass(slots=True, eq=False)
class Opened:
    """One open transaction of a line."""

    attempt: Attempt
    range: Range
    stored: Range | None = None  # what stands in the store under this attempt
    is_taken: bool = False  # it is being committed

    @property
    def transaction(self) -> Transaction:
        """The same as it is now."""
        return Transaction(*self.attempt, self.range)

    def open(self) -> OpenTransaction:
        """What is to stand of it in the store."""
        return OpenTransaction(*self.attempt, self.range)


T = TypeVar("T", bound=Opened)
"""What a line keeps of an open transaction."""


class BaseLine(Generic[T]):
    """One partition's transactions: numbered in order, stored before they run, done in order.

    The owner calls everything. Pure: no thread, no clock.
    """

    def __init__(
        self,
        partition: Partition,
        resumed: Resumed,
        policy: TransactionPolicy,
        opened: Callable[[Active[Range]], T],
    ) -> None:
        """`opened` makes what is kept of one that was found recorded."""
        self.partition = partition
        self._policy = policy
        self._resumed = resumed
        self._coordinator: Coordinator[Range] = Coordinator(
            max_active=policy.max_active,
            committed=resumed.transactions.committed,
            recorded=[(Attempt(e.txid, e.attempt), e.range) for e in resumed.transactions.open],
            attempts=resumed.attempts,
            least_attempt=resumed.least_attempt,
        )
        self._open = [opened(each) for each in self._coordinator.active]
        self._standing: Transactions | None = None  # in the store; None: not as we want it
        self._wanted: Transactions | None = None  # made when it is asked for

    @property
    def has_to_store(self) -> bool:
        """Whether `to_store` is another than what was stored last."""
        return self._standing != self.to_store()

    def to_store(self) -> Transactions:
        """What must stand in the partition's node now."""
        if self._wanted is None:
            standing = tuple(each.open() for each in self._open)
            self._wanted = Transactions(self._policy.kind, self.committed, standing)
        return self._wanted

    def stored(self, transactions: Transactions) -> None:
        """Learn that it stands there, as it was when `to_store` gave it."""
        self._standing = transactions
        for each in transactions.open:
            found = self._find(each.txid)
            if found is not None and found.attempt.number == each.attempt:
                self._coordinator.recorded(found.attempt)
                found.stored = each.range

    @property
    def committed(self) -> int:
        """The last txid that is committed in every sink."""
        return self._coordinator.committed

    def done(self, txid: int) -> Range:
        """Learn that a transaction is committed in every sink; return what it covered.

        Raises OutOfOrder unless it is the lowest open one, and was taken.
        """
        found = self._find(txid)
        if found is None or not self._coordinator.done(found.attempt):
            raise OutOfOrder(txid, self.committed + 1)
        del self._open[0]
        self._wanted = None
        return found.range

    @property
    def _not_taken(self) -> T | None:
        """The lowest that is not being committed."""
        return next((each for each in self._open if not each.is_taken), None)

    def _find(self, txid: int) -> T | None:
        place = txid - self.committed - 1
        return self._open[place] if 0 <= place < len(self._open) else None

    def _known(self, txid: int) -> T:
        """The open transaction of that txid. Raises KeyError."""
        found = self._find(txid)
        if found is None:
            raise KeyError(txid)
        return found
