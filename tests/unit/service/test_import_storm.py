"""`headrace offsets import-storm` on nodes, a log and a store in memory: all or nothing."""

import io
import json
import re
from concurrent.futures import Future
from types import SimpleNamespace
from typing import get_args

import pytest
import typer
from rich.console import Console

from headrace import Topology
from partition.errors import (
    StoreCorrupt,
    StoreError,
    StoreForeign,
    StoreUnavailable,
    StormUnreadable,
    TopicMissing,
)
from partition.interfaces import Claimed, Log, StoredOffset, Topic
from partition.offsets.requests import ZNode
from partition.records import Partition, Position
from partition.storm_offsets import Layout, StormOffset
from service.cli.import_storm import (
    ImportRequest,
    ImportRow,
    _chosen,
    import_offsets,
    judge_import,
    offsets_import_storm,
    show_imports,
)
from service.errors import NotImported, StormStillRuns
from topology.steps import Source

T = [Partition("t", number) for number in range(4)]
ORDER = ImportRequest("core", "/s")


def done(value=None, error=None):
    future = Future()
    future.set_exception(error) if error else future.set_result(value)
    return future


class Nodes:
    """Core's nodes; `moves` is what happens before the second reading."""

    def __init__(self, offsets, moves=None):
        self.offsets = dict(offsets)
        self.moves = moves or {}
        self.readings = 0

    def children(self, path):
        if self.readings:
            self.offsets |= self.moves
        self.readings += 1
        return [f"partition_{number}" for number in self.offsets]

    def get(self, path):
        offset = self.offsets[int(path.rpartition("_")[2])]
        data = offset if isinstance(offset, bytes) else json.dumps(
            {"topology": {"id": "wc"}, "offset": offset}
        ).encode()  # fmt: skip
        return ZNode(data, 7)


class Kafka:
    def __init__(self, *, start=0, end=100, names=("t",)):
        self.found = {name: Topic(name, "id", (0, 1, 2)) for name in names}
        self.range = start, end

    def topics(self):
        return done(self.found)

    def topic(self, name):
        error = None if name in self.found else TopicMissing(name)
        return done(self.found.get(name), error)

    def log(self, partition, timestamp_ms=None):
        return done(Log(*self.range, "id"))


class Store:
    """Keeps what is begun. `fails` begins so; `raced` partitions are taken meanwhile."""

    def __init__(self, stored=None, *, fails=None, raced=(), forgets=()):
        self.stored = dict(stored or {})
        self.fails = fails or {}
        self.raced, self.forgets = raced, forgets
        self.calls = []

    def load(self, partition):
        found = self.stored.get(partition)
        if isinstance(found, Exception):
            raise found
        return None if partition in self.forgets else found

    def claim(self, partition, *, adopt=False):
        assert not adopt
        self.calls.append(("claim", partition.number))
        return done(Claimed(StoredOffset(Position(3), "p") if partition in self.raced else None))

    def begin(self, partition, position):
        assert self.calls[-1] == ("claim", partition.number)
        self.calls.append(("begin", partition.number))
        if partition in self.fails:
            return done(error=self.fails[partition])
        self.stored[partition] = StoredOffset(position, "p")
        return done()


def imported(nodes, store, order=ORDER, kafka=None, sources=None):
    pipeline = SimpleNamespace(name="p", catalogue=kafka or Kafka(), store=store)
    rows = import_offsets(pipeline, nodes, sources or [Source("t")], order, lambda _: None)
    return {str(row.partition): row for row in rows}


def outcomes(*arguments, **more):
    return [row.outcome for row in imported(*arguments, **more).values()]


def test_each_offset_is_claimed_begun_and_read_back():
    """Storm 13: what was written is read back before it counts as stored."""
    store = Store()
    assert outcomes(Nodes({0: 0, 1: 5, 2: 100}), store) == ["imported"] * 3
    assert store.calls == [(call, n) for n in range(3) for call in ("claim", "begin")]
    assert {each: stored.position for each, stored in store.stored.items()} == {
        T[0]: Position(0, None, "id"),
        T[1]: Position(5, None, "id"),
        T[2]: Position(100, None, "id"),
    }
    assert outcomes(Nodes({0: 0}), Store(forgets=T)) == ["failed"] + ["no_storm_node"] * 2


def test_dry_run_judges_all_and_writes_nothing():
    store = Store()
    rows = imported(Nodes({0: 1, 1: 101}), store, ImportRequest("core", "/s", dry_run=True))
    assert [row.outcome for row in rows.values()] == ["to_import", "refused", "no_storm_node"]
    assert store.calls == []


def test_refused_partition_stops_the_import_unless_partial():
    nodes = {0: 1, 1: b"?", 2: 3}
    store = Store()
    assert outcomes(Nodes(nodes), store) == ["to_import", "refused", "to_import"]
    assert store.calls == []
    partial = ImportRequest("core", "/s", partial=True)
    assert outcomes(Nodes(nodes), store, partial) == ["imported", "refused", "imported"]
    assert set(store.stored) == {T[0], T[2]}


