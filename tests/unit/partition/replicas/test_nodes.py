import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partition.errors import StoreCorrupt, StoreError
from partition.offsets.requests import Children, Read, ReplyLost, SessionEnded
from partition.records import Partition
from partition.replicas import heartbeat as nodes
from partition.replicas.balance import (
    MAX_COUNT,
    MAX_NUMBER,
    Control,
    Leaving,
    Member,
    Note,
    Plan,
    by_topic,
    decode_numbers,
    encode_numbers,
    from_topics,
)
from partition.replicas.heartbeat import Heartbeats, Report, decode_member
from tests.support.faulty_store import FaultyNodes, carry_out

PLAN = Plan(
    9,
    "a",
    {Partition("t", 0): "a", Partition("t", 1): "b"},
    {Partition("t", 2): Leaving("a", 7), Partition("u", 0): Leaving("a", 9)},
    4,
)
NOTE = Note("ops@desk", "why not", 12)


def test_the_nodes_lie_beside_the_topics():
    assert nodes.replica_path("/headrace/", "shop", "a") == "/headrace/shop/@replicas/a"
    assert nodes.plan_path("/headrace", "shop") == "/headrace/shop/@plan"
    assert nodes.control_path("/headrace", "shop") == "/headrace/shop/@control"


def test_a_plan_is_read_back():
    data = nodes.encode_plan(PLAN)
    assert json.loads(data) == {
        "version": 1,
        "number": 9,
        "leader": "a",
        "owners": {"a": {"t": "0"}, "b": {"t": "1"}},
        "leaving": {"a": {"7": {"t": "2"}, "9": {"u": "0"}}},
        "rebalanced": 4,
    }
    assert nodes.decode_plan("/x", data) == PLAN


@pytest.mark.parametrize("control", [Control(), Control(NOTE, {"b": NOTE, "a": NOTE}, 2)])
def test_what_operators_ask_for_is_read_back(control):
    assert nodes.decode_control("/x", nodes.encode_control(control)) == control


def changed(data, **fields):
    return json.dumps(json.loads(data) | fields).encode()


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        ({"version": 2}, '"version" 2, which a later version'),
        ({"version": 0.5}, "version"),
        ({"number": 0}, "number"),
        ({"owners": {"a": {"t": "0-"}}}, "topic t"),
        ({"owners": {"a": {"t": "0"}, "b": {"t": "0"}}}, r"t\[0\] has two owners"),
        ({"leaving": {"a": {"7": {"t": "1"}}}}, r"t\[1\] stands there twice"),
        ({"leaving": {"a": {"-7": {"t": "2"}}}}, "'-7' is no number of a plan"),
        ({"leaving": {"a": {"1" * 5000: {"t": "2"}}}}, "is no number of a plan"),
    ],
)
def test_a_plan_that_makes_no_sense_is_corrupt(fields, found):
    with pytest.raises(StoreCorrupt, match=rf"/x/@plan cannot be read: .*{found}"):
        nodes.decode_plan("/x/@plan", changed(nodes.encode_plan(PLAN), **fields))


@pytest.mark.parametrize("fields", [{"holds": {"t": "3,1"}}, {"seen": -1}, {"process": None}])
def test_a_member_that_makes_no_sense_is_corrupt(fields):
    with pytest.raises(StoreCorrupt, match="/x/a cannot be read"):
        nodes.decode_member("/x/a", changed(nodes.encode_member(Member("a", "p-1")), **fields), 1)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a b", "a\n", "é", "x" * 201, "@a"])
def test_names_that_are_none(name):
    with pytest.raises(ValueError, match="of A-Z a-z 0-9"):
        nodes.check_name(name)


NUMBERS = st.one_of(st.integers(0, 30), st.integers(0, MAX_NUMBER))
PARTITIONS = st.builds(Partition, st.sampled_from(["a", "b.c", "d-e"]), NUMBERS)


@given(st.lists(NUMBERS, max_size=40))
def test_what_is_written_is_read(numbers):
    assert decode_numbers(encode_numbers(numbers)) == sorted(set(numbers))


@given(st.sets(PARTITIONS, max_size=40))
def test_partitions_are_written_by_topic_and_read(partitions):
    written = by_topic(partitions)
    assert from_topics(written) == partitions
    assert list(written) == sorted(written)


TEXTS = "x; 1;1, 2;1,;,1;-1;1-;01;1_0;٣;3-1;1-1;2,1;1,1;0-3,3;0-3,2-5;2147483648;0-2147483648;1\n"


@pytest.mark.parametrize("text", TEXTS.split(";"))
def test_a_text_that_is_no_ascending_ranges_is_refused(text):
    with pytest.raises(ValueError, match=r'ascending ranges as in "0-3,7"'):
        decode_numbers(text)


def test_a_text_that_would_fill_the_memory_is_refused():
    """One short line of a corrupt node would otherwise become billions of numbers."""
    assert len(decode_numbers(f"0-{MAX_COUNT - 1}")) == MAX_COUNT
    for text in (f"0-{MAX_COUNT}", "0-2147483647", f"0,2-{MAX_COUNT + 1}"):
        with pytest.raises(ValueError, match="too many numbers"):
            decode_numbers(text)


ALL = frozenset(Partition("t", number) for number in range(4))
PATH = "/headrace/shop/@replicas/a"


class Replica:
    """A process and its session."""

    def __init__(self, server):
        self.server = server
        self.beats = Heartbeats("/headrace", "shop", Member("a", "p-a"))
        self.session = object()

    def beat(self, fate=lambda _count, _request: None):
        """Beat once; `fate` is told of each request first, and may raise."""
        numbers = itertools.count()

        def answer(request):
            fate(next(numbers), request)
            return self.server.answer(request, self.session)

        return carry_out(self.beats.beat(Report(frozenset(), 0, ALL)), answer)


@pytest.fixture
def a():
    return Replica(FaultyNodes())


def test_lost_replies_of_readings_are_asked_for_again(a):
    lost = []

    def fate(_count, request):
        if isinstance(request, Read | Children) and lost[-1:] != [request]:
            lost.append(request)
            raise ReplyLost

    assert a.beat(fate).leads
    assert len(lost) > 5


@pytest.mark.parametrize("at", range(12))
def test_a_beat_begins_anew_in_the_next_session(a, at):
    def fate(count, _request):
        if count == at:
            a.server.drop(a.session)
            a.session = object()
            raise SessionEnded

    assert a.beat(fate).leads
    stat = a.server.answer(Read(PATH), a.session)
    assert stat.is_ours
    assert decode_member(PATH, stat.data, stat.created).process == "p-a"


def test_a_plan_too_large_for_a_node_is_refused_by_name(a, monkeypatch):
    monkeypatch.setattr("partition.replicas.heartbeat.MAX_BYTES", 50)
    with pytest.raises(StoreError, match="@plan would be"):
        a.beat()
