"""`headrace status`: whose each partition is, what is committed, and what cannot be told."""

import io
import json
import sys
from concurrent.futures import Future
from types import SimpleNamespace

import pytest
from rich.console import Console

from partition.errors import KafkaUnavailable, StoreCorrupt, StoreUnavailable
from partition.memory import MemoryCatalogue
from partition.records import Partition, Position
from partition.replicas.plan import Control, Leaving, Plan
from service.cli import main as main_module
from service.cli import replicas as module
from service.cli.common import OpenPipeline
from service.cli.replicas import Change, follow, read_status, render_status, whose
from tests.support import commands
from tests.support.commands import NOTE, TARGET, FileSink, NodesInMemory
from tests.support.faulty_kafka import FaultyLog
from tests.support.faulty_store import FaultyNodes, FaultyStore
from tests.support.zookeeper import opened_transactions

P = [Partition("numbers", number) for number in range(4)]


class World:
    """Four partitions of one topic, two of them begun, and no replica yet."""

    def __init__(self):
        self.nodes = NodesInMemory()
        self.log = FaultyLog({"numbers": 4})
        for partition in P:
            self.log.append_gap(partition, 100)
        self.catalogue = MemoryCatalogue(self.log)
        self.stored = FaultyNodes()
        self.store = FaultyStore(self.stored, pipeline="tables", topology_id="tables")
        self.catalogue.open()
        self.store.open()
        for partition, offset in ((P[0], 10), (P[1], 100)):
            self.store.claim(partition).result(0)
            self.store.begin(partition, Position(offset)).result(0)
        self.topology = commands.topology_of([FileSink("a")])
        self.pipeline = OpenPipeline(self.topology, None, "tables", self.catalogue, self.store)

    def read(self):
        return read_status(self.pipeline, self.nodes.pipeline)

    def share(self):
        """Replica a, who leads, has 0, gives 1 to b, and is given 2; c is gone and had 3."""
        self.nodes.register("a", P[0], P[1], seen=6)
        self.nodes.register("b", seen=7)
        owners = {P[0]: "a", P[2]: "a", P[3]: "c"}
        self.nodes.put_plan(Plan(7, "a", owners, {P[1]: Leaving("a", 7)}))


@pytest.fixture
def world():
    return World()


def rows_of(status):
    return {each.partition: each for each in status.partitions}


def text_of(status, width=200):
    out = io.StringIO()
    Console(file=out, width=width).print(render_status(status))
    return out.getvalue()


def cells_of(text):
    rows = [[each.strip() for each in line.split("│")[1:-1]] for line in text.splitlines()]
    return [row for row in rows if row]


def test_it_tells_whose_each_partition_is_and_what_is_left_of_it(world):
    world.share()
    found = world.read()
    rows = rows_of(found)
    assert [(rows[each].owner, rows[each].state) for each in P] == [
        ("a", "held"), ("a", "leaving"), ("a", "opening"), ("c", "gone"),
    ]  # fmt: skip
    assert [rows[each].lag for each in P] == [90, 0, 100, 100]
    assert (found.leader, found.lag) == ("a", 290)
    assert [found.lag_of(each) for each in found.members] == [90, 0]


def test_the_facts_are_one_object(world):
    world.share()
    world.nodes.put_control(Control(paused=NOTE, drained={"b": NOTE}))
    change = Change(1, "ada@desk", "x", "numbers[0]", None, 7)
    world.nodes.pipeline.record(change)
    facts = json.loads(json.dumps(world.read().as_json()))
    note = {"by": NOTE.by, "why": NOTE.why, "at_ms": NOTE.at_ms}
    assert (facts["pipeline"], facts["place"]) == ("tables", "/headrace/tables")
    assert (facts["paused"], facts["drained"]) == (note, {"b": note})
    assert facts["plan"] == {"number": 7, "leader": "a"}
    assert facts["replicas"]["a"] == {
        "leads": True, "host": "host-a", "since_ms": NOTE.at_ms,
        "headrace": "0.1.0", "process": "process-of-a", "holds": 2, "lag": 90, "seen": 6,
        "drained": False,
    }  # fmt: skip
    assert (facts["replicas"]["b"]["leads"], facts["replicas"]["b"]["drained"]) == (False, True)
    assert facts["partitions"]["numbers[0]"] == {
        "owner": "a", "state": "held", "epoch": 1, "committed": 10, "log_start": 0,
        "log_end": 100, "lag": 90, "open_txids": [], "note": "",
    }  # fmt: skip
    assert facts["partitions"]["numbers[2]"]["committed"] is None
    assert facts["changes"] == [
        {"at_ms": 1, "by": "ada@desk", "why": "x", "partition": "numbers[0]", "from": None, "to": 7}
    ]
    assert facts["trouble"] is None


