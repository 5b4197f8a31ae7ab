"""The records of a partition that wait to be put into a transaction. Pure."""

from collections import deque

import numpy as np
import numpy.typing as npt

from partition.chunk import Offsets

Lengths = npt.NDArray[np.int64]


class Unplanned:
    """Records in the chunks in which they were fetched, lowest offset first."""

    def __init__(self) -> None:
        self._chunks: deque[tuple[Offsets, Lengths]] = deque()
        self._num_records = 0
        self._since: float | None = None

    def __len__(self) -> int:
        return self._num_records

    def add(self, offsets: Offsets, lengths: Lengths) -> None:
        """Take the records of one chunk, or of the rest of one."""
        if len(offsets):
            self._chunks.append((offsets, lengths))
            self._num_records += len(offsets)

    @property
    def first(self) -> int:
        """The lowest offset. Raises IndexError when there is none."""
        return int(self._chunks[0][0][0])

    @property
    def chunk_records(self) -> int:
        """How many records the first chunk has; 0: there is none."""
        return len(self._chunks[0][0]) if self._chunks else 0

    def waited(self, now: float) -> float:
        """For how many seconds some have waited, as far as it was asked."""
        if not self._num_records:
            return 0.0
        if self._since is None:
            self._since = now
        return now - self._since

    def take(self, count: int) -> tuple[Offsets, Lengths]:
        """Give at most so many records, of the first chunk alone; the rest of it stays first."""
        offsets, lengths = self._chunks.popleft()
        if count < len(offsets):
            self._chunks.appendleft((offsets[count:], lengths[count:]))
            offsets, lengths = offsets[:count], lengths[:count]
        self._num_records -= len(offsets)
        if not self._num_records:
            self._since = None
        return offsets, lengths
