"""Which partitions are ours, and the state of each: opening, read, leaving, halted."""

import math
import random
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any

import structlog

from partition.assigned_partition import (
    Assigned,
    AssignedPartition,
    Departed,
    Lost,
    PartitionChange,
    PartitionState,
    Revoked,
)
from partition.delivery import AtLeastOnce, DeliveryFactory
from partition.errors import (
    Fenced,
    GivenUp,
    KafkaError,
    KafkaUnavailable,
    OwnershipLost,
    PartitionError,
    StoreError,
    TopicMissing,
)
from partition.interfaces import Catalogue, LogReader, Topic, TopicName
from partition.ledger import RetryPolicy
from partition.manager import InFlightLimits, PartitionManager
from partition.records import MAX_PARTITION_INDEX, Partition, Range
from partition.recovery import (
    FutureChain,
    Opened,
    StartPolicy,
    Ways,
    opening,
    reclaiming,
    recovering,
)

log = structlog.get_logger()

_AGAIN_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class AssignmentPolicy:
    """Rules for finding and opening partitions. Seconds are of the owner's monotonic clock."""

    start: StartPolicy = field(default_factory=StartPolicy)
    limits: InFlightLimits = field(default_factory=InFlightLimits)
    retries: RetryPolicy = field(default_factory=RetryPolicy)
    delivery: DeliveryFactory[Any] = AtLeastOnce  # exactly once the ways have a fencing
    discover_interval_seconds: float = 30.0
    shared: bool = False  # only what is wanted is ours, and others may take it over


@dataclass(frozen=True, slots=True)
class Moves:
    taken: int = 0  # one has become ours
    released: int = 0  # one has ceased to be, for whatever reason
    fenced: int = 0  # one was refused to us, because it has a later owner


class Discovery:
    """Ask the catalogue for the topics of a pipeline; a pattern matches a topic's whole name.

    What was found once is not forgotten when an answer fails or leaves it out. The owner thread
    calls everything.
    """

    def __init__(
        self, catalogue: Catalogue, sources: Sequence[TopicName], interval_seconds: float
    ) -> None:
        self._catalogue = catalogue
        self._names = [source for source in sources if isinstance(source, str)]
        self._patterns = [source for source in sources if not isinstance(source, str)]
        self._interval_seconds = interval_seconds
        self._asked: list[Future[Any]] = []
        self._due = 0.0
        self.is_settled = False  # whether there has been an answer

    def poll(self, now: float) -> list[Topic]:
        """Return the topics of a new answer, if there is one.

        Before the first answer it raises what the catalogue raises: TopicMissing for a name,
        KafkaUnavailable, KafkaFailed. Later only KafkaFailed ends the run.
        """
        if not self._asked:
            if now < self._due:
                return []
            self._due = now + self._interval_seconds
            self._asked = [self._catalogue.topic(name) for name in self._names]
            if self._patterns:
                self._asked.append(self._catalogue.topics())
        if not all(future.done() for future in self._asked):
            return []
        asked, self._asked = self._asked, []
        found: dict[str, Topic] = {}
        for future in asked:
            try:
                answer: Topic | Mapping[str, Topic] = future.result()
                if isinstance(answer, Topic):
                    found[answer.name] = answer
                else:
                    found.update((n, answer[n]) for n in answer if self._matches(n))
            except (TopicMissing, KafkaUnavailable) as error:
                if not self.is_settled:
                    raise
                log.warning("discovery_failed", error=str(error))
        if not found and not self.is_settled:
            patterns = [pattern.pattern for pattern in self._patterns]
            log.warning("no_topic_matches", patterns=patterns)
        self.is_settled = True
        return list(found.values())

    def _matches(self, name: str) -> bool:
        return any(pattern.fullmatch(name) for pattern in self._patterns)