def test_a_person_reads_the_same(world):
    world.share()
    world.nodes.put_control(Control(drained={"b": NOTE}))
    for at in range(5):
        world.nodes.pipeline.record(Change(at, "ada@desk", "x", f"numbers[{at}]", at, 7))
    text = text_of(world.read())
    since = "2023-11-14 22:13:20 UTC"
    assert cells_of(text) == [
        ["a (leader)", "host-a", since, "2", "90", "6", "0.1.0"],
        ["b (drained)", "host-b", since, "0", "0", "7", "0.1.0"],
        ["numbers[0]", "a", "1", "10", "100", "90", "0"],
        ["numbers[1]", "a (leaving)", "1", "100", "100", "0", "0"],
        ["numbers[2]", "a (opening)", "-", "-", "100", "100", "0"],
        ["numbers[3]", "c (gone)", "-", "-", "100", "100", "0"],
    ]
    assert "tables: replicas 2, partitions 4, lag 290" in text
    assert f"replica b is drained by ada@desk since {since}: a new release" in text
    assert "numbers[4] was moved from 4 to 7 by ada@desk" in text
    assert "numbers[1] was moved" not in text  # only the newest


def test_where_not_all_have_room_those_that_lag_most_are_shown(world):
    world.log.append_gap(P[3], 50)
    out = io.StringIO()
    Console(file=out, width=200).print(render_status(world.read(), 2))
    shown_rows = [row[0] for row in cells_of(out.getvalue()) if row[0].startswith("numbers")]
    assert shown_rows == ["numbers[3]", "numbers[2]"]
    assert "2 partitions that lag less are not shown" in out.getvalue()
    assert "not shown" not in text_of(world.read())


def test_without_replicas_and_plan_partitions_are_nobody_s(world):
    found = world.read()
    assert [(each.owner, each.state) for each in found.partitions] == [(None, "free")] * 4
    assert (found.leader, found.plan) == (None, None)
    assert "there is no plan" in text_of(found)


def test_a_replica_has_what_it_holds_where_no_plan_is_left():
    world = World()
    world.nodes.register("only", *P[:2])
    members = world.nodes.pipeline.members()
    assert whose(P[0], None, members) == ("only", "held")
    assert whose(P[2], None, members) == (None, "free")


def test_what_left_is_nobody_s(world):
    world.nodes.register("b", seen=8)
    plan = Plan(8, "b", {}, {P[0]: Leaving("a", 8), P[1]: Leaving("b", 8)})
    members = world.nodes.pipeline.members()
    assert whose(P[0], plan, members) == (None, "free")
    assert whose(P[1], plan, members) == ("b", "leaving")


def test_open_transactions_are_counted(world):
    opened = opened_transactions(10, 20, 30, committed=4)
    world.store.move(P[0], Position(10), "a test", opened).result(0)
    row = rows_of(world.read())[P[0]]
    assert row.open_txids == [5, 6]


def test_an_offset_that_cannot_be_read_hides_no_other(world):
    world.stored.put("/headrace/tables/numbers/partition_0", b"?")
    found = world.read()
    assert "partition_0 cannot be read" in rows_of(found)[P[0]].note
    assert rows_of(found)[P[1]].stored.offset == 100
    assert "numbers[0]: /headrace/tables/numbers/partition_0" in text_of(found)


def test_a_replica_s_node_that_cannot_be_read_is_an_error_that_names_it(world):
    path = world.nodes.garble("a")
    with pytest.raises(StoreCorrupt, match=path):
        world.read()


def test_without_kafka_what_zookeeper_says_is_shown(world):
    world.share()
    world.log.away = True
    found = world.read()
    assert isinstance(found.trouble, KafkaUnavailable)
    assert [each.partition for each in found.partitions] == P  # by plan and holders
    assert (rows_of(found)[P[0]].stored.offset, found.lag) == (10, None)
    assert "Kafka does not answer" in text_of(found)
    assert "Kafka does not answer" in found.as_json()["trouble"]


