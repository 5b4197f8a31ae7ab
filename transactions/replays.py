"""The open transactions that were found recorded, until their records have come again. Pure."""

from collections import deque
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from partition.chunk import Offsets, Partition
from partition.errors import ReplayDiffers
from transactions.underway import UnderWay


class Replays:
    """Compares what the log gives of recorded ranges with what was recorded of them.

    A range has come again when a record at or behind its end was offered, or as many as it
    had. Its records may have been emitted by then; what they lead to is not committed before.
    """

    def __init__(self, partition: Partition, those: Iterable[UnderWay]) -> None:
        self._partition = partition
        self._awaited = deque(those)
        self._differs: ReplayDiffers | None = None

    def __len__(self) -> int:
        return len(self._awaited)

    @property
    def differs(self) -> ReplayDiffers | None:
        """Why the records are not the recorded ones; None: they are so far."""
        return self._differs

    @property
    def lost(self) -> ReplayDiffers | None:
        """The same, or, if no record came any more, what is missing; None: nothing is."""
        return self._differs or (self._difference(self._awaited[0]) if self._awaited else None)

    def offered(self, offsets: Offsets, lengths: npt.NDArray[np.int64]) -> int:
        """Take the next records of the log; return how many of the first of them are replayed."""
        start = 0
        while self._awaited and start < len(offsets):
            first = self._awaited[0]
            end = start + int(np.searchsorted(offsets[start:], first.range.end))
            first.digest.add(offsets[start:end], lengths[start:end])
            start = end
            if start < len(offsets) or first.digest.count >= first.range.count:
                self._compare()
        return start

    def reached(self, end: int) -> None:
        """Learn that no record lies before `end` but those offered."""
        while self._awaited and self._awaited[0].range.end <= end:
            self._compare()

    def _compare(self) -> None:
        whole = self._awaited.popleft()
        if not whole.has_come_again and self._differs is None:
            self._differs = self._difference(whole)

    def _difference(self, each: UnderWay) -> ReplayDiffers:
        covers, found = each.range, each.digest
        return ReplayDiffers(
            self._partition,
            each.attempt.txid,
            f"{covers.count} records from {covers.first} to {covers.end - 1} "
            f"(digest {covers.digest})",
            f"{found.count} (digest {found.hex()})",
        )
