"""The Kafka side of a pipeline: what is emitted of its partitions, and what is committed."""

import math
import random
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any

from partition.assignment import Assignment, AssignmentPolicy, PartitionChange
from partition.catalogue import Catalogue
from partition.chunk import Chunk, Partition
from partition.discovery import TopicName
from partition.errors import KafkaError, PartitionError, StoreError
from partition.fetcher import Fetcher
from partition.held import Held
from partition.loss import Loss
from partition.manager import PartitionManager
from partition.opening import Fencing, Ways
from partition.retries import Retries
from partition.statistics import Departed, Moves, PartitionStatistics
from partition.store import OffsetStore
from partition.transaction import Range
from service.commit_places import CommitPlaces
from service.commits import Commits
from service.failpoints import nowhere
from service.fetches import Fetches, LogEnds
from service.flow import Flow
from service.owners import Owners, by_place, offset_of, place_of
from service.pacing import Pacing
from service.rotation import Rotation


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
        fencing: Fencing | None = None,
        at: Callable[[str], object] = nowhere,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`notify` makes a range that is skipped known; its future ends when that is durable.

        `fencing` is given if transactions are kept, and only then (exactly once).
        `at` is told of the points of a commit (`CommitPlaces`).
        """
        self._fetcher = fetcher
        self._store = store
        self._catalogue = catalogue
        self._is_shared = policy.assignment.shared
        self._clock = clock
        self._trusted_until = math.inf
        ways = Ways(store, catalogue, notify, fencing)
        self._assignment = Assignment(fetcher, ways, sources, policy.assignment, rng)
        self.late = 0
        """Answers for records of partitions that are gone, which are ignored."""
        self._flow = Flow(fetcher, Pacing(sources, policy.records_per_second), policy.fetch_records)
        self._commits = Commits(
            store,
            self._assignment,
            policy.commit_interval_seconds,
            fetcher if policy.mirror else None,
            places=None if at is nowhere else CommitPlaces(at),
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
        self._ends = LogEnds(catalogue, self._assignment)
        self._rotation = Rotation(
            self._assignment,
            self._flow,
            self._commits,
            fetch_records=policy.fetch_records,
            chunk_records=policy.chunk_records,
        )

    def open(self) -> None:
        """Open the store, the fetcher and the catalogue. Raises what they raise.

        `poll` then finds the partitions and opens each; nothing is read before.
        """
        self._store.open()
        self._fetcher.open()
        self._catalogue.open()

    def poll(self, now: float, *, opens: bool = True) -> list[PartitionChange]:
        """Find, open, mend and halt partitions; return what has become of them, in order.

        Without `opens` the run ends: at most once, nothing more is stored ahead. What is
        stored or planned is emitted as soon as it can be.
        """
        changes = self._assignment.poll(now, opens=opens)
        self._ends.poll(now)
        if not opens:
            self._rotation.end()
        self._flow.resume()
        return changes

    def given_up(self, now: float) -> list[int]:
        """Indexes of partitions that were given up, to be freed by `forget`; rarely any."""
        return self._assignment.given_up(now)

    def forget(self, index: int) -> None:
        """Learn that nothing is left that names a record of a partition that was given up."""
        self._assignment.forget(index)

    def want(
        self, partitions: Collection[Partition], *, planned_at: float, leave_by: float
    ) -> None:
        """Learn which partitions are to be ours; see `Assignment.want`."""
        self._assignment.want(partitions, planned_at=planned_at, leave_by=leave_by)

    def suspend(self) -> None:
        """Emit and store nothing more before it is claimed again; see `Assignment.suspend`."""
        self._assignment.suspend()

    def trust(self, until: float) -> None:
        """Emit nothing after that moment (monotonic seconds), unless another one is told by then.

        Our session may have ended then. A process may stand still anywhere, also between two
        looks at its session, so whether it is over is asked again before each chunk.
        """
        self._trusted_until = until

    @property
    def is_trusted(self) -> bool:
        """Whether our session lives, by our own clock."""
        return self._clock() <= self._trusted_until

    @property
    def known(self) -> frozenset[Partition] | None:
        """Every partition that there is; None until the topics were told."""
        return self._assignment.known

    @property
    def holds(self) -> frozenset[Partition]:
        """The partitions that are open or being opened."""
        return self._assignment.holds

    @property
    def is_shared(self) -> bool:
        """Whether other replicas may take partitions over at any time."""
        return self._is_shared

    @property
    def leaving(self) -> list[int]:
        """The places of partitions that leave: what is in flight of them should not wait."""
        return self._assignment.leaving

    @property
    def departed(self) -> Departed:
        """What was read of partitions that are ours no more."""
        return self._assignment.departed

    @property
    def moves(self) -> Moves:
        """How often partitions changed hands."""
        return self._assignment.moves

    @property
    def is_paused(self) -> bool:
        """Whether nothing new is emitted, fetched or planned: an operator has said so."""
        return self._flow.is_paused

    def pause(self, *, is_paused: bool) -> None:
        """Emit nothing new, or go on; what is in flight is finished either way."""
        self._flow.is_paused = is_paused

    def plans_at(self, place: int) -> bool:
        """Whether more of a partition may be planned: it is not leaving, and nothing is paused."""
        return not (self._flow.is_paused or self._assignment.at(place).is_leaving)

    def hold_back(self, topics: frozenset[str], silent: frozenset[str] = frozenset()) -> None:
        """Let partitions of these topics emit nothing new, and all others go on (backpressure).

        Those that are `silent` emit no retries either.
        """
        self._flow.hold_back(topics, silent)

    @property
    def topics(self) -> set[str]:
        """Topics of which a partition is known."""
        return {held.partition.topic for held in self._assignment}

    def topic_at(self, place: int) -> str | None:
        """The topic of the partition that a number stands for; None if it is no partition's."""
        is_known = 0 <= place < len(self._assignment)
        return self._assignment.at(place).partition.topic if is_known else None

    def epoch_of(self, place: int) -> int:
        """The epoch under which a partition is ours, or was last."""
        return self._assignment.at(place).epoch

    def owned(self) -> Iterator[tuple[int, PartitionManager[Any]]]:
        """The partitions that are ours, by place."""
        for held in self._assignment:
            if held.is_owned and held.manager is not None:
                yield held.place, held.manager

    def partition(self, place: int) -> Held:
        """The partition at a place, whether it is ours or not."""
        return self._assignment.at(place)

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
        """The next records to emit, with their owners; partitions take turns.

        None, whatever waits, once the partitions may be another's (`trust`).
        """
        return self._rotation.next(now) if self.is_trusted else None

    @property
    def foresees(self) -> bool:
        """Whether `upcoming` can tell: no rate, and nothing that is held back, has a say."""
        return self._flow.is_free and self.is_trusted

    def upcoming(self) -> list[Chunk]:
        """The chunks that, as things stand, `next` gives whole, in turn."""
        return self._rotation.upcoming()

    @property
    def waits_little(self) -> bool:
        """Whether little waits that may be emitted soon; see `Rotation.waits_little`."""
        return self._rotation.waits_little

    @property
    def has_stored_waiting(self) -> bool:
        """Whether records wait that a drain emits; see `Rotation.has_stored_waiting`."""
        return self._rotation.has_stored_waiting

    @property
    def is_stuck(self) -> bool:
        """Whether every partition that has records waiting has used up its window."""
        return self._rotation.is_stuck

    def ack(self, owners: Owners) -> None:
        """Resolve records."""
        if not len(owners):
            return
        for manager, offsets in self._by_manager(owners):
            manager.ack(offsets)
            self._commits.look_at(manager)
        self._flow.resume()

    def processed(self, owners: Owners) -> None:
        """Learn that records are done, but for the transactions they are in."""
        for manager, offsets in self._by_manager(owners):
            manager.processed(offsets)

    def resolve_to(self, place: int, end: int) -> int:
        """Resolve what was emitted of a partition below `end`; return how many records.

        Their transaction is committed: the mode was told in this same turn, so that no offset
        is stored in between.
        """
        manager = self._manager(place)
        resolved = manager.resolve_below(end)
        self._commits.look_at(manager)
        self._flow.resume()
        return resolved

    def passed(self, place: int, covers: Range) -> None:
        """Learn that a range is done which others have read; the mode was told in this turn."""
        manager = self._manager(place)
        manager.passed(covers.first, covers.end, covers.count or 0, covers.leader_epoch)
        self._assignment.passed(place)
        self._commits.look_at(manager)

    def heard_of_end(self, place: int, end: int) -> None:
        """Learn where a log ends that others read: behind all that is planned of it, or there."""
        self._assignment.heard_of_end(place, end)

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
        held = self._assignment.at(place_of(owner))
        if held.manager is None:
            self.late += 1
        if held.manager is None or held.loss is not None:
            return True
        return held.manager.fail(offset_of(owner), now, after_seconds, policy)

    def comes_again(self, owner: int) -> bool:
        """Whether a record is not done, and is, or may yet be, emitted again.

        False for what is no record of ours, and for those of a partition that is lost.
        """
        place = place_of(owner)
        if not 0 <= place < len(self._assignment):
            return False
        held = self._assignment.at(place)
        if held.manager is None or held.loss is not None:
            return False
        return held.manager.comes_again(offset_of(owner))

    def is_halted(self, partition: Partition) -> bool:
        """Whether a partition is halted: lost for good, or its log cannot be read on."""
        return self._assignment[partition].halted is not None

    def refuse(self, partition: Partition, place: int, error: StoreError) -> None:
        """Learn that a partition is another's, as a sink told of what came from that place.

        Nothing happens if it was given up since then, and is at another place now.
        """
        if self._assignment[partition].place == place:
            self._assignment.refuse(partition, error)

    def stopped(self, partition: Partition, trouble: KafkaError) -> None:
        """Learn why others can read nothing more of a partition; it is mended, or halted."""
        self._assignment.fail(partition, trouble)

    def halt(self, partition: Partition, error: PartitionError) -> None:
        """Learn that a partition cannot go on."""
        self._assignment.halt(partition, error)

    def attempts(self, owner: int) -> int:
        """How often the record has been tried."""
        return self._manager(place_of(owner)).attempts(offset_of(owner))

    def message(self, owner: int) -> Any:
        """The message of a record in flight."""
        return self._manager(place_of(owner)).message(offset_of(owner))

    def _by_manager(self, owners: Owners) -> Iterator[tuple[PartitionManager[Any], Owners]]:
        """The offsets of records, by whose they are; those of nobody are counted."""
        for place, offsets in by_place(owners):
            manager = self._assignment.at(place).manager
            if manager is None:
                self.late += len(offsets)
            else:
                yield manager, offsets

    def _manager(self, place: int) -> PartitionManager[Any]:
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

    def commit_seconds(self, now: float) -> float:
        """How long the last write of offsets took, or the one under way if that is longer."""
        return self._commits.seconds(now)

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

    def next_due(self) -> float | None:
        """When the next retry is due, or a rate limit lets the next records pass; or None."""
        managers = [held.manager for held in self._assignment]
        dues = [manager.next_due() for manager in managers if manager is not None]
        dues += [self._flow.wake] if math.isfinite(self._flow.wake) else []
        return min((due for due in dues if due is not None), default=None)

    def is_held_up(self, topic: str, now: float) -> bool:
        """Whether nothing new of a topic may be emitted now, by its rate or by backpressure."""
        return self._flow.is_held_up(topic, now)

    def statistics(self, now: float) -> Iterator[PartitionStatistics]:
        """Where each partition stands that was opened."""
        for held in self._assignment:
            if held.manager is None:
                continue
            start, end = self._fetcher.log_range(held.partition) or (None, None)
            yield replace(
                held.manager.statistics(now),
                log_start=start,
                log_end=self._ends.later(held.partition, end),
                fetch_latency_seconds=self._fetches.latency_of(held.partition),
                transaction_wait_seconds=self._fetcher.transaction_wait_seconds(held.partition),
                lost=dict(held.lost),
                epoch=held.epoch,
            )

    def halted(self) -> dict[Partition, str]:
        """The partitions of which nothing more is read, and why."""
        halted = [held for held in self._assignment if held.halted is not None]
        return {held.partition: str(held.halted) for held in halted}

    def release(self) -> list[PartitionChange]:
        """Revoke every partition. Idempotent.

        Nothing is emitted or polled any more; what is resolved may still be committed.
        """
        return self._assignment.release()

    def close(self) -> None:
        """Stop fetching and let go of ZooKeeper; what is not committed stays so."""
        self._fetcher.close()
        self._catalogue.close()
        self._store.close()
