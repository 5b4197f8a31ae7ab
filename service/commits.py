"""Stores the frontiers of all partitions: one write at a time, as often as is needed."""

from collections.abc import Iterator, Mapping
from concurrent.futures import Future

from partition.assignment import Assignment, Held
from partition.chunk import Partition
from partition.errors import StoreError
from partition.fetcher import Fetcher
from partition.manager import PartitionManager
from partition.position import Position
from partition.store import OffsetStore


class Commits:
    """What the reader asks of the offset store while it reads. The owner thread calls everything.

    A second write beside the first would race it for the nodes' versions.
    """

    def __init__(
        self,
        store: OffsetStore,
        assignment: Assignment,
        interval_seconds: float,
        mirror: Fetcher | None,
    ) -> None:
        """What is stored is committed to the consumer group of `mirror` too."""
        self._store = store
        self._assignment = assignment
        self._interval_seconds = interval_seconds
        self._mirror = mirror
        self._commit: Future[Mapping[Partition, StoreError]] | None = None
        self._committing: dict[Partition, Position] = {}
        self._begun_at = 0.0
        self._due = 0.0
        self._is_urgent = False

    def look_at(self, manager: PartitionManager) -> None:
        """Learn that something has happened to a partition that may make a commit urgent."""
        self._is_urgent |= manager.should_commit

    def seconds_under_way(self, now: float) -> float | None:
        """For how long a write has been under way, or None."""
        return None if self._commit is None else now - self._begun_at

    def commit(self, now: float, *, force: bool) -> None:
        """Store what moved, at most once per interval unless it is urgent or forced.

        A partition that the store refuses is halted, or claimed again if only the session
        has ended. Raises StoreError when the store refuses everything.
        """
        if not self._ended():
            return
        if not force and now < self._due and not self._is_urgent:
            return
        self._due = now + self._interval_seconds
        self._is_urgent = False
        moved = {held.partition: manager.submit() for held, manager in self._moved()}
        if moved:
            self._committing = moved
            self._begun_at = now
            self._commit = self._store.commit(moved)

    @property
    def is_done(self) -> bool:
        """Whether everything that can be stored is stored."""
        if not self._ended() or any(True for _ in self._moved()):
            return False
        # One whose session has ended is ours again in a moment, unless the store refuses it.
        managers = [
            held.manager
            for held in self._assignment
            if not held.is_owned and not isinstance(held.halted, StoreError)
        ]
        return all(each is None or each.storable <= each.committed for each in managers)

    def _moved(self) -> Iterator[tuple[Held, PartitionManager]]:
        for held in self._assignment:
            manager = held.manager
            if manager is None or not held.is_owned or held.is_moving:
                continue
            if manager.storable > manager.committed:
                yield held, manager

    def _ended(self) -> bool:
        if self._commit is None:
            return True
        if not self._commit.done():
            return False
        ended, self._commit = self._commit, None
        refused = ended.result()
        stored = {p: at for p, at in self._committing.items() if p not in refused}
        for partition, position in stored.items():
            manager = self._assignment[partition].manager
            # One that has started anew since then stands where its offset was moved to.
            if manager is not None and position.offset <= manager.storable:
                manager.mark_committed(position.offset)
                self.look_at(manager)
        if self._mirror is not None and stored:
            self._mirror.mirror(stored)
        for partition, error in refused.items():
            self._assignment.refuse(partition, error)
        return True
