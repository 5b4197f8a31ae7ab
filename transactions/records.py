"""Records on their way into transactions: those that wait, and a digest of those in a range."""

import hashlib
from collections import deque

import numpy as np
import numpy.typing as npt

from partition.records import Offsets

Lengths = npt.NDArray[np.int64]


class RangeDigest:
    """A digest by which a replay is known to have the same records: of offsets and lengths. Pure.

    BLAKE2b of 128 bits over (offset, length) pairs, little-endian, 64 bits each. However the
    records were cut into chunks, it is the same. It finds what can happen to a log: compaction,
    retention, another log of the same name; not a payload changed in place, which Kafka's own
    checksums find.
    """

    def __init__(self) -> None:
        self._hash = hashlib.blake2b(digest_size=16)
        self.count = 0
        """Records that were added."""

    def add(self, offsets: Offsets, lengths: Lengths) -> None:
        """Take in the next records; one length per offset, in bytes."""
        pairs = np.empty((len(offsets), 2), dtype="<i8")
        pairs[:, 0] = offsets
        pairs[:, 1] = lengths
        self._hash.update(pairs.data)
        self.count += len(offsets)

    def hex(self) -> str:
        """The digest of what was added so far, in 32 hex digits; more may be added after."""
        return self._hash.hexdigest()


class Unplanned:
    """Records that wait for a transaction, in the chunks in which they were fetched. Pure."""

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
        """The number of records in the first chunk; 0: there is none."""
        return len(self._chunks[0][0]) if self._chunks else 0

    def waited(self, now: float) -> float:
        """Seconds for which some have waited, as far as it was asked."""
        if not self._num_records:
            return 0.0
        if self._since is None:
            self._since = now
        return now - self._since

    def fits(self, most: int, space: int, count: int, *, splits: bool) -> int:
        """Tell how many records of the first chunk fit into a transaction that has `count`.

        All of them, or none. A new one takes a part of a chunk that is larger than it may be
        (`most`), and with `splits`, where nothing is open whose commit could make more room.
        """
        if count:
            return self.chunk_records if self.chunk_records <= min(most - count, space) else 0
        part = min(self.chunk_records, most)
        return max(0, min(part, space)) if part <= space or splits else 0

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
