"""What one seed fixes for a whole run."""

import random
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from partition.assignment import AssignmentPolicy
from partition.consumer import ConsumerPolicy
from partition.delivery import AtLeastOnce, DeliveryMode
from partition.ledger import CommitProgress, Ledger
from partition.manager import InFlightLimits
from partition.records import Partition, Resumed, TransactionKind
from partition.recovery import StartPolicy
from partition.retry import RetryPolicy
from transactions.groups import RangePolicy
from transactions.partition_transactions import PartitionTransactions
from transactions.transaction import TransactionPolicy

TOPICS = ("a", "b")
STEP_SECONDS = 0.01
TIMEOUT_SECONDS = 7.0
HANDOVER_SECONDS = 1.0
OUTAGE_SECONDS = 1_000.0  # between two hand-overs


Kind: TypeAlias = Literal["by trees", "by records", "by ranges"]
# By seed: even and odd ones of each, as they end in different ways (see `healing`).
_KINDS: tuple[Kind, ...] = (
    "by trees", "by records", "by records", "by ranges",
    "by trees", "by records", "by ranges", "by trees",
)  # fmt: skip


def kind_of(seed: int) -> Kind:
    """How a seed's world keeps its promises.

    By trees (at least once), or exactly once, by the records of the local engine or the ranges
    of the spark engine.
    """
    return _KINDS[seed % len(_KINDS)]


def is_shared(seed: int) -> bool:
    """Whether plans deal the partitions in a seed's world: in some of each kind, but on Spark."""
    return seed % 16 in {4, 9, 10, 12}


_BOTH = ("table-0", "table-1")


@dataclass(frozen=True, slots=True)
class Settings:
    """The shape of a world."""

    seed: int
    replicas: int
    partitions: tuple[int, ...]  # of each topic
    start_from: Literal["earliest", "latest"]
    on_loss: Literal["halt", "skip"]
    on_corrupt: Literal["halt", "skip"]
    max_pending: int
    max_pending_bytes: int
    limit: int
    max_behind: int | None
    exactly_once: bool
    by_ranges: bool  # on the spark engine
    kind: TransactionKind
    max_active: int
    records: int  # of a transaction, at most
    plan_records: int
    tables: int  # that each record's rows go to
    spooled: frozenset[str]  # tables of which only the driver can stage, on the spark engine
    refuses: int  # of one record in about so many such a table does not take a row
    shared: bool  # plans deal the partitions, which are given up in time

    @classmethod
    def of(cls, seed: int) -> "Settings":
        """The settings of a seed."""
        rng = random.Random(f"settings {seed}")
        own = random.Random(f"transactions {seed}")
        spool = random.Random(f"spool {seed}")
        return cls(
            seed=seed,
            replicas=rng.choice([2, 2, 3]),
            partitions=rng.choice([(2,), (3,), (1, 2), (2, 1)]),
            start_from=rng.choice(["earliest", "earliest", "latest"]),
            on_loss=rng.choice(["skip", "skip", "skip", "halt"]),
            on_corrupt=rng.choice(["skip", "skip", "halt"]),
            max_pending=rng.choice([3, 5, 8, 16]),
            max_pending_bytes=rng.choice([40, 1000, 1000]),
            limit=rng.choice([1, 2, 3]),
            max_behind=rng.choice([None, None, None, 12]),
            exactly_once=kind_of(seed) != "by trees",
            by_ranges=kind_of(seed) == "by ranges",
            kind=own.choice(["transactional", "opaque"]),
            max_active=own.choice([1, 2, 3, 3]),
            records=own.choice([2, 4, 8]),
            plan_records=own.choice([1, 2, 4]),
            tables=own.choice([1, 2, 2]),
            spooled=frozenset(spool.choice([(), ("table-0",), ("table-1",), _BOTH, _BOTH])),
            refuses=spool.choice([7, 20, 1000]),
            shared=is_shared(seed),
        )

    @property
    def transactions(self) -> TransactionPolicy:
        """How transactions are cut; the window holds as many as may be open."""
        records = max(1, min(self.records, self.max_pending // self.max_active))
        return TransactionPolicy(self.kind, self.max_active, records, self.plan_records, 0.05)

    @property
    def ranges(self) -> RangePolicy:
        """How ranges are cut."""
        return RangePolicy(self.records * 2, 0.3, self.max_active)

    def new_delivery(
        self,
        partition: Partition,
        ledger: Ledger,
        progress: CommitProgress,
        resumed: Resumed | None,
    ) -> DeliveryMode:
        """A partition's mode."""
        if not self.exactly_once:
            return AtLeastOnce(partition, ledger, progress)
        policy = replace(self.transactions, by_executors=self.by_ranges)
        return PartitionTransactions(partition, ledger, progress, resumed, policy)

    def policy(self, *, heal: bool = False) -> ConsumerPolicy:
        """The reader's policy; when all is to heal, the operator has looked into every loss."""
        return ConsumerPolicy(
            assignment=AssignmentPolicy(
                start=StartPolicy(
                    start_from=self.start_from,
                    max_offset_behind=self.max_behind,
                    on_data_loss="skip" if heal else self.on_loss,
                    on_corrupt_record="skip" if heal else self.on_corrupt,
                ),
                limits=InFlightLimits(self.max_pending, self.max_pending_bytes),
                retries=RetryPolicy(
                    limit=self.limit, initial_seconds=0.2, multiplier=2.0, max_seconds=1.0
                ),
                discover_interval_seconds=2.0,
                delivery=self.new_delivery,
                shared=self.shared,
            ),
            commit_interval_seconds=0.1,
            fetch_records=20,
            chunk_records=4,
        )
