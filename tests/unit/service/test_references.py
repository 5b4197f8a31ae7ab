import queue
import threading
from unittest.mock import Mock

import pyarrow as pa
import pytest
from structlog.testing import capture_logs

from headrace import InvalidTopology, ReferenceNotLoaded, reference
from service.pipeline.reference_tables import References, ReferenceStatistics
from sinks.state.store import MemoryState
from sinks.storage import Storage
from tests.support.patience import seconds
from topology.aggregates import count
from topology.errors import ReferenceLoadFailed
from topology.sink import Batch, Fence, Share, SinkContext
from topology.state import State

CONTEXT = SinkContext("p", "words", {}, Storage(""), None, exactly_once=True)


def table(*names):
    return pa.table({"code": [name[:1] for name in names], "name": list(names)})


def named(name, **options):
    return reference(f"{name}.csv", key="code", value="name", **options)


@pytest.fixture
def clock():
    clock = Mock(side_effect=lambda: clock.now, now=0.0)
    return clock


@pytest.fixture
def tables(clock):
    """Stand for where tables lie: give the next one of each name, or raise it, in 2 s."""

    def read(reference):
        tables.read.append(reference.name)
        clock.now += 2.0
        found = tables.now[reference.name]
        if isinstance(found, Exception):
            raise found
        return found

    now = {"fixed": table("Anna", "Bert"), "fresh": table("Xenia")}
    tables = Mock(side_effect=read, read=[], now=now)
    return tables


@pytest.fixture
def open_of(clock, request):
    def opened(references, read, clock=clock, **options):
        made = References(references, read, clock, **options)
        made.open()
        request.addfinalizer(made.close)
        return made

    return opened


@pytest.fixture
def loading(open_of, tables):
    """Two open tables, one of them refreshed every ten minutes; time is the test's."""
    fixed, fresh = named("fixed"), named("fresh", refresh_seconds=600)
    return open_of([fixed, fresh], tables), fixed, fresh


def test_first_load_that_fails_fails_the_start(tables, clock):
    fixed, fresh = named("fixed"), named("fresh")
    references = References([fixed, fresh], tables, clock)
    tables.now["fresh"] = ReferenceLoadFailed("fresh", "csv 'fresh.csv': no such path")
    with pytest.raises(ReferenceLoadFailed, match=r"reference 'fresh': csv .*: no such path"):
        references.open()
    tables.now["fresh"] = table("Xenia", "Xaver")
    with pytest.raises(ReferenceLoadFailed, match="found 1 duplicates, expected none: 'X'"):
        references.open()
    references.close()
    assert not fixed.is_loaded


def test_refresh_is_in_place_at_the_next_poll(loading, tables, clock):
    references, fixed, fresh = loading
    assert clock.now == 4.0
    tables.now |= {"fixed": table("Carl"), "fresh": table("Yves")}
    assert references.refresh(603.9) == 604.0
    assert tables.read == ["fixed", "fresh"]
    clock.now = 604.0
    assert references.refresh(604.0) == 606.0 + 600.0
    assert dict(fresh) == {"X": "Xenia"}, "a chunk sees one load"
    references.poll()
    assert dict(fresh) == {"Y": "Yves"}
    assert dict(fixed) == {"A": "Anna", "B": "Bert"}, "nobody asked for refreshes of it"
    assert tables.read == ["fixed", "fresh", "fresh"]


@pytest.mark.parametrize(
    "trouble", [ReferenceLoadFailed("fresh", "gone"), ValueError("gone"), table("Xenia", "Xaver")]
)
def test_failed_refresh_keeps_the_rows(loading, tables, clock, trouble):
    references, _fixed, fresh = loading
    good, tables.now["fresh"] = tables.now["fresh"], trouble
    clock.now = 604.0
    with capture_logs() as logs:
        assert references.refresh(604.0) == 606.0 + 60.0
    references.poll()
    assert dict(fresh) == {"X": "Xenia"}
    told = [(line["event"], line["log_level"]) for line in logs]
    assert told == [("reference_refresh_failed", "warning")]
    assert (logs[0]["age_seconds"], logs[0]["retry_in_seconds"]) == (602.0, 60.0)
    assert references.statistics(606.0)[1] == ReferenceStatistics("fresh", 1, 604.0, 1, 1)
    tables.now["fresh"] = good
    clock.now = 666.0
    references.refresh(666.0)
    references.poll()
    assert references.statistics(668.0)[1] == ReferenceStatistics("fresh", 1, 2.0, 2, 1)


def test_failed_refresh_keeps_a_short_interval(open_of, tables, clock):
    references = open_of([named("fresh", refresh_seconds=5)], tables)
    tables.now["fresh"] = ValueError("gone")
    clock.now = 7.0
    assert references.refresh(7.0) == 9.0 + 5.0


