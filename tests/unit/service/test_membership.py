import math
from concurrent.futures import Future
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from partition.errors import CountsDiffer, ReplicaReplaced, StoreCorrupt
from partition.records import Partition
from partition.replicas.balance import SINGLY, Control, Copartitions, Member, Note, Plan
from partition.replicas.heartbeat import GroupView
from service.errors import OneReplicaOnly
from service.membership import GroupMembership, MembershipPolicy

ONE, TWO, THREE = (Partition("t", number) for number in range(3))
ALL = frozenset({ONE, TWO, THREE})


class Reader:
    def __init__(self):
        self.known, self.holds = ALL, frozenset()
        self.wanted, self.paused = [], []
        self.suspend = Mock()

    def want(self, partitions, *, planned_at, leave_by):
        self.wanted.append((partitions, planned_at, leave_by))
        self.holds = frozenset(partitions)

    is_paused = property(None, lambda self, value: self.paused.append(value))


class World:
    def __init__(self, copartitions=SINGLY, **policy):
        self.reader, self.asked = Reader(), []
        self.register = SimpleNamespace(
            last_contact=0.0, beat=lambda report: report, submit=self.submit
        )
        policy = MembershipPolicy("a-1", handover_seconds=6.0, suspend_seconds=5.0, **policy)
        self.replica = GroupMembership(
            self.register, self.register, self.reader, policy, copartitions
        )
        self.poll = self.replica.poll

    def submit(self, report):
        self.asked.append((report, Future()))
        return self.asked[-1][1]

    def beat(self, now, answer, heard=None):
        self.poll(now)
        beat = self.asked[-1][1]
        (beat.set_exception if isinstance(answer, Exception) else beat.set_result)(answer)
        if heard is not None:
            self.register.last_contact = heard
        self.poll(now + 0.1)


def view(number, *names, paused=None, resumed=0, leads=False, owns=()):
    members = tuple(Member(name, "", 0, 0, frozenset()) for name in names or ("a-1", "b-2"))
    plan = Plan(number, "b-2", dict.fromkeys(owns, "a-1"), {})
    return GroupView(plan, Control(paused, resumed=resumed), members, leads=leads)


@pytest.fixture
def world():
    return World()


def test_heartbeat_reports_the_applied_plan(world):
    world.beat(1.0, view(7, owns=[ONE, TWO]))
    assert world.reader.wanted == [({ONE, TWO}, 1.0, 7.1)]
    world.poll(1.6)
    reports = [report for report, _ in world.asked]
    assert [report.seen for report in reports] == [0, 7]
    assert reports[1].holds == {ONE, TWO}


def test_silence_suspends_everything_once(world):
    """Promise 9: that a session has ended is only told at the next connection.

    The reader is told how long ours surely lives: it may stand still, and emit when it goes on.
    """
    world.beat(1.0, view(1, owns=[ONE]), heard=1.0)
    assert world.reader.trusted_until == 6.0
    world.poll(6.0)
    assert world.reader.suspend.call_count == 0
    world.poll(6.1)
    world.poll(9.0)
    assert world.reader.suspend.call_count == 1
    world.register.last_contact = 9.5
    world.poll(9.6)
    assert world.reader.trusted_until == 14.5
    world.poll(14.6)
    assert world.reader.suspend.call_count == 2


def test_the_only_replica_works_on_without_zookeeper(world):
    """Promise 15."""
    world.beat(1.0, view(1, "a-1", owns=[ONE]))
    world.poll(60.0)
    assert world.reader.suspend.call_count == 0
    assert world.reader.trusted_until == math.inf


def test_a_pause_is_told_once_and_ends(world):
    note = Note("op@host", "a move", 5)
    for now in (1.0, 2.0):
        world.beat(now, view(1, paused=note))
    assert world.reader.paused == [True]
    world.beat(3.0, view(1))
    assert world.reader.paused == [True, False]
    assert world.reader.suspend.call_count == 1


def test_a_pause_between_two_heartbeats_has_partitions_claimed_again_too(world):
    """Promise 9: their offsets may have been moved meanwhile."""
    world.beat(1.0, view(1, resumed=3))
    assert world.reader.suspend.call_count == 0
    for now in (2.0, 3.0):
        world.beat(now, view(1, resumed=4))
    assert (world.reader.paused, world.reader.suspend.call_count) == ([], 1)


def test_another_process_under_our_name_ends_the_run(world):
    with pytest.raises(ReplicaReplaced, match="a-1"):
        world.beat(1.0, ReplicaReplaced("a-1", "other"))


def test_a_plan_that_cannot_be_read_leaves_us_what_we_have(world):
    """Promise 8."""
    world.beat(1.0, view(1, owns=[ONE]))
    world.beat(2.0, StoreCorrupt("/headrace/p/@plan", "no JSON"))
    world.poll(3.0)
    assert len(world.asked) == 3
    assert world.reader.holds == {ONE}


def test_one_host_pipeline_runs_on_the_leader_only():
    world = World(alone="catalogue 'default' is a SQLite file")
    world.beat(0.0, view(1, leads=True))
    with pytest.raises(OneReplicaOnly, match="SQLite file; found the replicas a-1, b-2, expected"):
        world.beat(1.0, view(1))


def test_join_with_unequal_counts_is_rejected_at_start():
    world = World(Copartitions(lambda _topic: 0))
    counts = {"orders": 3, "payments": 2}
    known = (Partition(t, n) for t, count in counts.items() for n in range(count))
    world.reader.known = frozenset(known)
    with pytest.raises(CountsDiffer, match="'orders' with 3, 'payments' with 2"):
        world.poll(0.0)
    assert world.asked == []
