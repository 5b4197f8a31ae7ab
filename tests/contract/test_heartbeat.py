"""One suite for heartbeats on both servers: nodes in memory, and ZooKeeper."""

import itertools
import threading
import uuid
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest

from partition.errors import ReplicaReplaced, StoreCorrupt
from partition.offsets.requests import CreateNode, SetNode, Steps, Write
from partition.records import Partition
from partition.replicas.balance import Control, Member, Note, Plan
from partition.replicas.heartbeat import (
    GroupView,
    Heartbeats,
    Report,
    control_path,
    encode_control,
    encode_plan,
    plan_path,
    replica_path,
)
from tests.acceptance import processes
from tests.support.patience import until
from tests.support.zookeeper import (
    BOTH,
    SECONDS,
    A,
    B,
    MemoryNodesWorld,
    begin,
    claim,
    opened,
    opened_apart,
)

ALL = frozenset({A, B})
NOTHING: frozenset[Partition] = frozenset()


@pytest.fixture(params=BOTH)
def world(request):
    yield from opened(request.param, request)


@pytest.fixture(params=BOTH)
def fragile(request):
    yield from opened_apart(request.param, request)


class Replica:
    def __init__(self, world: Any, name: str) -> None:
        self.store = world.store()
        self.me = Member(name, str(uuid.uuid4()), host="h1", since_ms=5, headrace="0.1")
        self.heartbeats = Heartbeats(world.root, "shop", self.me)

    def beat(
        self,
        *holds: Partition,
        seen: int = 0,
        partitions: frozenset[Partition] | None = ALL,
    ) -> GroupView:
        return self.begin(Report(frozenset(holds), seen, partitions)).result(SECONDS)

    def begin(self, report: Report) -> "Future[GroupView]":
        return self.store.submit(self.heartbeats.beat(report))


def names(view: GroupView) -> list[str]:
    return [member.name for member in view.members]


def test_one_replica_registers_and_plans_all_for_itself(world):
    a = Replica(world, "a")
    view = a.beat()
    assert view.leads
    assert view.plan == Plan(1, "a", dict.fromkeys(ALL, "a"), {})
    (member,) = view.members
    assert (member.name, member.process, member.host) == ("a", a.me.process, "h1")
    assert (member.seen, member.holds, member.since_ms) == (0, NOTHING, 5)
    again = a.beat(A, B, seen=1)
    assert again.plan == view.plan
    assert (again.members[0].holds, again.members[0].seen) == (ALL, 1)
    assert again.members[0].joined == member.joined


def test_the_first_to_join_leads_whatever_its_name(world):
    z, a = Replica(world, "z"), Replica(world, "a")
    assert z.beat().leads
    view = a.beat()
    assert (view.leads, names(view)) == (False, ["a", "z"])
    assert [(each.process, each.holds) for each in view.members] == [("", NOTHING)] * 2
    assert names(z.beat()) == ["z", "a"]  # in the order of joining


def test_a_partition_goes_over_when_the_one_that_held_it_says_so(world):
    a, b = Replica(world, "a"), Replica(world, "b")
    assert a.beat().plan.of("a") == ALL
    a.beat(A, B, seen=1)
    assert b.beat().plan.of("b") == NOTHING
    revoked = a.beat(A, B, seen=1).plan
    (moving,) = revoked.leaving
    (kept,) = ALL - {moving}
    assert a.beat(A, B, seen=2).plan == revoked  # it still drains
    granted = a.beat(kept, seen=2).plan
    assert granted.owners == {kept: "a", moving: "b"}
    assert b.beat().plan == granted
    assert a.beat(kept, seen=3).plan == granted
    b.beat(moving, seen=granted.number)
    seen_by_leader = a.beat(kept, seen=3).members[1]
    assert (seen_by_leader.holds, seen_by_leader.seen) == (frozenset({moving}), granted.number)


