"""A partition of ours, or that may become ours: what state it is in."""

from collections import Counter
from typing import Any

from partition.catalogue import Topic
from partition.errors import KafkaError, PartitionError, StoreError, TransactionError
from partition.manager import PartitionManager
from partition.records import Partition
from partition.steps import Steps


class Held:
    """A partition from its discovery on. `place` is its index among all that this process knows.

    With replicas that share the partitions it is ours only while it is wanted: it is opened then,
    and leaves once it is wanted no more. One that was given up before all of it was resolved is
    retired: what is still in flight of it counts for nothing, and the partition has a new place.
    """

    def __init__(self, partition: Partition, place: int, topic: Topic) -> None:
        self.partition = partition
        self.topic = topic  # as it was when the partition was found
        self.place = place
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
        # Where its log ended when it was opened; None: that was before our place, so who is
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
        return self.halted is not None or self.manager.frontier >= self.goal
