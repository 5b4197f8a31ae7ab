import io
import json
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from unittest.mock import Mock, call, patch

import pytest
from rich.console import Console

from headrace.sinks import Committed, MemorySink
from partition.errors import KafkaUnavailable, StoreCorrupt, StoreUnavailable
from partition.interfaces import StoredOffset
from partition.memory.ports import MemoryCatalogue
from partition.records import OpenTransaction, Position, Range, Transactions
from partition.replicas.balance import Control, Leaving, Plan
from service.cli import status as status_module
from service.cli.control import OffsetChange
from service.cli.transactions import OpenSinks, Restart, compare, restart_of
from service.config.settings import HttpConfig
from tests.support.commands import NOTE, TARGET, P, World, topology_of
from tests.support.faulty_kafka import FaultyLog
from tests.support.zookeeper import opened_transactions
from tests.unit.service.conftest import cells_of
from topology.errors import SinkFailed
from topology.sink import SinkContext

ZERO, ONE = P[:2]


@pytest.fixture
def world():
    return World()


@pytest.fixture
def read(world):
    pipeline = SimpleNamespace(topology=world.topology, name="tables", **world.parts)
    return partial(status_module.read_status, pipeline, world.nodes.pipeline)


def rows_of(status):
    return {each.partition: each for each in status.partitions}


def text_of(status, most=None):
    out = io.StringIO()
    Console(file=out, width=200).print(status_module.render_status(status, most))
    return out.getvalue()


def test_facts_name_owners_and_lags(world, read):
    world.share()
    world.nodes.put_control(Control(paused=NOTE, drained={"b": NOTE}))
    world.nodes.pipeline.record(OffsetChange(1, "ada@desk", "x", "numbers[0]", None, 7))
    facts = json.loads(json.dumps(read(status_module.ServiceAnswer({"numbers[0]": 12})).as_json()))
    note = {"by": NOTE.by, "why": NOTE.why, "at_ms": NOTE.at_ms}
    replicas, partitions = facts.pop("replicas"), facts.pop("partitions")
    assert facts == {
        "pipeline": "tables", "place": "/headrace/tables", "leader": "a", "trouble": None,
        "latency": {}, "plan": {"number": 7, "leader": "a"}, "paused": note, "drained": {"b": note},
        "rebalance": 0, "resumed": 0, "lag": 50, "changes": [{
            "at_ms": 1, "by": "ada@desk", "why": "x", "partition": "numbers[0]", "from": None,
            "to": 7,
        }],
    }  # fmt: skip
    assert replicas["a"] == {
        "leads": True, "host": "host-a", "since_ms": NOTE.at_ms, "headrace": "0.1.0",
        "process": "process-of-a", "holds": 2, "lag": 20, "seen": 6, "drained": False,
    }  # fmt: skip
    assert (replicas["b"]["leads"], replicas["b"]["drained"]) == (False, True)
    assert partitions["numbers[0]"] == {
        "owner": "a", "state": "held", "epoch": 1, "committed": 10, "last_completed": 12,
        "log_start": 5, "log_end": 20, "lag": 10, "kind": None, "committed_txid": None,
        "open_txids": [], "open": [], "sinks": {}, "restart": None, "note": "",
    }  # fmt: skip
    assert [(each["owner"], each["state"], each["lag"]) for each in partitions.values()] == [
        ("a", "held", 10), ("a", "leaving", 10), ("a", "opening", 15), ("c", "gone", 15),
    ]  # fmt: skip


