import random
import re
import time
from collections import Counter

import pytest

from partition.delivery import CommitBeforeEmit
from partition.interfaces import Progress
from partition.manager import InFlightLimits
from partition.records import Partition, Position
from partition.recovery import StartPolicy
from tests.support.consumer import ONE, RETRY_SECONDS, TWO, Bench
from tests.support.faulty_store import FaultyStore

OTHER = Partition("u", 0)


def test_latest_reads_records_written_after_a_crash():
    """Promise 7; Storm 4: the position of the first start stands, though nothing was committed."""
    bench = Bench(start=StartPolicy("latest"))
    bench.fill(ONE, 5)
    bench.start()
    assert bench.stored() == 5
    bench.fill(ONE, 2)
    bench.restart()
    assert len(bench.emit()) == 2


def test_a_store_that_goes_away_during_the_start_is_waited_for():
    """Promises 8 and 15."""
    bench = Bench()
    bench.fill(ONE, 1)
    bench.reader.open()
    bench.nodes.away = True
    bench.poll()
    assert not bench.reader.assignment.is_settled
    assert bench.emit() == []
    bench.nodes.away = False
    bench.poll()
    assert bench.reader.assignment.is_settled
    assert len(bench.emit()) == 1


def test_what_a_user_may_see_of_a_partition():
    """Storm 54: an offset of 0 is a figure like any other."""
    bench = Bench()
    bench.fill(ONE, 5)
    bench.start()
    bench.ack(bench.emit(10.0)[:2])
    bench.reader.commit(11.0)
    bench.reader.commit(12.0)
    one, two = bench.reader.statistics(14.0)
    assert (one.log_start, one.log_end, one.committed, one.lag) == (0, 5, 2, 3)
    assert one.oldest_pending_seconds == 4.0
    assert one.fetch_latency_seconds == 10.0
    assert (two.committed, two.lag, two.oldest_pending_seconds) == (0, 0, 0.0)
    assert two.fetch_latency_seconds is None


def test_possibly_ended_session_stops_emission():
    """Promise 9: a process that stood still emits nothing in the turn in which it goes on."""
    bench = Bench()
    bench.start()
    bench.fill(ONE, 3)
    assert bench.reader.fetch(0.0, 0.0)
    bench.reader.assignment.trusted_until = time.monotonic() - 1.0
    assert bench.reader.next_chunk(0.0) is None
    assert not bench.reader.can_prefetch
    bench.reader.assignment.trusted_until = time.monotonic() + 60.0
    assert len(bench.emit()) == 3


def test_held_back_source_retries_unless_silent():
    bench = Bench()
    bench.start()
    bench.fill(ONE, 1)
    (record_id,) = bench.emit()
    bench.fail(record_id, 0.0)
    bench.fill(ONE, 1)
    bench.reader.fetch(0.0, 0.0)
    bench.reader.hold_back(frozenset({"t"}), silent=frozenset({"t"}))
    assert bench.reader.next_chunk(RETRY_SECONDS) is None
    bench.reader.hold_back(frozenset({"t"}))
    assert bench.emit(RETRY_SECONDS) == [record_id]
    assert bench.reader.next_chunk(RETRY_SECONDS) is None
    bench.reader.hold_back(frozenset())
    assert bench.emit(RETRY_SECONDS) == [record_id + 1]


def test_pattern_rate_limit_covers_its_topics():
    patterns = re.compile("[tu]")
    bench = Bench(sources=("t", patterns), records_per_second={patterns: 10.0})
    bench.log.create_topic("u", 1)
    bench.start()
    bench.fill(ONE, 50)
    bench.fill(OTHER, 50)
    topics = Counter(bench.message(each).topic() for each in bench.emit(0.0))
    assert topics == {"t": 50, "u": 2}


def test_partitions_take_turns():
    bench = Bench(chunk_records=2, fetch_records=100)
    bench.start()
    bench.fill(ONE, 6)
    bench.fill(TWO, 6)
    while bench.reader.fetch(0.0, 0.0):
        pass
    turns = []
    while (emission := bench.reader.next_chunk(0.0)) is not None:
        turns.append(emission[0].partition)
    assert turns == [ONE, TWO] * 3


# At most once: what is read is stored before it is emitted, so nothing is emitted twice


def turn(bench, now=0.0):
    """One turn as the pipeline does it; the owners it emits."""
    bench.reader.poll(now)
    emission = bench.reader.next_chunk(now)
    if emission is None:
        bench.reader.fetch(now, 0.0)
        emission = bench.reader.next_chunk(now)
    bench.reader.commit(now)
    return [] if emission is None else emission[1].tolist()


@pytest.mark.parametrize("seed", range(30))
def test_at_most_once_never_emits_twice(seed):
    """Each life ends with a crash, the last one with all resolved."""
    rng = random.Random(seed)
    window = rng.choice([3, 8, 40])
    bench = Bench(
        assignment={"delivery": CommitBeforeEmit, "limits": InFlightLimits(max_pending=window)},
        fetch_records=rng.choice([2, 10]), chunk_records=rng.choice([1, 4, 50]),
    )  # fmt: skip
    seen: list[int] = []
    lost: set[int] = set()
    written = 0
    for life in range(6):
        if life:
            bench.reader = bench.another()
        bench.start(float(life))
        begun_at = bench.stored()
        bench.store.holding = rng.random() < 0.7
        flying: list[int] = []
        emitted: list[int] = []
        for step in range(rng.randrange(120)):
            now = life + step / 1000
            if written < 200 and rng.random() < 0.3:
                count = rng.randrange(1, 12)
                bench.fill(ONE, count)
                written += count
            record_ids = turn(bench, now)
            emitted += record_ids
            flying += record_ids
            store = bench.store
            if store.holding and store.open_commits and rng.random() < 0.5:
                future = store.open_commits.pop()
                positions = {at: Progress(Position(to)) for at, to in store.commits[-1].items()}
                future.set_result(FaultyStore.commit(store, positions).result())
            rng.shuffle(flying)
            for record_id in flying[: rng.randrange(4)]:
                assert rng.random() < 0.7 or not bench.fail(record_id, now)
                bench.ack([record_id])
                flying.remove(record_id)
            assert len(flying) <= window
            assert all(record_id < bench.stored() for record_id in record_ids)
        seen += emitted
        skipped = set(range(begun_at, bench.stored())) - set(emitted)
        assert len(skipped | set(flying)) <= window + len(emitted) - len(flying)
        lost |= skipped
        assert len(skipped) <= window
    bench.reader = bench.another()
    bench.start(10.0)
    for step in range(600):
        record_ids = turn(bench, 10.0 + step)
        seen += record_ids
        bench.ack(record_ids)
    assert len(seen) == len(set(seen))
    assert set(seen) | lost == set(range(written))
