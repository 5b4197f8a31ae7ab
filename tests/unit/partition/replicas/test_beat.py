"""Heartbeats driven request by request: every reply may be lost, every session may end."""

import itertools

import pytest

from partition.errors import StoreError
from partition.offsets.requests import Children, Read, ReplyLost, SessionEnded
from partition.records import Partition
from partition.replicas.heartbeat import Heartbeats, Report, decode_member
from partition.replicas.plan import Member
from tests.support.faulty_store import FaultyNodes, carry_out

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
