"""`headrace offsets set` and `reset` on a log, a store and nodes in memory."""

import io
import json
import sys
from types import SimpleNamespace

import pytest
from rich.console import Console
from structlog.testing import capture_logs

from headrace import Topology
from headrace.sinks import MemoryDeadLetters, MemorySink
from partition.errors import (
    Fenced,
    StoreCorrupt,
    StoreError,
    StoreUnavailable,
    TopicMissing,
)
from partition.interfaces import AtOffset, AtTimestamp, Progress
from partition.records import Position, Transactions
from partition.replicas.plan import Control
from service.cli import main as main_module
from service.cli import offsets as module
from service.cli.offsets import MoveRequest, NotMoved, StillConsumed, show_moves
from service.cli.replicas import Change
from tests.support import commands
from tests.support.commands import AT, ME, NOTE, TARGET, WHY, P, World, passes
from tests.support.zookeeper import opened_transactions


@pytest.fixture
def world():
    return World()


def exactly_once():
    made = Topology("tables", reliability="exactly-once")
    made.source("numbers").then(passes).into(MemorySink("a"))
    made.dead_letters.into(MemoryDeadLetters())
    return made


def outcomes(rows):
    return [rows[each].outcome for each in sorted(rows)]


def test_an_offset_is_moved_forward_and_back_and_kept_with_who_and_why(world):
    with capture_logs() as logs:
        rows = world.move({P[0]: AtOffset(5), P[1]: AtOffset(20)})
    assert outcomes(rows) == ["moved", "moved"]
    assert world.offsets() == [5, 20, None]
    assert world.nodes.pipeline.changes() == [
        Change(AT, ME, WHY, "numbers[0]", 10, 5), Change(AT, ME, WHY, "numbers[1]", 10, 20),
    ]  # fmt: skip
    assert [(each["before"], each["offset"], each["reason"]) for each in logs] == [
        (10, 5, f"{ME}: {WHY}"), (10, 20, f"{ME}: {WHY}"),
    ]  # fmt: skip


def test_it_is_stored_with_the_topic_s_id_and_the_leader_s_epoch(world):
    world.move({P[0]: AtOffset(7)})
    assert world.store.load(P[0]).position == Position(7, 1, "numbers-1")


def test_whoever_has_the_partition_is_fenced(world):
    """Promise 9: a move by an operator is a takeover."""
    world.move({P[0]: AtOffset(7)})
    refused = world.owner.commit(
        {P[0]: Progress(Position(12)), P[1]: Progress(Position(12))}
    ).result(0)
    assert isinstance(refused[P[0]], Fenced)
    assert world.offsets() == [7, 12, None]
    assert world.store.load(P[0]).epoch == 2


def test_a_partition_of_which_nothing_is_stored_begins_there(world):
    with capture_logs() as logs:
        rows = world.move({P[2]: AtOffset(8)})
    assert outcomes(rows) == ["moved"]
    assert world.offsets() == [10, 10, 8]
    assert [(each["event"], each["before"], each["offset"]) for each in logs] == [
        ("offset_moved", None, 8)
    ]
    assert world.nodes.pipeline.changes()[0].before is None


def test_beginning_one_leaves_the_others_of_its_topic_where_start_from_says():
    world = World()
    world.stored.nodes.clear()
    world.move({P[2]: AtOffset(8)})
    claim = world.store.claim(P[0]).result(0)
    assert (claim.stored, claim.topic_begun, claim.was_there) == (None, True, True)


@pytest.mark.parametrize("offset", [4, 21])
def test_an_offset_that_the_log_does_not_hold_is_refused_and_nothing_moves(world, offset):
    rows = world.move({P[0]: AtOffset(offset), P[1]: AtOffset(6)})
    assert outcomes(rows) == ["refused", "to_move"]
    assert rows[P[0]].note == f"the log holds 5 to 20, not offset {offset}"
    assert world.offsets() == [10, 10, None]
    assert world.nodes.pipeline.changes() == []
    assert world.store.load(P[1]).epoch == 1


@pytest.mark.parametrize(
    ("goal", "offset"),
    [
        ("earliest", 5), ("latest", 20), (AtTimestamp(1012), 12), (AtTimestamp(0), 5),
        (AtTimestamp(9999), 20),
    ],
)  # fmt: skip
def test_a_reset_leads_to_the_log_s_ends_or_to_a_time(world, goal, offset):
    world.move(dict.fromkeys(P, goal))
    assert world.offsets() == [offset] * 3


def test_a_dry_run_shows_it_and_moves_nothing_even_while_it_is_consumed(world):
    world.nodes.register("a", P[0])
    request = MoveRequest(lambda _: dict.fromkeys(P, "earliest"), WHY, ME, AT, dry_run=True)
    rows, reason = world.carry_out(request)
    assert [(row.outcome, row.before, row.to) for row in rows] == [
        ("to_move", 10, 5), ("to_move", 10, 5), ("to_move", None, 5),
    ]  # fmt: skip
    assert "consumed by a" in reason
    assert (world.offsets(), world.nodes.pipeline.changes()) == ([10, 10, None], [])
    out = io.StringIO()
    show_moves(Console(file=out, width=120), rows, request, reason)
    for said in ("would be moved", "nothing was moved (--dry-run)", "now it would be refused",
                 "numbers[2]: nothing is stored"):  # fmt: skip
        assert said in out.getvalue()


