"""How many records may become dead letters before something else must be wrong than they."""

from collections import deque
from typing import TYPE_CHECKING

from service.errors import TooManyDeadLetters

if TYPE_CHECKING:  # the configuration imports this file, and is to be read fast
    from service.pipeline.trees import Tally

_MARKS = 10  # the window moves on by a tenth of itself


class LetterLimit:
    """Ends a run when too large a part of its newest records became dead letters.

    It looks at the last `of_records` resolved records or a few more, and at nothing before there
    are so many. The owner thread calls it.
    """

    def __init__(self, max_ratio: float | None = None, of_records: int = 1_000) -> None:
        """Without a ratio there is no limit."""
        self._max_ratio = max_ratio
        self._of_records = of_records
        self._marks: deque[tuple[int, int]] = deque([(0, 0)])  # resolved, and letters of them

    def look(self, tally: "Tally") -> None:
        """Look at how records have resolved until now. Raises TooManyDeadLetters."""
        if self._max_ratio is None:
            return
        letters = tally.dead_lettered
        resolved = tally.sunk + tally.filtered + letters
        marks = self._marks
        if resolved - marks[-1][0] < max(1, self._of_records // _MARKS):
            return
        marks.append((resolved, letters))
        while resolved - marks[1][0] >= self._of_records:
            marks.popleft()
        records, among = resolved - marks[0][0], letters - marks[0][1]
        if records >= self._of_records and among > self._max_ratio * records:
            raise TooManyDeadLetters(among, records, self._max_ratio)
