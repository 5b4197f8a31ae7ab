"""Where the next offset to read is kept between two lives of the process."""

from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Protocol

from partition.errors import StoreError
from partition.records import Partition, Position
from partition.transaction import Transactions


@dataclass(frozen=True, slots=True)
class StoredOffset:
    """A partition's stored position, the topology that stored it, and the ownership's epoch."""

    position: Position
    topology_id: str
    topology_name: str = ""
    epoch: int = 0  # grows with each claim; 0: storm-kafka wrote it
    transactions: Transactions | None = None  # None: nothing of it is exactly-once

    @property
    def offset(self) -> int:
        """The next offset to read."""
        return self.position.offset


@dataclass(frozen=True, slots=True)
class Progress:
    """What is to be stored of a partition."""

    position: Position
    transactions: Transactions | None = None  # open ones, from there on; None: none are kept
    restarts: int = field(default=0, compare=False)  # of the manager by then; not stored


@dataclass(frozen=True, slots=True)
class Claim:
    """A partition that is ours now, under a new epoch, and what was stored of it."""

    stored: StoredOffset | None  # None: it was never begun, so there is no epoch either
    topic_begun: bool = False  # partitions of its topic were begun before
    was_there: bool = False  # it was among the topic's partitions when the first was begun
    foreign: bool = False  # another topology stored the offset
    uninterrupted: bool = False  # nobody else wrote since this store held it last


class OffsetStore(Protocol):
    """Keeps one position per partition, and lets only one writer at a time move it.

    Every write is a compare-and-set on what this store read or wrote last, under an epoch
    that only grows (promise 9); offsets never move back, but by `move` (promise 2); no
    answer never looks like no offset (promise 8). Futures may be asked of any thread and
    end by themselves; while the store is away they wait and try again, until `close`,
    which fails them with StoreUnavailable. A session that ends takes every ownership with
    it: a write then is refused with OwnershipLost until the partition is claimed again.
    """

    @property
    def available(self) -> bool:
        """Whether the store answered when it was last heard of."""

    @property
    def session(self) -> int:
        """Another number after a session has ended: what was claimed before is lost."""

    def open(self) -> None:
        """Connect. Raises StoreUnavailable in bounded time; may then be called again."""

    def load(self, partition: Partition) -> StoredOffset | None:
        """Return the stored offset; None only when there certainly is none. For operators.

        Raises StoreUnavailable within a bounded time, and StoreCorrupt.
        """

    def claim(
        self,
        partition: Partition,
        *,
        adopt: bool = False,
        again: bool = False,
        anew: bool = True,
    ) -> Future[Claim]:
        """Take a partition over: raise its epoch, so that whoever held it can write no more.

        Nothing but epoch and writer changes: what is open stays as it stands. An offset that
        another topology stored is refused, unless `adopt`. Raises StoreForeign, StoreMissing
        (an offset was stored once and is gone; with `again` also if nothing says so any more),
        StoreCorrupt, Fenced (someone else took it at
        the same moment; with `again`: somebody wrote since this store held it last, and
        nothing is changed), and without `anew` OwnershipLost: the session has ended in which it
        was asked, so that it may have become another's by right.
        """

    def begin(
        self,
        partition: Partition,
        position: Position,
        partitions: int | None = None,
        transactions: Transactions | None = None,
    ) -> Future[None]:
        """Store the first position of a partition, under epoch 1 (promise 7).

        `partitions` is how many its topic has; it is kept with the first that is begun, so
        that those added later can be told. Raises StoreConflict when there is one already.
        """

    def move(
        self,
        partition: Partition,
        position: Position,
        reason: str,
        transactions: Transactions | None = None,
    ) -> Future[None]:
        """Store a position wherever it lies, also before the stored one: by policy or operator.

        It becomes this topology's own. What was open stays so only if it is among
        `transactions`: else it is dropped, its rows may come twice, and `transactions_dropped`
        is logged. Logs `offset_moved` with both offsets and the reason. Raises as `commit`
        refuses.
        """

    def commit(
        self, progress: Mapping[Partition, Progress]
    ) -> Future[Mapping[Partition, StoreError]]:
        """Store what partitions have come to; ends with those that were refused, and why.

        All others are stored then, each position and its transactions together or not at all;
        what stands there already is skipped. One without transactions leaves none; if some
        were open `transactions_dropped` is logged. Refused is with Fenced, OwnershipLost,
        OffsetWouldMoveBack, StoreMissing, StoreCorrupt. The caller keeps one commit
        outstanding. Raises ValueError, and stores nothing, if transactions do not go on from
        their position (`Transactions.checked`); StoreUnavailable (after `close`), or StoreError
        when the store refuses all for another reason (rights, size).
        """

    def close(self) -> None:
        """Disconnect in bounded time; what is unfinished fails. Idempotent."""
