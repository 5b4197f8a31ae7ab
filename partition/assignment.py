"""Which partitions are ours, and what state each is in: opening, read, recovering, halted."""

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import structlog

from partition.catalogue import Topic
from partition.chunk import Partition
from partition.discovery import Discovery, TopicName
from partition.errors import (
    Fenced,
    KafkaError,
    KafkaUnavailable,
    OwnershipLost,
    PartitionError,
    StoreError,
    TopicMissing,
    TransactionError,
)
from partition.fetcher import Fetcher
from partition.gate import MakeGate
from partition.manager import PartitionManager, Window
from partition.opening import Opened, StartPolicy, Ways, opening, reclaiming, recovering
from partition.retries import RetryPolicy
from partition.steps import Steps

log = structlog.get_logger()

_AGAIN_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class AssignmentPolicy:
    """How partitions are found and opened. Seconds are of the owner's monotonic clock."""

    start: StartPolicy = field(default_factory=StartPolicy)
    window: Window = field(default_factory=Window)
    retries: RetryPolicy = field(default_factory=RetryPolicy)
    commit_ahead: bool = False  # at most once; see PartitionManager
    make_gate: MakeGate | None = None  # exactly once; the ways then have a fencing
    discover_interval_seconds: float = 30.0


class Held:
    """A partition of ours, from its discovery on. `place` is its index among all of them."""

    def __init__(self, partition: Partition, place: int, topic: Topic) -> None:
        self.partition = partition
        self.topic = topic  # as it was when the partition was found
        self.place = place
        self.manager: PartitionManager | None = None  # None: not opened yet
        self.steps: Steps[Any] | None = None  # opening, recovering or reclaiming
        self.again_at: float | None = None  # when to begin `steps` once more
        self.trouble: KafkaError | None = None  # what the fetcher told and is not answered
        self.in_vain: tuple[int, int] = (-1, 0)  # an offset, and recoveries that found nothing
        self.is_owned = False  # whether its records may be emitted and its frontier stored
        self.is_told = False  # whether `on_assigned` was called, and `on_revoked` not since
        self.session = 0  # of the store, when it was claimed last
        self.epoch = 0  # of the ownership; 0: it was never ours
        self.is_read = False  # whether the fetcher delivers it
        self.is_paused = False
        self.halted: PartitionError | None = None
        # Where its log ended when it was opened; None: that was before our place, so who is
        # right is known when the fetcher comes to an end or tells of trouble, or others hear of it.
        self.goal: int | None = None
        self.lost: Counter[str] = Counter()

    @property
    def loss(self) -> StoreError | TransactionError | None:
        """Why it is lost for good: none of its records is emitted any more, retries neither."""
        lost = isinstance(self.halted, StoreError | TransactionError)
        return self.halted if lost else None  # type: ignore[return-value]

    @property
    def is_moving(self) -> bool:
        """Whether its stored offset may be about to jump, so that no frontier may be stored."""
        mends = self.halted is None and (self.steps is not None or self.again_at is not None)
        manager = self.manager
        return mends and (manager is None or manager.is_idle or manager.is_moving)

    @property
    def is_ours(self) -> bool:
        """Whether records of it may be emitted, now or later.

        The source's halt of a partition leaves us what was read of it.
        """
        is_empty = self.manager is None or self.manager.is_idle
        return self.is_owned and (self.halted is None or not is_empty)

    @property
    def is_steady(self) -> bool:
        """Whether it is ours, and is neither halted nor mended, nor about to be."""
        mends = self.steps or self.trouble or self.again_at is not None
        return self.is_owned and self.halted is None and not mends

    @property
    def has_emitted_goal(self) -> bool:
        """Whether every record below the goal is emitted, retries aside; or it is halted."""
        if self.manager is None or self.goal is None:
            return self.halted is not None
        return self.halted is not None or self.manager.emitted_to >= self.goal

    @property
    def has_resolved_goal(self) -> bool:
        """Whether every record below the goal is resolved and nothing is amiss; or it is halted."""
        mends = self.steps or self.trouble or self.again_at is not None
        if self.manager is None or self.goal is None or mends:
            return self.halted is not None
        return self.halted is not None or self.manager.frontier >= self.goal


