"""Tells how far a write to the offset store is, for tests that end the process there."""

from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Any

from partition.manager import PartitionManager


class CommitPlaces:
    """The points of `Commits`, by name: of a plan, of an offset, or of both in one write.

    The owner thread calls everything. There is none where no test wants one.
    """

    def __init__(self, at: Callable[[str], object]) -> None:
        """`at` is told the names, on the store's thread of what the owner was not told yet."""
        self._at = at
        self._kinds: list[str] = []

    def begins(self, moved: Iterable[PartitionManager[Any]]) -> None:
        """These have something to store, and nothing of it is on its way."""
        managers = list(moved)
        is_planned = any(each.delivery.stores_first and each.is_urgent for each in managers)
        is_moved = any(each.position.offset > each.committed for each in managers)
        self._kinds = ["plan"] * is_planned + ["offset"] * is_moved
        for kind in self._kinds:
            self._at(f"{kind}_before_store")

    def sent(self, write: "Future[Any]", *, is_leaving: bool) -> None:
        """It is on its way; `is_leaving`: with a partition that is let go."""
        kinds = list(self._kinds)
        write.add_done_callback(lambda _: [self._at(f"{kind}_after_store") for kind in kinds])
        if is_leaving and "offset" in kinds:
            self._at("leaving_offset_sent")

    def heard(self) -> None:
        """The answer is there, and nothing was made of it."""
        if "offset" in self._kinds:
            self._at("offset_stored")

    def taken(self) -> None:
        """What was planned may be emitted from now on."""
        if "plan" in self._kinds:
            self._at("plan_stored")