def test_tables_show_replicas_and_partitions(world, read):
    world.share()
    world.nodes.put_control(Control(drained={"b": NOTE}))
    for number in range(5):
        change = OffsetChange(number, "ada@desk", "x", f"numbers[{number}]", 4, 7)
        world.nodes.pipeline.record(change)
    text = text_of(read())
    since = "2023-11-14 22:13:20 UTC"
    assert cells_of(text) == [
        ["a (leader)", "host-a", since, "2", "20", "6", "0.1.0"],
        ["b (drained)", "host-b", since, "0", "0", "7", "0.1.0"],
        ["numbers[0]", "a", "1", "10", "5", "20", "10"],
        ["numbers[1]", "a (leaving)", "1", "10", "5", "20", "10"],
        ["numbers[2]", "a (opening)", "-", "-", "5", "20", "15"],
        ["numbers[3]", "c (gone)", "-", "-", "5", "20", "15"],
    ]
    assert "tables: replicas 2, partitions 4, lag 50" in text
    assert f"replica b is drained by ada@desk since {since}: a new release" in text
    assert "numbers[4] was moved from 4 to 7 by ada@desk" in text
    assert "numbers[1] was moved" not in text  # only the newest


def test_most_lagging_partitions_are_shown_where_room_is_short(world, read):
    world.log.append_gap(P[3], 50)
    text = text_of(read(), 2)
    assert [row[0] for row in cells_of(text)] == ["numbers[3]", "numbers[2]"]
    assert "2 partitions that lag less are not shown" in text
    assert "not shown" not in text_of(read())


def test_owner_is_found_by_plan_and_holders(world, read):
    found = read()
    assert [(each.owner, each.state) for each in found.partitions] == [(None, "free")] * 4
    assert (found.leader, "there is no plan" in text_of(found)) == (None, True)
    world.nodes.register("b", P[3], seen=8)
    members = world.nodes.pipeline.members()
    plan = Plan(8, "b", {}, {P[0]: Leaving("a", 8), P[1]: Leaving("b", 8)})
    for plan_, partition, owner in (
        (None, P[3], ("b", "held")), (None, P[2], (None, "free")),
        (plan, P[0], (None, "free")), (plan, P[1], ("b", "leaving")),
    ):  # fmt: skip
        assert status_module.owner_and_state(partition, plan_, members) == owner


def test_unreadable_offset_hides_no_other(world, read):
    world.stored.put("/headrace/tables/numbers/partition_0", b"?")
    found = read(sinks=OpenSinks("exactly-once", "opaque"))
    assert "partition_0 cannot be read" in rows_of(found)[P[0]].note
    assert rows_of(found)[P[1]].stored.offset == 10
    assert "numbers[0]: /headrace/tables/numbers/partition_0" in text_of(found)


def test_unreadable_replica_is_an_error_with_its_path(world, read):
    path = world.nodes.garble("a")
    with pytest.raises(StoreCorrupt, match=path):
        read()


def test_leaderless_partition_hides_no_other(world, read, monkeypatch):
    log, failed = world.catalogue.log, Future()
    failed.set_exception(KafkaUnavailable(f"for {ONE}", "no leader"))
    monkeypatch.setattr(world.catalogue, "log", lambda p: failed if p == ONE else log(p))
    found = read()
    assert [each.lag for each in found.partitions] == [10, None, 15, 15]
    assert "no leader" in str(found.trouble)


def test_without_zookeeper_nothing_is_told(world, read):
    """Storm 8: no answer is not "nothing stored"."""
    for away, other in ((world.nodes, world.stored), (world.stored, world.nodes)):
        away.away, other.away = True, False
        with pytest.raises(StoreUnavailable):
            read()


def test_replica_that_leaves_meanwhile_is_left_out(world, read, monkeypatch):
    world.nodes.register("a")
    world.nodes.register("b")
    get = world.nodes.get

    def leaves(path):
        if path.endswith("/a"):
            world.nodes.leave("a")
        return get(path)

    monkeypatch.setattr(world.nodes, "get", leaves)
    assert [each.name for each in read().members] == ["b"]


