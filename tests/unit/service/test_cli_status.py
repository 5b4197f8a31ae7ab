"""`headrace status`: owners, offsets and transactions, and what cannot be told."""

import io
import json
from concurrent.futures import Future
from dataclasses import replace
from types import SimpleNamespace

import pytest
from rich.console import Console

from headrace import Topology
from headrace.sinks import Committed, MemoryDeadLetters, MemorySink
from partition.errors import KafkaUnavailable, StoreCorrupt, StoreUnavailable
from partition.interfaces import StoredOffset
from partition.memory.ports import MemoryCatalogue
from partition.records import OpenTransaction, Partition, Position, Range, Transactions
from partition.replicas.plan import Control, Leaving, Plan
from service.cli.control import OffsetChange
from service.cli.status import follow, last_completed, owner_and_state, read_status, render_status
from service.cli.transactions import OpenSinks, Restart, compare, restart_of
from service.config.settings import HttpConfig
from tests.support.commands import NOTE, TARGET, FileSink, NodesInMemory, passes, topology_of
from tests.support.faulty_kafka import FaultyLog
from tests.support.faulty_store import FaultyNodes, FaultyStore
from tests.support.zookeeper import opened_transactions
from tests.unit.service.conftest import cells_of
from topology.errors import SinkFailed
from topology.sink import SinkContext

P = [Partition("numbers", number) for number in range(4)]
ZERO, ONE = P[:2]


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
        self.topology = topology_of([FileSink("a")])
        self.pipeline = SimpleNamespace(
            topology=self.topology, name="tables", catalogue=self.catalogue, store=self.store
        )

    def read(self, **more):
        return read_status(self.pipeline, self.nodes.pipeline, **more)

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


def text_of(status, most=None):
    out = io.StringIO()
    Console(file=out, width=200).print(render_status(status, most))
    return out.getvalue()


def test_facts_name_owners_and_lags(world):
    world.share()
    world.nodes.put_control(Control(paused=NOTE, drained={"b": NOTE}))
    world.nodes.pipeline.record(OffsetChange(1, "ada@desk", "x", "numbers[0]", None, 7))
    facts = json.loads(json.dumps(world.read(completed={P[0]: 40}).as_json()))
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
        "owner": "a", "state": "held", "epoch": 1, "committed": 10, "last_completed": 40,
        "log_start": 0, "log_end": 100, "lag": 90, "kind": None, "committed_txid": None,
        "open_txids": [], "open": [], "sinks": {}, "restart": None, "note": "",
    }  # fmt: skip
    found = [facts["partitions"][str(each)] for each in P]
    assert [(each["owner"], each["state"]) for each in found] == [
        ("a", "held"), ("a", "leaving"), ("a", "opening"), ("c", "gone"),
    ]  # fmt: skip
    assert ([each["lag"] for each in found], facts["lag"]) == ([90, 0, 100, 100], 290)
    assert found[2]["committed"] is None
    assert facts["changes"] == [
        {"at_ms": 1, "by": "ada@desk", "why": "x", "partition": "numbers[0]", "from": None, "to": 7}
    ]
    assert (facts["leader"], facts["trouble"], "failed_sinks" in facts) == ("a", None, False)


def test_tables_show_replicas_and_partitions(world):
    world.share()
    world.nodes.put_control(Control(drained={"b": NOTE}))
    for number in range(5):
        change = OffsetChange(number, "ada@desk", "x", f"numbers[{number}]", 4, 7)
        world.nodes.pipeline.record(change)
    text = text_of(world.read())
    since = "2023-11-14 22:13:20 UTC"
    assert cells_of(text) == [
        ["a (leader)", "host-a", since, "2", "90", "6", "0.1.0"],
        ["b (drained)", "host-b", since, "0", "0", "7", "0.1.0"],
        ["numbers[0]", "a", "1", "10", "0", "100", "90"],
        ["numbers[1]", "a (leaving)", "1", "100", "0", "100", "0"],
        ["numbers[2]", "a (opening)", "-", "-", "0", "100", "100"],
        ["numbers[3]", "c (gone)", "-", "-", "0", "100", "100"],
    ]
    assert "tables: replicas 2, partitions 4, lag 290" in text
    assert f"replica b is drained by ada@desk since {since}: a new release" in text
    assert "numbers[4] was moved from 4 to 7 by ada@desk" in text
    assert "numbers[1] was moved" not in text  # only the newest


