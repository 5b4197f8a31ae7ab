"""The chunks of a partition that wait to be emitted."""

from collections import deque
from collections.abc import Sized

from partition.chunk import Chunk


class ChunkQueue:
    """Fetched chunks, first in, first out; of the first a part may be gone already."""

    def __init__(self) -> None:
        self._chunks: deque[Chunk] = deque()
        self._taken = 0  # records of the first that are gone

    def __len__(self) -> int:
        """Chunks that wait, or a part of which does."""
        return len(self._chunks)

    def add(self, chunk: Chunk) -> None:
        """Let a chunk wait behind the others."""
        self._chunks.append(chunk)

    @property
    def first(self) -> int:
        """How many records of the first chunk wait; there must be one."""
        return len(self._chunks[0]) - self._taken

    def take(self, count: int) -> tuple[list[Sized], bool]:
        """Take the messages of so many records of the first chunk, and whether it is unusual.

        Those of a whole chunk are its own list.
        """
        chunk = self._chunks[0]
        messages, end = chunk.messages, self._taken + count
        if count < len(chunk):
            messages = messages[self._taken : end]
        self._taken = end
        if end == len(chunk):
            self._chunks.popleft()
            self._taken = 0
        return messages, chunk.unusual

    def upcoming(self, limit: int, room: int, cut: int | None) -> list[Chunk]:
        """The chunks of at most `limit` records that are taken whole next, within `room` records.

        None that lies on both sides of the offset `cut` is.
        """
        chunks: list[Chunk] = []
        room += self._taken  # so much of the first has had its room
        for place, chunk in enumerate(self._chunks):
            room -= len(chunk)
            if room < 0 or len(chunk) > limit:
                break
            is_whole = place > 0 or not self._taken
            is_cut = cut is not None and chunk.offsets[0] < cut <= chunk.offsets[-1]
            if is_whole and not is_cut:
                chunks.append(chunk)
        return chunks
