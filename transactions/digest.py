"""A digest by which a replay is known to have the same records."""

import hashlib

import numpy as np
import numpy.typing as npt

from partition.chunk import Offsets


class RangeDigest:
    """A digest of a range's records as they come: of their offsets and payload lengths. Pure.

    BLAKE2b of 128 bits over (offset, length) pairs, little-endian, 64 bits each. However the
    records were cut into chunks, it is the same. It finds what can happen to a log: compaction,
    retention, another log of the same name; not a payload changed in place, which Kafka's own
    checksums find.
    """

    def __init__(self) -> None:
        self._hash = hashlib.blake2b(digest_size=16)
        self._count = 0

    def add(self, offsets: Offsets, lengths: npt.NDArray[np.int64]) -> None:
        """Take in the next records; one length per offset, in bytes."""
        pairs = np.empty((len(offsets), 2), dtype="<i8")
        pairs[:, 0] = offsets
        pairs[:, 1] = lengths
        self._hash.update(pairs.data)
        self._count += len(offsets)

    @property
    def count(self) -> int:
        """How many records were added."""
        return self._count

    def hex(self) -> str:
        """The digest of what was added so far, in 32 hex digits; more may be added after."""
        return self._hash.hexdigest()