def test_completed_offsets_and_txids_are_columns_where_known(world):
    opened = opened_transactions(10, 20, 30, committed=4)
    world.store.move(P[0], Position(10), "a test", opened).result(0)
    found = world.read(completed={P[0]: 12})
    assert [each.txid for each in rows_of(found)[P[0]].open] == [5, 6]
    assert cells_of(text_of(found))[0] == [
        "numbers[0]", "-", "1", "10", "12", "0", "100", "90", "4", "2",
    ]  # fmt: skip


def test_most_lagging_partitions_are_shown_where_room_is_short(world):
    world.log.append_gap(P[3], 50)
    text = text_of(world.read(), 2)
    assert [row[0] for row in cells_of(text)] == ["numbers[3]", "numbers[2]"]
    assert "2 partitions that lag less are not shown" in text
    assert "not shown" not in text_of(world.read())


def test_partitions_are_free_without_replicas_and_plan(world):
    found = world.read()
    assert [(each.owner, each.state) for each in found.partitions] == [(None, "free")] * 4
    assert (found.leader, found.plan) == (None, None)
    assert "there is no plan" in text_of(found)
    world.nodes.register("only", *P[:2])
    members = world.nodes.pipeline.members()
    assert owner_and_state(P[0], None, members) == ("only", "held")
    assert owner_and_state(P[2], None, members) == (None, "free")


def test_released_partition_is_free(world):
    world.nodes.register("b", seen=8)
    plan = Plan(8, "b", {}, {P[0]: Leaving("a", 8), P[1]: Leaving("b", 8)})
    members = world.nodes.pipeline.members()
    assert owner_and_state(P[0], plan, members) == (None, "free")
    assert owner_and_state(P[1], plan, members) == ("b", "leaving")


def test_unreadable_offset_hides_no_other(world):
    world.stored.put("/headrace/tables/numbers/partition_0", b"?")
    found = world.read(sinks=OpenSinks("exactly-once", "opaque"))
    assert "partition_0 cannot be read" in rows_of(found)[P[0]].note
    assert rows_of(found)[P[1]].stored.offset == 100
    assert "numbers[0]: /headrace/tables/numbers/partition_0" in text_of(found)


def test_unreadable_replica_is_an_error_with_its_path(world):
    path = world.nodes.garble("a")
    with pytest.raises(StoreCorrupt, match=path):
        world.read()


def test_without_kafka_zookeepers_facts_are_shown(world):
    world.share()
    world.log.away = True
    found = world.read()
    assert isinstance(found.trouble, KafkaUnavailable)
    assert [each.partition for each in found.partitions] == P  # by plan and holders
    assert (rows_of(found)[P[0]].stored.offset, found.as_json()["lag"]) == (10, None)
    assert "Kafka does not answer" in text_of(found)
    assert "Kafka does not answer" in found.as_json()["trouble"]


def test_leaderless_partition_hides_no_other(world, monkeypatch):
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
    assert "no leader" in str(found.trouble)


def test_without_zookeeper_nothing_is_told(world):
    """Storm 8: no answer is not "nothing stored"."""
    for away, other in ((world.nodes, world.stored), (world.stored, world.nodes)):
        away.away, other.away = True, False
        with pytest.raises(StoreUnavailable):
            world.read()


def test_replica_that_leaves_meanwhile_is_left_out(world, monkeypatch):
    world.nodes.register("a")
    world.nodes.register("b")
    get = world.nodes.get

    def leaves(path):
        if path.endswith("/a"):
            world.nodes.leave("a")
        return get(path)

    monkeypatch.setattr(world.nodes, "get", leaves)
    assert [each.name for each in world.read().members] == ["b"]