def test_it_is_refused_while_a_replica_is_registered_unless_paused(world):
    world.nodes.register("a")
    with pytest.raises(StillConsumed, match=r"consumed by a: pause .*; nothing was moved"):
        world.move({P[0]: AtOffset(5)})
    assert world.offsets() == [10, 10, None]
    world.nodes.put_control(Control(paused=NOTE))
    assert outcomes(world.move({P[0]: AtOffset(5)})) == ["moved"]


def test_open_transactions_are_refused_and_a_count_of_done_ones_goes_on():
    world = World(exactly_once())
    world.owner.move(P[0], Position(10), "x", opened_transactions(10, 15, committed=4)).result(0)
    world.owner.move(P[1], Position(10), "x", Transactions("transactional", 4)).result(0)
    rows = world.move({P[0]: AtOffset(5), P[1]: AtOffset(5)})
    assert outcomes(rows) == ["refused", "to_move"]
    assert "transactions are open (5)" in rows[P[0]].note
    assert outcomes(world.move({P[1]: AtOffset(5)})) == ["moved"]
    assert world.store.load(P[1]).transactions == Transactions("transactional", 4)


def test_a_transaction_that_opens_after_it_was_judged_keeps_it_from_being_moved():
    world = World(exactly_once())
    claim = world.store.claim

    def late(partition):
        opened = opened_transactions(10, 15)
        world.owner.move(partition, Position(10), "x", opened).result(0)
        return claim(partition)

    world.store.claim = late
    rows = world.move({P[0]: AtOffset(5)})
    assert outcomes(rows) == ["failed"]
    assert "transactions are open (1)" in rows[P[0]].note
    stored = world.store.load(P[0])
    assert (stored.offset, len(stored.transactions.open)) == (10, 1)


def test_what_was_committed_since_it_was_judged_is_what_it_is_moved_from(world):
    claim = world.store.claim

    def late(partition):
        world.owner.commit({partition: Progress(Position(13))}).result(0)
        return claim(partition)

    world.store.claim = late
    assert world.move({P[0]: AtOffset(5)})[P[0]].before == 13
    assert world.nodes.pipeline.changes() == [Change(AT, ME, WHY, "numbers[0]", 13, 5)]


def test_a_lost_or_broken_offset_is_put_right_by_a_move(world):
    world.stored.put("/headrace/tables/numbers/partition_0", b"?")
    world.stored.delete("/headrace/tables/numbers/partition_1")
    rows = world.move({P[0]: AtOffset(6), P[1]: AtOffset(7)})
    assert outcomes(rows) == ["moved", "moved"]
    assert "partition_0 cannot be read" in rows[P[0]].note
    assert world.offsets() == [6, 7, None]


def test_a_lost_or_broken_offset_of_what_is_exactly_once_is_not():
    """The sinks count its transactions, and the count is lost with it."""
    world = World(exactly_once())
    world.stored.put("/headrace/tables/numbers/partition_0", b"?")
    assert outcomes(world.move({P[0]: AtOffset(6)})) == ["refused"]
    world.stored.delete("/headrace/tables/numbers/partition_1")
    rows = world.move({P[1]: AtOffset(6)})
    assert outcomes(rows) == ["failed"]
    assert "partition_1 is missing" in rows[P[1]].note
    assert world.nodes.pipeline.changes() == []


def test_what_fails_ends_it_and_what_was_moved_before_is_kept(world):
    claim = world.store.claim

    def fails(partition):
        if partition == P[1]:
            raise StoreError("no right to write")
        return claim(partition)

    world.store.claim = fails
    rows = world.move(dict.fromkeys(P, "earliest"))
    assert outcomes(rows) == ["moved", "failed", "to_move"]
    assert rows[P[1]].note == "no right to write"
    assert world.offsets() == [5, 10, None]
    assert len(world.nodes.pipeline.changes()) == 1


def test_a_move_that_cannot_be_kept_says_that_it_is_made(world):
    world.nodes.refuses.add(world.nodes.pipeline.changes_path)
    rows = world.move(dict.fromkeys(P[:2], "earliest"))
    assert outcomes(rows) == ["failed", "to_move"]
    assert rows[P[0]].note.startswith("moved, but who and why could not be kept")
    assert world.offsets() == [5, 10, None]


def test_broken_notes_of_earlier_moves_keep_everything_from_being_moved(world):
    world.nodes.put(world.nodes.pipeline.changes_path, b"?")
    with pytest.raises(StoreCorrupt, match="@changes"):
        world.move({P[0]: AtOffset(5)})
    assert world.offsets() == [10, 10, None]


