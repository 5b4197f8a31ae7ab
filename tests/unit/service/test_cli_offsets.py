"""`headrace offsets set` and `reset` on a log, a store and nodes in memory."""

import io
import json

import pytest
import typer
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
from partition.interfaces import AtOffset, AtTimestamp, Log, Progress, StoredOffset, Topic
from partition.records import Partition, Position, Transactions
from partition.replicas.plan import Control
from service.cli.control import OffsetChange
from service.cli.offsets import (
    MoveRequest,
    NotMoved,
    StillConsumed,
    chosen,
    judge_move,
    parse_places,
    parse_to,
    show_moves,
)
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


def test_move_records_who_and_why(world):
    with capture_logs() as logs:
        rows = world.move({P[0]: AtOffset(5), P[1]: AtOffset(20)})
    assert outcomes(rows) == ["moved", "moved"]
    assert world.offsets() == [5, 20, None]
    assert world.nodes.pipeline.changes() == [
        OffsetChange(AT, ME, WHY, "numbers[0]", 10, 5),
        OffsetChange(AT, ME, WHY, "numbers[1]", 10, 20),
    ]
    assert [(each["before"], each["offset"], each["reason"]) for each in logs] == [
        (10, 5, f"{ME}: {WHY}"), (10, 20, f"{ME}: {WHY}"),
    ]  # fmt: skip


def test_move_stores_topic_id_and_leader_epoch(world):
    world.move({P[0]: AtOffset(7)})
    assert world.store.load(P[0]).position == Position(7, 1, "numbers-1")


def test_move_fences_the_owner(world):
    """Promise 9: a move by an operator is a takeover."""
    world.move({P[0]: AtOffset(7)})
    refused = world.owner.commit(
        {P[0]: Progress(Position(12)), P[1]: Progress(Position(12))}
    ).result(0)
    assert isinstance(refused[P[0]], Fenced)
    assert world.offsets() == [7, 12, None]
    assert world.store.load(P[0]).epoch == 2


def test_move_begins_a_partition_without_offset(world):
    with capture_logs() as logs:
        rows = world.move({P[2]: AtOffset(8)})
    assert outcomes(rows) == ["moved"]
    assert world.offsets() == [10, 10, 8]
    assert [(each["event"], each["before"], each["offset"]) for each in logs] == [
        ("offset_moved", None, 8)
    ]
    assert world.nodes.pipeline.changes()[0].before is None


def test_beginning_one_partition_leaves_the_others():
    world = World()
    world.stored.nodes.clear()
    world.move({P[2]: AtOffset(8)})
    claim = world.store.claim(P[0]).result(0)
    assert (claim.stored, claim.topic_begun, claim.was_there) == (None, True, True)


@pytest.mark.parametrize("offset", [4, 21])
def test_offset_outside_the_log_refuses_all_moves(world, offset):
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
def test_reset_goes_to_the_logs_ends_or_to_a_time(world, goal, offset):
    world.move(dict.fromkeys(P, goal))
    assert world.offsets() == [offset] * 3


def test_dry_run_moves_nothing_while_consumed(world):
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


def test_move_is_refused_while_consumed_unless_paused(world):
    world.nodes.register("a")
    with pytest.raises(StillConsumed, match=r"consumed by a: pause .*; nothing was moved"):
        world.move({P[0]: AtOffset(5)})
    assert world.offsets() == [10, 10, None]
    world.nodes.put_control(Control(paused=NOTE))
    assert outcomes(world.move({P[0]: AtOffset(5)})) == ["moved"]


def test_open_transactions_refuse_a_move():
    world = World(exactly_once())
    world.owner.move(P[0], Position(10), "x", opened_transactions(10, 15, committed=4)).result(0)
    world.owner.move(P[1], Position(10), "x", Transactions("transactional", 4)).result(0)
    rows = world.move({P[0]: AtOffset(5), P[1]: AtOffset(5)})
    assert outcomes(rows) == ["refused", "to_move"]
    assert "transactions are open (5)" in rows[P[0]].note
    assert outcomes(world.move({P[1]: AtOffset(5)})) == ["moved"]
    assert world.store.load(P[1]).transactions == Transactions("transactional", 4)


def test_transaction_opened_after_judging_fails_the_move():
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


def test_move_starts_from_the_newest_commit(world):
    claim = world.store.claim

    def late(partition):
        world.owner.commit({partition: Progress(Position(13))}).result(0)
        return claim(partition)

    world.store.claim = late
    assert world.move({P[0]: AtOffset(5)})[P[0]].before == 13
    assert world.nodes.pipeline.changes() == [OffsetChange(AT, ME, WHY, "numbers[0]", 13, 5)]


def test_move_repairs_a_lost_or_broken_offset(world):
    world.stored.put("/headrace/tables/numbers/partition_0", b"?")
    world.stored.delete("/headrace/tables/numbers/partition_1")
    rows = world.move({P[0]: AtOffset(6), P[1]: AtOffset(7)})
    assert outcomes(rows) == ["moved", "moved"]
    assert "partition_0 cannot be read" in rows[P[0]].note
    assert world.offsets() == [6, 7, None]


def test_exactly_once_move_repairs_no_lost_offset():
    """The sinks count its transactions, and the count is lost with it."""
    world = World(exactly_once())
    world.stored.put("/headrace/tables/numbers/partition_0", b"?")
    assert outcomes(world.move({P[0]: AtOffset(6)})) == ["refused"]
    world.stored.delete("/headrace/tables/numbers/partition_1")
    rows = world.move({P[1]: AtOffset(6)})
    assert outcomes(rows) == ["failed"]
    assert "partition_1 is missing" in rows[P[1]].note
    assert world.nodes.pipeline.changes() == []