def test_load_that_ends_with_the_run_is_no_failure(loading, clock):
    references, *_ = loading

    def ended(_reference):
        references._stop.set()
        raise ReferenceLoadFailed("fresh", "Spark died")

    references._read = ended
    clock.now = 700.0
    with capture_logs() as logs:
        references.refresh(700.0)
    assert logs == []
    assert references.statistics(700.0)[1].failed_loads == 0


def test_two_tables_of_one_name_are_rejected(tables):
    with pytest.raises(InvalidTopology, match=r"two references are named 'a', .*'b/a\.csv'"):
        References([named("a"), reference("b/a.csv", key="code")], tables)


def test_thread_refreshes_until_close():
    gate: queue.SimpleQueue[pa.Table] = queue.SimpleQueue()
    waits, readers, ended = threading.Semaphore(0), [], threading.Event()

    def read(_reference):
        readers.append(threading.current_thread().name)
        waits.release()
        return table("Dora") if ended.is_set() else gate.get(timeout=seconds(10))

    fresh = named("fresh", refresh_seconds=0.001)
    references = References([fresh], read)
    gate.put(table("Anna"))
    references.open()
    assert fresh["A"] == "Anna"
    assert waits.acquire(timeout=seconds(10))
    for name in ("Bert", "Carl"):
        gate.put(table(name))
        assert waits.acquire(timeout=seconds(10))
    assert waits.acquire(timeout=seconds(10)), "the load of Carl is done once the next has begun"
    references.poll()
    assert dict(fresh) == {"C": "Carl"}
    ended.set()
    gate.put(table("Dora"))
    references.close()
    references.close()
    assert readers[0] == threading.current_thread().name
    assert set(readers[1:]) == {"headrace-references"}
    assert "headrace-references" not in {thread.name for thread in threading.enumerate()}
    with pytest.raises(ReferenceNotLoaded):
        fresh["C"]


def test_close_does_not_wait_for_a_load_that_hangs():
    began, never = threading.Event(), threading.Event()
    reads = iter([table("Anna")])

    def read(_reference):
        for found in reads:
            return found
        began.set()
        never.wait(seconds(10))
        return table("Bert")

    fresh = named("fresh", refresh_seconds=0.001)
    references = References([fresh], read)
    references.open()
    assert began.wait(seconds(10))
    references.close(timeout_seconds=0.01)
    assert not fresh.is_loaded
    never.set()


class Kept:
    def __init__(self, **options):
        self.words = State("words", key={"word": str}, into=MemoryState(), value="n", **options)
        self._sink = self.words.sink({"n": count()})
        self._sink.open(CONTEXT)
        self._sink.fence([Fence("words[0]", 1)])

    def commit(self, txid, *words):
        share = Share("words[0]", 1, txid, 1, 0, 9, "", len(words))
        rows = [{"word": word} for word in words]
        self._sink.commit(self._sink.stage(Batch(txid, [rows], len(rows), (share,))))

    def fetched(self, words):
        return words.fetch(CONTEXT)


def test_committed_state_shows_at_the_next_turn(open_of):
    kept, settled = Kept(), []
    kept.commit(1, "a", "b", "a")
    references = open_of(
        [kept.words], kept.fetched, before_change=lambda: settled.append(dict(kept.words))
    )
    assert dict(kept.words) == {"a": 2, "b": 1}
    kept.commit(2, "a", "c")
    references.poll()
    assert dict(kept.words) == {"a": 3, "b": 1, "c": 1}
    assert settled == [{"a": 2, "b": 1}], "no bolt is amid a chunk when rows change"
    references.poll()
    assert len(settled) == 1


def test_slow_state_catches_up_less_often(open_of, clock, monkeypatch):
    kept = Kept()
    catch_up = kept.words.catch_up

    def takes_long():
        catch_up()
        clock.now += 2.0

    references = open_of([kept.words], kept.fetched)
    monkeypatch.setattr(kept.words, "catch_up", takes_long)
    for txid, passed, found in ((1, 0.0, 1), (2, 17.0, 1), (3, 1.0, 3)):
        kept.commit(txid, "a")
        clock.now += passed
        references.poll()
        assert dict(kept.words) == {"a": found}, "a tenth of the time is for catching up"


def test_state_above_its_limit_stays_as_it_was(open_of):
    kept = Kept(max_rows=1)
    references = open_of([kept.words], kept.fetched, clock=lambda: 0.0)
    kept.commit(1, "a")
    references.poll()
    kept.commit(2, "b")
    with capture_logs() as logs:
        references.poll()
        references.poll()
    assert dict(kept.words) == {"a": 1}
    told = [line for line in logs if line["event"] == "reference_refresh_failed"]
    assert [(line["reference"], line["retry_in_seconds"]) for line in told] == [("words", None)]
    assert references.statistics(0.0)[0].failed_loads == 1
