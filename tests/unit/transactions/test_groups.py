import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from partition.records import Partition, Position, Resumed, Transactions
from tests.support import transactions as lined
from transactions.groups import (
    GroupMember,
    GroupPhase,
    RangePlanner,
    RangePolicy,
    TransactionGroups,
)
from transactions.transaction import OutOfOrder, RangeRead, TransactionPolicy

DIGEST = "ab" * 16


class FullPauses(random.Random):
    """Takes nothing off a pause."""

    def random(self):
        return 0.0


class World:
    """Some lines, and the groups of their ranges."""

    def __init__(self, places=2, *, max_active=2, opened=()):
        self.groups = TransactionGroups(max_active, FullPauses())
        self.lines = []
        for number in range(places):
            resumed = Resumed(Position(0), Transactions("transactional", 0, opened))
            policy = TransactionPolicy(max_active=max_active, by_executors=True)
            self.lines.append(lined.resume(Partition("t", number), resumed, policy))

    def plan(self, *places):
        """A group of the next ten offsets of each of them, or of all."""
        members = []
        for place in places or range(len(self.lines)):
            line = self.lines[place]
            planned = line.begin(line.planned_to + 10)
            members.append(GroupMember(place, line, planned.txid))
        return self.groups.plan(members)

    def store(self, *places):
        for place in places or range(len(self.lines)):
            lined.store(self.lines[place])

    def reads(self, group, count=10):
        return [RangeRead(each.line.partition, count, DIGEST, 3) for each in group.members]

    def run(self, now=0.0):
        """Store what is planned, and run the next group."""
        self.store()
        return self.groups.next_run(now)

    def read(self, group):
        assert self.groups.ran(group.number, group.attempt, self.reads(group))
        self.store()

    def attempts(self, place=0):
        return [each.attempt for each in self.lines[place].to_store().open]


def test_groups_in_flight_are_limited():
    world = World(max_active=2)
    assert world.groups.may_plan
    with pytest.raises(ValueError, match="one range each"):
        world.groups.plan([])
    line = world.lines[0]
    with pytest.raises(ValueError, match="one range each"):
        world.groups.plan([GroupMember(0, line, 1), GroupMember(0, line, 1)])
    first = world.plan()
    with pytest.raises(OutOfOrder):
        world.groups.plan([GroupMember(0, line, first.members[0].txid)])
    world.plan()
    assert not world.groups.may_plan
    with pytest.raises(OutOfOrder, match="2 groups are in flight"):
        world.groups.plan([GroupMember(0, line, 3)])


def test_attempt_that_lacks_a_range_is_an_error():
    world = World()
    group = world.plan()
    world.run()
    with pytest.raises(ValueError, match=r"group 1 lacks t\[1\]"):
        world.groups.ran(1, 1, world.reads(group)[:1])
    assert group.phase is GroupPhase.RUNNING


def test_pauses_grow_to_30_s_with_jitter():
    world = World(1)
    group = world.plan()
    pauses = []
    for _turn in range(7):
        assert world.run(group.again_at - 0.1) is None
        assert world.run(group.again_at) is group
        world.groups.failed(1, group.attempt, 100.0)
        pauses.append(group.again_at - 100.0)
    assert pauses == [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]
    world.groups._rng = random.Random(1)
    world.run(group.again_at)
    world.groups.failed(1, group.attempt, 0.0)
    assert 30 * 0.8 < group.again_at < 30


def test_rejected_rows_are_known_to_the_next_attempts():
    world = World()
    group = world.plan()
    world.groups.refuse(1, {0: {3: {"lake": {0: "too long"}}}})
    world.groups.refuse(1, {0: {3: {"archive": {0: "too wide"}}, 5: {"lake": {0: "null"}}}})
    world.groups.refuse(1, {7: {1: {"lake": {0: "no place of it"}}}})
    world.groups.refuse(9, {0: {4: {"lake": {0: "no such group"}}}})
    assert group.refused == {
        0: {3: {"lake": {0: "too long"}, "archive": {0: "too wide"}}, 5: {"lake": {0: "null"}}}
    }


def test_group_runs_again_without_a_lost_partition():
    world = World()
    group, later = world.plan(), world.plan(1)
    world.run()
    world.run()
    world.read(group)
    assert world.groups.next_commit() is group
    world.groups.drop(0)
    assert [each.phase for each in (group, later)] == [GroupPhase.PLANNED] * 2
    assert [each.place for each in group.members] == [1]
    assert world.attempts(1) == [2, 2]
    assert not world.groups.is_live(1, 1)
    assert not world.groups.is_live(2, 1)
    assert world.run() is group
    world.read(group)
    assert world.groups.next_commit() is group
    world.groups.done(1)
    assert world.lines[1].committed == 1
    assert world.lines[0].committed == 0


def test_groups_run_again_after_a_truncation():
    world = World(max_active=3)
    first, second, third = world.plan(), world.plan(0), world.plan(1)
    for group in (first, second, third):
        assert world.run() is group
    world.groups.refuse(second.number, {0: {12: {"lake": {0: "too long"}}}})
    world.read(second)
    world.read(third)
    cut = [replace(each, leader_epoch=4) for each in world.reads(first)]
    assert world.groups.ran(first.number, first.attempt, cut[:1] + world.reads(first)[1:])
    assert [each.phase for each in (first, second, third)] == [
        GroupPhase.PROCESSED, GroupPhase.PLANNED, GroupPhase.PLANNED,
    ]  # fmt: skip
    assert second.refused == {}, "another record stands there now"
    assert (world.attempts(0), world.attempts(1)) == ([1, 2], [1, 2])
    assert world.run() is second
    assert world.groups.ran(second.number, second.attempt, cut[:1])
    world.store()
    assert world.groups.next_commit() is first