class Assignment:
    """Find, open, recover and halt partitions. The owner thread calls everything; nothing waits.

    A partition that cannot go on is halted with its error, and the others go on; when all are
    halted, `poll` raises the error. The caller handles the changes that `poll` and `release`
    return before it emits anything more. Where partitions are shared, only those that `want`
    names are opened, and one that another replica has taken is given up: that halts nothing.
    """

    def __init__(
        self,
        fetcher: LogReader,
        ways: Ways,
        sources: Sequence[TopicName],
        policy: AssignmentPolicy,
        rng: random.Random,
    ) -> None:
        self.moves = Moves()
        self.ends = False  # the run ends: nothing new is opened
        self.is_paused = False  # by an operator: nothing new is emitted, fetched or planned
        # Our session lives until then (monotonic seconds). A process may stand still anywhere, also
        # between two looks at its session, so this is compared with the clock before each chunk.
        self.trusted_until = math.inf
        self._fetcher = fetcher
        self._ways = ways
        self._discovery = Discovery(ways.catalogue, sources, policy.discover_interval_seconds)
        self._policy = policy
        self._rng = rng
        self.departed = Departed()
        self._partitions: list[AssignedPartition] = []  # by index, those that were given up too
        self._by_name: dict[Partition, AssignedPartition] = {}
        self._changes: list[PartitionChange] = []
        self._is_released = False
        self._wanted: frozenset[Partition] | None = frozenset() if policy.shared else None
        self._planned_at = math.inf
        self._session = 0
        self._now = 0.0

    # What is known

    def __getitem__(self, partition: Partition) -> AssignedPartition:
        return self._by_name[partition]

    def __len__(self) -> int:
        return len(self._partitions)

    def __iter__(self) -> Iterator[AssignedPartition]:
        return iter(self._by_name.values())

    def at(self, index: int) -> AssignedPartition:
        return self._partitions[index]  # given up or not

    @property
    def is_settled(self) -> bool:
        """Whether the topics are known, and every partition that is wanted is open or halted."""
        return (
            (self._wanted is None or self._planned_at < math.inf)
            and self._discovery.is_settled
            and all(
                each.manager is not None or each.error is not None or not each.is_wanted
                for each in self
            )
        )

    @property
    def has_emitted_goals(self) -> bool:
        """Whether every record below the goals is emitted, retries and halted partitions aside."""
        return self.is_settled and all(
            not each.is_wanted or each.error is not None or each.has_emitted_goal for each in self
        )

    @property
    def has_reached_goals(self) -> bool:
        """Whether every record below the goals is resolved, halted partitions aside."""
        return self.is_settled and all(each.has_resolved_goal for each in self)

    @property
    def goals(self) -> dict[Partition, int]:
        return {each.partition: each.goal for each in self if each.goal is not None}

    @property
    def halted(self) -> dict[Partition, str]:
        return {each.partition: str(each.error) for each in self if each.error is not None}

    @property
    def known(self) -> frozenset[Partition] | None:
        """Every partition that there is; None until the topics were told."""
        return frozenset(self._by_name) if self._discovery.is_settled else None

    @property
    def holds(self) -> frozenset[Partition]:
        return frozenset(each.partition for each in self if each.is_held)

    @property
    def leaving(self) -> list[int]:
        return [each.index for each in self if each.is_leaving] if self._policy.shared else []

    def owned(self) -> Iterator[tuple[int, PartitionManager[Any]]]:
        for each in self:
            if each.is_owned and each.manager is not None:
                yield each.index, each.manager

    def may_plan(self, index: int) -> bool:
        return not (self.is_paused or self._partitions[index].is_leaving)

    # What the plan and the operator want

    def want(
        self, partitions: Collection[Partition], *, planned_at: float, leave_by: float
    ) -> None:
        """Set the partitions that are to be ours, by a plan that was current at `planned_at`.

        The others emit nothing new from the next `poll` on. Each is released once all of it is
        resolved and stored; at `leave_by` it is given up with what is in flight.
        """
        self._wanted = frozenset(partitions)
        self._planned_at = planned_at
        for each in self:
            each.is_wanted = self._wants(each.partition)
            if each.is_wanted:
                each.leave_by = each.leave_by if each.is_leaving else None
                self._open_if_free(each)
            elif each.leave_by is None:
                each.leave_by = leave_by

    def suspend(self) -> None:
        """Claim each partition again before it emits or stores more: the session may have ended."""
        for each in self:
            self.refuse(each.partition, OwnershipLost(each.partition))

    # The turn

    def poll(self, now: float, *, opens: bool = True) -> list[PartitionChange]:
        """Open, recover and halt partitions; return the changes since the last call, in order.

        Without `opens` the run ends: no further partition is opened. Until the topics are known
        for the first time it raises what the catalogue raises.
        """
        self._now = now
        self.ends = not opens
        for topic in self._discovery.poll(now) if opens else ():
            self._discovered(topic)
        if self._ways.store.session != self._session:
            self._session = self._ways.store.session
            self.suspend()
        for each in list(self):
            if each.is_leaving or not each.is_wanted:
                self._leave(each, now)
            elif opens or each.manager is not None:
                self._go_on(each, now)
        errors = [each.error for each in self if each.error is not None]
        # While others have some, the plan may give us more.
        if errors and len(errors) == len(self._by_name):
            # That another process took a partition says least about what is wrong.
            raise min(errors, key=lambda error: isinstance(error, Fenced))
        return self._take_changes()

    def release(self) -> list[PartitionChange]:
        """Revoke every partition. What is resolved may still be committed. Idempotent."""
        self._is_released = True
        for each in self:
            self._notify(each)
        return self._take_changes()

    # What others report

    def fail(self, partition: Partition, trouble: KafkaError) -> None:
        assigned = self._by_name[partition]
        log.warning("partition_failed", partition=str(partition), error=str(trouble))
        assigned.trouble = trouble
        if assigned.state is PartitionState.READING:
            assigned.state = PartitionState.RECOVERING
        self._stop_reading(assigned)

    def passed(self, index: int, covers: Range) -> None:
        """Note that others have read the next range of a partition."""
        assigned = self._partitions[index]
        if assigned.manager is None:
            raise KeyError(index)
        assigned.manager.passed(covers)
        assigned.in_vain = (-1, 0)

    def log_end(self, assigned: AssignedPartition, end: int, *, is_read: bool = True) -> None:
        assigned.goal = end if assigned.goal is None else assigned.goal
        manager = assigned.manager
        if is_read or manager is None or not manager.open_transactions:
            # else reading what is open may be what is in vain
            assigned.in_vain = (-1, 0)

    def refuse(self, partition: Partition, error: StoreError, *, index: int | None = None) -> None:
        """Halt a partition whose progress the store refused; claim it again after a lost session.

        `index`: a sink refused what came from it. It is ignored if that index is another's now.
        """
        assigned = self._by_name[partition]
        if index is not None and assigned.index != index:
            return
        if not isinstance(error, OwnershipLost):
            self.halt(partition, error)
        elif assigned.is_owned:
            if assigned.chain is not None:  # it begins anew once the partition is ours again
                assigned.retry_at = 0.0
            self._reclaim(assigned)

    # Transitions

    def _take_changes(self) -> list[PartitionChange]:
        changes, self._changes = self._changes, []
        return changes

    def _wants(self, partition: Partition) -> bool:
        return self._wanted is None or partition in self._wanted

    def _discovered(self, topic: Topic) -> None:
        for number in topic.partitions:
            partition = Partition(topic.name, number)
            assigned = self._by_name.get(partition)
            if assigned is None:
                self._open_if_free(self._add(partition, topic))
            elif assigned.state is PartitionState.HALTED:
                if isinstance(assigned.error, TopicMissing):
                    assigned.error = None
                    assigned.begin()
            elif assigned.state is PartitionState.READING and assigned.manager is not None:
                was = assigned.manager.fetch_position.topic_id
                if assigned.chain is None and was and topic.topic_id and was != topic.topic_id:
                    assigned.begin()

    def _add(self, partition: Partition, topic: Topic) -> AssignedPartition:
        """Number a partition. No number is used again: sinks and bolts name its records for long.

        Raises PartitionError when there are no more.
        """
        index = len(self._partitions)
        if index == MAX_PARTITION_INDEX:
            raise PartitionError(
                f"{partition} cannot be opened: record ids tell {MAX_PARTITION_INDEX} partitions "
                "apart, and so many were opened, or given up with records in flight; start anew"
            )
        assigned = AssignedPartition(partition, index, topic)
        assigned.is_wanted = self._wants(partition)
        self._partitions.append(assigned)
        self._by_name[partition] = assigned
        return assigned

    def _open_if_free(self, assigned: AssignedPartition) -> None:
        is_free = assigned.state is PartitionState.FREE
        if is_free and assigned.given_up_at < self._planned_at:
            assigned.begin()

    def _go_on(self, assigned: AssignedPartition, now: float) -> None:
        beginning = {PartitionState.OPENING, PartitionState.RECOVERING}
        if assigned.chain is None and assigned.state in beginning:
            self._begin(assigned, now)
        if assigned.chain is not None:
            self._step(assigned, assigned.chain, now)
        elif assigned.state is PartitionState.HALTED:  # what was read of it may be done by now
            self._notify(assigned)

    def _begin(self, assigned: AssignedPartition, now: float) -> None:
        if assigned.retry_at is not None and now < assigned.retry_at:
            return
        assigned.retry_at = None
        manager, policy = assigned.manager, self._policy.start
        if manager is None:
            assigned.session = self._ways.store.session
            count = len(assigned.topic.partitions)
            chain: Any = opening(assigned.partition, count, self._ways, policy)
        else:
            known = self._fetcher.log_range(assigned.partition)
            end = known and known[1]
            self._stop_reading(assigned)
            trouble, in_vain = assigned.trouble, assigned.in_vain
            chain = recovering(manager, trouble, in_vain, end, self._ways, policy)
        assigned.chain = FutureChain(chain)

    def _step(self, assigned: AssignedPartition, chain: FutureChain[Any], now: float) -> None:
        try:
            ended = chain.poll()
        except KafkaUnavailable as error:
            log.warning("partition_waits", partition=str(assigned.partition), error=str(error))
            assigned.chain = None
            assigned.retry_at = now + _AGAIN_SECONDS
        except OwnershipLost:
            assigned.chain = None
            if assigned.manager is None and self._policy.shared:
                assigned.state = PartitionState.FREE
                assigned.given_up_at = now  # only a later plan says that it is to be ours still
                return
            if assigned.state is not PartitionState.READING:
                assigned.retry_at = now
            if assigned.manager is not None:  # else opening it claims it
                self._reclaim(assigned)
        except PartitionError as error:
            self.halt(assigned.partition, error)
        else:
            if ended is not None:
                assigned.chain = None
                self._run(assigned, ended[0])

    def _reclaim(self, assigned: AssignedPartition) -> None:
        assigned.is_owned = False
        assigned.session = self._ways.store.session
        assigned.chain = FutureChain(reclaiming(assigned.partition, self._ways))
        self._notify(assigned)

    def _run(self, assigned: AssignedPartition, ended: Opened | int) -> None:
        """Let a partition's records flow: it is ours, under a new epoch or newly opened."""
        assigned.is_owned = True
        if isinstance(ended, Opened):
            self._read_from(assigned, ended)
        else:
            assigned.epoch = ended
        if assigned.session != self._ways.store.session:  # which has ended since the claim
            self._reclaim(assigned)
        self._notify(assigned)

    def _read_from(self, assigned: AssignedPartition, opened: Opened) -> None:
        trouble, assigned.trouble = assigned.trouble, None
        position = opened.position
        assigned.goal = opened.end if opened.end >= position.offset else None
        assigned.epoch = assigned.epoch if opened.epoch is None else opened.epoch
        if assigned.manager is None:
            assigned.manager = PartitionManager(
                assigned.partition,
                position,
                self._policy.limits,
                self._policy.retries,
                self._rng,
                self._policy.delivery,
                opened.resumed,
            )
        else:
            if trouble is not None and not opened.losses:
                offset, count = assigned.in_vain
                assigned.in_vain = (position.offset, count + 1 if offset == position.offset else 1)
            if not opened.reads_on:
                is_stored = bool(opened.losses)
                assigned.manager.restart(position, is_stored=is_stored, resumed=opened.resumed)
        for loss in opened.losses:
            assigned.lost[loss.reason] += loss.lost
        if not assigned.is_leaving:
            assigned.state = PartitionState.READING
        self._fetcher.add({assigned.partition: position})
        assigned.is_read, assigned.is_paused = True, False

    def _stop_reading(self, assigned: AssignedPartition) -> None:
        if assigned.is_read:
            self._fetcher.remove([assigned.partition])
            assigned.is_read = assigned.is_paused = False

    def halt(self, partition: Partition, error: PartitionError) -> None:
        """Read nothing more of a partition. If it is lost for good, emit nothing more either.

        Where partitions are shared, one that another has taken is given up.
        """
        assigned = self._by_name[partition]
        if isinstance(error, Fenced):
            self.moves = replace(self.moves, fenced=self.moves.fenced + 1)
            if self._policy.shared:
                self._give_up(assigned, error)
                return
        self._stop_reading(assigned)
        assigned.trouble = assigned.retry_at = None
        assigned.error = error
        if not assigned.is_leaving:
            assigned.state = PartitionState.HALTED
        if assigned.loss is not None:
            assigned.is_owned = False
        if assigned.loss is not None or assigned.is_owned or assigned.manager is None:
            assigned.chain = None  # else what was read of it is claimed again, and then goes on
        log.error("partition_halted", partition=str(assigned.partition), error=str(error))
        self._notify(assigned)

    def _leave(self, assigned: AssignedPartition, now: float) -> None:
        if assigned.chain is not None:  # only once it is claimed it can be let go in order
            self._step(assigned, assigned.chain, now)
        if assigned.state in {PartitionState.FREE, PartitionState.RETIRED}:
            return
        is_late = assigned.leave_by is not None and now >= assigned.leave_by
        if assigned.manager is None:
            if assigned.chain is None or is_late:
                assigned.free()
            return
        self._stop_reading(assigned)
        if not assigned.is_leaving:
            assigned.state = PartitionState.LEAVING
            assigned.manager.stop()
            log.info("partition_leaving", partition=str(assigned.partition))
        if assigned.is_finished:
            assigned.error = GivenUp(assigned.partition, "the plan gives it to another replica")
            assigned.is_owned = False
            self._notify(assigned)
            offset = assigned.manager.committed
            log.info("partition_released", partition=str(assigned.partition), offset=offset)
            self.departed = self.departed.and_of(assigned)
            assigned.free()
        elif is_late or assigned.loss is not None:
            error = GivenUp(assigned.partition, "not all of it was resolved in time")
            self._give_up(assigned, error)

    def _give_up(self, assigned: AssignedPartition, error: StoreError) -> None:
        """Let go of a partition as it is: whoever has it next repeats what is in flight.

        A newer plan may give it to us again, under another index.
        """
        self._stop_reading(assigned)
        assigned.chain = assigned.trouble = assigned.retry_at = None
        assigned.is_owned = False
        assigned.error = error
        log.warning("partition_given_up", partition=str(assigned.partition), reason=str(error))
        self._notify(assigned)
        if assigned.manager is None:
            assigned.free()
            assigned.given_up_at = self._now
            return
        self.departed = self.departed.and_of(assigned)
        assigned.state, assigned.manager = PartitionState.RETIRED, None
        again = self._add(assigned.partition, assigned.topic)
        again.lost = assigned.lost
        again.given_up_at = self._now

    def _notify(self, assigned: AssignedPartition) -> None:
        """Note that a partition has become ours, is ours no more, or is lost; nothing twice."""
        partition, index, error = assigned.partition, assigned.index, assigned.error
        is_ours = assigned.is_ours and not self._is_released
        if is_ours != isinstance(assigned.told, Assigned):
            taken, released = self.moves.taken + is_ours, self.moves.released + (not is_ours)
            self.moves = replace(self.moves, taken=taken, released=released)
            change = Assigned(partition, index) if is_ours else Revoked(partition, index, error)
            self._note(assigned, change)
        if assigned.loss is not None and not isinstance(assigned.told, Lost):
            self._note(assigned, Lost(partition, index, assigned.loss))

    def _note(self, assigned: AssignedPartition, change: PartitionChange) -> None:
        assigned.told = change
        self._changes.append(change)
