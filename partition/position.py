"""Where to read on in a partition, and what the log was when that was learnt."""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Position:
    """The resume key: an offset means a record only within one incarnation of a log.

    A topic that was deleted and created again has another topic id (KIP-516); a log that
    was cut off has a later leader epoch from an earlier offset on (KIP-101).
    """

    offset: int  # the next to read
    # Of the record before it, or, where none was read, of the leader then; None: not known.
    leader_epoch: int | None = None
    topic_id: str | None = None  # None: not known


def later_epoch(epoch: int | None, other: int | None) -> int | None:
    """The later of two leader epochs that may not be known."""
    if epoch is None or other is None:
        return other if epoch is None else epoch
    return max(epoch, other)


class LeaderEpochs:
    """Gives an offset its resume key: the leader epoch of the record before it."""

    def __init__(self, start: Position) -> None:
        self._start = start
        self._runs: deque[tuple[int, int]] = deque()  # from which offset on, which

    def fetched(self, runs: Iterable[tuple[int, int]]) -> None:
        """Learn of (first offset, leader epoch) of records that were fetched, in order."""
        for first, epoch in runs:
            if not self._runs or self._runs[-1][1] != epoch:
                self._runs.append((first, epoch))

    def at(self, offset: int) -> Position:
        """An offset with its resume key."""
        epoch = self.fetched_before(offset)
        if epoch is None:
            epoch = self._start.leader_epoch
        return Position(offset, epoch, self._start.topic_id)

    def fetched_before(self, offset: int) -> int | None:
        """The leader epoch of the last record before an offset; None: none with one was fetched."""
        epoch = None
        for first, led_by in self._runs:
            if first >= offset:
                break
            epoch = led_by
        return epoch

    def forget_below(self, offset: int) -> None:
        """Learn that no offset below will be asked for."""
        while len(self._runs) > 1 and self._runs[1][0] < offset:
            self._runs.popleft()