@pytest.mark.parametrize("form", ["terminal", "pipe", "json"])
def test_watch_continues_after_an_error(read, capsys, form):
    out, away = io.StringIO(), StoreUnavailable("for x", "away")
    console = Console(file=out, width=120, height=60, force_terminal=form == "terminal")
    look, pause = Mock(side_effect=[read(), away, read()]), Mock()
    pause.side_effect = [None, None, KeyboardInterrupt]
    with pytest.raises(KeyboardInterrupt):
        status_module.follow(look, 2.5, as_json=form == "json", console=console, pause=pause)
    assert pause.call_args_list == [call(2.5)] * 3
    text = out.getvalue() + capsys.readouterr().out
    if form == "json":
        assert [json.loads(line)["trouble"] for line in text.splitlines()] == [
            None, "the offset store does not answer for x: away", None,
        ]  # fmt: skip
    assert "does not answer for x: away" in text
    assert text.count("numbers[3]") >= 2
    assert ("\x1b[" in text) is (form == "terminal")


@pytest.fixture
def status(operated, world):
    given = operated(world.nodes, world.topology, **world.parts)
    return lambda *words: given("status", TARGET, *words)


def test_status_exits_with_1_without_kafka_after_all_else(world, status):
    world.share()
    code, out, err = status("--json")
    assert (code, err) == (0, "")
    assert json.loads(out)["leader"] == "a"
    world.log.away = True
    facts = json.loads(status("--json")[1])
    assert list(facts["partitions"]) == list(map(str, P))  # by plan and holders
    assert (facts["partitions"]["numbers[0]"]["committed"], facts["lag"]) == (10, None)
    assert "Kafka does not answer" in facts["trouble"]
    code, out, err = status()
    assert code == 1
    assert "a (leader)" in out
    assert "Kafka does not answer" in out
    assert err.splitlines()[-1].startswith("headrace: Kafka does not answer")


def test_ctrl_c_ends_a_watch_with_0(read, status, monkeypatch):
    looks = Mock(side_effect=[read(), KeyboardInterrupt])
    monkeypatch.setattr("service.cli.status.read_status", looks)
    code, out, err = status("--watch", "--interval", "0.1")
    assert (code, err) == (0, "")
    assert "numbers[3]" in out


def figures_of(text):
    with patch("http.client.HTTPConnection") as connection:
        connection().getresponse().read.return_value = text.encode()
        figures = status_module.ask_service(HttpConfig(port=1))
    connection().request.assert_called_once_with("GET", "/status.json")
    return figures


def test_one_request_tells_latency_and_completed_offsets(world, read):
    world.share()
    figures = {
        "end_to_end_median_seconds": None, "end_to_end_p99_seconds": None,
        "processing_median_seconds": 0.35, "processing_p99_seconds": 4.2,
    }  # fmt: skip
    answer = {"pipeline": "tables", "latency": figures, "last_completed": {"numbers[0]": 12}}
    found = read(figures_of(json.dumps(answer)))
    assert found.as_json()["latency"] == figures
    line = "latency here in the last 15 minutes: fetch to commit 350 ms median, 4.2 s p99"
    assert line in text_of(found)
    assert [each.completed for each in found.partitions] == [12, None, None, None]


@pytest.mark.parametrize("answer", ["", "404 not found", '{"latency": 3}', '{"pipeline": "x"}'])
def test_another_service_at_the_port_has_no_figures(answer):
    without_port, at_port = map(status_module.ask_service, (HttpConfig(), HttpConfig(port=1)))
    assert figures_of(answer) == without_port == at_port == status_module.ServiceAnswer()


def stored(*ends, committed=41, kind="transactional", epoch=2):
    """Transactions after 41, the first from offset 900."""
    opened = opened_transactions(900, *ends, committed=committed, kind=kind)
    return StoredOffset(Position(900), "t", epoch=epoch, transactions=opened)


def having(epoch=2, **txids):
    return {name: Committed("numbers[0]", epoch, txid) for name, txid in txids.items()}


