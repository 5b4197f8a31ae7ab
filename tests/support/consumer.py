"""A reader on fakes of Kafka and ZooKeeper, for tests."""

import itertools
import random
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import numpy as np

from partition.assigned_partition import Assigned, Lost, PartitionChange
from partition.assignment import AssignmentPolicy
from partition.consumer import Consumer, ConsumerPolicy, Time
from partition.delivery import AtLeastOnce
from partition.errors import PartitionError
from partition.interfaces import Progress, StoredOffset
from partition.ledger import CommitProgress, Ledger, RetryPolicy
from partition.memory.ports import MemoryCatalogue, MemoryFetcher
from partition.records import (
    OpenTransaction,
    Partition,
    Position,
    Range,
    Resumed,
    TransactionKind,
    Transactions,
    offset_of,
    partition_index_of,
)
from partition.recovery import Chain, Loss, StartPolicy, Ways
from tests.support.failpoints import At, nowhere, owner_with_places
from tests.support.faulty_kafka import FaultyLog
from tests.support.faulty_store import FaultyNodes, FaultyStore

RETRY_SECONDS = 1.0
SKIP_LOSS = StartPolicy(on_data_loss="skip")
ONE, TWO = Partition("t", 0), Partition("t", 1)


class Journal(FaultyStore):
    """A store that notes what is asked of it, and can hold its answers back."""

    def __init__(self, nodes: FaultyNodes, events: list[str], **names: str) -> None:
        super().__init__(nodes, **names)
        self.events = events
        self.commits: list[dict[Partition, int]] = []
        self.open_commits: list[Future[Any]] = []
        self.holding = False

    def begin(self, partition: Partition, position: Position, *more: Any) -> Future[None]:
        self.events.append(f"stored {partition} {position.offset}")
        return super().begin(partition, position, *more)

    def move(self, partition: Partition, position: Position, reason: str, *more: Any) -> Any:
        self.events.append(f"moved {partition} {position.offset} {reason}")
        return super().move(partition, position, reason, *more)

    def commit(self, progress: Mapping[Partition, Progress]) -> Future[Any]:
        self.commits.append({at: each.position.offset for at, each in progress.items()})
        if not self.holding:
            return super().commit(progress)
        future: Future[Any] = Future()
        self.open_commits.append(future)
        return future


class WatchedFetcher(MemoryFetcher):
    def __init__(self, log: FaultyLog, events: list[str]) -> None:
        super().__init__(log)
        self.events = events

    def add(self, positions: Mapping[Partition, Position]) -> None:
        super().add(positions)
        self.events += [f"reads {p} {at.offset}" for p, at in positions.items()]