def test_when_the_leader_dies_the_next_leads_and_takes_over(world):
    a, b = Replica(world, "a"), Replica(world, "b")
    a.beat()
    assert not b.beat().leads
    a.store.close()
    until("b.beat().leads", lambda: b.beat().leads, SECONDS)
    assert b.beat().plan.of("b") == ALL
    assert names(b.beat()) == ["b"]


def test_the_same_name_started_anew_takes_over_at_once(world):
    """The session of its predecessor need not end first; its partitions stay its own."""
    b, former = Replica(world, "b"), Replica(world, "a")
    b.beat()
    former.beat()
    plan = b.beat().plan
    latter = Replica(world, "a")
    view = latter.beat()
    assert (view.plan, names(view)) == (plan, ["a", "b"])
    assert b.beat().members[1].process == latter.me.process
    with pytest.raises(ReplicaReplaced, match=latter.me.process):
        former.beat()
    former.store.close()
    assert names(latter.beat()) == ["a", "b"]


def test_one_that_lost_its_session_does_not_drive_its_successor_out(world):
    """Frozen past its session, thawed: the other process of its name is the newer one."""
    former = Replica(world, "a")
    former.beat()
    world.end_session(former.store)
    latter = Replica(world, "a")
    latter.beat()
    with pytest.raises(ReplicaReplaced):
        former.beat()
    assert latter.beat().leads


def test_after_its_session_ended_a_replica_registers_anew(world):
    a, b = Replica(world, "a"), Replica(world, "b")
    joined = a.beat().members[0].joined
    b.beat()
    world.end_session(a.store)
    assert names(b.beat()) == ["b"]
    assert b.beat().leads
    assert not a.beat().leads
    found = {member.name: member.joined for member in b.beat().members}
    assert found["a"] > max(joined, found["b"])


def test_what_operators_ask_for_reaches_every_replica(world):
    a, b = Replica(world, "a"), Replica(world, "b")
    assert a.beat().control == Control()
    note = Note("ops@desk", "upgrade", 7)
    asked = Control(note, {"b": note}, 3)
    world.put(control_path(world.root, "shop"), encode_control(asked))
    assert b.beat().control == asked
    assert a.beat().control == asked
    assert a.beat().plan.of("b") == NOTHING


@pytest.mark.parametrize("data", [b"{}", b"\xff", b"[1]", b'{"version":2}', b"[" * 300_000])
def test_what_cannot_be_read_is_named_and_left_as_it_is(world, data):
    a, b = Replica(world, "a"), Replica(world, "b")
    plan, control = plan_path(world.root, "shop"), control_path(world.root, "shop")
    a.beat()
    b.beat()
    member = replica_path(world.root, "shop", "b")
    world.put(member, data)
    with pytest.raises(StoreCorrupt, match="@replicas/b"):
        a.beat()
    assert world.raw(member) == data
    assert not b.beat().leads  # which writes its own node again
    good = world.raw(plan)
    assert names(a.beat()) == ["a", "b"]
    for path, name in ((control, "@control"), (plan, "@plan")):
        world.put(path, data)
        for replica in (a, b):
            with pytest.raises(StoreCorrupt, match=name):
                replica.beat()
        assert world.raw(path) == data
        world.put(path, encode_control(Control()) if path == control else good)
    assert a.beat().leads


def test_a_plan_that_another_wrote_meanwhile_stays(world):
    """Two that both think they lead: one write is refused, and nothing of it is left."""
    a = Replica(world, "a")
    path = plan_path(world.root, "shop")
    rival = Plan(1, "r", {A: "a"}, {})
    view = a.store.submit(
        before_the_plan(
            Heartbeats(world.root, "shop", a.me).beat(Report(NOTHING, 0, ALL)),
            lambda: Write((CreateNode(path, encode_plan(rival)),)),
        )
    ).result(SECONDS)
    assert view.plan == rival
    assert a.beat().plan == Plan(2, "a", dict.fromkeys(ALL, "a"), {})


