"""Which partitions are ours, and what state each is in: opening, read, leaving, halted."""

import math
import random
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import structlog

from partition.delivery import AtLeastOnce, DeliveryFactory
from partition.discovery import Discovery, TopicName
from partition.errors import (
    Fenced,
    GivenUp,
    KafkaError,
    KafkaUnavailable,
    OwnershipLost,
    PartitionError,
    StoreError,
    TopicMissing,
    TransactionError,
)
from partition.interfaces import Fetcher, Topic
from partition.manager import InFlightLimits, PartitionManager
from partition.records import Partition
from partition.recovery import Opened, StartPolicy, Steps, Ways, opening, reclaiming, recovering
from partition.retry import RetryPolicy

log = structlog.get_logger()

_AGAIN_SECONDS = 1.0
_ASK_SECONDS = 1.0  # to ask costs a look at every tree


@dataclass(frozen=True, slots=True)
class AssignmentPolicy:
    """How partitions are found and opened. Seconds are of the owner's monotonic clock."""

    start: StartPolicy = field(default_factory=StartPolicy)
    limits: InFlightLimits = field(default_factory=InFlightLimits)
    retries: RetryPolicy = field(default_factory=RetryPolicy)
    delivery: DeliveryFactory[Any] = AtLeastOnce  # exactly once the ways have a fencing
    discover_interval_seconds: float = 30.0
    shared: bool = False  # only what is wanted is ours, and others may take it over


@dataclass(frozen=True, slots=True)
class Assigned:
    """A partition is ours from now on; before its first record is emitted.

    One that was revoked comes again, with what is in flight of it, once it is claimed again.
    """

    partition: Partition
    index: int


@dataclass(frozen=True, slots=True)
class Revoked:
    """A partition that was assigned is ours no more, and none of its records is emitted."""

    partition: Partition
    index: int
    error: PartitionError | None = None  # None: only its session has ended, or the run ends


@dataclass(frozen=True, slots=True)
class Lost:
    """A partition will not be assigned again under its index; what is in flight is to be dropped.

    The index may be another's once `forget` says that nothing is left of it.
    """

    partition: Partition
    index: int
    error: PartitionError


@dataclass(frozen=True, slots=True)
class Departed:
    """What was read here of partitions that other replicas have now, in records."""

    read: int = 0
    retried: int = 0
    given_up: int = 0  # in flight when it was given up, and not resolved since


@dataclass(frozen=True, slots=True)
class Moves:
    """How often partitions changed hands, as this process saw it."""

    taken: int = 0  # one has become ours
    released: int = 0  # one has ceased to be, for whatever reason
    fenced: int = 0  # one was refused to us, because it has a later owner


PartitionChange: TypeAlias = Assigned | Revoked | Lost