# On the local engine, which makes groups of what is processed


def processed(world, *places):
    """Members whose records have been read, and whose seals are stored."""
    members = []
    for place in places:
        line = world.lines[place]
        txid = line.begin(line.planned_to + 10).txid
        world.store(place)
        assert line.read(txid, 1, 10, DIGEST, 3)
        world.store(place)
        members.append(GroupMember(place, line, txid))
    return members


def test_processed_groups_are_committed_in_order():
    """Promise 14: transactions are committed in txid order."""
    world = World()
    first = world.groups.plan(processed(world, 0, 1), GroupPhase.PROCESSED)
    second = world.groups.plan(processed(world, 0), GroupPhase.PROCESSED)
    assert world.groups.next_run(0.0) is None
    assert world.groups.lowest is first
    assert world.groups.next_commit() is first
    assert world.groups.next_commit() is None
    with pytest.raises(OutOfOrder):
        world.groups.done(second.number)
    world.groups.done(first.number)
    with pytest.raises(OutOfOrder):
        world.groups.done(second.number)
    assert world.groups.next_commit() is second
    world.groups.done(second.number)
    assert [line.committed for line in world.lines] == [2, 1]
    assert world.groups.lowest is None


def test_members_of_another_owner_leave_the_group():
    world = World()
    gone, stays = members = processed(world, 0, 1)
    group = world.groups.plan(members, GroupPhase.PROCESSED)
    world.groups.leave_out(group.number, [gone])
    assert world.groups.next_commit() is group
    assert [member for member, _covers in world.groups.done(group.number)] == [stays]
    assert [line.committed for line in world.lines] == [0, 1]


POLICY = RangePolicy(records=100, seconds=1.0)


def test_plan_waits_for_a_full_group_or_the_time():
    planner = RangePlanner(POLICY)
    assert planner.plan(0.0, {0: (10, 10), 1: (5, 5)}) is None
    assert planner.plan(7.0, {0: (10, 12), 1: (5, 5)}) is None
    assert planner.plan(7.9, {0: (10, 50), 1: (5, 20)}) is None
    assert planner.plan(8.0, {0: (10, 50), 1: (5, 20)}) == {0: 50, 1: 20}
    assert planner.plan(9.0, {0: (50, 51)}) is None, "it waits from now on"
    assert planner.plan(9.1, {0: (50, 100), 1: (20, 70)}) == {0: 100, 1: 70}


def test_wait_counts_behind_groups_in_flight():
    planner = RangePlanner(POLICY)
    assert not planner.look(0.0, {0: (10, 11)})
    assert planner.look(1.0, {0: (10, 11)})
    assert planner.plan(1.0, {0: (10, 11)}) == {0: 11}
    assert planner.look(1.0, {0: (11, 111)})


def test_wait_begins_anew_when_nothing_waits():
    planner = RangePlanner(POLICY)
    planner.look(0.0, {0: (10, 11)})
    planner.look(0.9, {0: (11, 11)})
    assert planner.plan(1.0, {0: (11, 12)}) is None


def test_odd_record_goes_to_each_partition_in_turn():
    planner = RangePlanner(RangePolicy(records=4))
    places = {0: (0, 100), 1: (0, 100), 2: (0, 100)}
    taken = [planner.plan(0.0, places) for _turn in range(4)]
    assert taken == [{0: 2, 1: 1, 2: 1}, {0: 1, 1: 2, 2: 1}, {0: 1, 1: 1, 2: 2}, {0: 2, 1: 1, 2: 1}]


def test_rest_of_a_full_group_waits():
    planner = RangePlanner(POLICY)
    planner.look(0.0, {0: (0, 105)})
    assert planner.plan(5.0, {0: (0, 105)}) == {0: 100}
    assert planner.plan(5.9, {0: (100, 105)}) is None
    assert planner.plan(6.0, {0: (100, 105)}) == {0: 105}


@settings(max_examples=200)
@given(
    records=st.integers(1, 60),
    logs=st.dictionaries(st.integers(0, 12), st.integers(0, 200), max_size=8),
    grows=st.lists(st.integers(0, 12), max_size=30),
)
def test_every_record_is_planned_once_in_fair_parts(records, logs, grows):
    planner = RangePlanner(RangePolicy(records=records, seconds=1.0))
    ends, firsts = dict(logs), dict.fromkeys(logs, 0)
    growing = iter(grows)
    for now in range(sum(logs.values()) + 3 * len(grows) + 2):
        places = {place: (firsts[place], ends[place]) for place in ends}
        found = planner.plan(float(now), places, flush=True)
        waiting = {place: end - first for place, (first, end) in places.items() if end > first}
        if found is None:
            assert not waiting
            break
        counts = {place: end - firsts[place] for place, end in found.items()}
        assert all(1 <= counts[place] <= waiting[place] for place in counts)
        assert sum(counts.values()) == min(records, sum(waiting.values()))
        shares = {place: counts.get(place, 0) for place in waiting}
        cut = [shares[place] for place in waiting if shares[place] < waiting[place]]
        assert not cut or max(cut) - min(cut) <= 1
        assert not cut or max(shares.values()) <= max(cut) + 1
        firsts |= found
        more = next(growing, None)
        if more in ends:
            ends[more] += 3
    assert firsts == ends
