import json
import re
from concurrent.futures import Future
from types import SimpleNamespace
from typing import get_args
from unittest.mock import Mock

import pytest
import typer

from headrace import Topology
from partition.errors import StoreCorrupt, StoreError, StoreUnavailable, TopicMissing
from partition.interfaces import Log, StoredOffset
from partition.memory.ports import MemoryCatalogue
from partition.records import Partition, Position
from partition.storm_offsets import Layout, StormOffset
from service.cli.import_storm import _topics, judge_import, offsets_import_storm
from tests.support.commands import TARGET, NodesInMemory, P, World
from tests.support.faulty_kafka import FaultyLog
from tests.unit.service.conftest import facts_of, words_of
from topology.steps import Source

NONE = [None] * 4


@pytest.fixture
def world():
    """The logs hold 5 to 20; nothing is stored."""
    world = World()
    world.stored.nodes.clear()
    return world


@pytest.fixture
def storm():
    """Storm's nodes: `storm.has({partition: offset or bytes})`."""

    class Storm(NodesInMemory):
        def has(self, offsets):
            for number, offset in offsets.items():
                given = isinstance(offset, bytes)
                node = "" if given else json.dumps({"topology": {"id": "wc"}, "offset": offset})
                self.put(f"/s/partition_{number}", offset if given else node.encode())

    return Storm()


@pytest.fixture
def imported(operated, world, storm, monkeypatch):
    """Run the command; return its exit code, the outcomes, and what else it says.

    `meanwhile` is what Storm stores while it is watched.
    """
    monkeypatch.setattr("service.cli.import_storm._reader", lambda *_: storm)
    given = operated(world.nodes, world.topology, **world.parts)

    def imported(*words, meanwhile=None):
        sleep = Mock(side_effect=lambda _seconds: storm.has(meanwhile or {}))
        monkeypatch.setattr("service.cli.import_storm.time", SimpleNamespace(sleep=sleep))
        command = ("offsets", "import-storm", TARGET, "--from", "core", "--path", "/s", "--json")
        code, out, err = given(*command, *words)
        world.store.open()
        rows = facts_of(out)["partitions"] if out else {}
        outcomes = " ".join(row["outcome"] for row in rows.values())
        return SimpleNamespace(code=code, outcomes=outcomes, rows=rows, err=err, sleep=sleep)

    return imported


def test_each_offset_is_stored_and_read_back(world, storm, imported, monkeypatch):
    """Storm 13: what was written is read back before it counts as stored."""
    storm.has({0: 5, 1: 12, 2: 20})
    done = imported()
    assert (done.code, done.outcomes) == (0, "imported imported imported no_storm_node")
    stored = [world.store.load(each) for each in P[:3]]
    wanted = [Position(offset, None, "numbers-1") for offset in (5, 12, 20)]
    assert [each.position for each in stored] == wanted
    storm.has({3: 7})
    forgotten = Future()
    forgotten.set_result(None)
    monkeypatch.setattr(world.store, "begin", lambda *_: forgotten)
    done = imported()
    assert (done.code, done.outcomes.split()[-1]) == (1, "failed")


IN, OUT, NO = "to_import", "refused", "no_storm_node"


@pytest.mark.parametrize(
    ("nodes", "words", "code", "outcomes", "after"),
    [
        ({0: 6, 1: 21}, ["--dry-run"], 1, [IN, OUT, NO, NO], NONE),
        ({0: 6, 1: 7}, ["--dry-run"], 0, [IN, IN, NO, NO], NONE),
        ({0: 6, 1: b"?", 2: 8}, [], 1, [IN, OUT, IN, NO], NONE),
        ({0: 6, 1: b"?", 2: 8}, ["--partial"], 1, ["imported", OUT, "imported", NO],
         [6, None, 8, None]),
        ({0: 4}, [], 1, [OUT, NO, NO, NO], NONE),
        ({0: 4}, ["--allow-loss"], 0, ["imported", NO, NO, NO], [4, None, None, None]),
        ({1: 21, 2: b"?"}, ["--allow-loss"], 1, [NO, OUT, OUT, NO], NONE),
        ({4: 6}, [], 1, [NO, NO, NO, NO, OUT], NONE),
    ],
)  # fmt: skip
def test_all_is_imported_or_nothing(world, storm, imported, nodes, words, code, outcomes, after):
    """Storm 6 and 8: an offset above the end, or one that cannot be read, never becomes another."""
    storm.has(nodes)
    done = imported(*words)
    assert (done.code, done.outcomes) == (code, " ".join(outcomes))
    assert world.offsets() == after
    assert ("partitions refused or failed" in done.err) is (code == 1)


def test_second_import_changes_nothing(world, storm, imported):
    storm.has({0: 6, 1: 7})
    assert imported().code == 0
    nodes = dict(world.stored.nodes)
    done = imported()
    assert (done.code, done.outcomes) == (0, f"stored_already stored_already {NO} {NO}")
    assert world.stored.nodes == nodes
    world.owner.claim(P[0]).result(0)
    world.owner.move(P[0], Position(9), "the pipeline has run").result(0)
    done = imported()
    assert (done.code, done.outcomes) == (1, f"{OUT} stored_already {NO} {NO}")
    assert world.offsets() == [9, 7, None, None]


@pytest.mark.parametrize(
    ("meanwhile", "said"),
    [({0: b"?"}, "numbers[0] changed"), ({0: 8, 1: 8}, "numbers[0] and 1 more changed")],
)
def test_running_storm_is_detected_before_writing(world, storm, imported, meanwhile, said):
    storm.has({0: 6})
    done = imported(meanwhile=meanwhile)
    assert (done.code, done.outcomes, world.offsets()) == (1, "", NONE)
    assert said in done.err
    assert "deactivate the topology" in done.err
    storm.has({0: 6, 1: 9})
    done = imported("--dry-run", meanwhile={0: 7})
    assert ["Storm still runs" in row["note"] for row in done.rows.values()] == [1, 0, 0, 0]


