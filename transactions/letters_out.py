"""The records whose letters are out, though their trees have resolved before. Pure."""

from collections import Counter

import numpy as np

from partition.chunk import Offsets
from partition.transaction import Range


class LettersOut:
    """Letters of rows that a sink refused, by the offset of their record."""

    def __init__(self) -> None:
        self._out: Counter[int] = Counter()

    def add(self, offset: int) -> None:
        """One more letter of that record is out."""
        self._out[offset] += 1

    def within(self, covers: Range) -> bool:
        """Whether one is out of a record in that range."""
        return any(covers.first <= offset < covers.end for offset in self._out)

    def without(self, offsets: Offsets) -> Offsets:
        """Those that no letter brings back; each of the others is of one letter, durable now."""
        if not self._out:
            return offsets
        others = np.ones(len(offsets), np.bool_)
        known = np.isin(offsets, np.fromiter(self._out, np.int64, len(self._out)))
        for place in np.flatnonzero(known).tolist():
            offset = int(offsets[place])
            if self._out[offset] > 0:
                others[place] = False
                self._out[offset] -= 1
        self._out = +self._out
        return offsets[others]
