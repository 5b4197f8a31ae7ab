import json

import pytest
import typer

from headrace.sinks import MemorySink
from partition.errors import Fenced, StoreCorrupt, StoreError
from partition.interfaces import AtOffset, Log, Progress, StoredOffset, Topic
from partition.records import Partition, Position, Transactions
from partition.replicas.balance import Control
from service.cli.control import OffsetChange
from service.cli.offsets import chosen, judge_move, parse_places
from tests.support.commands import NOTE as EARLIER
from tests.support.commands import TARGET, P, World, topology_of
from tests.support.zookeeper import opened_transactions
from tests.unit.service.conftest import NOTE, facts_of, words_of

UNMOVED = [10, 10, None, None]


@pytest.fixture
def world(request):
    kind = getattr(request, "param", "at-least-once")
    return World(topology_of([MemorySink("a")], reliability=kind))


exactly_once = pytest.mark.parametrize("world", ["exactly-once"], indirect=True)


@pytest.fixture
def offsets(operated, world):
    given = operated(world.nodes, world.topology, **world.parts)

    def offsets(name, *words):
        result = given("offsets", name, TARGET, *words)
        world.store.open()
        return result

    return offsets


@pytest.fixture
def move(offsets):
    """`move({number: offset})` returns the exit code, and outcome and note by partition."""

    def move(goals, *words):
        places = [f"numbers:{number}={offset}" for number, offset in goals.items()]
        code, out, _ = offsets("set", *places, "--why", NOTE.why, "--json", *words)
        rows = facts_of(out)["partitions"].values() if out else []
        return code, [(row["outcome"], row["note"]) for row in rows]

    return move


def change(number, before, to):
    return OffsetChange(NOTE.at_ms, NOTE.by, NOTE.why, f"numbers[{number}]", before, to)


def test_move_is_stored_recorded_and_printed(world, offsets):
    code, out, err = offsets("set", "numbers:0=7", "numbers:2=9", "--why", NOTE.why, "--json")
    assert code == 0
    log = {"log_start": 5, "log_end": 20}
    assert facts_of(out) == {
        "pipeline": "tables", "dry_run": False, "by": NOTE.by, "why": NOTE.why, "moved": 2,
        "refused": 0, "consumed": None, "partitions": {
            "numbers[0]": {"outcome": "moved", "note": "", "from": 10, "to": 7, **log},
            "numbers[2]": {"outcome": "moved", "note": "nothing is stored; it is begun there",
                           "from": None, "to": 9, **log},
        },
    }  # fmt: skip
    assert world.offsets() == [7, 10, 9, None]
    assert world.store.load(P[0]).position == Position(7, 1, "numbers-1")
    assert world.nodes.pipeline.changes() == [change(0, 10, 7), change(2, None, 9)]
    reason = f"{NOTE.by}: {NOTE.why}"
    moved = [each for each in map(json.loads, err.splitlines()) if each["event"] == "offset_moved"]
    assert [(each["before"], each["offset"], each["reason"]) for each in moved] == [
        (10, 7, reason), (None, 9, reason),
    ]  # fmt: skip


def test_move_fences_the_owner(world, move):
    """Promise 9: a move by an operator is a takeover."""
    move({0: 7})
    commits = {each: Progress(Position(12)) for each in P[:2]}
    assert isinstance(world.owner.commit(commits).result(0)[P[0]], Fenced)
    assert world.offsets() == [7, 12, None, None]
    assert world.store.load(P[0]).epoch == 2


def test_beginning_one_partition_leaves_the_others(world, move):
    world.stored.nodes.clear()
    move({2: 8})
    claim = world.store.claim(P[0]).result(0)
    assert (claim.stored, claim.topic_begun, claim.was_there) == (None, True, True)


@pytest.mark.parametrize("offset", [4, 21])
def test_offset_outside_the_log_refuses_all_moves(world, move, offset):
    note = f"the log holds 5 to 20, not offset {offset}"
    assert move({0: offset, 1: 6}) == (1, [("refused", note), ("to_move", "")])
    assert (world.offsets(), world.nodes.pipeline.changes()) == (UNMOVED, [])
    assert world.store.load(P[1]).epoch == 1