class Bench:
    def __init__(
        self,
        *,
        sources: Sequence[Any] = ("t",),
        start: StartPolicy | None = None,
        assignment: Mapping[str, Any] | None = None,
        fencing: Any = None,
        at: At = nowhere,
        **policy: Any,
    ) -> None:
        self.events: list[str] = []
        self.told: list[str] = []  # what was assigned and revoked
        self.lost: list[int] = []  # places whose partitions were lost
        self.slept: list[float] = []
        self.losses: list[Loss] = []
        self.log = FaultyLog({"t": 2})
        self.nodes = FaultyNodes()
        self.names: dict[str, str] = {}
        self.sources = sources
        self.at = at
        self.fencing = fencing  # exactly once: the sinks' side
        retries = RetryPolicy(limit=1, initial_seconds=RETRY_SECONDS, jitter=0)
        self.policy = ConsumerPolicy(
            AssignmentPolicy(
                start=start or StartPolicy(), **{"retries": retries, **(assignment or {})}
            ),
            **policy,
        )
        self.reader = self.another()

    def fail(self, record_id: int, now: float) -> bool:
        manager = self.reader.living(partition_index_of(record_id))
        return manager is None or manager.fail(offset_of(record_id), now)

    def another(self) -> Consumer:
        self.store = Journal(self.nodes, self.events, **self.names)
        self.fetcher = WatchedFetcher(self.log, self.events)
        reader: Consumer = owner_with_places(Consumer, self.at)(
            self.fetcher,
            Ways(self.store, MemoryCatalogue(self.log), self._notify, self.fencing),
            self.sources,
            self.policy,
            random.Random(1),
            Time(wall_clock=lambda: 100.0, sleep=self.slept.append),
        )
        poll, release = reader.poll, reader.release

        def polled(now: float, *, opens: bool = True) -> None:
            self._hear(poll(now, opens=opens))

        reader.poll, reader.release = polled, lambda: self._hear(release())
        return reader

    def _hear(self, changes: Sequence[PartitionChange]) -> None:
        for change in changes:
            if isinstance(change, Lost):
                self.lost.append(change.index)
            else:
                sign = "+" if isinstance(change, Assigned) else "-"
                self.told.append(f"{sign}{change.partition}")

    def restart(self, **changes: Any) -> None:
        self.reader.close()
        self.events.clear()
        if changes:
            self.policy = ConsumerPolicy(AssignmentPolicy(**changes))
        self.reader = self.another()
        self.start()

    def start(self, now: float = 0.0) -> None:
        """Open the reader, and poll until every partition is open or halted."""
        self.reader.open()
        self.poll(now)

    def poll(self, now: float = 0.0, times: int = 5) -> None:
        for _ in range(times):
            self.reader.poll(now)

    def _notify(self, loss: Loss) -> Future[None]:
        self.losses.append(loss)
        future: Future[None] = Future()
        future.set_result(None)
        return future

    def fill(self, partition: Partition, count: int) -> None:
        for number in range(count):
            self.log.append(partition, str(number).encode(), timestamp_ms=90_000)

    def emit(self, now: float = 0.0) -> list[int]:
        record_ids: list[int] = []
        while True:  # as the pipeline does: it fetches when there is nothing to emit
            while (emission := self.reader.next_chunk(now)) is not None:
                record_ids += emission[1].tolist()
            if not self.reader.fetch(now, 0.0):
                return record_ids

    def message(self, record_id: int) -> Any:
        manager = self.reader.manager(partition_index_of(record_id))
        return manager.message(offset_of(record_id))

    def ack(self, record_ids: Sequence[int]) -> None:
        self.reader.ack(np.array(record_ids, np.int64))

    def drain(self, now: float) -> int:
        """Emit, ack and commit all there is; how many records that were."""
        record_ids = self.emit(now)
        self.ack(record_ids)
        self.commit(now)
        return len(record_ids)

    def commit(self, now: float = 0.0) -> None:
        for _ in range(2):
            self.reader.commit(now, force=True)

    def work(self, start: int, end: int) -> None:
        """Drain and poll once a second, from one second to before another."""
        for now in range(start, end):
            self.drain(float(now))
            self.poll(float(now))

    def successor(self) -> FaultyStore:
        """The store of another process, which has claimed the first partition."""
        store = FaultyStore(self.nodes)
        store.open()
        store.claim(ONE).result()
        return store

    def loss_of(self, partition: Partition) -> Exception | None:
        return self.reader.assignment[partition].loss

    def reasons(self) -> list[tuple[str, int, int]]:
        return [(loss.reason, loss.position.offset, loss.resume.offset) for loss in self.losses]

    def stored(self, partition: Partition = ONE) -> int | None:
        store = FaultyStore(self.nodes, **self.names)
        store.open()
        found = store.load(partition)
        return None if found is None else found.offset


DIGEST = "0" * 32


def transactions_of(*ends: int, first: int = 0, committed: int = 0) -> Transactions:
    standing = tuple(
        OpenTransaction(committed + number, 1, Range(begin, end, end - begin, DIGEST))
        for number, (begin, end) in enumerate(itertools.pairwise((first, *ends)), 1)
    )
    return Transactions("transactional", committed, standing)