def watch(world, console, *troubles, as_json=False):
    """Look once for each trouble, which is raised unless None; then a signal comes."""
    left, pauses = list(troubles), []

    def read():
        trouble = left.pop(0)
        if trouble is not None:
            raise trouble
        return world.read()

    def pause(seconds):
        pauses.append(seconds)
        if not left:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        follow(read, 2.5, as_json=as_json, console=console, pause=pause)
    assert pauses == [2.5] * len(troubles)


AWAY = StoreUnavailable("for x", "away")


def test_watch_continues_after_an_error(world, capsys):
    watch(world, Console(), None, AWAY, None, as_json=True)
    facts = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [each["trouble"] for each in facts] == [
        None, "the offset store does not answer for x: away", None,
    ]  # fmt: skip


@pytest.mark.parametrize("is_terminal", [True, False])
def test_watch_shows_the_same_on_a_terminal_and_in_a_pipe(world, is_terminal):
    out = io.StringIO()
    console = Console(file=out, width=120, height=60, force_terminal=is_terminal)
    watch(world, console, None, AWAY, None)
    text = out.getvalue()
    assert "does not answer for x: away" in text
    assert text.count("numbers[3]") >= 2
    assert ("\x1b[" in text) is is_terminal


@pytest.fixture
def status(operated, world):
    given = operated(world.nodes, world.topology, catalogue=world.catalogue, store=world.store)
    return lambda *words: given("status", TARGET, *words)


def test_status_exits_with_1_without_kafka_after_all_else(world, status):
    world.share()
    code, out, err = status("--json")
    assert (code, err) == (0, "")
    assert json.loads(out)["leader"] == "a"
    world.log.away = True
    code, out, err = status()
    assert code == 1
    assert "a (leader)" in out
    assert err.splitlines()[-1].startswith("headrace: Kafka does not answer")


def test_ctrl_c_ends_a_watch_with_0(status, monkeypatch):
    looked = []

    def read(*asked):
        if looked:
            raise KeyboardInterrupt
        looked.append(asked)
        return read_status(*asked)

    monkeypatch.setattr("service.cli.status.read_status", read)
    code, out, err = status("--watch", "--interval", "0.1")
    assert (code, err) == (0, "")
    assert "numbers[3]" in out


def test_watch_faster_than_ten_times_a_second_is_refused(status):
    assert status("--watch", "--interval", "0")[0] == 2


def test_completed_offsets_need_a_service_that_answers():
    assert last_completed(HttpConfig()) == {}
    assert last_completed(HttpConfig(port=1)) == {}


# Transactions


def stored(*ends, committed=41, kind="transactional", epoch=2):
    """Transactions after 41, the first from offset 900."""
    opened = opened_transactions(900, *ends, committed=committed, kind=kind)
    return StoredOffset(Position(900), "t", epoch=epoch, transactions=opened)


def having(**txids):
    return {name: Committed("numbers[0]", 2, txid) for name, txid in txids.items()}


def sinks_with(**txids):
    """Sinks that have committed so much of every line."""

    def ask(txid):
        return lambda lines: [Committed(line, 2, txid) for line in lines]

    return OpenSinks(
        "exactly-once", "transactional", {name: ask(txid) for name, txid in txids.items()}
    )


@pytest.mark.parametrize(
    ("found", "sinks", "kind", "restart", "words"),
    [
        (stored(), having(a=41), "transactional", Restart(), "goes on"),
        (stored(910), having(a=41), "transactional", Restart(replayed=(42,)), "replays 42"),
        (stored(910, 920), having(a=42, b=42), "transactional",
         Restart(done=(42,), replayed=(43,)), "finds done 42; replays 43"),
        (stored(910, 920), having(a=42, b=41), "transactional",
         Restart(replayed=(42, 43)), "replays 42, 43"),
        (stored(910, 920, kind="opaque"), having(a=42, b=41), "opaque",
         Restart(replayed=(42,), anew=(43,)), "replays 42; reads anew 43"),
        (None, {"a": Committed("", 0, 0)}, "transactional", Restart(), "goes on"),
        (StoredOffset(Position(7), "t", epoch=2), having(a=0), "opaque", Restart(), "goes on"),
    ],
)  # fmt: skip
def test_restart_is_foretold_as_the_service_decides(found, sinks, kind, restart, words):
    assert restart_of(ZERO, found, sinks, kind) == restart
    assert str(restart) == words