@pytest.mark.parametrize(
    ("words", "after"),
    [
        (["earliest"], [5] * 4), (["latest"], [20] * 4), (["1012"], [12] * 4), (["0"], [5] * 4),
        (["9999"], [20] * 4), (["latest", "--partition", "1"], [10, 20, None, None]),
        (["1006", "--topic", "numbers"], [6] * 4),
    ],
)  # fmt: skip
def test_reset_goes_to_the_logs_ends_or_to_a_time(world, offsets, words, after):
    code, out, _ = offsets("reset", "--why", "x", "--to", *words)
    assert (code, world.offsets()) == (0, after)
    assert "partitions moved" in out


def test_dry_run_moves_nothing_while_consumed(world, offsets):
    world.nodes.register("a", P[0])
    code, out, _ = offsets("reset", "--to", "earliest", "--why", "x", "--dry-run")
    assert (code, world.offsets(), world.nodes.pipeline.changes()) == (0, UNMOVED, [])
    for said in ("would be moved", "nothing was moved (--dry-run)", "numbers[2]: nothing is stored",
                 "now it would be refused: the partitions are being consumed by a"):  # fmt: skip
        assert said in out


def test_move_is_refused_while_consumed_unless_paused(world, offsets):
    world.nodes.register("a")
    command = ("set", "numbers:0=5", "--why", "x")
    code, out, err = offsets(*command)
    assert (code, out, world.offsets()) == (1, "", UNMOVED)
    assert err.startswith("headrace: the partitions are being consumed by a: pause")
    assert err.endswith("; nothing was moved\n")
    world.nodes.put_control(Control(paused=EARLIER))
    assert offsets(*command)[0] == 0


@exactly_once
def test_open_transactions_refuse_a_move(world, move):
    world.owner.move(P[0], Position(10), "x", opened_transactions(10, 15, committed=4)).result(0)
    world.owner.move(P[1], Position(10), "x", Transactions("transactional", 4)).result(0)
    code, (first, second) = move({0: 5, 1: 5})
    assert (code, first[0], second) == (1, "refused", ("to_move", ""))
    assert "transactions are open (5)" in first[1]
    assert move({1: 5}) == (0, [("moved", "")])
    assert world.store.load(P[1]).transactions == Transactions("transactional", 4)


@exactly_once
def test_transaction_opened_after_judging_fails_the_move(world, move):
    opened = opened_transactions(10, 15)
    world.before_claim(lambda each: world.owner.move(each, Position(10), "x", opened).result(0))
    code, [(outcome, note)] = move({0: 5})
    assert (code, outcome) == (1, "failed")
    assert "transactions are open (1)" in note
    stored = world.store.load(P[0])
    assert (stored.offset, len(stored.transactions.open)) == (10, 1)


def test_move_starts_from_the_newest_commit(world, move):
    newest = Progress(Position(13))
    world.before_claim(lambda each: world.owner.commit({each: newest}).result(0))
    move({0: 5})
    assert world.nodes.pipeline.changes() == [change(0, 13, 5)]


def test_move_repairs_a_lost_or_broken_offset(world, move):
    world.stored.put("/headrace/tables/numbers/partition_0", b"?")
    world.stored.delete("/headrace/tables/numbers/partition_1")
    code, (first, second) = move({0: 6, 1: 7})
    assert (code, first[0], second[0]) == (0, "moved", "moved")
    assert "partition_0 cannot be read" in first[1]
    assert world.offsets() == [6, 7, None, None]


@exactly_once
def test_exactly_once_move_repairs_no_lost_offset(world, move):
    """The sinks count its transactions, and the count is lost with it."""
    world.stored.put("/headrace/tables/numbers/partition_0", b"?")
    assert move({0: 6})[1][0][0] == "refused"
    world.stored.delete("/headrace/tables/numbers/partition_1")
    code, [(outcome, note)] = move({1: 6})
    assert (code, outcome) == (1, "failed")
    assert "partition_1 is missing" in note
    assert world.nodes.pipeline.changes() == []


def test_failure_ends_the_move_and_keeps_earlier_ones(world, move):
    def fails(partition):
        if partition == P[1]:
            raise StoreError("no right to write")

    world.before_claim(fails)
    code, rows = move({0: 5, 1: 5, 2: 5})
    assert (code, [outcome for outcome, _ in rows]) == (1, ["moved", "failed", "to_move"])
    assert rows[1][1] == "no right to write"
    assert world.offsets() == [5, 10, None, None]
    assert len(world.nodes.pipeline.changes()) == 1


def test_unrecorded_move_is_reported_as_moved(world, move):
    world.nodes.refuses.add(world.nodes.pipeline.changes_path)
    code, rows = move({0: 5, 1: 5})
    assert (code, [outcome for outcome, _ in rows]) == (1, ["failed", "to_move"])
    assert rows[0][1].startswith("moved, but who and why could not be kept")
    assert world.offsets() == [5, 10, None, None]