class Assignment:
    """Finds the partitions, opens them, and mends or halts those that cannot go on.

    The owner thread calls everything, and nothing waits: the store and the catalogue answer
    by futures, which `poll` looks at. A partition that cannot go on is halted with its
    error, and the others go on; when none is left, `poll` raises the error.

    `on_assigned` is called before the first record of a partition may be emitted, and
    `on_revoked`, exactly once after it, when none may be any more: its session has ended,
    another process has it, it is halted and nothing of it is left, or the run ends.
    """

    def __init__(
        self,
        fetcher: Fetcher,
        ways: Ways,
        sources: Sequence[TopicName],
        policy: AssignmentPolicy,
        rng: random.Random,
        on_assigned: Callable[[Partition], object] = lambda _partition: None,
        on_revoked: Callable[[Partition], object] = lambda _partition: None,
    ) -> None:
        self._on_assigned = on_assigned
        self._on_revoked = on_revoked
        self._is_released = False
        self._fetcher = fetcher
        self._ways = ways
        self._discovery = Discovery(ways.catalogue, sources, policy.discover_interval_seconds)
        self._policy = policy
        self._rng = rng
        self._held: list[Held] = []
        self._by_name: dict[Partition, Held] = {}
        self._session = 0

    def __getitem__(self, partition: Partition) -> Held:
        """The state of a partition."""
        return self._by_name[partition]

    def __len__(self) -> int:
        """How many partitions are known."""
        return len(self._held)

    def __iter__(self) -> Iterator[Held]:
        """Every partition, by place."""
        return iter(self._held)

    def at(self, place: int) -> Held:
        """The partition at a place."""
        return self._held[place]

    @property
    def is_settled(self) -> bool:
        """Whether the topics were told, and every partition is open or halted."""
        return self._discovery.is_settled and all(
            held.manager is not None or held.halted is not None for held in self._held
        )

    def poll(self, now: float, *, opens: bool = True) -> None:
        """Look at what was asked of the store and the cluster; open, mend, halt partitions.

        Without `opens` no partition is opened that is not open yet: the run ends. Before the
        topics are known for the first time it raises what the catalogue raises.
        """
        for topic in self._discovery.poll(now) if opens else ():
            self._learn(topic)
        if self._ways.store.session != self._session:
            self._session = self._ways.store.session
            for held in self._held:
                self.refuse(held.partition, OwnershipLost(held.partition))
        for held in self._held:
            if held.manager is None and (held.halted is not None or not opens):
                continue
            mends = held.trouble is not None or held.again_at is not None
            if mends and held.steps is None and held.halted is None:
                self._begin(held, now)
            if held.steps is not None:
                self._step(held, held.steps, now)
            elif held.is_told and held.halted is not None:
                self._tell(held)
        halted = [held.halted for held in self._held if held.halted is not None]
        if halted and len(halted) == len(self._held):
            # That another process took a partition says least about what is wrong.
            raise min(halted, key=lambda error: isinstance(error, Fenced))

    def fail(self, partition: Partition, trouble: KafkaError) -> None:
        """Learn why the fetcher delivers nothing more of a partition."""
        held = self._by_name[partition]
        log.warning("partition_failed", partition=str(partition), error=str(trouble))
        if isinstance(trouble, TopicMissing):
            self._halt(held, trouble)
            self._discovery.ask_soon()
        else:
            held.trouble = trouble
            self._stop_reading(held)

    def passed(self, place: int) -> None:
        """Learn that others have read what comes next of a partition."""
        self._held[place].in_vain = (-1, 0)

    def heard_of_end(self, place: int, end: int) -> None:
        """Learn where a log ends that others read: behind all that is planned of it, or there."""
        held = self._held[place]
        held.goal = end if held.goal is None else held.goal
        gate = None if held.manager is None else held.manager.gate
        if gate is None or not gate.to_store().open:  # else reading it may be what is in vain
            held.in_vain = (-1, 0)

    def refuse(self, partition: Partition, error: StoreError) -> None:
        """Learn that the store did not take a partition's frontier."""
        held = self._by_name[partition]
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

    def release(self) -> None:
        """Tell that no partition is ours any more: nothing more is emitted. Idempotent."""
        self._is_released = True
        for held in self._held:
            self._tell(held)

    def _learn(self, topic: Topic) -> None:
        """Open what is new; notice a topic that was deleted and created again (KIP-516)."""
        for number in topic.partitions:
            partition = Partition(topic.name, number)
            held = self._by_name.get(partition)
            if held is None:
                held = Held(partition, len(self._held), topic)
                held.again_at = 0.0
                self._held.append(held)
                self._by_name[partition] = held
            elif isinstance(held.halted, TopicMissing):
                held.halted = None
                held.again_at = 0.0
            elif held.manager is not None and held.steps is None and held.halted is None:
                was = held.manager.position.topic_id
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
            held.steps = Steps(opening(held.partition, count, self._ways, self._policy.start))
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
                window=self._policy.window,
                retry_policy=self._policy.retries,
                rng=self._rng,
                commit_ahead=self._policy.commit_ahead,
                make_gate=self._policy.make_gate,
                resumed=opened.resumed,
            )
        else:
            if trouble is not None and not opened.losses:
                offset, count = held.in_vain
                same = offset == opened.position.offset
                held.in_vain = (opened.position.offset, count + 1 if same else 1)
            if not opened.reads_on:
                held.manager.restart(
                    opened.position, stored=bool(opened.losses), resumed=opened.resumed
                )
        for loss in opened.losses:
            held.lost[loss.reason] += loss.lost
        self._fetcher.add({held.partition: opened.position})
        held.is_read = True

    def _halt(self, held: Held, error: PartitionError) -> None:
        """Read nothing more of a partition. If it is lost for good, emit nothing more either."""
        self._stop_reading(held)
        held.steps = held.trouble = held.again_at = None
        held.halted = error
        if held.loss is not None:
            held.is_owned = False
        log.error("partition_halted", partition=str(held.partition), error=str(error))
        self._tell(held)

    def _tell(self, held: Held) -> None:
        """Tell that a partition has become ours, or is ours no more; nothing if it was told."""
        is_ours = held.is_ours and not self._is_released
        if is_ours != held.is_told:
            held.is_told = is_ours
            tell = self._on_assigned if is_ours else self._on_revoked
            tell(held.partition)

    def _stop_reading(self, held: Held) -> None:
        if held.is_read:
            self._fetcher.remove([held.partition])
            held.is_read = held.is_paused = False
