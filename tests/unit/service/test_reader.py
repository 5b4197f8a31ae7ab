"""The reader: first positions, commits, full partitions. Fakes stand in for Kafka and ZooKeeper."""

import random
from concurrent.futures import Future

import numpy as np
import pytest

from partition.chunk import Partition
from partition.errors import Fenced, StoreConflict, StoreUnavailable, TopicMissing
from partition.manager import Window
from partition.memory import MemoryFetcher, MemoryLog, MemoryNodes, MemoryStore
from partition.retries import RetryPolicy
from service.reader import Reader, ReaderPolicy

RETRY_SECONDS = 1.0
ONE, TWO = Partition("t", 0), Partition("t", 1)


class Journal(MemoryStore):
    """A store that notes what is asked of it, and can hold its answers back."""

    def __init__(self, nodes: MemoryNodes, events: list[str]) -> None:
        super().__init__(nodes)
        self.events = events
        self.commits: list[dict[Partition, int]] = []
        self.open_commits: list[Future[None]] = []
        self.holding = False

    def create(self, partition: Partition, offset: int) -> None:
        super().create(partition, offset)
        self.events.append(f"stored {partition} {offset}")

    def commit(self, offsets) -> Future[None]:
        self.commits.append(dict(offsets))
        if not self.holding:
            return super().commit(offsets)
        future: Future[None] = Future()
        self.open_commits.append(future)
        return future


class WatchedFetcher(MemoryFetcher):
    """A fetcher that notes when reading begins and which partitions are paused."""

    def __init__(self, log: MemoryLog, events: list[str]) -> None:
        super().__init__(log)
        self.events = events

    def assign(self, positions) -> None:
        super().assign(positions)
        self.events.append("assigned")

    def pause(self, partition: Partition) -> None:
        super().pause(partition)
        self.events.append(f"paused {partition}")

    def resume(self, partition: Partition) -> None:
        super().resume(partition)
        self.events.append(f"resumed {partition}")


class Bench:
    """A reader on fakes."""

    def __init__(self, **policy) -> None:
        self.events: list[str] = []
        self.log = MemoryLog({"t": 2})
        self.nodes = MemoryNodes()
        self.policy = ReaderPolicy(
            **{"retries": RetryPolicy(limit=1, initial_seconds=RETRY_SECONDS, jitter=0), **policy}
        )
        self.reader = self.another()

    def another(self) -> Reader:
        """A reader in the next life of the process."""
        self.store = Journal(self.nodes, self.events)
        self.fetcher = WatchedFetcher(self.log, self.events)
        return Reader(self.fetcher, self.store, ["t"], self.policy, random.Random(1))

    def fill(self, partition: Partition, count: int) -> None:
        for number in range(count):
            self.log.append(partition, str(number).encode())

    def emit(self, now: float = 0.0) -> list[int]:
        """Fetch and emit all that may be; the owners."""
        owners: list[int] = []
        while True:  # as the pipeline does: it fetches when there is nothing to emit
            while (emission := self.reader.next(now)) is not None:
                owners += emission[1].tolist()
            if not self.reader.fetch(0.0):
                return owners

    def ack(self, owners) -> None:
        self.reader.ack(np.array(owners, np.int64))

    def stored(self, partition: Partition = ONE) -> int | None:
        store = MemoryStore(self.nodes)
        store.open()
        found = store.load(partition)
        return None if found is None else found.offset


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_the_first_position_is_stored_before_the_first_record_can_be_emitted(bench):
    """Promise 7: a crash under `latest` skips nothing."""
    bench.fill(ONE, 3)
    bench.reader.open()
    assert bench.events == [f"stored {ONE} 0", f"stored {TWO} 0", "assigned"]
    assert bench.reader.next(0.0) is None


def test_under_latest_records_written_between_a_crash_and_the_restart_are_read():
    """Promise 7: the position of the first start stands, though nothing was ever committed."""
    bench = Bench(start_from="latest")
    bench.fill(ONE, 5)
    bench.reader.open()
    assert bench.stored() == 5
    bench.reader.close()
    bench.fill(ONE, 2)
    bench.reader = bench.another()
    bench.reader.open()
    assert len(bench.emit()) == 2