@pytest.mark.parametrize(
    ("found", "sinks", "kind", "said"),
    [
        (stored(910), having(a=43), "transactional", "sink 'a' has transaction 43"),
        (stored(910), having(a=41, b=40), "transactional", "sink 'b' has transactions up to 40"),
        (stored(910), having(a=41), "opaque", "numbers[0]"),
        (None, having(a=1), "transactional", "numbers[0]: sink 'a' has had an owner under epoch 2"),
        (stored(910, epoch=1), {"a": Committed("", 3, 41)}, "transactional", "knows up to 1"),
    ],
)
def test_halting_restart_has_the_errors_words(found, sinks, kind, said):
    restart = restart_of(ZERO, found, sinks, kind)
    assert said in (restart.halts or "")
    assert str(restart) == "halts"


def test_only_partitions_that_moved_are_read_again():
    """A healthy service commits meanwhile: its sinks are neither ahead nor behind."""
    loaded = []

    def load(partition):
        loaded.append(partition)
        moves = partition == ONE and loaded.count(ONE) < 2
        return stored(committed=41 if moves else 42)

    found = compare([ZERO, ONE], load, sinks_with(a=42))
    assert list(found) == [ZERO, ONE]
    assert (loaded.count(ZERO), loaded.count(ONE)) == (2, 4)
    assert all(each.restart == Restart() for each in found.values())
    assert found[ONE].stored == stored(committed=42)


def test_no_restart_is_foretold_while_the_store_moves():
    txids = iter(range(41, 60))
    found = compare([ZERO], lambda _: stored(committed=next(txids)), sinks_with(a=50))[ZERO]
    assert (found.restart, found.stored.transactions.committed) == (None, 46)


def test_failing_sink_hides_neither_the_others_nor_the_store():
    def broken(_lines):
        raise OSError("away")

    sinks = sinks_with(a=41)
    sinks.ask["b"] = broken
    found = compare([ZERO], lambda _: stored(910), sinks)[ZERO]
    assert sinks.failed == {"b": "OSError: away"}
    assert (found.sinks, found.restart) == (having(a=41), None)
    assert [each.txid for each in found.stored.transactions.open] == [42]


@pytest.fixture
def with_sinks(operated, world):
    """`with_sinks(topology, offsets, *words)` runs `status --sinks` over stored offsets."""
    closed = []

    def with_sinks(topology, offsets, *words):
        from topology.steps import SinkStep  # noqa: PLC0415 - beside a fixture's argument

        store = SimpleNamespace(
            open=lambda: None, load=offsets.get, close=lambda: closed.append("store")
        )
        catalogue = MemoryCatalogue(FaultyLog({"numbers": 2}))
        steps = [step for step in topology.steps() if isinstance(step, SinkStep)]
        context = SinkContext("flow", "s", {}, None, None)
        given = operated(
            world.nodes, topology, catalogue=catalogue, store=store, sinks=steps,
            context=lambda name: replace(context, sink=name),
        )  # fmt: skip
        result = given("status", TARGET, "--sinks", *words)
        assert closed.pop() == "store"
        return result

    return with_sinks


def flow(*sinks, reliability="exactly-once"):
    made = Topology("flow", reliability=reliability)
    rows = made.source("numbers").then(passes)
    for sink in sinks:
        rows.into(sink)
    made.dead_letters.into(MemoryDeadLetters())
    return made


def committed_in(name, txid):
    """A sink that has committed so much of the first line."""

    class CommittedSink(MemorySink):
        def committed(self, lines):
            return [Committed(line, 2, txid) if line == "numbers[0]" else Committed(line, 0, 0)
                    for line in lines]  # fmt: skip

    return CommittedSink(name)