class Held:
    """A partition from its discovery on. `index` is its index among all that this process knows.

    With replicas that share the partitions it is ours only while it is wanted: it is opened then,
    and leaves once it is wanted no more. One that was given up before all of it was resolved is
    retired: what is still in flight of it counts for nothing, and the partition has a new index.
    """

    def __init__(self, partition: Partition, index: int, topic: Topic) -> None:
        self.partition = partition
        self.topic = topic  # as it was when the partition was found
        self.index = index
        self.is_wanted = True
        self.given_up_at: float | None = None  # only a later plan may open it again
        self.is_retired = False
        self.lost: Counter[str] = Counter()
        self.renew()

    def renew(self) -> None:
        """Be one that is not open, as at the beginning; the counts stay."""
        self.manager: PartitionManager[Any] | None = None  # None: not opened yet
        self.steps: Steps[Any] | None = None  # opening, recovering or reclaiming
        self.again_at: float | None = None  # when to begin `steps` once more
        self.trouble: KafkaError | None = None  # what the fetcher told and is not answered
        self.in_vain: tuple[int, int] = (-1, 0)  # an offset, and recoveries that found nothing
        self.is_owned = False  # whether its records may be emitted and its frontier stored
        self.is_told = False  # whether Assigned was told, and Revoked not since
        self.is_lost = False  # whether Lost was told
        self.session = 0  # of the store, when it was claimed last
        self.epoch = 0  # of the ownership; 0: it was never ours
        self.is_read = False  # whether the fetcher delivers it
        self.is_paused = False
        self.is_leaving = False  # nothing new of it is emitted
        self.leave_by: float | None = None  # when it is given up, whatever is in flight
        self.halted: PartitionError | None = None
        # Where its log ended when it was opened; None: that was before our position, so who is
        # right is known when the fetcher comes to an end or tells of trouble, or others hear of it.
        self.goal: int | None = None

    @property
    def loss(self) -> StoreError | TransactionError | None:
        """Why it is lost for good: none of its records is emitted any more, retries neither."""
        lost = isinstance(self.halted, StoreError | TransactionError)
        return self.halted if lost else None  # type: ignore[return-value]

    @property
    def is_ours(self) -> bool:
        """Whether records of it may be emitted, now or later.

        The source's halt of a partition leaves us what was read of it.
        """
        is_empty = self.manager is None or self.manager.is_idle
        return self.is_owned and (self.halted is None or not is_empty)

    @property
    def is_steady(self) -> bool:
        """Whether it is ours and stays so, and is neither halted nor mended, nor about to be."""
        mends = self.steps or self.trouble or self.again_at is not None
        return self.is_owned and self.halted is None and not mends and not self.is_leaving

    @property
    def is_held(self) -> bool:
        """Whether it is open, or being opened: nobody else may open it yet."""
        return not self.is_retired and (self.manager is not None or self.steps is not None)

    @property
    def is_finished(self) -> bool:
        """Whether nothing of it is in flight, and all that can be stored is."""
        manager = self.manager
        if manager is None or self.steps is not None or not self.is_owned:
            return False
        if manager.in_flight or manager.delivery.owes_emission() or manager.has_to_store:
            return False
        return not manager.delivery.awaits_commit

    @property
    def has_emitted_goal(self) -> bool:
        """Whether every record below the goal is emitted, retries aside; or it is halted."""
        if not self.is_wanted:
            return True
        if self.manager is None or self.goal is None:
            return self.halted is not None
        return self.halted is not None or self.manager.emitted_to >= self.goal

    @property
    def has_resolved_goal(self) -> bool:
        """Whether every record below the goal is resolved and nothing is amiss; or it is halted."""
        if not self.is_wanted:
            return not self.is_held
        mends = self.steps or self.trouble or self.again_at is not None
        if self.manager is None or self.goal is None or mends:
            return self.halted is not None
        return self.halted is not None or self.manager.last_completed_offset >= self.goal


class Departures:
    """Keeps partitions that were given up, for what may still be told of them. Pure.

    A record is named by its partition's index and its offset, and nothing in that name tells one
    partition of a index from the next. So the index of a partition that was given up stays its
    own until nothing is left that could name a record of it, however long that takes: a sink or a
    bolt may be away for longer than any time-out. One that was released in order has nothing in
    flight, and keeps its index for the next time.
    """

    def __init__(self) -> None:
        self._ask_at = -math.inf
        self.retired: list[Held] = []
        self._read = self._retried = self._given_up = 0
        self.free_indexes: list[int] = []
        """Places that others may have."""

    def release(self, held: Held) -> None:
        """Forget a partition of which nothing is in flight."""
        self._count(held)
        held.renew()

    def retire(self, held: Held) -> None:
        """Keep one that was given up with what is in flight of it."""
        held.is_retired = True
        self.retired.append(held)

    def to_ask(self, now: float) -> list[int]:
        """Places of which it is time to ask whether anything is left; none most of the time."""
        if now < self._ask_at:
            return []
        self._ask_at = now + _ASK_SECONDS
        return [held.index for held in self.retired]

    def forget(self, index: int) -> None:
        """Let go of a partition of which nothing is left: its index is free then."""
        (held,) = (each for each in self.retired if each.index == index)
        self.retired.remove(held)
        self._count(held)
        held.manager = None
        self.free_indexes.append(index)

    @property
    def total(self) -> Departed:
        """What was read of all of them."""
        kept = list(self._managers())
        return Departed(
            read=self._read + sum(each.read for each in kept),
            retried=self._retried + sum(each.retried for each in kept),
            given_up=self._given_up + sum(each.in_flight for each in kept),
        )

    def _managers(self) -> Iterator[PartitionManager[Any]]:
        for held in self.retired:
            if held.manager is not None:
                yield held.manager

    def _count(self, held: Held) -> None:
        manager = held.manager
        if manager is not None:
            self._read += manager.read
            self._retried += manager.retried
            self._given_up += manager.in_flight


