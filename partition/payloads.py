"""The payloads of a partition's records, which stay until they are resolved."""

from bisect import bisect_left
from collections import deque
from collections.abc import Sized
from dataclasses import dataclass

import numpy as np

from partition.chunk import Chunk


@dataclass(slots=True)
class _Kept:
    chunk: Chunk
    num_bytes: int
    fetched_at: float


class Payloads:
    """Fetched chunks, each kept until the frontier has passed it. The owner thread drives it."""

    def __init__(self) -> None:
        self._kept: deque[_Kept] = deque()
        self.num_bytes = 0

    def keep(self, chunk: Chunk, num_bytes: int, now: float) -> None:
        """Take a chunk that was fetched now."""
        self._kept.append(_Kept(chunk, num_bytes, now))
        self.num_bytes += num_bytes

    def forget_below(self, frontier: int) -> None:
        """Let go of the chunks that lie wholly below the frontier."""
        while self._kept and self._kept[0].chunk.offsets[-1] < frontier:
            self.num_bytes -= self._kept.popleft().num_bytes

    @property
    def oldest_at(self) -> float | None:
        """When the oldest was fetched; None if none is kept."""
        return self._kept[0].fetched_at if self._kept else None

    def message(self, offset: int) -> Sized:
        """The message of a record that is kept. Raises KeyError when it is not."""
        found = bisect_left(self._kept, offset, key=lambda kept: kept.chunk.offsets[-1])
        if found < len(self._kept):
            chunk = self._kept[found].chunk
            place = int(np.searchsorted(chunk.offsets, offset))
            if chunk.offsets[place] == offset:
                return chunk.messages[place]
        raise KeyError(offset)
