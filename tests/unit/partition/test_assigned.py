"""Who wants to know hears which partitions are ours: `+` is assigned, `-` is revoked."""

import pytest

from partition.errors import TopicMissing
from partition.interfaces import Progress
from partition.records import Position
from partition.recovery import StartPolicy
from tests.support.faulty_store import FaultyStore
from tests.worlds.reading import ONE, SKIP_LOSS, TWO, Bench


@pytest.fixture
def bench():
    return Bench()


def test_a_partition_is_assigned_once_it_is_open_and_before_its_first_record(bench):
    bench.fill(ONE, 1)
    bench.reader.open()
    assert bench.told == []
    while bench.reader.next_chunk(0.0) is None:
        bench.reader.poll(0.0)
        bench.reader.fetch(0.0, 0.0)
    assert bench.told == [f"+{ONE}", f"+{TWO}"]
    bench.poll(times=20)
    assert len(bench.told) == 2


def test_at_the_end_each_is_revoked_once(bench):
    """Promise 16."""
    bench.start()
    bench.reader.release()
    assert bench.told[2:] == [f"-{ONE}", f"-{TWO}"]
    bench.reader.release()
    bench.reader.close()
    assert len(bench.told) == 4


def test_a_partition_that_another_process_took_is_revoked_and_the_other_is_not(bench):
    """Promise 9."""
    bench.fill(ONE, 1)
    bench.start()
    record_ids = bench.emit()
    successor = FaultyStore(bench.nodes)
    successor.open()
    successor.claim(ONE).result()
    assert successor.commit({ONE: Progress(Position(1))}).result() == {}
    bench.ack(record_ids)
    bench.reader.commit(1.0)
    bench.reader.commit(2.0)
    bench.reader.poll(2.0)
    assert bench.told[2:] == [f"-{ONE}"]
    bench.reader.release()
    assert bench.told[3:] == [f"-{TWO}"]


def test_a_partition_that_its_log_halts_is_revoked_when_nothing_of_it_is_left():
    bench = Bench(start=StartPolicy(on_corrupt_record="halt"))
    bench.fill(ONE, 3)
    bench.log.corrupt(ONE, 2)
    bench.start()
    record_ids = bench.emit()
    assert len(record_ids) == 2
    for now in range(1, 20):
        bench.emit(float(now))
        bench.poll(float(now))
    bench.ack(record_ids[:1])
    bench.poll(20.0)
    assert bench.told == [f"+{ONE}", f"+{TWO}"]
    bench.ack(record_ids[1:])
    for now in range(21, 40):
        bench.emit(float(now))
        bench.poll(float(now))
    assert list(bench.reader.assignment.halted) == [ONE]
    assert bench.told[2:] == [f"-{ONE}"]


def test_a_topic_that_goes_and_comes_again_is_revoked_and_assigned_again():
    bench = Bench(sources=("t", "u"), start=SKIP_LOSS)
    bench.log.create_topic("u", 1)
    bench.start()
    bench.log.delete_topic("t")
    bench.emit(1.0)
    bench.poll(1.0)
    assert isinstance(bench.reader.assignment[ONE].error, TopicMissing)
    assert bench.told[3:] == [f"-{ONE}", f"-{TWO}"]
    bench.log.create_topic("t", 2)
    for now in range(100, 110):
        bench.emit(float(now))
        bench.poll(float(now))
    assert bench.told[5:] == [f"+{ONE}", f"+{TWO}"]