def test_a_zookeeper_or_a_kafka_that_is_away_moves_nothing(world):
    """Storm 8: no answer is not "nothing stored"."""
    world.stored.away = True
    with pytest.raises(StoreUnavailable):
        world.move({P[0]: AtOffset(5)})
    world.stored.away, world.nodes.away = False, True
    with pytest.raises(StoreUnavailable):
        world.move({P[0]: AtOffset(5)})
    world.nodes.away = False
    assert world.offsets() == [10, 10, None]


def test_a_topic_that_is_not_there_is_named(world):
    world.log.delete_topic("numbers")
    with pytest.raises(TopicMissing, match="numbers"):
        world.move({P[0]: AtOffset(5)})


def test_what_was_not_moved_is_said_in_one_line():
    assert str(NotMoved(1, 3, 0)) == "1 of 3 partitions refused or failed; nothing was moved"
    assert str(NotMoved(1, 3, 2)) == "1 of 3 partitions refused or failed; 2 were moved before"


@pytest.fixture
def headrace(world, tmp_path, monkeypatch, capsys):
    """Run `headrace offsets …` in this process over `world`; exit code, standard output, error."""
    config = tmp_path / "service.toml"
    config.write_text('[kafka]\n"bootstrap.servers" = "-"\n[zookeeper]\nhosts = "-"\n')
    parts = SimpleNamespace(name="tables", catalogue=world.catalogue, store=world.store)
    monkeypatch.setattr(commands, "topology", world.topology)
    monkeypatch.setattr("service.wiring.wire", lambda *_: parts)
    monkeypatch.setattr(module, "replica_nodes", world.nodes.opened)
    monkeypatch.setattr(module, "whoami", lambda: ME)
    monkeypatch.setattr(module, "now_ms", lambda: AT)
    monkeypatch.setenv("COLUMNS", "160")

    def headrace(name, *words):
        line = ["headrace", "offsets", name, TARGET, "--config", str(config), *words]
        monkeypatch.setattr(sys, "argv", line)
        code = main_module.main()
        world.store.open()
        return code, *capsys.readouterr()

    return headrace


def test_the_command_sets_and_prints_facts(world, headrace):
    code, out, err = headrace("set", "numbers:0=7", "numbers:2=9", "--why", WHY, "--json")
    assert code == 0, err
    facts = json.loads(out.splitlines()[-1])
    assert facts["partitions"] == {
        "numbers[0]": {"outcome": "moved", "note": "", "from": 10, "to": 7, "log_start": 5,
                       "log_end": 20},
        "numbers[2]": {"outcome": "moved", "note": "nothing is stored; it is begun there",
                       "from": None, "to": 9, "log_start": 5, "log_end": 20},
    }  # fmt: skip
    del facts["partitions"]
    assert facts == {"pipeline": "tables", "dry_run": False, "by": ME, "why": WHY, "moved": 2,
                     "refused": 0, "consumed": None}  # fmt: skip
    assert world.offsets() == [7, 10, 9]


def test_the_command_resets_some_or_all(world, headrace):
    code, out, _ = headrace("reset", "--to", "latest", "--partition", "1", "--why", WHY)
    assert (code, world.offsets()) == (0, [10, 20, None])
    assert "1 of 1 partitions moved" in out
    code, _, _ = headrace("reset", "--to", "1006", "--topic", "numbers", "--why", WHY)
    assert (code, world.offsets()) == (0, [6, 6, 6])


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["set", "numbers:0=4", "--why", "x"], 1, "1 of 1 partitions refused"),
        (["set", "numbers:9=4", "--why", "x"], 2, "does not read numbers[9], but numbers 0-2"),
        (["set", "numbers:0", "--why", "x"], 2, "TOPIC:PARTITION=OFFSET is needed"),
        (["set", "numbers:0=7"], 2, "--why"),
        (["set", "--why", "x"], 2, "TOPIC:PARTITION=OFFSET"),
        (["reset", "--to", "now", "--why", "x"], 2, "allowed: earliest, latest, or"),
        (["reset", "--why", "x"], 2, "--to"),
        (["reset", "--to", "latest", "--topic", "w", "--why", "x"], 2, "but numbers"),
        (["reset", "--to", "latest", "--partition", "3", "--why", "x"], 2, "no partition 3"),
    ],
)
def test_what_is_wrong_moves_nothing_and_says_what_is_allowed(world, headrace, words, code, said):
    found, _, err = headrace(*words)
    assert found == code
    assert said in " ".join(err.replace("│", " ").split())
    assert world.offsets() == [10, 10, None]


def test_what_is_consumed_is_one_line_and_1(world, headrace):
    world.nodes.register("a")
    code, out, err = headrace("set", "numbers:0=7", "--why", WHY)
    assert (code, out) == (1, "")
    assert err.startswith("headrace: the partitions are being consumed by a: pause")
