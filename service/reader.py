"""The Kafka side of a pipeline: what is emitted of its partitions, and what is committed."""

import math
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from partition.assignment import Assignment, AssignmentPolicy, Held
from partition.catalogue import Catalogue
from partition.chunk import Chunk, Partition
from partition.discovery import TopicName
from partition.errors import StoreError
from partition.fetcher import Fetcher
from partition.loss import Loss
from partition.manager import PartitionManager
from partition.opening import Ways
from partition.retries import Retries
from partition.statistics import PartitionStatistics
from partition.store import OffsetStore
from service.commits import Commits
from service.fetches import Fetches
from service.flow import Flow
from service.pacing import Pacing

# An owner names a record to the acker: the partition's place in the high bits, the offset below.
Owners: TypeAlias = npt.NDArray[np.int64]
_OFFSET_BITS = 48
_FEW_CHUNKS = 2
_OFFSET_MASK = (1 << _OFFSET_BITS) - 1


@dataclass(frozen=True, slots=True)
class ReaderPolicy:
    """How topics are read. Seconds are of the owner's monotonic clock."""

    assignment: AssignmentPolicy = field(default_factory=AssignmentPolicy)
    commit_interval_seconds: float = 1.0
    fetch_records: int = 4_000
    chunk_records: int = 2_000
    mirror: bool = False  # commit to the consumer group too
    # Of a source, by what it reads; a source that is not there has no limit. First emissions
    # count, retries do not.
    records_per_second: Mapping[TopicName, float] = field(default_factory=dict)


