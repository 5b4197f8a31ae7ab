"""Ways in which Storm ran out of memory, broke, or called bolts with what is no record.

The entries are numbered as in docs/storm.md.
"""

import pytest

from headrace import Record, Retry, bolt
from partition.ledger import RetryPolicy
from partition.manager import InFlightLimits
from tests.support.consumer import ONE, Bench
from tests.support.pipeline import Works


@pytest.mark.parametrize("tries", [6, 60])
def test_poison_record_is_fetched_once(tries, monkeypatch):
    """Storm 48: its payload stays here, what came after it is not fetched again, and it ends."""
    bench = Bench(
        assignment={"retries": RetryPolicy(limit=tries, jitter=0), "limits": InFlightLimits(1000)}
    )
    bench.fill(ONE, 3000)
    bench.start()
    fetched = []
    take = bench.fetcher.fetch

    def fetch(records, seconds):
        found = take(records, seconds)
        fetched.extend(offset for chunk in found.chunks for offset in chunk.offsets.tolist())
        return found

    monkeypatch.setattr(bench.fetcher, "fetch", fetch)
    poison, *others = bench.emit()
    assert len(others) == 999  # the window, and no more, is kept behind it
    bench.ack(others)
    now = 0.0
    for _ in range(tries):
        assert bench.reader.fail(poison, now)
        now += 1000.0
        assert bench.emit(now) == [poison]
    assert not bench.reader.fail(poison, now)
    bench.ack([poison])
    bench.work(int(now), int(now) + 5)
    assert fetched == list(range(3000))
    assert bench.stored() == 3000


def test_a_bolt_is_called_with_records_and_with_nothing_else():
    """Storm 53: time passes without a tuple that tells of it."""
    calls: list[bytes | None] = []

    @bolt
    def notes(record: Record) -> str:
        calls.append(record.value)
        if calls.count(b"again") == 1 and record.value == b"again":
            raise Retry("once", after_seconds=10.0)
        return "row"

    with Works(notes) as works:
        works.advance(600.0, 60.0)
        assert calls == []
        works.send(b"a", b"again")
        works.advance(600.0, 60.0)
        works.finish()
        assert calls == [b"a", b"again", b"again"]
