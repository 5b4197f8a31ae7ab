"""Writes that got no reply, one after the other, from a server that answers what is read."""

from collections import Counter
from collections.abc import Sequence

from partition.errors import StoreError
from partition.offsets.requests import Operation, size_of

MOST_LOST = 10


class LostWrites:
    """Counts them since one was known to be done, by node: several may be lost at one moment.

    Who gets OutcomeUnknown for a write reads before it writes again, so a server that is away is
    waited for. One that answers and lets every write end its connection takes none of that size.
    """

    def __init__(self) -> None:
        self._in_a_row: Counter[str] = Counter()

    def count(self, operations: Sequence[Operation]) -> None:
        """One more. Raises StoreError when `MOST_LOST` of a node were lost."""
        path = operations[0].path
        self._in_a_row[path] += 1
        if self._in_a_row[path] < MOST_LOST:
            return
        largest, size = max(operations, key=size_of), sum(map(size_of, operations))
        raise StoreError(
            f"ZooKeeper answers what is read, but {MOST_LOST} writes in a row got no reply, the "
            f"last of {size} bytes, most for {largest.path}; if its log says 'Len error', its "
            "jute.maxbuffer is too small"
        )

    def end(self) -> None:
        """One was done."""
        self._in_a_row.clear()