class Assignment:
    """Finds the partitions, opens them, and mends or halts those that cannot go on.

    The owner thread calls everything, and nothing waits: the store and the catalogue answer
    by futures, which `poll` looks at. A partition that cannot go on is halted with its
    error, and the others go on; when every partition that there is is halted, `poll` raises the
    error.

    What `poll` and `release` return is handled before anything more is emitted.

    Where the partitions are shared, nothing is opened before `want` was told of it, and one that
    another replica has taken is given up: that halts nothing.
    """

    def __init__(
        self,
        fetcher: Fetcher,
        ways: Ways,
        sources: Sequence[TopicName],
        policy: AssignmentPolicy,
        rng: random.Random,
    ) -> None:
        self._changes: list[PartitionChange] = []
        self.moves = Moves()
        """How often partitions changed hands."""
        self._is_released = False
        self.ends = False
        """Whether the run ends: nothing new is opened."""
        self.is_paused = False
        """Whether nothing new is emitted, fetched or planned: an operator has said so."""
        self.trusted_until = math.inf
        """Until then, by our own clock, our session lives; see `trust`."""
        self._fetcher = fetcher
        self._ways = ways
        self._discovery = Discovery(ways.catalogue, sources, policy.discover_interval_seconds)
        self._policy = policy
        self._rng = rng
        self._held: list[Held] = []  # by index
        self._departures = Departures()
        self._wanted: frozenset[Partition] | None = frozenset() if policy.shared else None
        self._planned_at = math.inf if policy.shared else -math.inf
        self._by_name: dict[Partition, Held] = {}
        self._session = 0
        self._now = 0.0

    def __getitem__(self, partition: Partition) -> Held:
        """The state of a partition."""
        return self._by_name[partition]

    def __len__(self) -> int:
        """How many indexes there are; some may be of partitions that were given up."""
        return len(self._held)

    def __iter__(self) -> Iterator[Held]:
        """Every partition that is known, by index."""
        return (held for held in self._held if not held.is_retired)

    def at(self, index: int) -> Held:
        """The partition at an index."""
        return self._held[index]

    def is_moving(self, held: Held) -> bool:
        """Whether the stored offset may be about to jump, so that nothing of it may be stored."""
        mends = held.halted is None and (held.steps is not None or held.again_at is not None)
        manager = held.manager
        return mends and (manager is None or manager.is_idle or manager.is_moving)

    @property
    def is_settled(self) -> bool:
        """Whether the topics were told, and every partition that is wanted is open or halted."""
        is_planned = not self._policy.shared or self._planned_at < math.inf
        return (
            is_planned
            and self._discovery.is_settled
            and all(
                held.manager is not None or held.halted is not None or not held.is_wanted
                for held in self
            )
        )

    @property
    def goals(self) -> dict[Partition, int]:
        """Where each partition's log ended when it was opened."""
        return {held.partition: held.goal for held in self if held.goal is not None}

    @property
    def halted(self) -> dict[Partition, str]:
        """The partitions of which nothing more is read, and why."""
        return {held.partition: str(held.halted) for held in self if held.halted is not None}

    def may_plan(self, index: int) -> bool:
        """Whether more of a partition may be planned: it is not leaving, and nothing is paused."""
        return not (self.is_paused or self._held[index].is_leaving)

    @property
    def known(self) -> frozenset[Partition] | None:
        """Every partition that there is; None until the topics were told."""
        return frozenset(self._by_name) if self._discovery.is_settled else None

    @property
    def holds(self) -> frozenset[Partition]:
        """The partitions that are open or being opened: nobody else may open them yet."""
        return frozenset(held.partition for held in self if held.is_held)

    @property
    def leaving(self) -> list[int]:
        """The indexes of partitions that leave: what is in flight of them should not wait."""
        return [held.index for held in self if held.is_leaving] if self._policy.shared else []

    def want(
        self, partitions: Collection[Partition], *, planned_at: float, leave_by: float
    ) -> None:
        """Learn which partitions are to be ours, by a plan that was current at `planned_at`.

        Of the others nothing new is emitted from the next `poll` on;
        each is released once all of it is resolved and stored, and at `leave_by` it is given up
        with what is in flight. Times are monotonic seconds.
        """
        self._wanted = frozenset(partitions)
        self._planned_at = planned_at
        for held in self:
            held.is_wanted = self._wants(held.partition)
            if held.is_wanted:
                held.leave_by = held.leave_by if held.is_leaving else None
                self._open_if_free(held)
            elif held.leave_by is None:
                held.leave_by = leave_by

    def suspend(self) -> None:
        """Emit and store nothing more of any partition before each is claimed again.

        Our session may have ended, though nobody has said so yet.
        """
        for held in self:
            self.refuse(held.partition, OwnershipLost(held.partition))

    def trust(self, until: float) -> None:
        """Emit nothing after that moment (monotonic seconds), unless another one is told by then.

        Our session may have ended then. A process may stand still anywhere, also between two
        looks at its session, so whether it is over is asked again before each chunk.
        """
        self.trusted_until = until

    def pause(self, *, is_paused: bool) -> None:
        """Emit nothing new, or go on; what is in flight is finished either way."""
        self.is_paused = is_paused

    def poll(self, now: float, *, opens: bool = True) -> list[PartitionChange]:
        """Look at what was asked of the store and the cluster; open, mend, halt partitions.

        Returns what has become of them since the last call, in order.
        Without `opens` no partition is opened that is not open yet: the run ends. Before the
        topics are known for the first time it raises what the catalogue raises.
        """
        self._now = now
        self.ends = not opens
        for topic in self._discovery.poll(now) if opens else ():
            self._learn(topic)
        if self._ways.store.session != self._session:
            self._session = self._ways.store.session
            self.suspend()
        for held in list(self):
            if held.is_leaving or not held.is_wanted:
                self._leave(held, now)
            else:
                self._go_on(held, now, opens=opens)
        halted = [held.halted for held in self if held.halted is not None]
        # While others have some, the plan may give us more.
        if halted and len(halted) == len(self._by_name):
            # That another process took a partition says least about what is wrong.
            raise min(halted, key=lambda error: isinstance(error, Fenced))
        return self._take_changes()

    def _take_changes(self) -> list[PartitionChange]:
        changes, self._changes = self._changes, []
        return changes

    def given_up(self, now: float) -> list[int]:
        """Indexes of partitions that were given up, to be freed by `forget`; rarely any."""
        return self._departures.to_ask(now) if self._departures.retired else []

    def forget(self, index: int) -> None:
        """Learn that nothing is left that names a record of a partition that was given up."""
        self._departures.forget(index)

    def _go_on(self, held: Held, now: float, *, opens: bool) -> None:
        if held.manager is None and (held.halted is not None or not opens):
            return
        mends = held.trouble is not None or held.again_at is not None
        if mends and held.steps is None and held.halted is None:
            self._begin(held, now)
        if held.steps is not None:
            self._step(held, held.steps, now)
        elif held.is_told and held.halted is not None:
            self._tell(held)

    def _wants(self, partition: Partition) -> bool:
        return self._wanted is None or partition in self._wanted

    def _open_if_free(self, held: Held) -> None:
        """Open a partition that is wanted, unless it is open, or was given up after that plan."""
        is_free = not held.is_held and held.halted is None and held.again_at is None
        if is_free and (held.given_up_at is None or held.given_up_at < self._planned_at):
            held.again_at = 0.0

    def _leave(self, held: Held, now: float) -> None:
        """Emit nothing new of a partition, and let go of it once it is finished."""
        if held.steps is not None:  # it is being claimed: only then can it be let go in order
            self._step(held, held.steps, now)
        if held.is_retired or not (held.is_held or held.again_at is not None or held.halted):
            return
        is_late = held.leave_by is not None and now >= held.leave_by
        if held.manager is None:
            if held.steps is None or is_late:
                held.renew()
            return
        self._stop_reading(held)
        if not held.is_leaving:
            held.is_leaving = True
            held.manager.stop()
            log.info("partition_leaving", partition=str(held.partition))
        if held.is_finished:
            held.halted = GivenUp(held.partition, "the plan gives it to another replica")
            held.is_owned = False
            self._tell(held)
            offset = held.manager.committed
            log.info("partition_released", partition=str(held.partition), offset=offset)
            self._departures.release(held)
        elif is_late or held.loss is not None:
            self._give_up(held, GivenUp(held.partition, "not all of it was resolved in time"))

    def _give_up(self, held: Held, error: StoreError) -> None:
        """Let go of a partition as it is: whoever has it next repeats what is in flight.

        A plan that is newer may give it to us again, at another index: what is still told of
        records in flight names this one.
        """
        self._stop_reading(held)
        held.steps = held.trouble = held.again_at = None
        held.is_owned = held.is_leaving = False
        held.halted = error
        log.warning("partition_given_up", partition=str(held.partition), reason=str(error))
        self._tell(held)
        if held.manager is None:
            held.renew()
            held.given_up_at = self._now
            return
        self._departures.retire(held)
        again = self._add(held.partition, held.topic)
        again.lost = held.lost
        again.given_up_at = self._now

    @property
    def departed(self) -> Departed:
        """What was read of partitions that are ours no more."""
        return self._departures.total

    def _add(self, partition: Partition, topic: Topic) -> Held:
        """Note a partition, at an index that is free."""
        free = self._departures.free_indexes
        index = free.pop() if free else len(self._held)
        held = Held(partition, index, topic)
        held.is_wanted = self._wants(partition)
        self._held[index : index + 1] = [held]
        self._by_name[partition] = held
        return held

    def fail(self, partition: Partition, trouble: KafkaError) -> None:
        """Learn why the fetcher delivers nothing more of a partition."""
        held = self._by_name[partition]
        log.warning("partition_failed", partition=str(partition), error=str(trouble))
        held.trouble = trouble
        self._stop_reading(held)

    def passed(self, index: int) -> None:
        """Learn that others have read what comes next of a partition."""
        self._held[index].in_vain = (-1, 0)

    def read_to_end(self, held: Held, end: int) -> None:
        """Learn that a log was read to its end."""
        held.goal = end if held.goal is None else held.goal
        held.in_vain = (-1, 0)

    def heard_of_end(self, index: int, end: int) -> None:
        """Learn where a log ends that others read: behind all that is planned of it, or there."""
        held = self._held[index]
        held.goal = end if held.goal is None else held.goal
        if held.manager is None or not held.manager.open_transactions:
            # else reading what is open may be what is in vain
            held.in_vain = (-1, 0)

    def refuse(self, partition: Partition, error: StoreError, *, index: int | None = None) -> None:
        """Learn that the store did not take what was to be stored of a partition.

        Or a sink what came from that `index`: nothing happens if it was given up since then, and
        is at another index now.
        """
        held = self._by_name[partition]
        if index is not None and held.index != index:
            return
        if not isinstance(error, OwnershipLost):
            self._halt(held, error)
        elif held.is_owned:
            if held.steps is not None:  # it begins anew once the partition is ours again
                held.again_at = 0.0
            self._reclaim(held)

    def halt(self, partition: Partition, error: PartitionError) -> None:
        """Learn that a partition cannot go on, as what was read of it is not what it must be."""
        self._halt(self._by_name[partition], error)

    def _reclaim(self, held: Held) -> None:
        """Take a partition up again in the session that is; until then nothing of it is emitted."""
        held.is_owned = False
        held.session = self._ways.store.session
        held.steps = Steps(reclaiming(held.partition, self._ways))
        self._tell(held)

    def release(self) -> list[PartitionChange]:
        """Let no partition be ours any more: nothing more is emitted. Idempotent."""
        self._is_released = True
        for held in self._held:
            self._tell(held)
        return self._take_changes()

    def _learn(self, topic: Topic) -> None:
        """Open what is new; notice a topic that was deleted and created again (KIP-516)."""
        for number in topic.partitions:
            partition = Partition(topic.name, number)
            held = self._by_name.get(partition)
            if held is None:
                self._open_if_free(self._add(partition, topic))
            elif isinstance(held.halted, TopicMissing):
                held.halted = None
                held.again_at = 0.0
            elif held.manager is not None and held.steps is None and held.halted is None:
                was = held.manager.fetch_position.topic_id
                if was and topic.topic_id and was != topic.topic_id:
                    held.again_at = 0.0

    def _begin(self, held: Held, now: float) -> None:
        """Open a partition, or find out what its log is now."""
        if held.again_at is not None and now < held.again_at:
            return
        held.again_at = None
        if held.manager is None:
            held.session = self._ways.store.session
            count = len(held.topic.partitions)
            # Where they are shared, it may be another's by right in the next session.
            anew = not self._policy.shared
            begun = opening(held.partition, count, self._ways, self._policy.start, anew=anew)
            held.steps = Steps(begun)
            return
        known = self._fetcher.log_range(held.partition)
        self._stop_reading(held)
        held.steps = Steps(
            recovering(
                held.manager,
                held.trouble,
                held.in_vain,
                known and known[1],
                self._ways,
                self._policy.start,
            )
        )

    def _step(self, held: Held, steps: Steps[Any], now: float) -> None:
        try:
            ended = steps.poll()
        except KafkaUnavailable as error:
            log.warning("partition_waits", partition=str(held.partition), error=str(error))
            held.steps = None
            held.again_at = now + _AGAIN_SECONDS
        except OwnershipLost:
            held.steps = None
            if held.manager is None and self._policy.shared:
                held.given_up_at = now  # only a later plan says that it is to be ours still
                return
            held.again_at = now
            if held.manager is not None:  # else opening it claims it
                self._reclaim(held)
        except PartitionError as error:
            self._halt(held, error)
        else:
            if ended is not None:
                held.steps = None
                self._run(held, ended.value)

    def _run(self, held: Held, ended: Opened | int) -> None:
        """Let a partition's records flow: it is ours, under a new epoch or newly opened."""
        held.is_owned = True
        if isinstance(ended, Opened):
            self._read_from(held, ended)
        else:
            held.epoch = ended
        if held.session != self._ways.store.session:  # which has ended since the claim
            self._reclaim(held)
        self._tell(held)

    def _read_from(self, held: Held, opened: Opened) -> None:
        trouble, held.trouble = held.trouble, None
        held.goal = opened.end if opened.end >= opened.position.offset else None
        held.epoch = held.epoch if opened.epoch is None else opened.epoch
        if held.manager is None:
            held.manager = PartitionManager(
                held.partition,
                opened.position,
                self._policy.limits,
                self._policy.retries,
                self._rng,
                self._policy.delivery,
                opened.resumed,
            )
        else:
            if trouble is not None and not opened.losses:
                offset, count = held.in_vain
                same = offset == opened.position.offset
                held.in_vain = (opened.position.offset, count + 1 if same else 1)
            if not opened.reads_on:
                held.manager.restart(
                    opened.position, is_stored=bool(opened.losses), resumed=opened.resumed
                )
        for loss in opened.losses:
            held.lost[loss.reason] += loss.lost
        self._fetcher.add({held.partition: opened.position})
        held.is_read = True

    def _halt(self, held: Held, error: PartitionError) -> None:
        """Read nothing more of a partition. If it is lost for good, emit nothing more either.

        Where the partitions are shared, one that another has taken is the plan's business.
        """
        if isinstance(error, Fenced):
            self.moves = replace(self.moves, fenced=self.moves.fenced + 1)
        if self._policy.shared and isinstance(error, Fenced):
            self._give_up(held, error)
            return
        self._stop_reading(held)
        held.trouble = held.again_at = None
        held.halted = error
        if held.loss is not None:
            held.is_owned = False
        if held.loss is not None or held.is_owned or held.manager is None:
            held.steps = None  # else what was read of it is claimed again, and then goes on
        log.error("partition_halted", partition=str(held.partition), error=str(error))
        self._tell(held)

    def _tell(self, held: Held) -> None:
        """Note that a partition has become ours, is ours no more, or is lost; nothing twice."""
        is_ours = held.is_ours and not self._is_released
        if is_ours != held.is_told:
            held.is_told = is_ours
            taken, released = self.moves.taken + is_ours, self.moves.released + (not is_ours)
            self.moves = replace(self.moves, taken=taken, released=released)
            partition, index = held.partition, held.index
            self._changes.append(
                Assigned(partition, index) if is_ours else Revoked(partition, index, held.halted)
            )
        if held.loss is not None and not held.is_lost:
            held.is_lost = True
            self._changes.append(Lost(held.partition, held.index, held.loss))

    def _stop_reading(self, held: Held) -> None:
        if held.is_read:
            self._fetcher.remove([held.partition])
            held.is_read = held.is_paused = False
