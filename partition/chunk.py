"""A partition's name, and a run of its records: the unit of the hot loop."""

from collections.abc import Sized
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

Offsets: TypeAlias = npt.NDArray[np.int64]


class Partition(NamedTuple):
    """One partition of one topic."""

    topic: str
    number: int

    def __str__(self) -> str:
        return f"{self.topic}[{self.number}]"


@dataclass(frozen=True, slots=True)
class Chunk:
    """Records of one partition handed over at once.

    `offsets` ascend strictly and may have gaps (compaction, transaction markers).
    `messages[i]` belongs to `offsets[i]`; this room asks a message only for its
    length, the payload's bytes. `leader_epochs` holds (first offset, leader epoch) of each
    run of records that one leader wrote, in order; empty where it is not known. `unusual`
    says that one of the messages may be empty or too large, so that they are looked at.
    `other_bytes` is what their keys hold, and their headers by an estimate.
    """

    partition: Partition
    offsets: Offsets
    messages: list[Sized]
    leader_epochs: tuple[tuple[int, int], ...] = ()
    unusual: bool = False
    other_bytes: int = 0

    def __len__(self) -> int:
        return len(self.messages)
