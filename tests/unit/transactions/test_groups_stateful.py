"""Planner, groups and lines beside a plain model of logs, nodes and two sinks, with crashes."""

import math
import random
from dataclasses import dataclass, replace

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from partition.interfaces import StoredOffset
from partition.records import Partition, Position, Resumed, Transactions
from tests.support import transactions as lined
from transactions.groups import (
    GroupMember,
    GroupPhase,
    RangePlanner,
    RangePolicy,
    TransactionGroups,
)
from transactions.transaction import RangeDigest, RangeRead, TransactionPolicy, resumed

SINKS = ("lake", "archive")
PICK = st.integers(0, 9)


@dataclass
class Run:
    """A job on its way: what it was given, by place, and when."""

    number: int
    attempt: int
    covers: dict  # place: (txid, line's attempt, first, end)


class GroupsAndModel(RuleBasedStateMachine):
    """Logs, nodes, sinks, and jobs that nobody waits for any more, outlive a crash."""

    @initialize(
        places=st.integers(1, 3),
        kind=st.sampled_from(["transactional", "opaque"]),
        records=st.integers(1, 30),
        max_active=st.integers(1, 3),
    )
    def begin(self, places, kind, records, max_active):
        self.kind = kind
        self.policy = RangePolicy(records, 1.0, max_active)
        self.places = range(places)
        self.now = 0.0
        self.logs = [[] for _place in self.places]
        self.ends = [0 for _place in self.places]
        self.nodes = [StoredOffset(Position(0), "t", epoch=1) for _place in self.places]
        self.sinks = {sink: [{} for _place in self.places] for sink in SINKS}
        self.asked = {}  # place: what is on its way to the node
        self.ran_in = [{} for _place in self.places]  # txid: the last attempt that was run
        self.lines = [
            lined.resume(Partition("t", place), Resumed(Position(0), Transactions(kind)), self.cut)
            for place in self.places
        ]
        self.live()

    @property
    def cut(self):
        return TransactionPolicy(self.kind, self.policy.max_active, by_executors=True)

    def live(self):
        self.groups = TransactionGroups(self.policy.max_active, random.Random(1))
        self.planner = RangePlanner(self.policy)
        self.runs = []
        self.committing = None  # the group, and the sinks that have it

    # The log

    @rule(at=PICK, gaps=st.lists(st.sampled_from([1, 1, 2, 5]), min_size=1, max_size=12))
    def write(self, at, gaps):
        place = at % len(self.places)
        for gap in gaps:
            self.logs[place].append(self.ends[place] + gap - 1)
            self.ends[place] += gap

    @rule(at=PICK)
    def write_a_marker(self, at):
        self.ends[at % len(self.places)] += 1

    def within(self, place, first, end):
        return [offset for offset in self.logs[place] if first <= offset < end]

    # Plans

    @precondition(lambda self: self.groups.may_plan)
    @rule(seconds=st.sampled_from([0.0, 0.6, 2.0]), flush=st.booleans())
    def plan(self, seconds, flush):
        self.now += seconds
        if members := [
            GroupMember(place, line, line.ungrouped[0].txid)
            for place, line in enumerate(self.lines)
            if line.ungrouped
        ]:
            self.groups.plan(members)
            return
        waits = {
            place: (line.planned_to, self.ends[place])
            for place, line in enumerate(self.lines)
            if line.may_begin
        }
        found = self.planner.plan(self.now, waits, flush=flush)
        if found is not None:
            assert sum(end - waits[place][0] for place, end in found.items()) <= (
                self.policy.records
            )
            self.groups.plan(
                [
                    GroupMember(place, self.lines[place], self.lines[place].begin(end).txid)
                    for place, end in found.items()
                ]
            )

    # The store

    @rule(at=PICK, answers=st.booleans())
    def ask_to_store(self, at, answers):
        place = at % len(self.places)
        line = self.lines[place]
        wanted = line.to_store()
        if place in self.asked or wanted == self.nodes[place].transactions:
            return
        offset = line.planned_to if wanted.first is None else wanted.first
        assert offset >= self.nodes[place].offset
        self.asked[place] = (line, offset, wanted.checked(offset))
        if answers:
            self.store(place)

    @rule(at=PICK)
    def store(self, at):
        place = at % len(self.places)
        if place in self.asked:
            line, _offset, transactions = self.asked[place]
            self.land(place)
            lined.store(line, transactions)

    def land(self, place):
        _line, offset, transactions = self.asked.pop(place)
        self.nodes[place] = replace(
            self.nodes[place], position=Position(offset), transactions=transactions
        )

    # Runs

    @rule(seconds=st.sampled_from([0.0, 40.0]))
    def run(self, seconds):
        self.now += seconds
        group = self.groups.next_run(self.now)
        if group is None:
            return
        covers = {}
        for place, line, txid in group.members:
            found = line.transaction_of(txid)
            node = self.nodes[place].transactions
            [standing] = [each for each in node.open if each.txid == txid]
            assert standing.attempt == found.attempt, "it is not stored"
            assert standing.range.first == found.range.first
            assert standing.range.end == found.range.end
            assert self.ran_in[place].get(txid, 0) < found.attempt, "that attempt was run"
            self.ran_in[place][txid] = found.attempt
            covers[place] = (txid, found.attempt, found.range.first, found.range.end)
        self.runs.append(Run(group.number, group.attempt, covers))

    @precondition(lambda self: self.runs)
    @rule(at=PICK, stays=st.booleans())
    def end_run(self, at, stays):
        """It tells what it has read; it may tell so again, much later."""
        run = self.runs[at % len(self.runs)]
        reads = []
        for place, (_txid, _attempt, first, end) in run.covers.items():
            offsets = self.within(place, first, end)
            digest = RangeDigest()
            digest.add(np.array(offsets, np.int64), np.array(offsets, np.int64) % 7)
            reads.append(RangeRead(Partition("t", place), len(offsets), digest.hex(), 0))
        was_live = self.groups.is_live(run.number, run.attempt)
        group = self.groups.of(run.number)
        is_running = group is not None and group.phase is GroupPhase.RUNNING
        assert self.groups.ran(run.number, run.attempt, reads) is (was_live and is_running)
        if not stays:
            self.runs.remove(run)

    @precondition(lambda self: self.runs)
    @rule(at=PICK)
    def fail_run(self, at):
        run = self.runs[at % len(self.runs)]
        group = self.groups.of(run.number)
        is_live = self.groups.is_live(run.number, run.attempt)
        may_fail = is_live and group.phase in (GroupPhase.RUNNING, GroupPhase.PROCESSED)
        later = [each for each in self.groups if each.number >= run.number]
        assert self.groups.failed(run.number, run.attempt, self.now) is may_fail
        if may_fail:
            assert {each.phase for each in later} == {GroupPhase.PLANNED}
            assert group.again_at > self.now

    # Commits

    @rule()
    def begin_commit(self):
        group = self.groups.next_commit()
        if group is None:
            return
        assert self.committing is None
        assert all(each.number >= group.number for each in self.groups)
        for place, line, txid in group.members:
            node = self.nodes[place].transactions
            [standing] = [each for each in node.open if each.txid == txid]
            assert standing.range == line.transaction_of(txid).range
            assert standing.range.is_sealed
        self.committing = (group, [])

    @precondition(lambda self: self.committing is not None)
    @rule()
    def commit_in_a_sink(self):
        group, having = self.committing
        sink = SINKS[len(having)]
        for place, line, txid in group.members:
            covers = line.transaction_of(txid).range
            offsets = self.within(place, covers.first, covers.end)
            has = self.sinks[sink][place]
            if txid <= line.skips.get(sink, 0):
                assert has[txid] == offsets
            else:
                assert txid == len(has) + 1, "out of order"
                has[txid] = offsets
        having.append(sink)
        if len(having) == len(SINKS):
            for member, covers in self.groups.done(group.number):
                assert covers.count == len(self.within(member.place, covers.first, covers.end))
            self.committing = None

    @precondition(lambda self: self.committing is not None)
    @rule(fails=st.booleans())
    def commit_in_vain(self, fails):
        group, having = self.committing
        self.committing = None
        for sink in having:
            for _place, line, txid in group.members:
                line.is_in(sink, txid)
        assert self.groups.not_done(group.number)
        if fails:
            assert self.groups.failed(group.number, group.attempt, self.now)

    # Crashes

    def claim(self, place):
        """Begin a partition anew by what is stored of it and what the sinks have."""
        self.nodes[place] = replace(self.nodes[place], epoch=self.nodes[place].epoch + 1)
        committed = {sink: len(self.sinks[sink][place]) for sink in SINKS}
        found = resumed(Partition("t", place), self.nodes[place], committed, self.kind)
        self.lines[place] = lined.resume(Partition("t", place), found, self.cut)

    @rule(landed=st.booleans())
    def crash(self, landed):
        for place in list(self.asked):
            if landed:
                self.land(place)
        self.asked.clear()
        self.live()
        for place in self.places:
            self.claim(place)

    @precondition(lambda self: self.committing is None)
    @rule(at=PICK, landed=st.booleans())
    def lose_and_claim_again(self, at, landed):
        place = at % len(self.places)
        if place in self.asked and landed:
            self.land(place)
        self.asked.pop(place, None)
        live = [each for each in self.groups if each.phase is not GroupPhase.PLANNED]
        attempts = {each.number: each.attempt for each in live}
        ran = [each for each in live if any(m.place == place for m in each.members)]
        again = min((each.number for each in ran if len(each.members) > 1), default=math.inf)
        stale = {number for number in attempts if number >= again} | {g.number for g in ran}
        self.groups.drop(place)
        assert all(each.place != place for group in self.groups for each in group.members)
        assert attempts.keys() - stale == {
            number for number, attempt in attempts.items() if self.groups.is_live(number, attempt)
        }
        self.claim(place)

    @precondition(lambda self: self.committing is None)
    @rule(at=PICK)
    def leave_out_and_take_up_again(self, at):
        """As for trouble that passes: the same line goes on."""
        self.groups.drop(at % len(self.places))

    @invariant()
    def they_are_in_order(self):
        numbers = [each.number for each in self.groups]
        assert numbers == sorted(numbers)
        assert len(numbers) <= self.policy.max_active
        started = [each.phase is not GroupPhase.PLANNED for each in self.groups]
        assert started == sorted(started, reverse=True)
        for line in self.lines:
            assert line.replay_error(log_moved=False) is None
            wanted = line.to_store()
            wanted.checked(line.planned_to if wanted.first is None else wanted.first)

    def teardown(self):
        if not hasattr(self, "places"):
            return
        for _turn in range(40 + 6 * sum(self.ends)):
            if self.groups.may_plan:
                self.plan(2.0, flush=True)
            for place in self.places:
                self.ask_to_store(place, answers=True)
                self.store(place)
            self.run(40.0)
            while self.runs:
                self.end_run(0, stays=False)
            if self.committing is None:
                self.begin_commit()
            if self.committing is not None:
                self.commit_in_a_sink()
        for place in self.places:
            assert self.nodes[place].offset == self.ends[place]
            for sink in SINKS:
                has = self.sinks[sink][place]
                assert list(has) == list(range(1, len(has) + 1))
                assert [o for offsets in has.values() for o in offsets] == self.logs[place]


def test_every_record_is_committed_once_in_order_whatever_happens():
    """Promise 14: txids are contiguous and committed in order, and no attempt is used twice."""
    examples = 2 * settings.default.max_examples
    run_state_machine_as_test(
        GroupsAndModel, settings=settings(max_examples=examples, stateful_step_count=50)
    )