def test_second_import_changes_nothing():
    store = Store()
    assert outcomes(Nodes({0: 1, 1: 2, 2: 3}), store) == ["imported"] * 3
    before, calls = dict(store.stored), list(store.calls)
    assert outcomes(Nodes({0: 1, 1: 2, 2: 3}), store) == ["stored_already"] * 3
    assert (store.stored, store.calls) == (before, calls)
    store.stored[T[0]] = StoredOffset(Position(50), "p")  # the pipeline has run since
    assert outcomes(Nodes({0: 1, 1: 2, 2: 3}), store) == ["refused", *["stored_already"] * 2]
    assert store.stored[T[0]].offset == 50


def test_offset_below_the_log_needs_allow_loss():
    store = Store()
    kafka = Kafka(start=10)
    assert outcomes(Nodes({0: 4}), store, kafka=kafka)[0] == "refused"
    order = ImportRequest("core", "/s", allow_loss=True)
    assert outcomes(Nodes({0: 4}), store, order, kafka)[0] == "imported"
    assert store.stored[T[0]].offset == 4


def test_node_of_a_missing_partition_refuses_the_import():
    assert outcomes(Nodes({3: 4}), Store()) == ["no_storm_node"] * 3 + ["refused"]


def test_running_storm_is_detected_before_writing():
    store = Store()
    with pytest.raises(StormStillRuns, match=r"t\[0\] changed.*deactivate") as caught:
        imported(Nodes({0: 1, 1: 2}, moves={0: b"?"}), store)
    assert caught.value.partitions == [T[0]]
    with pytest.raises(StormStillRuns, match=r"t\[0\] and 1 more"):
        imported(Nodes({0: 1}, moves={0: 2, 1: 2}), store)
    assert store.calls == []


def test_dry_run_reports_a_running_storm():
    order = ImportRequest("core", "/s", dry_run=True)
    rows = imported(Nodes({0: 1, 1: 2}, moves={0: 2}), Store(), order)
    assert [row.outcome for row in rows.values()] == ["to_import", "to_import", "no_storm_node"]
    assert ["Storm still runs" in row.note for row in rows.values()] == [True, False, False]


def test_storm_is_watched_for_the_given_time():
    pauses = []
    pipeline, nodes = SimpleNamespace(name="p", catalogue=Kafka(), store=Store()), Nodes({0: 1})
    for order in (ORDER, ImportRequest("core", "/s", watch_seconds=0)):
        import_offsets(pipeline, nodes, [Source("t")], order, pauses.append)
    assert pauses == [3.0, 0]


def test_failed_write_ends_the_import():
    store = Store(fails={T[1]: StoreError("no right to write")})
    rows = imported(Nodes({0: 1, 1: 2, 2: 3}), store)
    assert [row.outcome for row in rows.values()] == ["imported", "failed", "to_import"]
    assert rows["t[1]"].note == "no right to write"
    assert set(store.stored) == {T[0]}
    store = Store(raced=[T[0]])
    rows = imported(Nodes({0: 1}), store)
    assert "offset 3, just stored" in rows["t[0]"].note
    assert ("begin", 0) not in store.calls


def test_silent_store_ends_the_import():
    """Storm 8: no answer is not "nothing stored"."""
    away = StoreUnavailable("for x", "away")
    with pytest.raises(StoreUnavailable):
        imported(Nodes({0: 1}), Store({T[0]: away}))
    foreign = StoreForeign("/x", "theirs", "p")
    assert outcomes(Nodes({0: 1}), Store({T[0]: foreign}))[0] == "refused"


def test_topics_are_the_topologys_or_the_named_one():
    topology = Topology("t")
    topology.sources += [Source("t"), Source(re.compile("w-.*"))]
    named, pattern = topology.sources
    assert list(_chosen(topology, None)) == [named, pattern]
    assert list(_chosen(topology, "t")) == [named]
    assert list(_chosen(topology, "w-1")) == [pattern]
    with pytest.raises(typer.BadParameter, match="t, /w-"):
        _chosen(topology, "other")
    kafka = Kafka(names=("w-1", "w-2", "x"))
    order = ImportRequest("core", "/s", topic="w-2")
    assert set(imported(Nodes({0: 1}), Store(), order, kafka, [pattern])) == {
        f"w-2[{number}]" for number in range(3)
    }
    with pytest.raises(StormUnreadable, match=r"one topic of w-1, w-2"):
        imported(Nodes({0: 1}), Store(), ORDER, kafka, [pattern])
    for sources, topic in (([pattern], None), ([pattern], "w-9"), ([named], None)):
        with pytest.raises(TopicMissing):
            imported(Nodes({}), Store(), ImportRequest("core", "/s", topic=topic),
                     Kafka(names=["x"]), sources)  # fmt: skip