def test_a_partition_whose_leader_is_away_hides_no_other(world, monkeypatch):
    log = world.catalogue.log

    def asked(partition):
        if partition != P[1]:
            return log(partition)
        future = Future()
        future.set_exception(KafkaUnavailable(f"for {partition}", "no leader"))
        return future

    monkeypatch.setattr(world.catalogue, "log", asked)
    found = world.read()
    assert [each.lag for each in found.partitions] == [90, None, 100, 100]
    assert found.lag is None
    assert "no leader" in str(found.trouble)


def test_without_zookeeper_nothing_is_told(world):
    """Storm 8: no answer is not "nothing stored"."""
    world.nodes.away = True
    with pytest.raises(StoreUnavailable):
        world.read()
    world.nodes.away, world.stored.away = False, True
    with pytest.raises(StoreUnavailable):
        world.read()


def test_a_replica_that_leaves_while_it_is_read_is_left_out(world, monkeypatch):
    world.nodes.register("a")
    world.nodes.register("b")
    get = world.nodes.get

    def leaves(path):
        if path.endswith("/a"):
            world.nodes.leave("a")
        return get(path)

    monkeypatch.setattr(world.nodes, "get", leaves)
    assert [each.name for each in world.read().members] == ["b"]


class Watched:
    """Looks so many times, then a signal comes."""

    def __init__(self, world, *troubles):
        self.left = list(troubles)
        self.world = world
        self.pauses = []

    def read(self):
        trouble = self.left.pop(0)
        if trouble is not None:
            raise trouble
        return self.world.read()

    def pause(self, seconds):
        self.pauses.append(seconds)
        if not self.left:
            raise KeyboardInterrupt

    def watch(self, console, *, as_json=False):
        with pytest.raises(KeyboardInterrupt):
            follow(self.read, 2.5, as_json=as_json, console=console, pause=self.pause)


def test_a_watch_goes_on_after_what_cannot_be_read(world, capsys):
    watched = Watched(world, None, StoreUnavailable("for x", "away"), None)
    watched.watch(Console(), as_json=True)
    facts = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [each["trouble"] for each in facts] == [
        None, "the offset store does not answer for x: away", None,
    ]  # fmt: skip
    assert watched.pauses == [2.5] * 3


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_watch_shows_what_it_reads_on_a_terminal_and_in_a_pipe(world, is_terminal):
    out = io.StringIO()
    console = Console(file=out, width=120, height=60, force_terminal=is_terminal)
    away = StoreUnavailable("for x", "away")
    Watched(world, None, away, None).watch(console)
    text = out.getvalue()
    assert "does not answer for x: away" in text
    assert text.count("numbers[3]") >= 2
    assert ("\x1b[" in text) is is_terminal


@pytest.fixture
def headrace(world, tmp_path, monkeypatch, capsys):
    """Run `headrace status` in this process over `world`; exit code, standard output, error."""
    config = tmp_path / "service.toml"
    config.write_text('[kafka]\n"bootstrap.servers" = "-"\n[zookeeper]\nhosts = "-"\n')
    parts = SimpleNamespace(name="tables", catalogue=world.catalogue, store=world.store)
    monkeypatch.setattr(commands, "topology", world.topology)
    monkeypatch.setattr("service.wiring.wire", lambda *_: parts)
    monkeypatch.setattr(module, "replica_nodes", world.nodes.opened)
    monkeypatch.setenv("COLUMNS", "160")

    def headrace(*words):
        line = ["headrace", "status", TARGET, "--config", str(config), *words]
        monkeypatch.setattr(sys, "argv", line)
        code = main_module.main()
        return code, *capsys.readouterr()

    return headrace


def test_the_command_ends_with_0_and_without_kafka_with_1_after_all_else(world, headrace):
    world.share()
    code, out, err = headrace("--json")
    assert (code, err) == (0, "")
    assert json.loads(out)["leader"] == "a"
    world.log.away = True
    code, out, err = headrace()
    assert code == 1
    assert "a (leader)" in out
    assert err.splitlines()[-1].startswith("headrace: Kafka does not answer")


def test_ctrl_c_ends_a_watch_with_0(headrace, monkeypatch):
    looked = []

    def read(*asked):
        if looked:
            raise KeyboardInterrupt
        looked.append(asked)
        return read_status(*asked)

    monkeypatch.setattr(module, "read_status", read)
    code, out, err = headrace("--watch", "--interval", "0.1")
    assert (code, err) == (0, "")
    assert "numbers[3]" in out


def test_watching_faster_than_ten_times_a_second_is_refused(headrace):
    assert headrace("--watch", "--interval", "0")[0] == 2
