"""A partition that this process knows: its state, and what is kept of one that is given up."""

import math
from collections import Counter
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, TypeAlias

from partition.errors import KafkaError, PartitionError, StoreError, TransactionError
from partition.interfaces import Topic
from partition.manager import PartitionManager
from partition.records import Partition
from partition.recovery import FutureChain


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
    """A partition will not be assigned again under its index: drop what is in flight of it."""

    partition: Partition
    index: int
    error: PartitionError


PartitionChange: TypeAlias = Assigned | Revoked | Lost


class PartitionState(Enum):
    """The stage of a partition's life. `Assignment` alone changes it.

    A partition with a manager may have to be claimed again (its session ended) in each state:
    it is not `is_owned` then, and `chain` claims it.
    """

    FREE = auto()  # not open, and not to be opened before a plan says so
    OPENING = auto()  # being claimed, and its first position looked up
    READING = auto()
    RECOVERING = auto()  # its log may not hold what is to be read next
    LEAVING = auto()  # it emits nothing new, and is released once all of it is stored
    HALTED = auto()  # of an `error`; what was read of it may still be resolved and committed
    RETIRED = auto()  # given up with records in flight, which count for nothing


class AssignedPartition:
    """A partition that this process knows. `index` is its number in record ids."""

    def __init__(self, partition: Partition, index: int, topic: Topic) -> None:
        self.partition = partition
        self.topic = topic  # as it was when the partition was found
        self.index = index
        self.is_wanted = True
        self.given_up_at = -math.inf  # only a later plan may open it again
        self.lost: Counter[str] = Counter()
        self.free()

    def free(self) -> None:
        """Become one that is not open, as at the beginning; the counts stay."""
        self.state = PartitionState.FREE
        self.manager: PartitionManager[Any] | None = None  # None: not opened yet
        self.is_owned = False  # whether its records may be emitted and its offset stored
        self.is_read = False  # whether the fetcher reads it
        self.is_paused = False  # and delivers nothing of it (`FlowControl`)
        self.chain: FutureChain[Any] | None = None  # opens, recovers or claims it again
        self.retry_at: float | None = None  # when a chain that could not end begins anew
        self.error: PartitionError | None = None  # why it is halted, or was given up
        self.trouble: KafkaError | None = None  # what the fetcher told and is not answered
        self.in_vain: tuple[int, int] = (-1, 0)  # an offset, and recoveries that found nothing
        self.told: PartitionChange | None = None  # the last change
        self.session = 0  # of the store, when it was claimed last
        self.epoch = 0  # of the ownership; 0: it was never ours
        self.leave_by: float | None = None  # when it is given up, whatever is in flight
        # Where its log ended when it was opened; None: that was before our position, so who is
        # right is known when the fetcher comes to an end or tells of trouble, or others hear of it.
        self.goal: int | None = None

    def begin(self) -> None:
        """Open or recover it from the next turn on."""
        is_open = self.manager is not None
        self.state = PartitionState.RECOVERING if is_open else PartitionState.OPENING
        self.retry_at = 0.0

    @property
    def loss(self) -> StoreError | TransactionError | None:
        """The error for which it is lost for good: nothing of it is emitted, retries neither."""
        return self.error if isinstance(self.error, StoreError | TransactionError) else None

    @property
    def is_ours(self) -> bool:
        """Whether records of it may be emitted, now or later, also once the source halted it."""
        is_empty = self.manager is None or self.manager.is_idle
        return self.is_owned and (self.error is None or not is_empty)

    @property
    def is_leaving(self) -> bool:
        return self.state is PartitionState.LEAVING

    @property
    def is_moving(self) -> bool:
        """Whether its stored offset may be about to jump, so that nothing of it may be stored."""
        if self.error is not None or (self.chain is None and self.retry_at is None):
            return False
        manager = self.manager
        return manager is None or manager.is_idle or manager.is_moving

    @property
    def is_steady(self) -> bool:
        return self.state is PartitionState.READING and self.is_owned and self.chain is None

    @property
    def is_held(self) -> bool:
        """Whether it is open, or being opened: nobody else may open it yet."""
        return self.manager is not None or self.chain is not None

    @property
    def is_finished(self) -> bool:
        """Whether nothing of it is in flight, and all that can be stored is."""
        manager = self.manager
        if manager is None or self.chain is not None or not self.is_owned:
            return False
        if manager.in_flight or manager.delivery.owes_emission() or manager.has_to_store:
            return False
        return not manager.delivery.awaits_commit

    @property
    def has_emitted_goal(self) -> bool:
        manager, goal = self.manager, self.goal
        return manager is not None and goal is not None and manager.ledger.emitted_to >= goal

    @property
    def has_resolved_goal(self) -> bool:
        if not self.is_wanted:
            return not self.is_held
        if self.error is not None:
            return True
        manager, goal = self.manager, self.goal
        if manager is None or goal is None or self.state is PartitionState.RECOVERING:
            return False
        is_pending = self.chain is not None or self.retry_at is not None
        return not is_pending and manager.last_completed_offset >= goal


@dataclass(frozen=True, slots=True)
class Departed:
    """Records read here of partitions that other replicas have now."""

    read: int = 0
    retried: int = 0
    given_up: int = 0  # in flight when it was given up

    def and_of(self, assigned: AssignedPartition) -> "Departed":
        manager = assigned.manager
        if manager is None:
            return self
        return Departed(
            self.read + manager.read,
            self.retried + manager.retried,
            self.given_up + manager.in_flight,
        )