def test_storm_is_watched_for_the_given_time(storm, imported):
    storm.has({0: 6})
    imported("--dry-run").sleep.assert_called_once_with(3.0)
    imported("--watch-seconds", "0").sleep.assert_called_once_with(0)


def test_failed_write_ends_the_import(world, storm, imported):
    storm.has({0: 6, 1: 7, 2: 8})

    def fails(partition):
        if partition == P[1]:
            raise StoreError("no right to write")

    world.before_claim(fails)
    done = imported()
    assert done.outcomes == f"imported failed {IN} {NO}"
    assert done.rows["numbers[1]"]["note"] == "no right to write"
    assert "1 offsets were written; import the others before the pipeline runs" in done.err
    assert world.offsets() == [6, None, None, None]


def test_offset_stored_meanwhile_is_kept(world, storm, imported):
    storm.has({0: 6})

    def late(partition):
        world.owner.claim(partition).result(0)
        world.owner.begin(partition, Position(9)).result(0)

    world.before_claim(late)
    assert "offset 9, just stored" in imported().rows["numbers[0]"]["note"]
    assert world.offsets()[0] == 9


def test_silent_store_ends_the_import(world, storm, imported, monkeypatch):
    """Storm 8: no answer is not "nothing stored"."""
    storm.has({0: 6})
    monkeypatch.setattr(world.store, "load", Mock(side_effect=StoreUnavailable("for x", "away")))
    done = imported()
    assert (done.code, done.outcomes) == (1, "")
    assert "does not answer" in done.err


def test_topics_are_the_topologys_or_the_named_one(imported):
    topology = Topology("t")
    topology.sources += [Source("t"), Source(re.compile("w-.*"))]
    catalogue = MemoryCatalogue(FaultyLog(dict.fromkeys(("t", "w-1", "w-2", "x"), 1)))
    catalogue.open()
    pipeline = SimpleNamespace(topology=topology, catalogue=catalogue)
    for name, topics in ((None, ["t", "w-1", "w-2"]), ("t", ["t"]), ("w-2", ["w-2"])):
        assert sorted(_topics(pipeline, name)) == topics
    with pytest.raises(typer.BadParameter, match="but t, /w-"):
        _topics(pipeline, "other")
    with pytest.raises(TopicMissing):
        _topics(pipeline, "w-9")
    done = imported("--topic", "other")
    assert (done.code, "does not read 'other', but numbers" in words_of(done.err)) == (2, True)


@pytest.mark.parametrize(
    ("words", "said"),
    [([], ["refused", "not imported", "0 offsets written"]),
     (["--dry-run"], ["would be imported", "nothing was written (--dry-run)"])],
)  # fmt: skip
def test_table_gives_a_reason_for_each_partition(operated, world, storm, monkeypatch, words, said):
    monkeypatch.setattr("service.cli.import_storm._reader", lambda *_: storm)
    storm.has({0: 1234, 1: 7})
    given = operated(world.nodes, world.topology, **world.parts)
    command = ("offsets", "import-storm", TARGET, "--from=core", "--path=/s", "--watch-seconds=0")
    code, out, _ = given(*command, *words)
    assert code == 1
    for word in (*said, "1,234", "numbers[0]: offset 1234 of /s/partition_0 is 1214 above",
                 "numbers[2]: Storm holds no offset", "/headrace/tables"):  # fmt: skip
        assert word in out


def test_command_knows_the_layouts():
    assert get_args(Layout) == ("core", "trident", "trident-client")
    assert str(get_args(Layout)).strip("()") in str(offsets_import_storm.__annotations__["layout"])


LOG = Log(start=10, end=20, topic_id="id")
CORRUPT = StoreCorrupt("/headrace/p/t/partition_3", "?")


def stored(offset, topology="ours"):
    return StoredOffset(Position(offset), topology)


@pytest.mark.parametrize(
    ("offset", "log", "found", "outcome", "said"),
    [
        (7, LOG, None, OUT, "3 offsets are deleted; --allow-loss imports it"),
        (5, LOG, stored(5), "stored_already", "by wc"),
        (15, LOG, stored(0), OUT, "stored offset 0 already"),
        (15, LOG, stored(15, "wc"), OUT, "topology 'wc' has stored offset 15"),
        (15, LOG, CORRUPT, OUT, str(CORRUPT)),
        (None, LOG, None, NO, "begins it at the log's start"),
        (None, LOG, stored(4), NO, "stored offset 4"),
        (None, LOG, CORRUPT, NO, str(CORRUPT)),
        (15, None, None, OUT, "does not have"),
    ],
)  # fmt: skip
def test_partition_is_judged(offset, log, found, outcome, said):
    storm = None if offset is None else StormOffset(offset, "/s/partition_3", 7, "by wc")
    row = judge_import(Partition("t", 3), storm, log, found, "ours", allow_loss=False)
    assert (row.outcome, said in row.note) == (outcome, True)


def test_offset_zero_is_imported(world, storm, imported):
    """Storm 5: 0 is an offset like any other."""
    storm.has({0: 0})
    done = imported("--allow-loss")
    assert (done.code, done.rows["numbers[0]"]) == (0, {
        "outcome": "imported", "storm_offset": 0, "storm_node": "/s/partition_0",
        "storm_version": 0, "log_start": 5, "log_end": 20, "lag": 20, "stored_offset": None,
        "note": done.rows["numbers[0]"]["note"],
    })  # fmt: skip
    assert "on_data_loss decides when it is run" in done.rows["numbers[0]"]["note"]