@pytest.mark.parametrize(
    ("found", "sinks", "restart", "words"),
    [
        (stored(), having(a=41), Restart(), "goes on"),
        (stored(910), having(a=41), Restart(replayed=(42,)), "replays 42"),
        (stored(910, 920), having(a=42, b=42), Restart(done=(42,), replayed=(43,)),
         "finds done 42; replays 43"),
        (stored(910, 920), having(a=42, b=41), Restart(replayed=(42, 43)), "replays 42, 43"),
        (stored(910, 920, kind="opaque"), having(a=42, b=41),
         Restart(replayed=(42,), anew=(43,)), "replays 42; reads anew 43"),
        (None, having(epoch=0, a=0), Restart(), "goes on"),
        (StoredOffset(Position(7), "t", epoch=2), having(a=0), Restart(), "goes on"),
    ],
)  # fmt: skip
def test_restart_is_foretold_as_the_service_decides(found, sinks, restart, words):
    kind = found.transactions.kind if found and found.transactions else "opaque"
    assert restart_of(ZERO, found, sinks, kind) == restart
    assert str(restart) == words


@pytest.mark.parametrize(
    ("found", "sinks", "kind", "said"),
    [
        (stored(910), having(a=43), "transactional", "sink 'a' has transaction 43"),
        (stored(910), having(a=41, b=40), "transactional", "sink 'b' has transactions up to 40"),
        (stored(910), having(a=41), "opaque", "numbers[0]"),
        (None, having(a=1), "transactional", "numbers[0]: sink 'a' has had an owner under epoch 2"),
        (stored(910, epoch=1), having(epoch=3, a=41), "transactional", "knows up to 1"),
    ],
)
def test_halting_restart_has_the_errors_words(found, sinks, kind, said):
    restart = restart_of(ZERO, found, sinks, kind)
    assert said in (restart.halts or "")
    assert str(restart) == "halts"


def compared(load, txid, partitions=(ZERO,), **others):
    """Compare with sinks that have committed so much of every line."""

    def ask(lines):
        return [Committed(line, 2, txid) for line in lines]

    sinks = OpenSinks("exactly-once", "transactional", {"a": ask, **others})
    return compare(partitions, load, sinks), sinks


def test_only_partitions_that_moved_are_read_again():
    """A healthy service commits meanwhile: its sinks are neither ahead nor behind."""
    loaded = []

    def load(partition):
        loaded.append(partition)
        moves = partition == ONE and loaded.count(ONE) < 2
        return stored(committed=41 if moves else 42)

    found, _ = compared(load, 42, [ZERO, ONE])
    assert list(found) == [ZERO, ONE]
    assert (loaded.count(ZERO), loaded.count(ONE)) == (2, 4)
    assert all(each.restart == Restart() for each in found.values())
    assert found[ONE].stored == stored(committed=42)


def test_no_restart_is_foretold_while_the_store_moves():
    txids = iter(range(41, 60))
    found, _ = compared(lambda _: stored(committed=next(txids)), 50)
    assert found[ZERO].restart is None
    assert found[ZERO].stored.transactions.committed == 46


def test_failing_sink_hides_neither_the_others_nor_the_store():
    away = Mock(side_effect=OSError("away"))
    found, sinks = compared(lambda _: stored(910), 41, b=away)
    assert sinks.failed == {"b": "OSError: away"}
    assert (found[ZERO].sinks, found[ZERO].restart) == (having(a=41), None)
    assert [each.txid for each in found[ZERO].stored.transactions.open] == [42]


class CommittedSink(MemorySink):
    def __init__(self, name, txid=None):
        super().__init__(name)
        self.txid = txid

    def open(self, context):
        if self.txid is None:
            raise SinkFailed(f"nobody answers {context.sink}")

    def committed(self, lines):
        return [Committed(line, *((2, self.txid) if line == "numbers[0]" else (0, 0)))
                for line in lines]  # fmt: skip


