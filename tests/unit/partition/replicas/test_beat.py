"""Heartbeats driven request by request: every reply may be lost, every session may end."""

from typing import Any

import pytest

from partition.errors import ReplicaReplaced, StoreError
from partition.offsets.requests import (
    NodeChanged,
    NodeExists,
    OutcomeUnknown,
    Pause,
    Read,
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


def unknown_at(replica: Replica, chosen: int, *, done: bool) -> Any:
    """The chosen write's reply is lost; it was done or not."""
    writes = 0

    def answer(_: int, request: Any) -> Any:
        nonlocal writes
        if not isinstance(request, Write):
            return None
        writes += 1
        if writes - 1 != chosen:
            return None
        if done:
            replica.carry_out(request)
        return OutcomeUnknown()

    return answer


@pytest.mark.parametrize("done", [False, True])
def test_a_report_whose_reply_is_lost_is_there_before_anything_is_read(
    server: FaultyNodes, done: bool
) -> None:
    a = Replica(server, "a", "p-a")
    a.beat()
    a.report = Report(ALL, 1, ALL)
    a.requests.clear()
    a.beat(unknown_at(a, 0, done=done))
    assert (a.node.holds, a.node.seen) == (ALL, 1)
    last_write = max(at for at, each in enumerate(a.requests) if isinstance(each, Write))
    others = [at for at, each in enumerate(a.requests) if not isinstance(each, Write | Pause)]
    assert {a.requests[at].path for at in others if at < last_write} == {AT + "a"}


def test_lost_replies_of_readings_are_asked_for_again(server: FaultyNodes) -> None:
    a = Replica(server, "a", "p-a")

    def answer(count: int, request: Any) -> Any:
        is_read = not isinstance(request, Write | Pause)
        return OutcomeUnknown() if is_read and a.requests[-2:-1] != [request] and wait() else None

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


def test_our_node_of_an_ended_session_is_replaced(server: FaultyNodes) -> None:
    """It may be there for a moment yet, and is no successor's."""
    a = Replica(server, "a", "p-a")
    a.beat()
    ended, a.session = a.session, object()
    assert a.beat().leads
    server.drop(ended)
    assert a.node.process == "p-a"


def test_a_predecessors_late_report_is_written_over(server: FaultyNodes) -> None:
    """A node made anew has the version that the predecessor knows: 0."""
    former, latter = Replica(server, "a", "p-1"), Replica(server, "a", "p-2")
    former.beat()
    former.report = Report(ALL, 1, ALL)

    def late(_: int, request: Any) -> Any:
        if isinstance(request, Write) and latter.node.process == "p-1":
            latter.beat()
        return None

    with pytest.raises(ReplicaReplaced):
        former.beat(late)
    assert latter.beat().leads
    assert (latter.node.process, latter.node.holds) == ("p-2", frozenset())


def test_a_member_that_does_not_lead_reads_no_more_with_more_members(server: FaultyNodes) -> None:
    replicas = [Replica(server, f"r{number}", f"p{number}") for number in range(20)]
    for replica in replicas:
        replica.beat()
    replicas[1].beat()
    replicas[1].requests.clear()
    replicas[1].beat()
    assert len(replicas[1].requests) == 5


def test_a_plan_too_large_for_a_node_is_refused_by_name(
    server: FaultyNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("partition.replicas.heartbeat.MAX_BYTES", 50)
    with pytest.raises(StoreError, match="@plan would be"):
        Replica(server, "a", "p-a").beat()
