"""`headrace transactions show`: what is open, who has it, and what a restart would do with it."""

import json
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest

from headrace import Topology
from headrace.sinks import Committed, Fence, MemoryDeadLetters, MemorySink
from partition.errors import StoreCorrupt
from partition.interfaces import StoredOffset
from partition.memory import MemoryCatalogue
from partition.records import OpenTransaction, Partition, Position, Range, Transactions
from service import wiring
from service.cli import main as main_module
from service.cli import transactions
from service.cli.transactions import Restart, compare, restart_of
from tests.support import commands
from tests.support.commands import TARGET, passes
from tests.support.faulty_kafka import FaultyLog
from tests.support.zookeeper import opened_transactions
from topology.errors import SinkFailed
from topology.sink import SinkContext

ZERO, ONE = Partition("numbers", 0), Partition("numbers", 1)


def stored(*ends, committed=41, kind="transactional", epoch=2):
    """Transactions after 41, the first from offset 900."""
    opened = opened_transactions(900, *ends, committed=committed, kind=kind)
    return StoredOffset(Position(900), "t", epoch=epoch, transactions=opened)


def having(**txids):
    return {name: Committed("numbers[0]", 2, txid) for name, txid in txids.items()}


def asked(**txids):
    """Sinks that have committed so much of every line."""

    def ask(txid):
        return lambda lines: [Committed(line, 2, txid) for line in lines]

    return {name: ask(txid) for name, txid in txids.items()}


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
def test_a_restart_does_what_the_service_would_do(found, sinks, kind, restart, words):
    assert restart_of(ZERO, found, sinks, kind) == restart
    assert restart.in_words() == words


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
def test_what_would_halt_a_partition_is_said_in_its_error_s_words(found, sinks, kind, said):
    restart = restart_of(ZERO, found, sinks, kind)
    assert said in (restart.halts or "")
    assert restart.in_words() == "halts"


def test_a_store_that_moves_while_the_sinks_are_asked_is_read_again():
    """A healthy service commits meanwhile: its sinks are neither ahead nor behind."""
    readings = iter([stored(910), stored(committed=42), stored(committed=42), stored(committed=42)])
    found = compare([ZERO], lambda _: next(readings), asked(a=42), {}, "transactional")
    (standing,) = found.standings
    assert standing.stored == stored(committed=42)
    assert standing.restart == Restart()
    assert next(readings, None) is None


def test_of_a_store_that_never_stands_still_no_restart_is_foretold():
    txids = iter(range(41, 60))
    found = compare(
        [ZERO], lambda _: stored(committed=next(txids)), asked(a=50), {}, "transactional"
    )
    (standing,) = found.standings
    assert standing.restart is None
    assert standing.committed == 46


def test_only_partitions_that_moved_are_read_again():
    loaded = []

    def load(partition):
        loaded.append(partition)
        moves = partition == ONE and loaded.count(ONE) < 2
        return stored(committed=41 if moves else 42)

    found = compare([ZERO, ONE], load, asked(a=42), {}, "transactional")
    assert [each.partition for each in found.standings] == [ZERO, ONE]
    assert loaded.count(ZERO) == 2
    assert loaded.count(ONE) == 4
    assert all(each.restart == Restart() for each in found.standings)


def test_a_sink_that_cannot_be_asked_hides_neither_the_others_nor_what_is_stored():
    def broken(_lines):
        raise OSError("away")

    sinks = {**asked(a=41), "b": broken}
    found = compare([ZERO], lambda _: stored(910), sinks, {}, "transactional")
    (standing,) = found.standings
    assert found.failed == {"b": "OSError: away"}
    assert standing.sinks == having(a=41)
    assert standing.restart is None
    assert [each.txid for each in standing.open] == [42]


def test_what_is_stored_and_cannot_be_read_is_an_error():
    def load(partition):
        raise StoreCorrupt(str(partition), "no JSON")

    with pytest.raises(StoreCorrupt):
        compare([ZERO], load, {}, {}, None)


@pytest.fixture
def headrace(tmp_path, monkeypatch, capsys):
    """`headrace(topology, sinks, offsets, *words)` runs the command over stored offsets."""
    config = tmp_path / "service.toml"
    config.write_text('[kafka]\n"bootstrap.servers" = "-"\n[zookeeper]\nhosts = "-"\n')
    closed = []

    def headrace(topology, offsets, *words):
        monkeypatch.setattr(commands, "topology", topology)
        found = wiring.wire(topology, transactions.configured(config))
        store = SimpleNamespace(
            open=lambda: None, load=offsets.get, close=lambda: closed.append("store")
        )
        parts = SimpleNamespace(
            catalogue=MemoryCatalogue(FaultyLog({"numbers": 2})), store=store,
            sinks=found.sinks, context=found.context, spark=None,
        )  # fmt: skip
        with monkeypatch.context() as patched:
            patched.setattr(wiring, "wire", lambda *_: parts)
            words = ["transactions", "show", TARGET, "--config", str(config), *words]
            patched.setattr(sys, "argv", ["headrace", *words])
            code = main_module.main()
        assert closed.pop() == "store"
        return code, *capsys.readouterr()

    monkeypatch.setenv("COLUMNS", "160")
    return headrace


