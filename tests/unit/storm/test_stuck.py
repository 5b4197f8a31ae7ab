"""Ways in which Storm stood still. The entries are numbered as in docs/storm.md."""

import asyncio
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import SKIP, Record, Reject, Retry, Skip, Topology, bolt
from headrace.sinks import MemorySink
from partition.manager import InFlightLimits
from tests.support.consumer import ONE, RETRY_SECONDS, Bench
from tests.support.pipeline import PLACE, HeldSink, Works


@bolt
def text(record: Record) -> str | Skip:
    value = (record.value or b"skip").decode()
    if value == "skip":
        return SKIP
    if value == "bad":
        raise Reject(value)
    if value == "again":
        raise Retry(value)
    return value


@bolt
async def at_once(value: str) -> str:
    return value


@bolt
def letters_of(value: str) -> Iterator[str]:
    yield from value.replace("none", "")


@pytest.mark.parametrize("gone", [[0], [0, 1, 2], [2]])
def test_compacted_retry_freezes_nothing(gone):
    """Storm 19: it is given again from memory, at the log's end too, and the offset passes."""
    bench = Bench()
    bench.fill(ONE, 3)
    bench.start()
    owners = bench.emit()
    bench.reader.fail(owners[gone[0]], 0.0)
    bench.ack([owner for owner in owners if owner != owners[gone[0]]])
    for offset in gone:
        bench.log.delete_record(ONE, offset)
    assert bench.emit(RETRY_SECONDS) == [owners[gone[0]]]
    bench.ack([owners[gone[0]]])
    assert bench.drain(2.0) == 0
    assert bench.stored() == 3


def test_a_full_window_of_failed_records_empties_itself():
    """Storm 21: the limit on records in flight holds back new ones, never a retry."""
    with Works(text, window=InFlightLimits(max_pending=3)) as works:
        works.send(*[b"again"] * 3, b"a", b"b")
        works.until(lambda: works.ledger.failed == 3)
        assert works.sink.rows == []
        works.advance(RETRY_SECONDS)
        works.finish()
        assert len(works.letters_sink.letters) == 3
        assert works.sink.rows == ["a", "b"]


def test_answers_that_come_at_once_are_neither_lost_nor_late():
    """Storm 23: bolts, sinks and dead letters that answer before the tree's init."""
    with Works(text, at_once, letters_of, sinks=[HeldSink("x"), HeldSink("y")]) as works:
        works.send(*[b"abc", b"skip", b"bad", b"none", b"d"] * 200)
        works.finish()
        statistics = works.pipeline.statistics().acker
        assert [len(sink.rows) for sink in works.sinks] == [800, 800]
        assert len(works.letters_sink.letters) == 200
        assert (statistics.ignored, statistics.expired, statistics.failed) == (0, 0, 0)


@bolt
async def hangs_on_bad(record: Record) -> str:
    if record.value == b"bad":
        await asyncio.Event().wait()
    return (record.value or b"").decode()


def test_endless_call_stops_no_record():
    """Storm 26: the time-out ends the call too, or its worker would be gone for ever."""
    with Works(hangs_on_bad, timeout_seconds=0.2) as works:
        works.send(b"bad", b"a", b"b")
        for _ in range(40):
            works.advance(RETRY_SECONDS / 8)
        works.finish()
        assert sorted(works.sink.rows) == ["a", "b"]
        assert [letter.record.value for letter in works.letters_sink.letters] == [b"bad"]


@given(st.lists(st.tuples(st.integers(0, 20), st.booleans()), max_size=20))
def test_no_topology_has_a_cycle(uses):
    """Storm 27: whatever streams and bolts are used again, each step has one parent."""
    topology = Topology("tree")
    streams = [topology.source("t")]
    for which, ends in uses:
        stream = streams[which % len(streams)]
        if ends:
            stream.into(MemorySink())
        else:
            streams.append(stream.then(at_once))
    steps = list(topology.steps())
    assert len(steps) == len(uses)
    assert len({id(step) for step in steps}) == len(steps)


def test_fetch_never_delays_waiting_answers(monkeypatch):
    """Storm 29: an ack is never behind a fetch that waits for records."""
    waits: list[float] = []

    def fetch(max_records, seconds, take):
        waits.append(seconds)
        return take(max_records, 0.0)

    with Works(text) as works:
        take = works.fetcher.fetch
        monkeypatch.setattr(
            works.fetcher, "fetch", lambda records, seconds: fetch(records, seconds, take)
        )
        works.turn(5)
        assert 0 < max(waits) <= 0.05
        works.send(b"a")
        works.sink.gate.clear()
        works.until(works.sink.asked.is_set)
        waits.clear()
        works.sink.gate.set()
        works.until(lambda: not works.pipeline.results.is_empty or works.stored == 1)
        works.finish()
        assert works.log.log_range(PLACE) == (0, 1)
        assert max(waits) <= 0.05