class Reader:
    """Reads topics through one PartitionManager per partition and stores their frontiers.

    The owner thread calls everything, and nothing waits. With ZooKeeper away the reader
    works on inside its windows (promise 15).
    """

    def __init__(
        self,
        fetcher: Fetcher,
        store: OffsetStore,
        catalogue: Catalogue,
        notify: Callable[[Loss], Future[None]],
        sources: Sequence[TopicName],
        policy: ReaderPolicy,
        rng: random.Random,
        wall_clock: Callable[[], float] = time.time,
        *,
        sleep: Callable[[float], object] = time.sleep,
        on_assigned: Callable[[Partition], object] = lambda _partition: None,
        on_revoked: Callable[[Partition], object] = lambda _partition: None,
    ) -> None:
        """`notify` makes a range that is skipped known; its future ends when that is durable.

        `on_assigned` and `on_revoked` are told as `Assignment` says, on the owner thread; what
        they raise ends the run.
        """
        self._fetcher = fetcher
        self._store = store
        self._catalogue = catalogue
        self._policy = policy
        ways = Ways(store, catalogue, notify)
        self._assignment = Assignment(
            fetcher, ways, sources, policy.assignment, rng, on_assigned, on_revoked
        )
        self._flow = Flow(
            fetcher,
            Pacing(sources, policy.records_per_second),
            policy.fetch_records,
            commit_ahead=policy.assignment.commit_ahead,
        )
        self._commits = Commits(
            store,
            self._assignment,
            policy.commit_interval_seconds,
            fetcher if policy.mirror else None,
        )
        self._fetches = Fetches(
            fetcher,
            self._assignment,
            self._flow,
            self._commits,
            policy.fetch_records,
            wall_clock,
            sleep,
        )
        self._turn = 0

    def open(self) -> None:
        """Open the store, the fetcher and the catalogue. Raises what they raise.

        `poll` then finds the partitions and opens each; nothing is read before.
        """
        self._store.open()
        self._fetcher.open()
        self._catalogue.open()

    def poll(self, now: float, *, opens: bool = True) -> None:
        """Find, open, mend and halt partitions; see `Assignment.poll`.

        Without `opens` the run ends: at most once, nothing more is stored ahead.
        """
        self._assignment.poll(now, opens=opens)
        if not opens and self._policy.assignment.commit_ahead:
            self._flow.end()
            for held in self._assignment:
                if held.manager is not None:
                    held.manager.end()
        self._flow.resume()

    def hold_back(self, topics: frozenset[str], silent: frozenset[str] = frozenset()) -> None:
        """Let partitions of these topics emit nothing new, and all others go on (backpressure).

        Those that are `silent` emit no retries either.
        """
        self._flow.hold_back(topics, silent)

    @property
    def topics(self) -> set[str]:
        """Topics of which a partition is known."""
        return {held.partition.topic for held in self._assignment}

    def place_of(self, partition: Partition) -> int:
        """The number that stands for a partition in its records' owners (`places_of`)."""
        return self._assignment[partition].place

    def topic_at(self, place: int) -> str | None:
        """The topic of the partition that a number stands for; None if it is no partition's."""
        is_known = 0 <= place < len(self._assignment)
        return self._assignment.at(place).partition.topic if is_known else None

    @property
    def is_settled(self) -> bool:
        """Whether every partition that is known is open or halted."""
        return self._assignment.is_settled

    def goals(self) -> dict[Partition, int]:
        """Where each partition's log ended when it was opened."""
        known = [(held.partition, held.goal) for held in self._assignment]
        return {partition: goal for partition, goal in known if goal is not None}

    # Records

    def fetch(self, now: float, timeout_seconds: float) -> bool:
        """Take what the fetcher has; True if there was anything.

        It takes nothing, and waits, if what waits already is enough for every partition.
        """
        return self._fetches.fetch(now, timeout_seconds)

    def next(self, now: float) -> tuple[Chunk, Owners] | None:
        """The next records to emit, with their owners; partitions take turns."""
        self._flow.wake = math.inf
        commit = self._commits.seconds_under_way(now)
        for held in self._in_turn():
            manager = held.manager
            if manager is None or not held.is_owned:
                continue
            due = manager.next_due()
            if (due is None or due > now) and not manager.has_waiting:
                continue
            chunk = self._flow.next_of(held, manager, now, self._policy.chunk_records, commit)
            if chunk is not None or self._policy.assignment.commit_ahead:
                self._commits.look_at(manager)
            if chunk is not None and len(chunk):
                self._turn = held.place + 1
                return chunk, chunk.offsets | held.place << _OFFSET_BITS
        return None

    @property
    def foresees(self) -> bool:
        """Whether `upcoming` can tell: no rate, and nothing that is held back, has a say."""
        return self._flow.is_free

    def upcoming(self) -> list[Chunk]:
        """The chunks that, as things stand, `next` gives whole, in turn."""
        limit = self._policy.chunk_records
        queues = [
            held.manager.upcoming(limit)
            for held in self._in_turn()
            if held.is_owned and held.manager is not None
        ]
        return [chunk for row in zip_longest(*queues) for chunk in row if chunk is not None]

    @property
    def waits_little(self) -> bool:
        """Whether few chunks and fewer records than two fetches wait that may be emitted now.

        With records alone, short chunks that come fast would pile up, one emitted a turn.
        """
        chunks = records = 0
        for held in self._assignment:
            if held.is_owned and held.manager is not None and held.manager.may_emit:
                chunks += held.manager.waiting_chunks
                records += held.manager.waiting
        return chunks <= _FEW_CHUNKS and records < 2 * self._policy.fetch_records

    def _in_turn(self) -> Iterator[Held]:
        """Every partition, the one whose turn it is first."""
        count = len(self._assignment)
        for turn in range(self._turn, self._turn + count):
            yield self._assignment.at(turn % count)

    @property
    def has_stored_waiting(self) -> bool:
        """Whether records wait that are stored as read, or about to be (at most once).

        A drain emits them, else they would be lost.
        """
        if not self._policy.assignment.commit_ahead:
            return False
        managers = [held.manager for held in self._assignment if held.is_owned]
        return any(manager is not None and manager.has_stored_waiting for manager in managers)

    def ack(self, owners: Owners) -> None:
        """Resolve records."""
        places = owners >> _OFFSET_BITS
        offsets = owners & _OFFSET_MASK
        if not len(owners):
            return
        if places[0] == places[-1] and (places == places[0]).all():
            self._ack(int(places[0]), offsets)
        else:
            for place in np.flatnonzero(np.bincount(places)).tolist():
                self._ack(place, offsets[places == place])
        self._flow.resume()

    def _ack(self, place: int, offsets: Owners) -> None:
        manager = self._manager(place)
        manager.ack(_ascending(offsets))
        self._commits.look_at(manager)

    def fail(
        self,
        owner: int,
        now: float,
        after_seconds: float | None = None,
        policy: Retries | None = None,
    ) -> bool:
        """Schedule a retry; False when the record's retries are used up.

        `policy` is that of the step that failed; None: the pipeline's. Of a partition that is
        lost nothing is scheduled: whoever has it now tries the record.
        """
        if _loss_of(self._assignment.at(owner >> _OFFSET_BITS)) is not None:
            return True
        manager = self._manager(owner >> _OFFSET_BITS)
        return manager.fail(owner & _OFFSET_MASK, now, after_seconds, policy)

    def is_pending(self, owner: int) -> bool:
        """Whether a record is not resolved yet; False for what is no record of ours."""
        place = owner >> _OFFSET_BITS
        if not 0 <= place < len(self._assignment):
            return False
        manager = self._assignment.at(place).manager
        return manager is not None and manager.is_pending(owner & _OFFSET_MASK)

    def comes_again(self, owner: int) -> bool:
        """Whether a record is not resolved, and is, or may yet be, emitted again.

        False for what is no record of ours, and for those of a partition that is lost.
        """
        if not self.is_pending(owner):
            return False
        return _loss_of(self._assignment.at(owner >> _OFFSET_BITS)) is None

    def loss_of(self, partition: Partition) -> StoreError | None:
        """Why a partition is lost for good: its records are emitted no more, retries neither.

        None while it is ours, also while it is claimed again in another session.
        """
        return _loss_of(self._assignment[partition])

    def attempts(self, owner: int) -> int:
        """How often the record has been tried."""
        return self._manager(owner >> _OFFSET_BITS).attempts(owner & _OFFSET_MASK)

    def message(self, owner: int) -> Any:
        """The message of a record in flight."""
        return self._manager(owner >> _OFFSET_BITS).message(owner & _OFFSET_MASK)

    def _manager(self, place: int) -> PartitionManager:
        manager = self._assignment.at(place).manager
        if manager is None:
            raise KeyError(place)
        return manager

    # Offsets

    def commit(self, now: float, *, force: bool = False) -> None:
        """Store the frontiers that moved, at most once per interval and one write at a time.

        A partition that the store refuses is halted, or claimed again if only the session
        has ended. Raises StoreError when the store refuses everything.
        """
        self._commits.commit(now, force=force)

    @property
    def is_committed(self) -> bool:
        """Whether every frontier that can be stored is stored."""
        return self._commits.is_done

    @property
    def has_reached_goals(self) -> bool:
        """Whether every record below the goals is resolved, halted partitions aside."""
        return self.is_settled and all(held.has_resolved_goal for held in self._assignment)

    @property
    def has_emitted_goals(self) -> bool:
        """Whether every record below the goals is emitted, halted partitions aside."""
        return self.is_settled and all(held.has_emitted_goal for held in self._assignment)

    @property
    def is_stuck(self) -> bool:
        """Whether every partition that has records waiting has used up its window."""
        managers = [held.manager for held in self._assignment]
        waiting = [manager for manager in managers if manager is not None and manager.has_waiting]
        return bool(waiting) and all(manager.is_full for manager in waiting)

    def statistics(self, now: float) -> Iterator[PartitionStatistics]:
        """Where each partition stands that was opened."""
        for held in self._assignment:
            if held.manager is None:
                continue
            start, end = self._fetcher.log_range(held.partition) or (None, None)
            yield replace(
                held.manager.statistics(now),
                log_start=start,
                log_end=end,
                fetch_latency_seconds=self._fetches.latency_of(held.partition),
                lost=dict(held.lost),
            )

    def halted(self) -> dict[Partition, str]:
        """The partitions of which nothing more is read, and why."""
        halted = [held for held in self._assignment if held.halted is not None]
        return {held.partition: str(held.halted) for held in halted}

    def release(self) -> None:
        """Revoke every partition, while those who are told of it still stand. Idempotent.

        Nothing is emitted or polled any more; what is resolved may still be committed.
        """
        self._assignment.release()

    def close(self) -> None:
        """Stop fetching and let go of ZooKeeper; what is not committed stays so."""
        self.release()
        self._fetcher.close()
        self._catalogue.close()
        self._store.close()


def _loss_of(held: Held) -> StoreError | None:
    return held.halted if isinstance(held.halted, StoreError) else None


def places_of(owners: Owners) -> Owners:
    """The number of each record's partition."""
    return owners >> _OFFSET_BITS


def _ascending(offsets: Owners) -> Owners:
    """The offsets in order: the ledger is fastest on neighbours."""
    in_order = len(offsets) < 2 or bool((offsets[1:] > offsets[:-1]).all())  # noqa: PLR2004
    return offsets if in_order else np.sort(offsets)