def test_no_plan_is_written_over_the_head_of_one_that_registers(world):
    """A process under a name that was thought gone opens what the plan gives the name."""
    a, b = Replica(world, "a"), Replica(world, "b")
    parent = replica_path(world.root, "shop", "b").rpartition("/")[0]
    a.beat()
    before = world.raw(plan_path(world.root, "shop"))
    more = ALL | {Partition("orders", 2)}
    beats = Heartbeats(world.root, "shop", a.me)
    view = a.store.submit(
        before_the_plan(
            beats.beat(Report(NOTHING, 0, more)), lambda: Write((SetNode(parent, b"", -1),))
        )
    ).result(SECONDS)
    assert view.plan.of("a") == ALL
    assert world.raw(plan_path(world.root, "shop")) == before
    b.beat()
    assert a.beat(partitions=more).plan.number == 2


def before_the_plan(steps: Steps[GroupView], other: Callable[[], Write]) -> Steps[GroupView]:
    """Carry out what another does right before the plan is written."""
    request = next(steps)
    while True:
        if isinstance(request, Write) and request.operations[-1].path.endswith("@plan"):
            yield other()
        try:
            reply = yield request
        except Exception as error:  # noqa: BLE001
            answer: Any = lambda error=error: steps.throw(error)  # noqa: E731
        else:
            answer = lambda reply=reply: steps.send(reply)  # noqa: E731
        try:
            request = answer()
        except StopIteration as stop:
            return stop.value


def test_unknown_partitions_are_those_of_the_plan(world):
    a = Replica(world, "a")
    assert a.beat(partitions=None).plan is None
    plan = a.beat().plan
    assert a.beat(partitions=None).plan == plan


def test_claims_and_membership_end_together(world):
    a = Replica(world, "a")
    begin(a.store, A, 5)
    a.beat(A)
    world.end_session(a.store)
    assert a.beat(A).leads
    assert claim(a.store, A).uninterrupted


def test_a_beat_goes_before_the_claims_that_wait(world):
    a = Replica(world, "a")
    a.beat()
    ended: list[str] = []
    goes_on = threading.Event()
    is_real = not isinstance(world, MemoryNodesWorld)  # memory does all at once
    if is_real:  # the worker stands still until the beat is asked for
        a.store._worker._thread.submit(goes_on.wait, SECONDS)
    for number in range(300 if is_real else 1):
        future = a.store.claim(Partition("orders", number))
        future.add_done_callback(lambda _: ended.append("claim"))
    beat = a.begin(Report(NOTHING, 0, ALL))
    beat.add_done_callback(lambda _: ended.append("beat"))
    goes_on.set()
    beat.result(SECONDS)
    assert "beat" in list(itertools.islice(ended, 4))


def test_the_last_contact_grows_with_answers_alone(fragile):
    a = Replica(fragile, "a")
    a.beat()
    first = a.store.last_contact
    a.beat()
    second = a.store.last_contact
    assert first < second
    is_real = not isinstance(fragile, MemoryNodesWorld)
    if is_real:
        processes.freeze(fragile.server.pid)
    else:
        fragile.lose()
    beat = a.begin(Report(NOTHING, 0, ALL))
    until("not a.store.available", lambda: not a.store.available, SECONDS)
    assert (beat.done(), a.store.last_contact) == (False, second)
    if is_real:
        processes.thaw(fragile.server.pid)
    else:
        fragile.find()
    assert beat.result(SECONDS).leads
    assert a.store.last_contact > second


def test_a_leader_started_anew_joins_as_the_last(world):
    former, b = Replica(world, "a"), Replica(world, "b")
    former.beat()
    assert not b.beat().leads
    latter = Replica(world, "a")
    assert [latter.beat().leads, b.beat().leads, latter.beat().leads] == [False, True, False]
