"""Heartbeats driven request by request: every reply may be lost, every session may end."""

from typing import Any

import pytest

from partition.errors import StoreError
from partition.offsets.requests import (
    NodeChanged,
    NodeExists,
    Pause,
    Read,
    ReplyLost,
    SessionEnded,
    Write,
)
from partition.records import Partition
from partition.replicas.heartbeat import Heartbeats, Report, decode_member
from partition.replicas.plan import Member
from tests.support.faulty_store import FaultyNodes

ALL = frozenset(Partition("t", number) for number in range(4))
AT = "/headrace/shop/@replicas/"


class Replica:
    """A process and its session."""

    def __init__(self, server: FaultyNodes, name: str, process: str) -> None:
        self.server, self.name, self.process = server, name, process
        self.beats = Heartbeats("/headrace", "shop", Member(name, process))
        self.session = object()
        self.report = Report(frozenset(), 0, ALL)
        self.requests: list[Any] = []

    def end_session(self) -> None:
        self.server.drop(self.session)
        self.session = object()

    def carry_out(self, request: Any) -> Any:
        try:
            return self.server.answer(request, self.session)
        except (NodeExists, NodeChanged) as error:
            return error

    def run(self, steps: Any, answer: Any = None) -> Any:
        """To the end; `answer(count, request)` may say what becomes of a request."""
        reply: Any = None
        for count in range(1000):
            try:
                raises = isinstance(reply, Exception)
                request = steps.throw(reply) if raises else steps.send(reply)
            except StopIteration as stop:
                return stop.value
            self.requests.append(request)
            reply = answer(count, request) if answer else None
            if reply is None:
                reply = self.carry_out(request)
        raise AssertionError("it never ends")

    def beat(self, answer: Any = None) -> Any:
        return self.run(self.beats.beat(self.report), answer)

    @property
    def node(self) -> Any:
        stat = self.server.answer(Read(AT + self.name))
        return None if stat is None else decode_member(AT + self.name, stat.data, stat.created)


@pytest.fixture
def server() -> FaultyNodes:
    return FaultyNodes()


def test_lost_replies_of_readings_are_asked_for_again(server: FaultyNodes) -> None:
    a = Replica(server, "a", "p-a")

    def answer(count: int, request: Any) -> Any:
        is_read = not isinstance(request, Write | Pause)
        return ReplyLost() if is_read and a.requests[-2:-1] != [request] and wait() else None

    tried: list[int] = []

    def wait() -> bool:
        tried.append(1)
        return len(tried) % 2 == 1

    assert a.beat(answer).leads
    assert len(tried) > 10


@pytest.mark.parametrize("at", range(12))
def test_a_beat_begins_anew_in_the_next_session(server: FaultyNodes, at: int) -> None:
    a = Replica(server, "a", "p-a")

    def answer(count: int, request: Any) -> Any:
        if count == at:
            a.end_session()
            return SessionEnded()
        return None

    assert a.beat(answer).leads
    assert a.node.process == "p-a"
    assert server.answer(Read(AT + "a"), a.session).is_ours


def test_a_plan_too_large_for_a_node_is_refused_by_name(
    server: FaultyNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("partition.replicas.heartbeat.MAX_BYTES", 50)
    with pytest.raises(StoreError, match="@plan would be"):
        Replica(server, "a", "p-a").beat()
