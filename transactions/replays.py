"""The open transactions that were found recorded, until their records have come again. Pure."""

from collections import deque
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from partition.chunk import Offsets, Partition
from partition.errors import ReplayDiffers
from partition.position import LeaderEpochs
from transactions.underway import UnderWay


class Replays:
    """Compares what the log gives of recorded ranges with what was recorded of them.

    A range has come again when a record at or behind its end was offered, or as many as it
    had. Its records may have been emitted by then; what they lead to is not committed before.
    Offsets and lengths are not all: what a later leader wrote is another record, and whoever reads
    on under the recorded epoch would be told that the log was cut off before it.
    One that was only planned (on the spark engine) is not compared: what comes of it seals it.
    """

    def __init__(
        self, partition: Partition, those: Iterable[UnderWay], epochs: LeaderEpochs
    ) -> None:
        """`epochs` are those of the records that are offered."""
        self._partition = partition
        self._epochs = epochs
        self._awaited = deque(those)
        for each in self._awaited:
            each.is_awaited = True
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
            if start < len(offsets) or _is_whole(first):
                self._compare()
        return start

    def reached(self, end: int) -> None:
        """Learn that no record lies before `end` but those offered."""
        while self._awaited and self._awaited[0].range.end <= end:
            self._compare()

    def _compare(self) -> None:
        whole = self._awaited.popleft()
        whole.is_awaited = False
        if not whole.range.is_sealed:
            whole.seal(self._epochs.fetched_before(whole.range.end))
        elif self._differs is None and not (whole.has_come_again and self._is_as_old(whole)):
            self._differs = self._difference(whole)

    def _is_as_old(self, whole: UnderWay) -> bool:
        """Whether its last record is of no later leader than it was, as far as that is known."""
        was, now = whole.range.leader_epoch, self._epochs.fetched_before(whole.range.end)
        return was is None or now is None or not whole.digest.count or now <= was

    def _difference(self, each: UnderWay) -> ReplayDiffers:
        covers, found = each.range, each.digest
        were = "records" if covers.count is None else f"{covers.count} records"
        digest = "" if covers.digest is None else f" (digest {covers.digest})"
        led_by = self._epochs.fetched_before(covers.end)
        return ReplayDiffers(
            self._partition,
            each.attempt.txid,
            f"{were} from {covers.first} to {covers.end - 1}{digest}{_under(covers.leader_epoch)}",
            f"the log now gives {found.count} (digest {found.hex()}){_under(led_by)}",
        )


def _is_whole(each: UnderWay) -> bool:
    """Whether as many records have come as were recorded; of a planned range none were."""
    count = each.range.count
    return count is not None and each.digest.count >= count


def _under(leader_epoch: int | None) -> str:
    return "" if leader_epoch is None else f" under leader epoch {leader_epoch}"
