"""Ways in which Storm lost records. The entries are numbered as in docs/storm.md."""

import pytest

from headrace import Record, Reject, Retry, bolt
from service.config.settings import load
from service.errors import BadConfig
from tests.support.pipeline import HeldSink, Works


@bolt
def text(record: Record) -> str:
    value = (record.value or b"").decode()
    if value.startswith("bad"):
        raise Reject(value)
    if value.startswith("again"):
        raise Retry(value)
    return value


def test_first_durable_row_completes_no_record():
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


def test_where_the_offsets_are_stored_must_be_said():
    """Storm 9: there is no ZooKeeper by default that a pipeline could store offsets in."""
    with pytest.raises(BadConfig, match=r"zookeeper"):
        load(None, {"kafka": {"bootstrap.servers": "-"}})


@pytest.mark.parametrize("payload", [b"bad", b"again"])
def test_dead_letter_is_durable_before_its_offset_passes(payload):
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