class FakeDelivery(AtLeastOnce):
    """A mode that keeps transactions: what is planned, stored and done is said by the test."""

    stores_first = True

    def __init__(
        self,
        partition: Partition,
        ledger: Ledger,
        committed: CommitProgress,
        resumed: Resumed,
        plan_records: int,
    ) -> None:
        super().__init__(partition, ledger, committed)
        self.buffer_records = 2 * plan_records
        self.resumed = resumed
        self.transactions = resumed.transactions
        self.open_to = resumed.position.offset
        self.lost: PartitionError | None = None
        self.different: PartitionError | None = None

    def plan(self, *ends: int) -> None:
        first = self.transactions.first
        begins = self.resumed.position.offset if first is None else first
        committed = self.transactions.committed
        self.transactions = transactions_of(*ends, first=begins, committed=committed)

    def done(self) -> None:
        lowest, *rest = self.transactions.open
        self.transactions = replace(self.transactions, committed=lowest.txid, open=tuple(rest))

    def on_stored(self, progress: Progress) -> None:
        for each in progress.transactions.open if progress.transactions else ():
            self.open_to = max(self.open_to, each.range.end)

    def emit_limit(self, room: int, ahead: int) -> int:
        return self._ledger.waiting_below(self.open_to)

    def accepts_more(self, room: int) -> bool:
        return True

    def progress(self, room: int) -> tuple[int, Transactions]:
        first = self.transactions.first
        return self._ledger.last_completed_offset if first is None else first, self.transactions

    def is_urgent(self, room: int, max_pending: int) -> bool:
        return self._planned_to > self.open_to or super().is_urgent(room, max_pending)

    def owes_emission(self) -> bool:
        return self._ledger.waiting > 0 and self._ledger.emitted_to < self._planned_to

    @property
    def _planned_to(self) -> int:
        planned = self.transactions.open
        return planned[-1].range.end if planned else 0

    def replay_error(self, *, log_moved: bool) -> PartitionError | None:
        return self.lost if log_moved else self.different

    def resume_state(self, position: Position) -> Resumed:
        return Resumed(position, replace(self.transactions, open=()))


class FakeFencing:
    """Sinks that say what they have committed, when they are let; all calls are noted."""

    kind: TransactionKind = "transactional"

    def __init__(self, events: list[str]) -> None:
        self.events = events
        self.committed: dict[str, int] = {"table": 0}
        self.error: Exception | None = None
        self.holding = False
        self.held: list[Future[Mapping[str, int]]] = []
        self.resumes: Callable[[Partition, StoredOffset, Mapping[str, int]], Resumed] = _as_stored

    def fence(self, partition: Partition, epoch: int) -> Chain[Mapping[str, int]]:
        self.events.append(f"fenced {partition} {epoch}")
        if self.error is not None:
            raise self.error
        if self.holding:
            self.held.append(Future())
            return (yield self.held[-1])
        return dict(self.committed)

    def resume(
        self, partition: Partition, stored: StoredOffset, committed: Mapping[str, int]
    ) -> Resumed:
        return self.resumes(partition, stored, committed)


def _as_stored(
    _partition: Partition, stored: StoredOffset, committed: Mapping[str, int]
) -> Resumed:
    found = stored.transactions or Transactions("transactional")
    return Resumed(stored.position, found, dict(committed))


class GatedBench(Bench):
    def __init__(self, *, plan_records: int = 16_000, **policy: Any) -> None:
        self.modes: dict[Partition, FakeDelivery] = {}
        self.plan_records = plan_records
        assignment = {"delivery": self.new_delivery, **policy.pop("assignment", {})}
        super().__init__(assignment=assignment, fencing=FakeFencing([]), **policy)
        self.fencing.events = self.events

    def new_delivery(
        self, partition: Partition, ledger: Ledger, committed: CommitProgress, resumed: Resumed
    ) -> FakeDelivery:
        self.modes[partition] = FakeDelivery(
            partition, ledger, committed, resumed, self.plan_records
        )
        return self.modes[partition]

    def plan_and_stop(self, *ends: int, records: int = 10) -> None:
        """Store transactions that end there, and let the process end."""
        self.fill(ONE, records)
        self.start()
        self.reader.fetch(0.0, 0.0)
        self.modes[ONE].plan(*ends)
        self.reader.commit(0.0, force=True)
        self.reader.close()
        self.events.clear()
        self.reader = self.another()

    def of_one(self) -> list[str]:
        return [each.replace(str(ONE), "it") for each in self.events if str(ONE) in each]
