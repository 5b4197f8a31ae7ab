"""At most once: how far the stored offset runs ahead of what is emitted."""

from partition.ledger import Ledger


class Ahead:
    """Says what is stored of a partition before it is emitted. Pure; the owner thread drives it.

    `stored_to` is always the offset that is stored, or on its way to the store.
    """

    def __init__(self) -> None:
        self.count = 0  # records that may be stored and not emitted yet
        self.is_ending = False  # what is stored already is the last that is emitted

    def storable(self, ledger: Ledger, stored_to: int, room: int) -> int:
        """The offset that may be stored now; it never goes back.

        It lies behind as many of the waiting records as are allowed, and the window has room for.
        """
        known = max(ledger.frontier, stored_to)
        if self.is_ending or room <= 0:
            return known
        return max(known, ledger.emitted_after(min(self.count, room)))

    def should_store(self, ledger: Ledger, stored_to: int) -> bool:
        """Whether at most half of what is allowed ahead is stored, if more could be."""
        return 2 * ledger.waiting_below(stored_to) <= self.count
