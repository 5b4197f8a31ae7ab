"""Ways in which Storm lost records. The entries are numbered as in docs/storm.md."""

import random

import numpy as np
import pytest

from headrace import Record, Reject, Retry, bolt
from partition.delivery import AtLeastOnce
from partition.manager import InFlightLimits, PartitionManager
from partition.records import Chunk, Position
from partition.recovery import StartPolicy
from partition.retry import RetryPolicy
from service.config import load
from service.errors import BadConfig
from tests.worlds.reading import ONE, RETRY_SECONDS, Bench
from tests.worlds.running import HeldSink, Works


@bolt
def text(record: Record) -> str:
    value = (record.value or b"").decode()
    if value.startswith("bad"):
        raise Reject(value)
    if value.startswith("again"):
        raise Retry(value)
    return value


@pytest.mark.parametrize("behind", [10, 200_000])
def test_the_acks_of_later_records_complete_no_older_one(behind):
    """Storm 2: a pending record stays pending, however far behind the newest ack it is."""
    manager = PartitionManager(
        ONE,
        Position(0),
        limits=InFlightLimits(max_pending=1_000_000),
        retry_policy=RetryPolicy(initial_seconds=1.0, jitter=0),
        rng=random.Random(1),
        delivery=AtLeastOnce,
    )
    offsets = np.arange(behind + 1, dtype=np.int64)
    manager.fetched(Chunk(ONE, offsets, [b"x"] * len(offsets)), 0.0)
    manager.next_chunk(0.0, len(offsets))
    manager.ack(offsets[1:])
    assert manager.last_completed_offset == 0
    assert manager.fail(0, 0.0)
    again = manager.next_chunk(1.0, 10)
    assert again is not None
    assert again.offsets.tolist() == [0]


def test_of_the_rows_of_one_record_the_first_that_is_durable_completes_nothing():
    """Storm 3: a record completes with its last row, not with its first."""
    fast, slow = HeldSink("fast"), HeldSink("slow")
    slow.gate.clear()
    with Works(text, sinks=[fast, slow]) as works:
        works.send(b"a")
        works.until(lambda: fast.rows == ["a"] and slow.asked.is_set())
        works.turn(3)
        assert works.stored == 0
        slow.gate.set()
        works.finish()


def test_a_failed_record_that_was_cut_off_is_tried_again_and_then_the_cut_is_told():
    """Storm 6: what is in flight completes by its own ack only, and nothing waits for ever."""
    bench = Bench(start=StartPolicy(on_data_loss="skip"))
    bench.fill(ONE, 8)
    bench.start()
    record_ids = bench.emit()
    bench.reader.fail(record_ids[6], 0.0)
    bench.log.truncate(ONE, 3)
    bench.fill(ONE, 1)
    bench.emit(0.5)
    bench.poll(0.5)
    assert bench.losses == []
    assert next(bench.reader.statistics(0.5)).ledger.pending == 8
    assert bench.emit(RETRY_SECONDS) == [record_ids[6]]
    bench.ack(record_ids)
    bench.poll(2.0)
    assert [(loss.reason, loss.resume.offset) for loss in bench.losses] == [("truncated", 3)]
    assert bench.drain(3.0) == 1
    assert bench.stored() == 4


def test_where_the_offsets_are_stored_must_be_said():
    """Storm 9: there is no ZooKeeper by default that a pipeline could store offsets in."""
    with pytest.raises(BadConfig, match=r"zookeeper"):
        load(None, {"kafka": {"bootstrap.servers": "-"}})


def test_the_stored_offset_is_the_next_one_to_read():
    """Storm 10: at a restart no record is left out and none is read twice."""
    bench = Bench()
    bench.fill(ONE, 1)
    bench.start()
    assert bench.drain(1.0) == 1
    assert bench.stored() == 1
    bench.restart()
    assert bench.emit(2.0) == []
    bench.fill(ONE, 2)
    record_ids = bench.emit(2.0)
    assert [bench.message(record_id).offset() for record_id in record_ids] == [1, 2]


@pytest.mark.parametrize("payload", [b"bad", b"again"])
def test_a_record_that_is_given_up_is_a_durable_letter_before_its_offset_passes(payload):
    """Storm 16: at the end of its retries a record is in the dead letters, not gone."""
    with Works(text) as works:
        works.letters_sink.holding = True
        works.send(payload, b"good")
        works.until(lambda: works.sink.rows == ["good"])
        works.advance(5.0)
        assert [letter.record.value for letter in works.letters_sink.letters] == [payload]
        assert works.stored == 0
        works.letters_sink.holding = False
        works.finish()


def test_an_offset_is_stored_only_after_its_row_is_durable():
    """Storm 17: a sink that has a row, but has not written it, completes nothing."""
    with Works(text) as works:
        works.sink.gate.clear()
        works.send(b"a", b"b")
        works.until(works.sink.asked.is_set)
        works.advance(5.0)
        assert (works.sink.rows, works.stored) == ([], 0)
        works.sink.gate.set()
        works.finish()
        assert works.sink.rows == ["a", "b"]
