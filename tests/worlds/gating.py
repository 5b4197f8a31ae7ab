"""A gate that does as it is told, and sinks that can be fenced, for tests."""

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

from partition.chunk import Partition
from partition.errors import PartitionError
from partition.position import Position
from partition.store import StoredOffset
from partition.transaction import OpenTransaction, Range, Resumed, Transactions
from tests.worlds.reading import ONE, Bench

DIGEST = "0" * 32


def range_of(first: int, end: int) -> Range:
    """A range without gaps."""
    return Range(first, end, end - first, DIGEST)


def transactions_of(*ends: int, first: int = 0, committed: int = 0) -> Transactions:
    """Open transactions that end at these offsets, one behind the other."""
    begins = (first, *ends)
    standing = tuple(
        OpenTransaction(committed + number, 1, range_of(begins[number - 1], end))
        for number, end in enumerate(ends, 1)
    )
    return Transactions("transactional", committed, standing)


class FakeGate:
    """A gate: what is planned, stored and done is said by the test."""

    def __init__(self, resumed: Resumed, room: Callable[[], int]) -> None:
        self.resumed = resumed
        self.room = room
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
        """Let transactions that end there be open."""
        first = self.begins_at
        begins = self.resumed.position.offset if first is None else first
        committed = self.transactions.committed
        self.transactions = transactions_of(*ends, first=begins, committed=committed)

    def done(self) -> None:
        """Let the lowest be committed in every sink."""
        lowest, *rest = self.transactions.open
        self.transactions = replace(self.transactions, committed=lowest.txid, open=tuple(rest))

    @property
    def ends_at(self) -> int:
        return self.open_to if self.cut is None else self.cut

    @property
    def begins_at(self) -> int | None:
        return self.transactions.first

    def offered(self, offsets: Any, lengths: Any, leader_epochs: Any) -> None:
        self.heard.append((offsets.tolist(), lengths.tolist(), leader_epochs))

    def reached(self, end: int) -> None:
        self.heard.append(end)

    def emitted(self, count: int) -> None:
        self.heard.append(f"emitted {count}")

    @property
    def is_due(self) -> bool:
        planned = self.transactions.open
        return bool(planned) and planned[-1].range.end > self.open_to

    @property
    def has_to_store(self) -> bool:
        return self.standing != self.transactions

    def to_store(self) -> Transactions:
        return self.transactions

    def stored(self, transactions: Transactions) -> None:
        self.standing = transactions
        for each in transactions.open:
            self.open_to = max(self.open_to, each.range.end)

    def differs(self) -> PartitionError | None:
        return self.different

    def resumed_at(self, position: Position) -> Resumed:
        return Resumed(position, replace(self.transactions, open=()))

    def lost_records(self) -> PartitionError | None:
        return self.lost


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


def _as_stored(
    _partition: Partition, stored: StoredOffset, committed: Mapping[str, int]
) -> Resumed:
    found = stored.transactions or Transactions("transactional")
    return Resumed(stored.position, found, dict(committed))


class GatedBench(Bench):
    """A bench of which every partition has a gate."""

    def __init__(self, **policy: Any) -> None:
        self.gates: dict[Partition, FakeGate] = {}
        assignment = {"make_gate": self.make_gate, **policy.pop("assignment", {})}
        super().__init__(assignment=assignment, fencing=FakeFencing([]), **policy)
        self.fencing.events = self.events

    def make_gate(
        self, partition: Partition, resumed: Resumed, room: Callable[[], int]
    ) -> FakeGate:
        """Make and keep one."""
        self.gates[partition] = FakeGate(resumed, room)
        return self.gates[partition]

    def plan_and_stop(self, *ends: int, records: int = 10) -> None:
        """Store transactions that end there, and let the process end."""
        self.fill(ONE, records)
        self.start()
        self.reader.fetch(0.0, 0.0)
        self.gates[ONE].plan(*ends)
        self.reader.commit(0.0, force=True)
        self.reader.close()
        self.events.clear()
        self.reader = self.another()

    def of_one(self) -> list[str]:
        """What happened to the first partition."""
        return [each.replace(str(ONE), "it") for each in self.events if str(ONE) in each]