def test_a_stored_position_is_taken_up_and_not_stored_again(bench):
    bench.fill(ONE, 5)
    bench.reader.open()
    bench.ack(bench.emit()[:3])
    bench.reader.commit(0.0)
    bench.reader.close()
    bench.events.clear()
    bench.reader = bench.another()
    bench.reader.open()
    assert bench.events == ["assigned"]
    assert bench.emit() == [3, 4]


def test_without_an_answer_of_the_store_nothing_is_read(bench):
    """Promise 8: a store that does not answer never looks like one that has no offset."""
    bench.fill(ONE, 1)
    bench.nodes.away = True
    with pytest.raises(StoreUnavailable):
        bench.reader.open()
    assert "assigned" not in bench.events
    assert bench.nodes.nodes == {}


def test_two_first_starts_at_once_do_not_both_win(bench):
    class Late(Journal):
        def load(self, partition: Partition):
            found = super().load(partition)
            MemoryStore.create(self, partition, 9)  # the other process is quicker
            return found

    store = Late(bench.nodes, [])
    reader = Reader(bench.fetcher, store, ["t"], bench.policy, random.Random(1))
    with pytest.raises(StoreConflict):
        reader.open()


def test_a_missing_topic_ends_the_start(bench):
    reader = Reader(bench.fetcher, bench.store, ["other"], bench.policy, random.Random(1))
    with pytest.raises(TopicMissing):
        reader.open()


def test_with_the_store_away_reading_goes_on_and_commits_come_later(bench):
    """Promise 15: with ZooKeeper away the reader works on inside its window."""
    bench.reader.open()
    bench.nodes.away = True
    for now in range(1, 6):
        bench.fill(ONE, 10)
        bench.ack(bench.emit())
        bench.reader.commit(float(now))
    assert not bench.reader.is_committed
    assert len(bench.store.commits) == 1
    assert next(bench.reader.statistics()).ledger.frontier == 50
    bench.nodes.away = False
    bench.reader.commit(10.0)
    bench.reader.commit(20.0)
    assert bench.stored() == 50
    assert bench.reader.is_committed


def test_one_commit_is_on_its_way_at_a_time(bench):
    bench.reader.open()
    bench.store.holding = True
    bench.fill(ONE, 2)
    bench.ack(bench.emit())
    bench.reader.commit(1.0)
    bench.fill(ONE, 2)
    bench.ack(bench.emit())
    for now in (5.0, 6.0, 7.0):
        bench.reader.commit(now, force=True)
    assert bench.store.commits == [{ONE: 2}]
    bench.store.open_commits[0].set_result(None)
    bench.reader.commit(8.0)
    assert bench.store.commits == [{ONE: 2}, {ONE: 4}]


def test_there_is_at_most_one_commit_per_interval_unless_forced(bench):
    bench.reader.open()
    for step in range(100):
        bench.fill(ONE, 1)
        bench.ack(bench.emit())
        bench.reader.commit(10.0 + step / 10)
    assert 9 <= len(bench.store.commits) <= 11
    before = len(bench.store.commits)
    bench.reader.commit(19.95, force=True)
    assert len(bench.store.commits) == before + 1
    assert bench.stored() == 100


def test_all_partitions_that_moved_are_committed_at_once_and_others_are_left_out(bench):
    bench.reader.open()
    bench.fill(ONE, 1)
    bench.fill(TWO, 2)
    bench.ack(bench.emit())
    bench.reader.commit(1.0)
    bench.reader.commit(5.0)
    bench.fill(TWO, 1)
    bench.ack(bench.emit())
    bench.reader.commit(9.0)
    bench.reader.commit(15.0)
    assert bench.store.commits == [{ONE: 1, TWO: 2}, {TWO: 3}]


def test_what_was_taken_over_ends_the_reader(bench):
    """Promise 9: a commit that another process has overtaken raises Fenced."""
    bench.reader.open()
    bench.fill(ONE, 4)
    owners = bench.emit()
    successor = MemoryStore(bench.nodes, topology_id="successor")
    successor.open()
    assert successor.load(ONE) is not None
    successor.commit({ONE: 2}).result()
    bench.ack(owners)
    bench.reader.commit(1.0)
    with pytest.raises(Fenced):
        bench.reader.commit(2.0)
    assert bench.stored() == 2


