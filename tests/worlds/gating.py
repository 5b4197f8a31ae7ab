"""A delivery mode that does as it is told, and sinks that can be fenced, for tests."""

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

from partition.errors import PartitionError
from partition.interfaces import Progress, StoredOffset
from partition.ledger import CommitProgress, Ledger
from partition.records import (
    Chunk,
    OpenTransaction,
    Partition,
    Position,
    Range,
    Resumed,
    Transactions,
)
from tests.worlds.reading import ONE, Bench

DIGEST = "0" * 32


def range_of(first: int, end: int) -> Range:
    return Range(first, end, end - first, DIGEST)


def transactions_of(*ends: int, first: int = 0, committed: int = 0) -> Transactions:
    """Open transactions that end at these offsets, one behind the other."""
    begins = (first, *ends)
    standing = tuple(
        OpenTransaction(committed + number, 1, range_of(begins[number - 1], end))
        for number, end in enumerate(ends, 1)
    )
    return Transactions("transactional", committed, standing)


class FakeDelivery:
    """A mode that keeps transactions: what is planned, stored and done is said by the test."""

    retries = True
    stores_first = True

    def __init__(
        self, ledger: Ledger, committed: CommitProgress, resumed: Resumed, plan_records: int
    ) -> None:
        self.buffer_records = 2 * plan_records
        self.ledger = ledger
        self.committed = committed
        self.resumed = resumed
        self.transactions = resumed.transactions
        self.standing: Transactions | None = None
        self.open_to = resumed.position.offset
        self.cut: int | None = None
        self.is_shut = False
        self.awaits_commit = False
        self.lost: PartitionError | None = None
        self.different: PartitionError | None = None
        self.heard: list[Any] = []

    def plan(self, *ends: int) -> None:
        first = self.transactions.first
        begins = self.resumed.position.offset if first is None else first
        committed = self.transactions.committed
        self.transactions = transactions_of(*ends, first=begins, committed=committed)

    def done(self) -> None:
        lowest, *rest = self.transactions.open
        self.transactions = replace(self.transactions, committed=lowest.txid, open=tuple(rest))

    def on_fetched(self, chunk: Chunk, lengths: Any) -> None:
        self.heard.append((chunk.offsets.tolist(), lengths.tolist(), chunk.leader_epochs))

    def on_log_end(self, end: int) -> None:
        self.heard.append(end)

    def on_emitted(self, count: int) -> None:
        self.heard.append(f"emitted {count}")

    def on_stored(self, progress: Progress) -> None:
        self.standing = progress.transactions
        for each in progress.transactions.open if progress.transactions else ():
            self.open_to = max(self.open_to, each.range.end)

    def in_flight(self) -> int:
        return self.committed.unstored

    def emit_limit(self, room: int, ahead: int) -> int:
        return self.ledger.waiting_below(self.open_to if self.cut is None else self.cut)

    def accepts_more(self, room: int) -> bool:
        return not self.is_shut

    def progress(self, room: int) -> tuple[int, Transactions]:
        first = self.transactions.first
        return self.ledger.last_completed_offset if first is None else first, self.transactions

    def is_urgent(self, room: int, max_pending: int) -> bool:
        moved = self.progress(room)[0] > self.committed.offset
        return self._planned_to > self.open_to or (
            moved and 2 * self.committed.unstored >= max_pending
        )

    def owes_emission(self) -> bool:
        return self.ledger.waiting > 0 and self.ledger.emitted_to < self._planned_to

    @property
    def _planned_to(self) -> int:
        planned = self.transactions.open
        return planned[-1].range.end if planned else 0

    def stop(self) -> None:
        self.heard.append("stop")

    def replay_error(self, *, log_moved: bool) -> PartitionError | None:
        return self.lost if log_moved else self.different

    def resume_state(self, position: Position) -> Resumed:
        return Resumed(position, replace(self.transactions, open=()))


class FakeFencing:
    """Sinks that say what they have committed, when they are let; all calls are noted."""

    def __init__(self, events: list[str]) -> None:
        self.events = events
        self.committed: dict[str, int] = {"table": 0}
        self.error: Exception | None = None
        self.holding = False
        self.held: list[Future[Mapping[str, int]]] = []
        self.resumes: Callable[[Partition, StoredOffset, Mapping[str, int]], Resumed] = _as_stored

    def fence(self, partition: Partition, epoch: int) -> Future[Mapping[str, int]]:
        self.events.append(f"fenced {partition} {epoch}")
        future: Future[Mapping[str, int]] = Future()
        if self.error is not None:
            future.set_exception(self.error)
        elif self.holding:
            self.held.append(future)
        else:
            future.set_result(dict(self.committed))
        return future

    def resume(
        self, partition: Partition, stored: StoredOffset, committed: Mapping[str, int]
    ) -> Resumed:
        return self.resumes(partition, stored, committed)

    def begin(self, _partition: Partition, position: Position) -> Resumed:
        return Resumed(position, Transactions("transactional"))

    def poll(self) -> None:
        """Answers come from tests."""


def _as_stored(
    _partition: Partition, stored: StoredOffset, committed: Mapping[str, int]
) -> Resumed:
    found = stored.transactions or Transactions("transactional")
    return Resumed(stored.position, found, dict(committed))


class GatedBench(Bench):
    """A bench of which every partition keeps transactions."""

    def __init__(self, *, plan_records: int = 16_000, **policy: Any) -> None:
        self.modes: dict[Partition, FakeDelivery] = {}
        self.plan_records = plan_records
        assignment = {"delivery": self.new_delivery, **policy.pop("assignment", {})}
        super().__init__(assignment=assignment, fencing=FakeFencing([]), **policy)
        self.fencing.events = self.events

    def new_delivery(
        self, partition: Partition, ledger: Ledger, committed: CommitProgress, resumed: Resumed
    ) -> FakeDelivery:
        self.modes[partition] = FakeDelivery(ledger, committed, resumed, self.plan_records)
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