def test_failure_ends_the_move_and_keeps_earlier_ones(world):
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


def test_unrecorded_move_is_reported_as_moved(world):
    world.nodes.refuses.add(world.nodes.pipeline.changes_path)
    rows = world.move(dict.fromkeys(P[:2], "earliest"))
    assert outcomes(rows) == ["failed", "to_move"]
    assert rows[P[0]].note.startswith("moved, but who and why could not be kept")
    assert world.offsets() == [5, 10, None]


def test_unreadable_changes_prevent_every_move(world):
    world.nodes.put(world.nodes.pipeline.changes_path, b"?")
    with pytest.raises(StoreCorrupt, match="@changes"):
        world.move({P[0]: AtOffset(5)})
    assert world.offsets() == [10, 10, None]


def test_silent_zookeeper_moves_nothing(world):
    """Storm 8: no answer is not "nothing stored"."""
    world.stored.away = True
    with pytest.raises(StoreUnavailable):
        world.move({P[0]: AtOffset(5)})
    world.stored.away, world.nodes.away = False, True
    with pytest.raises(StoreUnavailable):
        world.move({P[0]: AtOffset(5)})
    world.nodes.away = False
    assert world.offsets() == [10, 10, None]


def test_missing_topic_is_named(world):
    world.log.delete_topic("numbers")
    with pytest.raises(TopicMissing, match="numbers"):
        world.move({P[0]: AtOffset(5)})


def test_incomplete_move_is_one_line():
    assert str(NotMoved(1, 3, 0)) == "1 of 3 partitions refused or failed; nothing was moved"
    assert str(NotMoved(1, 3, 2)) == "1 of 3 partitions refused or failed; 2 were moved before"


@pytest.fixture
def offsets(operated, world):
    """`offsets(name, *words)` runs `headrace offsets …` over `world`."""
    given = operated(world.nodes, world.topology, catalogue=world.catalogue, store=world.store)

    def offsets(name, *words):
        result = given("offsets", name, TARGET, *words)
        world.store.open()
        return result

    return offsets


def test_set_prints_facts(world, offsets):
    code, out, err = offsets("set", "numbers:0=7", "numbers:2=9", "--why", WHY, "--json")
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


def test_reset_moves_some_or_all(world, offsets):
    code, out, _ = offsets("reset", "--to", "latest", "--partition", "1", "--why", WHY)
    assert (code, world.offsets()) == (0, [10, 20, None])
    assert "1 of 1 partitions moved" in out
    code, _, _ = offsets("reset", "--to", "1006", "--topic", "numbers", "--why", WHY)
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
def test_wrong_words_move_nothing_and_name_what_is_allowed(world, offsets, words, code, said):
    found, _, err = offsets(*words)
    assert found == code
    assert said in " ".join(err.replace("│", " ").split())
    assert world.offsets() == [10, 10, None]


def test_consumed_partitions_are_one_line_and_exit_code_1(world, offsets):
    world.nodes.register("a")
    code, out, err = offsets("set", "numbers:0=7", "--why", WHY)
    assert (code, out) == (1, "")
    assert err.startswith("headrace: the partitions are being consumed by a: pause")


TOPICS = {"numbers": Topic("numbers", "id", (0, 1, 2)), "w": Topic("w", "id", (0,))}


def test_offset_of_another_topology_is_refused():
    stored = StoredOffset(Position(10), "other")
    row = judge_move(P[0], AtOffset(5), Log(0, 20), stored, "tables", exactly_once=False)
    assert (row.outcome, row.before) == ("refused", 10)
    assert "'other'" in row.note


def test_unreadable_offset_is_refused():
    error = StoreError("no right to read")
    row = judge_move(P[0], AtOffset(5), Log(0, 20), error, "tables", exactly_once=False)
    assert (row.outcome, row.note) == ("refused", "no right to read")


@pytest.mark.parametrize(
    "text", ["orders", "orders:0", "orders=3", ":0=3", "orders:x=3", "orders:0=-3", "orders:0=3.5",
             "orders:0=9999999999999999999", "orders:0= 3"],
)  # fmt: skip
def test_malformed_place_is_refused(text):
    with pytest.raises(typer.BadParameter, match="TOPIC:PARTITION=OFFSET is needed"):
        parse_places([text])


def test_places_are_parsed_and_named_once():
    assert parse_places(["a:b:0=3", "a.b:12=0"]) == {
        Partition("a:b", 0): AtOffset(3), Partition("a.b", 12): AtOffset(0),
    }  # fmt: skip
    with pytest.raises(typer.BadParameter, match=r"numbers\[0\] is named twice"):
        parse_places(["numbers:0=1", "numbers:00=2"])


def test_reset_target_is_a_word_or_a_time():
    assert [parse_to(each) for each in ("earliest", "latest", "17")] == [
        "earliest", "latest", AtTimestamp(17),
    ]  # fmt: skip
    for text in ("now", "-1", "1.5", "", "9" * 19):
        with pytest.raises(typer.BadParameter, match="allowed: earliest, latest, or"):
            parse_to(text)


def test_reset_is_chosen_by_topic_and_number():
    assert chosen(TOPICS, None, []) == [*P, Partition("w", 0)]
    assert chosen(TOPICS, "numbers", []) == P
    assert chosen(TOPICS, "numbers", [2, 0, 2]) == [P[0], P[2]]
    assert chosen({"numbers": TOPICS["numbers"]}, None, [1]) == [P[1]]
    for topic, numbers, said in (
        ("other", [], "does not read 'other', but numbers, w"),
        (None, [0], "--topic is needed: numbers, w"),
        ("w", [0, 7], "no partition 7, but w 0"),
    ):
        with pytest.raises(typer.BadParameter, match=said):
            chosen(TOPICS, topic, numbers)
