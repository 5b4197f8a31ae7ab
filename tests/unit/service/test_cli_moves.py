"""Which offsets may be moved, and where to: what operators ask, read and judged."""

import pytest
import typer

from partition.errors import StoreError
from partition.interfaces import AtOffset, AtTimestamp, Log, StoredOffset, Topic
from partition.records import Partition, Position
from partition.replicas.plan import Control
from service.cli.offsets import (
    check_are_read,
    chosen,
    consumed,
    judge_move,
    parse_places,
    parse_to,
)
from tests.support.commands import NOTE, P

TOPICS = {"numbers": Topic("numbers", "id", (0, 1, 2)), "w": Topic("w", "id", (0,))}


def test_without_replicas_nothing_is_consumed_paused_or_not():
    assert consumed([], Control()) is None
    assert consumed([], Control(paused=NOTE)) is None


def test_another_topology_s_offset_is_refused():
    stored = StoredOffset(Position(10), "other")
    row = judge_move(P[0], AtOffset(5), Log(0, 20), stored, "tables", exactly_once=False)
    assert (row.outcome, row.before) == ("refused", 10)
    assert "'other'" in row.note


def test_an_offset_that_may_not_be_read_is_refused():
    error = StoreError("no right to read")
    row = judge_move(P[0], AtOffset(5), Log(0, 20), error, "tables", exactly_once=False)
    assert (row.outcome, row.note) == ("refused", "no right to read")


@pytest.mark.parametrize(
    "text", ["orders", "orders:0", "orders=3", ":0=3", "orders:x=3", "orders:0=-3", "orders:0=3.5",
             "orders:0=9999999999999999999", "orders:0= 3"],
)  # fmt: skip
def test_a_place_has_its_form(text):
    with pytest.raises(typer.BadParameter, match="TOPIC:PARTITION=OFFSET is needed"):
        parse_places([text])


def test_places_are_read_and_each_may_be_named_once():
    assert parse_places(["a:b:0=3", "a.b:12=0"]) == {
        Partition("a:b", 0): AtOffset(3), Partition("a.b", 12): AtOffset(0),
    }  # fmt: skip
    with pytest.raises(typer.BadParameter, match=r"numbers\[0\] is named twice"):
        parse_places(["numbers:0=1", "numbers:00=2"])


def test_where_to_reset_to_is_a_word_or_a_time():
    assert [parse_to(each) for each in ("earliest", "latest", "17")] == [
        "earliest", "latest", AtTimestamp(17),
    ]  # fmt: skip
    for text in ("now", "-1", "1.5", "", "9" * 19):
        with pytest.raises(typer.BadParameter, match="allowed: earliest, latest, or"):
            parse_to(text)


def test_partitions_that_the_topology_does_not_read_are_refused_with_those_it_does():
    check_are_read(P, TOPICS)
    for each in (Partition("numbers", 3), Partition("other", 0)):
        with pytest.raises(typer.BadParameter, match="but numbers 0-2, w 0"):
            check_are_read([P[0], each], TOPICS)


def test_what_is_reset_is_chosen_by_topic_and_number():
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
