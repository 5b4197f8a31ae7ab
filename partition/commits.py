"""The offset committer: one write of all partitions' progress at a time."""

from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, NamedTuple

from partition.assigned_partition import AssignedPartition
from partition.assignment import Assignment
from partition.errors import StoreError
from partition.interfaces import Fetcher, Progress
from partition.manager import PartitionManager, PartitionStatistics
from partition.offsets.offset_store import OffsetStore
from partition.records import Partition


class _Submitted(NamedTuple):
    manager: PartitionManager[Any]
    progress: Progress


class OffsetCommitter:
    """Store the progress of all partitions. The owner thread calls everything.

    A second write beside the first would race it for the nodes' versions. A partition's open
    transactions are stored with its offset: what is planned at once, as it is emitted only then.
    """

    def __init__(
        self,
        store: OffsetStore,
        assignment: Assignment,
        interval_seconds: float,
        mirror: Fetcher | None,
    ) -> None:
        """`mirror` gets what is stored too, for its consumer group."""
        self._store = store
        self._assignment = assignment
        self._interval_seconds = interval_seconds
        self._mirror = mirror
        self._commit: Future[Mapping[Partition, StoreError]] | None = None
        self._committing: dict[Partition, _Submitted] = {}
        self._begun_at = 0.0
        self._took = 0.0
        self._due = 0.0
        self._changed: set[PartitionManager[Any]] = set()  # that may be urgent

    def note(self, manager: PartitionManager[Any]) -> None:
        """Note a change of a partition: its commit may be urgent."""
        self._changed.add(manager)

    def seconds_in_flight(self, now: float) -> float | None:
        return None if self._commit is None else now - self._begun_at

    def seconds(self, now: float) -> float:
        """Return how long the last write took, or the one under way if that is longer."""
        return max(self._took, self.seconds_in_flight(now) or 0.0)

    def commit(self, now: float, *, force: bool) -> None:
        """Store what moved, at most once per interval unless it is urgent or forced.

        A partition that the store refuses is halted, or claimed again if only the session
        has ended. Raises StoreError when the store refuses everything.
        """
        under_way = self.seconds_in_flight(now)
        if not self._ended():
            return
        self._took = self._took if under_way is None else under_way
        self._changed = {manager for manager in self._changed if manager.is_urgent}
        if not force and now < self._due and not self._changed:
            return
        self._due = now + self._interval_seconds
        self._changed.clear()
        moved = {
            assigned.partition: _Submitted(manager, progress)
            for assigned, manager in self._storing()
            if (progress := manager.progress()) is not None
        }
        if moved:
            self._committing = moved
            self._begun_at = now
            self._commit = self._store.commit({p: each.progress for p, each in moved.items()})

    @property
    def is_done(self) -> bool:
        if not self._ended() or any(manager.has_to_store for _, manager in self._storing()):
            return False
        # One whose session has ended is ours again in a moment, unless the store refuses it.
        return not any(
            assigned.manager.has_to_store
            for assigned in self._assignment
            if assigned.manager is not None and not assigned.is_owned and assigned.loss is None
        )

    def _storing(self) -> Iterator[tuple[AssignedPartition, PartitionManager[Any]]]:
        for assigned in self._assignment:
            if assigned.manager is not None and assigned.is_owned and not assigned.is_moving:
                yield assigned, assigned.manager

    def _ended(self) -> bool:
        if self._commit is None:
            return True
        if not self._commit.done():
            return False
        ended, self._commit = self._commit, None
        refused = ended.result()
        stored = {p: each for p, each in self._committing.items() if p not in refused}
        for partition, submitted in stored.items():
            if self._assignment[partition].manager is not submitted.manager:
                continue  # given up since then; if it is ours again, then by another claim
            submitted.manager.stored(submitted.progress)
            self.note(submitted.manager)
        if self._mirror is not None and stored:
            self._mirror.mirror({p: each.progress.position for p, each in stored.items()})
        for partition, error in refused.items():
            if self._assignment[partition].manager is self._committing[partition].manager:
                self._assignment.refuse(partition, error)
        return True


class CommitAges:
    """Remember when each partition's stored offset last moved, or was at the log's end.

    The ages are as exact as snapshots are frequent. A partition that was away begins anew.
    """

    def __init__(self) -> None:
        self._since: dict[Partition, tuple[int, float]] = {}

    def of(
        self, partitions: Iterable[PartitionStatistics], now: float
    ) -> Iterator[PartitionStatistics]:
        known, self._since = self._since, {}
        for part in partitions:
            committed, since = known.get(part.partition, (part.committed, now))
            if committed != part.committed or not part.lag:
                since = now
            self._since[part.partition] = part.committed, since
            yield replace(part, commit_age_seconds=max(0.0, now - since))