def flow(*sinks, reliability="exactly-once"):
    made = Topology("flow", reliability=reliability)
    rows = made.source("numbers").then(passes)
    for sink in sinks:
        rows.into(sink)
    made.dead_letters.into(MemoryDeadLetters())
    return made


def committed_in(name, txid):
    """A sink that has committed so much of the first line."""
    sink = MemorySink(name)
    sink.fence([Fence("numbers[0]", 2)])
    sink._lines["numbers[0]"] = Committed("numbers[0]", 2, txid)
    return sink


def test_the_facts_are_one_json_object(headrace):
    topology = flow(committed_in("a", 42), committed_in("b", 41))
    code, out, _ = headrace(topology, {ZERO: stored(910, 940)}, "--json")
    assert code == 0
    facts = json.loads(out)
    assert facts["reliability"] == "exactly-once"
    assert facts["failed_sinks"] == {}
    zero, one = (facts["partitions"][f"numbers[{number}]"] for number in (0, 1))
    assert zero["open"] == [
        {"txid": 42, "attempt": 1, "first": 900, "end": 910, "state": "sealed", "records": 10,
         "digest": f"{910:032x}", "sinks": ["a"]},
        {"txid": 43, "attempt": 1, "first": 910, "end": 940, "state": "sealed", "records": 30,
         "digest": f"{940:032x}", "sinks": []},
    ]  # fmt: skip
    assert (zero["offset"], zero["epoch"], zero["kind"]) == (900, 2, "transactional")
    assert zero["committed"] == 41
    assert zero["sinks"] == {"a": {"epoch": 2, "txid": 42}, "b": {"epoch": 2, "txid": 41}}
    assert zero["restart"] == {"done": [], "replayed": [42, 43], "anew": [], "halts": None}
    assert (one["offset"], one["committed"], one["open"]) == (None, None, [])


def test_a_range_that_nobody_has_read_is_shown_as_planned(headrace):
    topology = flow(committed_in("a", 41))
    planned = OpenTransaction(42, 3, Range(900, 910))
    node = replace(stored(), transactions=Transactions("transactional", 41, (planned,)))
    code, out, _ = headrace(topology, {ZERO: node})
    assert code == 0
    cells = [[each.strip() for each in line.split("│")[1:-1]] for line in out.splitlines()]
    assert ["numbers[0]", "42", "3", "900", "910", "planned", "no sink"] in cells
    code, out, _ = headrace(topology, {ZERO: node}, "--json")
    assert json.loads(out)["partitions"]["numbers[0]"]["open"] == [
        {"txid": 42, "attempt": 3, "first": 900, "end": 910, "state": "planned",
         "records": None, "digest": None, "sinks": []},
    ]  # fmt: skip


def test_a_person_reads_what_is_open_and_who_has_it(headrace):
    topology = flow(committed_in("a", 42), committed_in("b", 41))
    code, out, _ = headrace(topology, {ZERO: stored(910, 940)})
    assert code == 0
    cells = [[each.strip() for each in line.split("│")[1:-1]] for line in out.splitlines()]
    rows = [row for row in cells if row]
    assert rows == [
        ["numbers[0]", "900", "41", "2", "42", "41", "replays 42, 43"],
        ["numbers[1]", "-", "-", "0", "0", "0", "goes on"],
        ["numbers[0]", "42", "1", "900", "910", "10", "a"],
        ["numbers[0]", "43", "1", "910", "940", "30", "no sink"],
    ]


def test_a_person_reads_why_a_partition_would_halt(headrace):
    code, out, _ = headrace(flow(committed_in("a", 43)), {ZERO: stored(910)})
    assert code == 0
    assert "numbers[0]: sink 'a' has transaction 43" in out


def test_a_sink_that_does_not_open_is_told_and_ends_with_1(headrace):
    class Away(MemorySink):
        def open(self, context: SinkContext) -> None:
            raise SinkFailed(f"nobody answers {context.sink}")

    topology = flow(committed_in("a", 41), Away("b"))
    code, out, err = headrace(topology, {ZERO: stored(910)})
    assert code == 1
    assert "b: nobody answers b" in out
    assert "900" in out
    assert err.splitlines()[-1].startswith("headrace: not asked: b;")


def test_a_topology_that_is_not_exactly_once_is_said_to_be_none(headrace):
    class Unopened(MemorySink):
        def open(self, context: SinkContext) -> None:
            raise AssertionError(context)

    topology = flow(Unopened("a"), reliability="at-least-once")
    code, out, _ = headrace(topology, {ZERO: stored(910)})
    assert code == 0
    assert "topology 'flow' is at-least-once" in out
    assert "what is open is dropped by its next commit" in out
