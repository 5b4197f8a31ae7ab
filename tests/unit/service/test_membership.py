"""What a replica does with its beats: which partitions it wants, and when it stops by its clock."""

import math
from concurrent.futures import Future
from dataclasses import replace

import pytest

from partition.errors import CountsDiffer, ReplicaReplaced, StoreCorrupt
from partition.records import Partition
from partition.replicas.heartbeat import GroupView
from partition.replicas.plan import SINGLY, Control, Copartitions, Member, Note, Plan
from service.errors import OneReplicaOnly
from service.membership import GroupMembership, MembershipPolicy

ONE, TWO, THREE = (Partition("t", number) for number in range(3))
ALL = frozenset({ONE, TWO, THREE})


class Reader:
    """Notes what it is told."""

    def __init__(self):
        self.known, self.holds = ALL, frozenset()
        self.wanted = []
        self.paused = []
        self.suspended = 0
        self.trusted_until = None

    def want(self, partitions, *, planned_at, leave_by):
        self.wanted.append((partitions, planned_at, leave_by))
        self.holds = frozenset(partitions)

    def suspend(self):
        self.suspended += 1

    def __setattr__(self, name, value):
        if name == "is_paused":
            self.paused.append(value)
        super().__setattr__(name, value)


class Register:
    """Heartbeats and the session that carries them; answers when it is told to."""

    def __init__(self):
        self.last_contact = 0.0
        self.asked = []

    def beat(self, report):
        return report

    def submit(self, report):
        self.asked.append((report, Future()))
        return self.asked[-1][1]

    def answer(self, found):
        beat = self.asked[-1][1]
        if isinstance(found, Exception):
            beat.set_exception(found)
        else:
            beat.set_result(found)


def membership(name="a-1", copartitions=SINGLY, **changes):
    register, reader = Register(), Reader()
    policy = MembershipPolicy(name, handover_seconds=6.0, suspend_seconds=5.0, **changes)
    return GroupMembership(register, register, reader, policy, copartitions), register, reader


def view(number, *names, paused=None, plan=True, **owners):
    members = tuple(Member(name, "", 0, 0, frozenset()) for name in names or ("a-1", "b-2"))
    gives = {each: name.replace("_", "-") for name, parts in owners.items() for each in parts}
    return GroupView(
        Plan(number, "b-2", gives, {}) if plan else None, Control(paused), members, leads=False
    )


def test_heartbeat_reports_the_applied_plan():
    replica, register, reader = membership()
    replica.poll(1.0)
    assert register.asked[0][0].seen == 0
    register.answer(view(7, a_1=[ONE, TWO]))
    replica.poll(1.1)
    assert reader.wanted == [({ONE, TWO}, 1.0, 7.1)]
    replica.poll(1.6)
    assert register.asked[1][0].seen == 7
    assert register.asked[1][0].holds == {ONE, TWO}


def test_silence_suspends_everything_once():
    """Promise 9: that a session has ended is only told at the next connection."""
    replica, register, reader = membership()
    replica.poll(1.0)
    register.answer(view(1, a_1=[ONE]))
    register.last_contact = 1.0
    replica.poll(1.1)
    replica.poll(6.0)
    assert reader.suspended == 0
    replica.poll(6.1)
    replica.poll(9.0)
    assert reader.suspended == 1
    register.last_contact = 9.5
    replica.poll(9.6)
    replica.poll(14.6)
    assert reader.suspended == 2


def test_the_reader_is_told_until_when_our_session_surely_lives():
    """Promise 9: it may stand still between two looks at the clock, and emit when it goes on."""
    replica, register, reader = membership()
    replica.poll(1.0)
    register.answer(view(1, a_1=[ONE]))
    register.last_contact = 1.0
    replica.poll(1.1)
    assert reader.trusted_until == 6.0
    register.last_contact = 9.5
    replica.poll(9.6)
    assert reader.trusted_until == 14.5


def test_the_only_replica_works_on_without_zookeeper():
    """Promise 15."""
    replica, register, reader = membership()
    replica.poll(1.0)
    register.answer(view(1, "a-1", a_1=[ONE]))
    replica.poll(1.1)
    replica.poll(60.0)
    assert reader.suspended == 0
    assert reader.trusted_until == math.inf


def test_a_pause_is_told_once_and_ends():
    replica, register, reader = membership()
    for now, note in ((1.0, Note("op@host", "a move", 5)), (2.0, Note("op@host", "a move", 5))):
        replica.poll(now)
        register.answer(view(1, paused=note))
        replica.poll(now + 0.1)
    assert reader.paused == [True]
    replica.poll(3.0)
    register.answer(view(1))
    replica.poll(3.1)
    assert reader.paused == [True, False]


def test_another_process_under_our_name_ends_the_run():
    replica, register, _ = membership()
    replica.poll(1.0)
    register.answer(ReplicaReplaced("a-1", "other"))
    with pytest.raises(ReplicaReplaced, match="a-1"):
        replica.poll(1.1)


def test_a_plan_that_cannot_be_read_leaves_us_what_we_have():
    """Promise 8."""
    replica, register, reader = membership()
    replica.poll(1.0)
    register.answer(view(1, a_1=[ONE]))
    replica.poll(1.1)
    replica.poll(2.0)
    register.answer(StoreCorrupt("/headrace/p/@plan", "no JSON"))
    replica.poll(2.1)
    replica.poll(3.0)
    assert len(register.asked) == 3
    assert reader.holds == {ONE}


def test_one_host_pipeline_runs_on_the_leader_only():
    replica, register, _reader = membership(alone="catalogue 'default' is a SQLite file")
    replica.poll(0.0)
    register.answer(replace(view(1, "a-1", "b-2"), leads=True))
    replica.poll(0.1)
    replica.poll(1.0)
    register.answer(view(1, "a-1", "b-2"))
    with pytest.raises(OneReplicaOnly, match="SQLite file; found the replicas a-1, b-2, expected"):
        replica.poll(1.1)


# Topics that are joined


def joining(*topics):
    replica, register, reader = membership(copartitions=Copartitions(lambda _topic: 0))
    reader.known = frozenset(Partition(topic, n) for topic, count in topics for n in range(count))
    return replica, register, reader


def test_join_with_unequal_counts_is_rejected_at_start():
    replica, register, _reader = joining(("orders", 3), ("payments", 2))
    with pytest.raises(CountsDiffer, match="'orders' with 3, 'payments' with 2"):
        replica.poll(0.0)
    assert register.asked == []
