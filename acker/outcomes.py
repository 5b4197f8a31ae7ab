"""What trees came to: collected as they resolve, handed out by `drain`."""

from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from acker.arrays import Flags, Owners, Tags, turned_back
from acker.slots import FLAG_SHIFT

Item = TypeVar("Item", bound=np.generic)


@dataclass(frozen=True, slots=True)
class Resolved:
    """Trees that resolved: whose they are, the marks they carried, and how they ended."""

    acked: Owners
    acked_flags: Flags
    failed: Owners
    expired: Owners

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(len(self.acked) or len(self.failed) or len(self.expired))


_NO_OWNERS: Owners = np.empty(0, np.int64)
_NOTHING = Resolved(_NO_OWNERS, np.empty(0, np.uint8), _NO_OWNERS, _NO_OWNERS)


@dataclass(slots=True)
class Ended:
    """Owners of trees that failed or expired: batches of turned ones, and single ones."""

    count: int = 0
    parts: list[Owners] = field(default_factory=list)
    ones: list[int] = field(default_factory=list)

    def __bool__(self) -> bool:
        """Whether there are any since the last drain."""
        return bool(self.parts or self.ones)

    def add(self, owners: Owners) -> None:
        """Add the turned owners of a batch."""
        self.parts.append(owners)
        self.count += len(owners)

    def add_one(self, owner: int) -> None:
        """Add one owner."""
        self.ones.append(owner)
        self.count += 1

    def drain(self) -> Owners:
        """The owners since the last call."""
        owners = _owners(self.parts, self.ones)
        self.parts, self.ones = [], []
        return owners


class Outcomes:
    """Counts, and the owners of the trees that resolved since `drain` was called last."""

    def __init__(self) -> None:
        self.failed = Ended()
        self.expired = Ended()
        self.ignored = 0
        self.unanchored = 0
        self.acked_ones: list[int] = []  # owners of trees that were acked by single calls
        self.marks: dict[int, int] = {}  # flags, by place in that list
        self._acked_before = 0
        self._acked: list[tuple[Owners, Tags]] = []

    @property
    def acked(self) -> int:
        """How many trees were acked."""
        return self._acked_before + len(self.acked_ones)

    def ack(self, owners: Owners, tags: Tags) -> None:
        """Add acked trees: their turned owners and their tags."""
        self._acked.append((owners, tags))
        self._acked_before += len(owners)

    def ack_one(self, owner: int, flags: int) -> None:
        """Add one acked tree."""
        if flags:
            self.marks[len(self.acked_ones)] = flags
        self.acked_ones.append(owner)

    def drain(self) -> Resolved:
        """What resolved since the last call, each tree once."""
        ones = self.acked_ones
        if not (self._acked or ones or self.failed or self.expired):
            return _NOTHING
        owners = _owners([owners for owners, _ in self._acked], ones)
        tags = _joined([tags for _, tags in self._acked], np.uint16)
        flags: Flags = (tags >> FLAG_SHIFT).astype(np.uint8)
        if ones:
            marks = np.zeros(len(ones), np.uint8)
            for place, mark in self.marks.items():
                marks[place] = mark
            flags = np.concatenate([flags, marks]) if len(flags) else marks
            self._acked_before += len(ones)
            ones.clear()  # not replaced: others append to it
            self.marks.clear()
        self._acked = []
        return Resolved(owners, flags, self.failed.drain(), self.expired.drain())


def _owners(parts: list[Owners], ones: list[int]) -> Owners:
    """Owners of batches, turned back, and single ones."""
    owners = turned_back(_joined(parts, np.int64)) if parts else np.empty(0, np.int64)
    if ones:
        single = np.fromiter(ones, np.int64, len(ones))
        owners = np.concatenate([owners, single]) if parts else single
    return owners


def _joined(parts: list[npt.NDArray[Item]], kind: type[Item]) -> npt.NDArray[Item]:
    if len(parts) == 1:
        return parts[0]
    return np.concatenate(parts) if parts else np.empty(0, kind)
