"""Ways in which Storm lost records. The entries are numbered as in docs/storm.md."""

import pytest

from headrace import Record, Reject, Retry, bolt
from partition.recovery import StartPolicy
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