@pytest.fixture
def with_sinks(operated, world):
    """`with_sinks(offset, txids, *words)` runs `status --sinks`; None is of a sink that is away."""

    def with_sinks(offset, txids, *words, reliability="exactly-once"):
        sinks = [CommittedSink(name, txid) for name, txid in txids.items()]
        topology = topology_of(sinks, reliability=reliability)
        store = Mock(load={ZERO: offset}.get)
        context = SinkContext("flow", "s", {}, None, None)
        given = operated(
            world.nodes, topology, catalogue=MemoryCatalogue(FaultyLog({"numbers": 2})),
            store=store, sinks=topology.sink_steps(),
            context=lambda name: replace(context, sink=name),
        )  # fmt: skip
        result = given("status", TARGET, "--sinks", *words)
        assert store.close.call_count == 1
        return result

    return with_sinks


def test_open_transactions_name_the_sinks_that_have_them(with_sinks):
    code, out, _ = with_sinks(stored(910, 940), {"a": 42, "b": 41}, "--json")
    facts = json.loads(out)
    assert (code, facts["reliability"], facts["failed_sinks"]) == (0, "exactly-once", {})
    zero, one = (facts["partitions"][f"numbers[{number}]"] for number in (0, 1))
    sealed = {"attempt": 1, "state": "sealed"}
    known = {
        "committed": 900, "epoch": 2, "kind": "transactional", "committed_txid": 41,
        "open": [
            {"txid": 42, "first": 900, "end": 910, "records": 10, "digest": f"{910:032x}",
             "sinks": ["a"], **sealed},
            {"txid": 43, "first": 910, "end": 940, "records": 30, "digest": f"{940:032x}",
             "sinks": [], **sealed},
        ],
        "sinks": {"a": {"epoch": 2, "txid": 42}, "b": {"epoch": 2, "txid": 41}},
        "restart": {"done": [], "replayed": [42, 43], "anew": [], "halts": None},
    }  # fmt: skip
    assert {key: zero[key] for key in known} == known
    assert (one["committed"], one["committed_txid"], one["open"]) == (None, None, [])
    assert cells_of(with_sinks(stored(910, 940), {"a": 42, "b": 41})[1]) == [
        ["numbers[0]", "-", "2", "900", "0", "0", "-900", "41", "2", "42", "41", "replays 42, 43"],
        ["numbers[1]", "-", "-", "-", "0", "0", "0", "-", "0", "0", "0", "goes on"],
        ["numbers[0]", "42", "1", "900", "910", "10", "a"],
        ["numbers[0]", "43", "1", "910", "940", "30", "no sink"],
    ]


def test_unread_range_is_shown_as_planned(with_sinks):
    planned = OpenTransaction(42, 3, Range(900, 910))
    node = replace(stored(), transactions=Transactions("transactional", 41, (planned,)))
    row = ["numbers[0]", "42", "3", "900", "910", "planned", "no sink"]
    assert row in cells_of(with_sinks(node, {"a": 41})[1])
    partitions = json.loads(with_sinks(node, {"a": 41}, "--json")[1])["partitions"]
    (found,) = partitions["numbers[0]"]["open"]
    assert [found[key] for key in ("state", "records", "digest")] == ["planned", None, None]


@pytest.mark.parametrize(
    ("txids", "reliability", "code", "said"),
    [
        ({"a": 43}, "exactly-once", 0, ["numbers[0]: sink 'a' has transaction 43"]),
        ({"a": 41, "b": None}, "exactly-once", 1, [
            "b: nobody answers b", "900", "what a restart would do is known only when",
            "headrace: not asked: b;",
        ]),
        ({"a": None}, "at-least-once", 0, [
            "the topology is at-least-once; no sink keeps transactions",
            "what is open is dropped by its next commit",
        ]),
    ],
)  # fmt: skip
def test_trouble_with_sinks_is_told_beside_offsets(with_sinks, txids, reliability, code, said):
    found, out, err = with_sinks(stored(910), txids, reliability=reliability)
    assert found == code
    assert [each for each in said if each not in out + err] == []