def test_open_transactions_name_the_sinks_that_have_them(with_sinks):
    topology = flow(committed_in("a", 42), committed_in("b", 41))
    code, out, _ = with_sinks(topology, {ZERO: stored(910, 940)}, "--json")
    assert code == 0
    facts = json.loads(out)
    assert (facts["reliability"], facts["failed_sinks"]) == ("exactly-once", {})
    zero, one = (facts["partitions"][f"numbers[{number}]"] for number in (0, 1))
    assert zero["open"] == [
        {"txid": 42, "attempt": 1, "first": 900, "end": 910, "state": "sealed", "records": 10,
         "digest": f"{910:032x}", "sinks": ["a"]},
        {"txid": 43, "attempt": 1, "first": 910, "end": 940, "state": "sealed", "records": 30,
         "digest": f"{940:032x}", "sinks": []},
    ]  # fmt: skip
    assert (zero["committed"], zero["epoch"], zero["kind"]) == (900, 2, "transactional")
    assert zero["committed_txid"] == 41
    assert zero["sinks"] == {"a": {"epoch": 2, "txid": 42}, "b": {"epoch": 2, "txid": 41}}
    assert zero["restart"] == {"done": [], "replayed": [42, 43], "anew": [], "halts": None}
    assert (one["committed"], one["committed_txid"], one["open"]) == (None, None, [])
    code, out, _ = with_sinks(topology, {ZERO: stored(910, 940)})
    assert code == 0
    assert cells_of(out) == [
        ["numbers[0]", "-", "2", "900", "0", "0", "-900", "41", "2", "42", "41", "replays 42, 43"],
        ["numbers[1]", "-", "-", "-", "0", "0", "0", "-", "0", "0", "0", "goes on"],
        ["numbers[0]", "42", "1", "900", "910", "10", "a"],
        ["numbers[0]", "43", "1", "910", "940", "30", "no sink"],
    ]


def test_unread_range_is_shown_as_planned(with_sinks):
    topology = flow(committed_in("a", 41))
    planned = OpenTransaction(42, 3, Range(900, 910))
    node = replace(stored(), transactions=Transactions("transactional", 41, (planned,)))
    code, out, _ = with_sinks(topology, {ZERO: node})
    assert code == 0
    assert ["numbers[0]", "42", "3", "900", "910", "planned", "no sink"] in cells_of(out)
    code, out, _ = with_sinks(topology, {ZERO: node}, "--json")
    assert json.loads(out)["partitions"]["numbers[0]"]["open"] == [
        {"txid": 42, "attempt": 3, "first": 900, "end": 910, "state": "planned",
         "records": None, "digest": None, "sinks": []},
    ]  # fmt: skip


def test_reason_of_a_halting_restart_is_printed(with_sinks):
    code, out, _ = with_sinks(flow(committed_in("a", 43)), {ZERO: stored(910)})
    assert code == 0
    assert "numbers[0]: sink 'a' has transaction 43" in out


def test_sink_that_does_not_open_is_told_with_exit_code_1(with_sinks):
    class Away(MemorySink):
        def open(self, context: SinkContext) -> None:
            raise SinkFailed(f"nobody answers {context.sink}")

    code, out, err = with_sinks(flow(committed_in("a", 41), Away("b")), {ZERO: stored(910)})
    assert code == 1
    assert "b: nobody answers b" in out
    assert "900" in out
    assert err.splitlines()[-1].startswith("headrace: not asked: b;")


def test_sinks_are_not_opened_unless_exactly_once(with_sinks):
    class Unopened(MemorySink):
        def open(self, context: SinkContext) -> None:
            raise AssertionError(context)

    topology = flow(Unopened("a"), reliability="at-least-once")
    code, out, _ = with_sinks(topology, {ZERO: stored(910)})
    assert code == 0
    assert "the topology is at-least-once; no sink keeps transactions" in out
    assert "what is open is dropped by its next commit" in out
