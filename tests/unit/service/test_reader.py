"""The reader: first positions, commits, full partitions. Fakes stand in for Kafka and ZooKeeper."""

import time

import pytest

from partition.interfaces import Progress
from partition.records import Position
from partition.recovery import StartPolicy
from tests.support.consumer import ONE, RETRY_SECONDS, TWO, Bench
from tests.support.faulty_store import FaultyStore


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_first_position_is_stored_before_emission(bench):
    """Promise 7: a crash under `latest` skips nothing."""
    bench.fill(ONE, 3)
    bench.start()
    assert bench.events == [
        f"stored {ONE} 0",
        f"reads {ONE} 0",
        f"stored {TWO} 0",
        f"reads {TWO} 0",
    ]
    assert bench.reader.next_chunk(0.0) is None


def test_latest_reads_records_written_after_a_crash():
    """Promise 7; Storm 4: the position of the first start stands, though nothing was committed."""
    bench = Bench(start=StartPolicy("latest"))
    bench.fill(ONE, 5)
    bench.start()
    assert bench.stored() == 5
    bench.fill(ONE, 2)
    bench.restart()
    assert len(bench.emit()) == 2


def test_a_store_that_goes_away_during_the_start_is_waited_for(bench):
    """Promises 8 and 15."""
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


def test_taken_over_partition_halts_alone(bench):
    """Promise 9: a commit that another process has overtaken changes nothing."""
    bench.fill(ONE, 4)
    bench.fill(TWO, 4)
    bench.start()
    record_ids = bench.emit()
    successor = FaultyStore(bench.nodes)
    successor.open()
    assert successor.claim(ONE).result().stored is not None
    assert successor.commit({ONE: Progress(Position(2))}).result() == {}
    bench.ack(record_ids)
    bench.reader.commit(1.0)
    bench.reader.commit(2.0)
    assert bench.stored() == 2
    assert bench.stored(TWO) == 4
    assert list(bench.reader.assignment.halted) == [ONE]
    bench.fill(ONE, 1)
    bench.fill(TWO, 1)
    assert {record_id >> 48 for record_id in bench.emit()} == {1}


def test_commit_never_passes_an_unresolved_record(bench):
    """Promise 1: committed stays at or below every pending and failed offset."""
    bench.start()
    bench.fill(ONE, 5)
    record_ids = bench.emit()
    bench.ack([record_ids[0], record_ids[2], record_ids[4]])
    assert bench.reader.fail(record_ids[1], 0.0)
    bench.reader.commit(1.0)
    assert bench.stored() == 1
    assert bench.reader.next_chunk(RETRY_SECONDS - 0.001) is None
    retried = bench.reader.next_chunk(RETRY_SECONDS)
    assert retried is not None
    assert retried[1].tolist() == [record_ids[1]]
    bench.ack([record_ids[1]])
    bench.reader.commit(5.0)
    assert bench.stored() == 3


def test_gaps_at_the_log_s_end_hold_nothing_back(bench):
    """Promise 11: a transaction's marker at the end is passed without a record."""
    bench.fill(ONE, 2)
    bench.log.append_gap(ONE, 1)
    bench.start()
    assert bench.reader.assignment.goals == {ONE: 3, TWO: 0}
    record_ids = bench.emit()
    assert bench.reader.has_emitted_goals
    assert not bench.reader.assignment.has_reached_goals
    bench.ack(record_ids)
    assert bench.reader.assignment.has_reached_goals


def test_what_a_user_may_see_of_a_partition(bench):
    """Storm 54: an offset of 0 is a figure like any other."""
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


def test_possibly_ended_session_stops_emission(bench):
    """Promise 9: a process that stood still emits nothing in the turn in which it goes on."""
    bench.start()
    bench.fill(ONE, 3)
    assert bench.reader.fetch(0.0, 0.0)
    bench.reader.assignment.trusted_until = time.monotonic() - 1.0
    assert bench.reader.next_chunk(0.0) is None
    assert not bench.reader.can_prefetch
    bench.reader.assignment.trusted_until = time.monotonic() + 60.0
    assert len(bench.emit()) == 3