def test_nothing_is_committed_past_a_record_that_failed_or_is_pending(bench):
    """Promise 1: committed stays at or below every pending and failed offset."""
    bench.reader.open()
    bench.fill(ONE, 5)
    owners = bench.emit()
    bench.ack([owners[0], owners[2], owners[4]])
    assert bench.reader.fail(owners[1], 0.0)
    bench.reader.commit(1.0)
    assert bench.stored() == 1
    assert bench.reader.next(RETRY_SECONDS - 0.001) is None
    retried = bench.reader.next(RETRY_SECONDS)
    assert retried is not None
    assert retried[1].tolist() == [owners[1]]
    bench.ack([owners[1]])
    bench.reader.commit(5.0)
    assert bench.stored() == 3


def test_a_full_partition_is_paused_and_the_others_go_on():
    """Promise 10: a stuck record stops its partition at the window's end, never the others."""
    bench = Bench(window=Window(max_pending=10), fetch_records=4)
    bench.reader.open()
    bench.fill(ONE, 40)
    stuck = bench.emit()
    assert len(stuck) == 10
    assert f"paused {ONE}" in bench.events
    assert bench.reader.is_stuck
    for _ in range(5):
        bench.fill(TWO, 10)
        others = bench.emit()
        assert len(others) == 10
        bench.ack(others)
    assert f"paused {TWO}" not in bench.events[bench.events.index(f"paused {ONE}") :]


def test_a_paused_partition_is_resumed_once_its_window_opens():
    """Promise 10: what was held back is emitted, all of it and once."""
    bench = Bench(window=Window(max_pending=10), fetch_records=4)
    bench.reader.open()
    bench.fill(ONE, 40)
    seen: list[int] = []
    while owners := bench.emit():
        assert len(owners) <= 10
        seen += owners
        bench.ack(owners)
    assert seen == list(range(40))
    assert bench.events.count(f"paused {ONE}") == bench.events.count(f"resumed {ONE}") > 0


def test_retries_pass_a_full_window():
    """Promise 10: retries are exempt from the limit, or a full window would stay full."""
    bench = Bench(window=Window(max_pending=3), fetch_records=10)
    bench.reader.open()
    bench.fill(ONE, 10)
    owners = bench.emit()
    bench.reader.fail(owners[0], 0.0)
    assert bench.reader.next(RETRY_SECONDS - 0.001) is None
    retried = bench.reader.next(RETRY_SECONDS)
    assert retried is not None
    assert retried[1].tolist() == owners[:1]
    assert bench.reader.attempts(owners[0]) == 2
    assert not bench.reader.fail(owners[0], RETRY_SECONDS)


def test_partitions_take_turns():
    bench = Bench(chunk_records=2, fetch_records=100)
    bench.reader.open()
    bench.fill(ONE, 6)
    bench.fill(TWO, 6)
    while bench.reader.fetch(0.0):
        pass
    turns = []
    while (emission := bench.reader.next(0.0)) is not None:
        turns.append(emission[0].partition)
    assert turns == [ONE, TWO] * 3


def test_acks_of_several_partitions_in_any_order_reach_their_own(bench):
    bench.reader.open()
    bench.fill(ONE, 50)
    bench.fill(TWO, 50)
    owners = bench.emit()
    random.Random(3).shuffle(owners)
    bench.ack(owners[:60])
    bench.ack(owners[60:])
    assert [part.ledger.frontier for part in bench.reader.statistics()] == [50, 50]
    assert all(part.ledger.pending == 0 for part in bench.reader.statistics())
    assert bench.reader.has_reached(bench.reader.log_ends())


def test_gaps_at_the_log_s_end_hold_nothing_back(bench):
    """Promise 11: a transaction's marker at the end is passed without a record."""
    bench.reader.open()
    bench.fill(ONE, 2)
    bench.log.append_gap(ONE, 1)
    bench.ack(bench.emit())
    assert bench.reader.has_reached({ONE: 3, TWO: 0})
    assert bench.reader.has_emitted({ONE: 3, TWO: 0})