def test_unreadable_changes_prevent_every_move(world, offsets):
    world.nodes.put(world.nodes.pipeline.changes_path, b"?")
    code, _, err = offsets("set", "numbers:0=5", "--why", "x")
    assert (code, "@changes" in err, world.offsets()) == (1, True, UNMOVED)


@pytest.mark.parametrize("away", ["stored", "nodes"])
def test_silent_zookeeper_moves_nothing(world, operated, away):
    """Storm 8: no answer is not "nothing stored"."""
    given = operated(world.nodes, world.topology, **world.parts)
    getattr(world, away).away = True
    code, _, err = given("offsets", "set", TARGET, "numbers:0=5", "--why", "x")
    assert (code, "does not answer" in err) == (1, True)
    getattr(world, away).away = False
    world.store.open()
    assert world.offsets() == UNMOVED


def test_missing_topic_is_named(world, offsets):
    world.log.delete_topic("numbers")
    code, _, err = offsets("set", "numbers:0=5", "--why", "x")
    assert (code, "numbers" in err) == (1, True)


FORM = "TOPIC:PARTITION=OFFSET is needed"


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["set", "numbers:0=4", "--why", "x"], 1, "1 of 1 partitions refused or failed; nothing"),
        (["set", "numbers:9=4", "--why", "x"], 2, "does not read numbers[9], but numbers 0-3"),
        (["set", "numbers:0=1", "numbers:00=2", "--why", "x"], 2, "numbers[0] is named twice"),
        (["set", "numbers:0=7"], 2, "--why"),
        (["set", "--why", "x"], 2, "TOPIC:PARTITION=OFFSET"),
        *((["set", place, "--why", "x"], 2, FORM) for place in (
            "orders", "orders:0", "orders=3", ":0=3", "orders:x=3", "orders:0=-3", "orders:0=3.5",
            "orders:0=9999999999999999999", "orders:0= 3",
        )),
        *((["reset", f"--to={to}", "--why", "x"], 2, "expected earliest, latest, or") for to in (
            "now", "-1", "1.5", "", "9" * 19,
        )),
        (["reset", "--why", "x"], 2, "--to"),
        (["reset", "--to", "latest", "--topic", "w", "--why", "x"], 2, "but numbers"),
        (["reset", "--to", "latest", "--partition", "7", "--why", "x"], 2, "no partition 7"),
    ],
)  # fmt: skip
def test_wrong_words_move_nothing_and_name_what_is_allowed(world, offsets, words, code, said):
    found, _, err = offsets(*words)
    assert found == code
    assert said in words_of(err)
    assert world.offsets() == UNMOVED


@pytest.mark.parametrize(
    ("stored", "exactly_once", "outcome", "said"),
    [
        (StoredOffset(Position(10), "other"), False, "refused", "'other'"),
        (StoreError("no right to read"), False, "refused", "no right to read"),
        (StoreCorrupt("/p", "?"), False, "to_move", "it is replaced"),
        (StoreCorrupt("/p", "?"), True, "refused", "/p"),
    ],
)
def test_foreign_or_unreadable_offset_is_judged(stored, exactly_once, outcome, said):
    row = judge_move(P[0], AtOffset(5), Log(0, 20), stored, "tables", exactly_once=exactly_once)
    assert (row.outcome, said in row.note) == (outcome, True)


def test_topics_of_places_may_have_colons_and_dots():
    assert parse_places(["a:b:0=3", "a.b:12=0"]) == {
        Partition("a:b", 0): AtOffset(3), Partition("a.b", 12): AtOffset(0),
    }  # fmt: skip


def test_reset_is_chosen_by_topic_and_number():
    topics = {"numbers": Topic("numbers", "id", (0, 1, 2, 3)), "w": Topic("w", "id", (0,))}
    assert chosen(topics, None, []) == [*P, Partition("w", 0)]
    assert chosen(topics, "numbers", []) == P
    assert chosen(topics, "numbers", [2, 0, 2]) == [P[0], P[2]]
    for topic, numbers, said in (
        ("other", [], "does not read 'other', but numbers, w"),
        (None, [0], "--topic is needed: numbers, w"),
        ("w", [0, 7], "no partition 7, but w 0"),
    ):
        with pytest.raises(typer.BadParameter, match=said):
            chosen(topics, topic, numbers)