def test_table_gives_a_reason_for_each_partition():
    rows = list(imported(Nodes({0: 1234, 1: 5}), Store()).values())
    for order, words in (
        (ORDER, ["refused", "not imported", "0 offsets written"]),
        (ImportRequest("core", "/s", dry_run=True), ["would be imported", "nothing was written"]),
    ):
        out = io.StringIO()
        show_imports(Console(file=out, width=100), rows, order, "/headrace/p")
        text = out.getvalue()
        for word in (*words, "1,234", "t[0]: offset 1234 of /s/partition_0 is 1134 above",
                     "t[2]: Storm holds no offset", "/headrace/p"):  # fmt: skip
            assert word in text


def test_incomplete_import_says_what_to_do():
    assert "nothing was written" in str(NotImported(1, 3, 0))
    assert "import the others before the pipeline runs" in str(NotImported(1, 3, 2))


def test_command_knows_the_layouts():
    assert get_args(Layout) == ("core", "trident", "trident-client")
    assert str(get_args(Layout)).strip("()") in str(offsets_import_storm.__annotations__["layout"])


# Judging one partition

P = Partition("t", 3)
LOG = Log(start=10, end=20, topic_id="id")


def judged(
    offset: int | None = 15,
    log: Log | None = LOG,
    stored: object = None,
    *,
    allow_loss: bool = False,
) -> ImportRow:
    storm = None if offset is None else StormOffset(offset, "/s/partition_3", 7, "by wc")
    return judge_import(P, storm, log, stored, "ours", allow_loss=allow_loss)


def stored(offset: int, topology: str = "ours") -> StoredOffset:
    return StoredOffset(Position(offset), topology)


@pytest.mark.parametrize("offset", [10, 15, 20])
def test_offset_inside_the_log_is_imported(offset):
    row = judged(offset)
    assert (row.outcome, row.note, row.lag) == ("to_import", "by wc", 20 - offset)


def test_offset_0_of_an_empty_log_is_imported():
    """Storm 5: 0 is an offset like any other."""
    row = judged(0, Log(0, 0))
    assert (row.outcome, row.storm.offset, row.lag) == ("to_import", 0, 0)


def test_offset_above_the_log_is_always_refused():
    """Storm 6: an offset above the end belongs to another log; it is not moved to this one's."""
    for allow_loss in (False, True):
        row = judged(21, allow_loss=allow_loss)
        assert row.outcome == "refused"
        assert "is 1 above the log's end 20" in row.note
        assert row.lag == -1


def test_offset_below_the_log_is_refused_with_a_way_out():
    row = judged(7)
    assert row.outcome == "refused"
    assert "3 offsets are deleted" in row.note
    assert "--allow-loss" in row.note
    row = judged(7, allow_loss=True)
    assert (row.outcome, row.storm.offset) == ("to_import", 7)
    assert "on_data_loss decides" in row.note


def test_equal_stored_offset_stays_as_it_is():
    assert judged(15, stored=stored(15)).outcome == "stored_already"
    assert judged(5, stored=stored(5)).outcome == "stored_already"


@pytest.mark.parametrize("there", [14, 16, 0])
def test_different_stored_offset_is_never_overwritten(there):
    row = judged(15, stored=stored(there))
    assert row.outcome == "refused"
    assert f"has stored offset {there} already" in row.note
    assert row.stored_offset == there


def test_foreign_or_unreadable_offset_is_never_overwritten():
    assert "topology 'wc' has stored offset 15" in judged(stored=stored(15, "wc")).note
    error = StoreCorrupt("/headrace/p/t/partition_3", "?")
    row = judged(stored=error)
    assert (row.outcome, row.note, row.stored_offset) == ("refused", str(error), None)


def test_partition_without_a_storm_node_is_reported():
    row = judged(None)
    assert row.outcome == "no_storm_node"
    assert "begins it at the log's start" in row.note
    assert "stored offset 4" in judged(None, stored=stored(4)).note
    error = StoreCorrupt("/headrace/p/t/partition_3", "?")
    assert str(error) in judged(None, stored=error).note


def test_node_of_a_missing_partition_is_refused():
    row = judged(log=None)
    assert row.outcome == "refused"
    assert "does not have" in row.note


def test_unreadable_storm_node_is_refused():
    """Storm 8: what cannot be read never becomes a default offset."""
    error = StormUnreadable("/s/partition_3", "''", "an offset")
    row = judge_import(P, error, LOG, None, "ours", allow_loss=True)
    assert (row.outcome, row.note, row.storm) == ("refused", str(error), None)


def test_rows_are_plain_facts():
    assert judged(15, stored=stored(15)).as_json() == {
        "outcome": "stored_already",
        "note": "by wc",
        "storm_offset": 15,
        "storm_node": "/s/partition_3",
        "storm_version": 7,
        "log_start": 10,
        "log_end": 20,
        "lag": 5,
        "stored_offset": 15,
    }
    facts = judged(None, log=None).as_json()
    assert {key for key, value in facts.items() if value is not None} == {"outcome", "note"}
