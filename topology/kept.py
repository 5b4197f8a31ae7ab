"""The tuples that an advanced bolt keeps: whose they are, and since when."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable
from typing import Any

import numpy as np

from acker.acker import Owners, Trees
from topology.tuples import Tuple


class Kept:
    """The tuples of one step that are neither acked nor failed. The owner thread calls it.

    Those whose trees have resolved stay until `forget_resolved`. Times are `Acker.expire`'s.
    """

    def __init__(
        self,
        timeout_seconds: float | None,
        owners: Callable[[Trees], Owners],
        places: Callable[[Owners], Owners],
    ) -> None:
        """`places` says to which partition's records owners belong."""
        self._timeout_seconds = timeout_seconds
        self._owners = owners
        self._places = places
        self._owner: dict[Tuple[Any], int] = {}  # a record, or a joint tree
        self._since: dict[Tuple[Any], float] = {}  # the oldest first; empty without a time-out
        self.by_place: Counter[int] = Counter()
        """How many there are, by their partition's place."""

    def __len__(self) -> int:
        """How many are kept."""
        return len(self._owner)

    def of_owners(self) -> Iterable[int]:
        """The record, or joint tree, of each."""
        return self._owner.values()

    def add(self, tuples: Collection[Tuple[Any]], now: float) -> None:
        """Learn of tuples that a call has left unsettled."""
        owners = self._owners_of(tuples)
        self._owner.update(zip(tuples, owners.tolist(), strict=True))
        self.by_place += self._counted(owners)
        if self._timeout_seconds is not None:
            self._since.update(dict.fromkeys(tuples, now))

    def drop(self, tuples: Iterable[Tuple[Any]]) -> None:
        """Learn that tuples were acked or failed; those that were not kept are ignored."""
        pop = self._owner.pop
        dropped = [each for each in tuples if each in self._owner]
        if dropped:
            owners = np.array([pop(each) for each in dropped], np.int64)
            self.by_place -= self._counted(owners)
        for each in dropped if self._since else ():
            self._since.pop(each, None)

    def reset(self, tuples: Iterable[Tuple[Any]], now: float) -> None:
        """Let the time of tuples start anew."""
        for each in tuples:
            if self._since.pop(each, None) is not None:
                self._since[each] = now

    def take_overdue(self, now: float) -> list[Tuple[Any]]:
        """Those kept for longer than the bolt's time-out; they are kept no more."""
        overdue = []
        for each, since in self._since.items():
            if self._timeout_seconds is None or since + self._timeout_seconds > now:
                break
            overdue.append(each)
        self.drop(overdue)
        return overdue

    def forget_resolved(self) -> None:
        """Forget those whose trees have resolved: their records come again, or are done."""
        owners = self._owners_of(self._owner)
        resolved = owners < 0
        if resolved.any():
            pairs = zip(list(self._owner), resolved.tolist(), strict=True)
            self.drop([each for each, is_resolved in pairs if is_resolved])

    def _owners_of(self, tuples: Collection[Tuple[Any]]) -> Owners:
        trees = np.fromiter((each.tree for each in tuples), np.int64, len(tuples))
        return self._owners(trees)

    def _counted(self, owners: Owners) -> Counter[int]:
        places, counts = np.unique(self._places(owners), return_counts=True)
        return Counter(dict(zip(places.tolist(), counts.tolist(), strict=True)))
