"""Ways in which Storm lost or repeated records, or stood still; numbered as in docs/storm.md."""

import asyncio
from collections.abc import Iterator
from concurrent.futures import Future

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import SKIP, Record, Reject, Retry, Skip, Topology, bolt
from headrace.sinks import MemorySink
from partition.ledger import RetryPolicy
from partition.manager import InFlightLimits
from partition.records import Partition
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


def offsets(bench, record_ids):
    return [bench.message(record_id).offset() for record_id in record_ids]


def test_a_new_leader_repeats_nothing_and_forgets_nothing():
    """Storm 30: pending, waiting, failed and committed are the partition's, not the leader's."""
    bench = Bench()
    bench.fill(ONE, 4)
    bench.start()
    record_ids = bench.emit()
    bench.ack(record_ids[:1])
    bench.fail(record_ids[1], 0.0)
    bench.log.elect(ONE)
    bench.fill(ONE, 2)
    bench.poll(0.5)
    assert offsets(bench, bench.emit(0.5)) == [4, 5]
    assert bench.emit(RETRY_SECONDS) == [record_ids[1]]
    bench.ack([*record_ids[1:], *[record_ids[0] + n for n in (4, 5)]])
    bench.drain(2.0)
    assert bench.stored() == 6


def test_a_commit_that_is_not_answered_holds_no_record_up():
    """Storm 33: records flow, and the offset of then is stored when the answer has come."""
    bench = Bench()
    bench.start()
    bench.store.holding = True
    for now in range(1, 5):
        bench.fill(ONE, 2)
        bench.ack(bench.emit())
        bench.reader.commit(float(now), force=True)
    assert bench.store.commits == [{ONE: 2}]
    waiting: Future[dict[Partition, Exception]] = bench.store.open_commits[0]
    bench.store.holding = False
    waiting.set_result({})
    bench.drain(6.0)
    assert bench.stored() == 8


@pytest.mark.parametrize("tries", [6, 60])
def test_poison_record_is_fetched_once(tries, monkeypatch):
    """Storm 35 and 48: its payload stays here, what came after it does not come again, it ends."""
    retries = RetryPolicy(limit=tries, jitter=0)
    bench = Bench(assignment={"retries": retries, "limits": InFlightLimits(1000)})
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
    bench.ack(others[500:])
    now = 0.0
    for _ in range(tries):
        assert bench.fail(poison, now)
        now += 1000.0
        assert bench.emit(now) == [poison]
    assert not bench.fail(poison, now)
    bench.ack([poison, *others[:500]])
    assert sum(bench.drain(now + second) for second in range(5)) == 2000
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


@pytest.mark.parametrize("gone", [[0], [0, 1, 2], [2]])
def test_compacted_retry_freezes_nothing(gone):
    """Storm 19: it is given again from memory, at the log's end too, and the offset passes."""
    bench = Bench()
    bench.fill(ONE, 3)
    bench.start()
    owners = bench.emit()
    bench.fail(owners[gone[0]], 0.0)
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
        monkeypatch.setattr(works.fetcher, "fetch", lambda n, seconds: fetch(n, seconds, take))
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
