"""The acker against a dictionary, by any calls in any order."""

from collections import Counter
from dataclasses import dataclass

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from acker.acker import Acker

TIMEOUT, LONGEST = 16.0, 40.0
EDGE = st.sampled_from([0, 1, 2, 3, 2**63, 2**64 - 1])
FLAGS = st.sampled_from([0, 0, 1, 2, 16])
PICK = st.integers(0, 10_000)
PICKS = st.lists(PICK, max_size=8)
UNKNOWN = st.integers(-(2**63), 2**63 - 1) | st.integers(0, 40)


@dataclass
class Tree:
    """What the model knows of a live tree."""

    owner: int
    earliest: float  # it may expire from here on
    latest: float  # and must have expired here, but for the gaps between calls
    value: int = 0
    has_init: bool = False
    has_failed: bool = False
    flags: int = 0


class Calls(RuleBasedStateMachine):
    """Calls of the acker beside a model that does the simplest thing."""

    def __init__(self):
        super().__init__()
        self.acker = Acker(timeout_seconds=TIMEOUT, longest_seconds=LONGEST, capacity=2)
        self.live = {}
        self.handles = []
        self.now = 0.0
        self.gap = 0.0
        self.num_begun = 0
        self.counts = Counter()
        self.acked = []
        self.failed = []
        self.acker.expire(self.now)

    # The model

    def begun(self, handle, owner):
        assert handle >= 0
        assert handle not in self.live
        end = self.now + TIMEOUT
        self.live[handle] = Tree(owner, end, end + self.acker.tick_seconds)
        self.handles.append(handle)

    def tree(self, handle, times=1):
        """The live tree, or None and so many messages are ignored."""
        tree = self.live.get(handle)
        if tree is None:
            self.counts["ignored"] += times
        return tree

    def settle(self, handle):
        tree = self.live[handle]
        if tree.has_init and (tree.has_failed or tree.value == 0):
            del self.live[handle]
            if tree.has_failed:
                self.failed.append(tree.owner)
            else:
                self.acked.append((tree.owner, tree.flags))
            self.counts["failed" if tree.has_failed else "acked"] += 1

    def model_init(self, handle, edge, flags):
        tree = self.tree(handle)
        if tree is None:
            return
        if tree.has_init:
            self.counts["ignored"] += 1
            return
        tree.has_init = True
        tree.value ^= edge
        tree.flags |= flags
        self.settle(handle)

    def model_ack(self, handle, edge, times=1):
        tree = self.tree(handle, times)
        if tree is not None:
            tree.value ^= edge
            self.settle(handle)

    def model_fail(self, handle):
        tree = self.tree(handle)
        if tree is None:
            return
        if tree.has_failed:
            self.counts["ignored"] += 1
            return
        tree.has_failed = True
        self.settle(handle)

    def some(self, picks):
        return [self.handles[pick % len(self.handles)] for pick in picks] if self.handles else []

    # The calls

    @rule(count=st.integers(0, 9))
    def begin(self, count):
        owners = [(3 << 48) + self.num_begun + place for place in range(count)]
        self.num_begun += count
        for handle, owner in zip(self.acker.begin(array(owners)).tolist(), owners, strict=True):
            self.begun(handle, owner)

    @rule(picks=PICKS, edges=st.lists(EDGE, min_size=8, max_size=8), flags=FLAGS)
    def init(self, picks, edges, flags):
        trees = list(dict.fromkeys(self.some(picks)))
        marks = np.full(len(trees), flags, np.uint8)
        self.acker.init(array(trees), numbers(edges[: len(trees)]), marks)
        for handle, edge in zip(trees, edges, strict=False):
            self.model_init(handle, edge, flags)

    @rule(picks=PICKS, edges=st.lists(EDGE, min_size=8, max_size=8))
    def ack(self, picks, edges):
        trees = self.some(picks)
        self.acker.ack(array(trees), numbers(edges[: len(trees)]))
        sums = dict.fromkeys(trees, 0)
        for handle, edge in zip(trees, edges, strict=False):
            sums[handle] ^= edge
        times = Counter(trees)
        for handle, edge in sums.items():
            self.model_ack(handle, edge, times[handle])

    @precondition(lambda self: self.live)
    @rule(pick=PICK)
    def ack_the_rest(self, pick):
        """What is left of a tree, so that many complete."""
        handle = list(self.live)[pick % len(self.live)]
        edge = self.live[handle].value
        self.acker.ack(array([handle]), numbers([edge]))
        self.model_ack(handle, edge)

    @rule(picks=PICKS)
    def fail(self, picks):
        trees = self.some(picks)
        self.acker.fail(array(trees))
        live = {handle for handle in trees if handle in self.live}
        self.counts["ignored"] += sum(handle not in live for handle in trees)
        for handle, times in Counter(handle for handle in trees if handle in live).items():
            self.counts["ignored"] += times - 1
            self.model_fail(handle)

    @rule(picks=PICKS, flags=FLAGS)
    def mark(self, picks, flags):
        trees = self.some(picks)
        self.acker.mark(array(trees), flags)
        for handle in trees:
            tree = self.tree(handle)
            if tree is not None:
                tree.flags |= flags

    @rule(picks=PICKS, seconds=st.none() | st.floats(0.1, LONGEST))
    def reset_timeout(self, picks, seconds):
        trees = self.some(picks)
        self.acker.reset_timeout(array(trees), seconds)
        tick = self.acker.tick_seconds
        for handle in trees:
            tree = self.tree(handle)
            if tree is not None:
                end = self.now + (TIMEOUT if seconds is None else seconds)
                slack = tick if seconds is None else 2 * tick
                tree.earliest = max(tree.earliest, end)
                tree.latest = max(tree.latest, end + slack)

    @rule(gap=st.floats(0, 1.9), calls=st.integers(1, 6))
    def expire(self, gap, calls):
        for _call in range(calls):
            self.now += gap
            self.gap = max(self.gap, gap)
            self.acker.expire(self.now)
            self.compare()

    @rule(handle=UNKNOWN, edge=EDGE)
    def anything_with_a_made_up_handle(self, handle, edge):
        self.model_init(handle, edge, 0)
        self.model_ack(handle, edge)
        self.model_fail(handle)
        self.model_ack(handle, edge)
        self.acker.init(array([handle]), numbers([edge]))
        self.acker.ack(array([handle]), numbers([edge]))
        self.acker.fail(array([handle]))
        self.acker.ack(array([handle]), numbers([edge]))

    # What always holds

    @invariant()
    def compare(self):
        resolved = self.acker.drain()
        by_owner = {tree.owner: handle for handle, tree in self.live.items()}
        for owner in resolved.expired.tolist():
            tree = self.live.pop(by_owner.pop(owner))
            assert self.now >= tree.earliest - 1e-6
            self.counts["expired"] += 1
        acked = zip(resolved.acked.tolist(), resolved.acked_flags.tolist(), strict=True)
        assert sorted(acked) == sorted(self.acked)
        assert sorted(resolved.failed.tolist()) == sorted(self.failed)
        self.acked, self.failed = [], []
        longest_wait = (LONGEST / self.acker.tick_seconds + 3) * self.gap
        assert all(self.now <= tree.latest + longest_wait + 1e-6 for tree in self.live.values())

    @invariant()
    def counts_are_right(self):
        statistics = self.acker.statistics()
        assert statistics.in_flight == self.acker.in_flight == len(self.live)
        assert statistics.acked == self.counts["acked"]
        assert statistics.failed == self.counts["failed"]
        assert statistics.expired == self.counts["expired"]
        assert statistics.ignored == self.counts["ignored"]

    @invariant()
    def what_saves_looking_is_right(self):
        waiting = [tree for tree in self.live.values() if not tree.has_init]
        assert self.acker._table.waiting == len(waiting)
        assert self.acker._table.doomed == sum(tree.has_failed for tree in waiting)

    @invariant()
    def owners_and_flags_are_right(self):
        gone, trees = Tree(-1, 0.0, 0.0), array(self.handles)
        expected = [self.live.get(handle, gone) for handle in self.handles]
        assert self.acker.owners(trees).tolist() == [tree.owner for tree in expected]
        assert self.acker.flags(trees).tolist() == [tree.flags for tree in expected]


def array(handles):
    return np.array(handles, np.int64)


def numbers(edges):
    return np.array(edges, np.uint64)


def test_any_calls_in_any_order_end_as_a_dictionary_would():
    """Promises 4, 5 and 6: a tree resolves once, fails for good, and order changes nothing.

    Storm 3, 31 and 46: no sibling's ack revives a tree, late messages are counted, and whatever
    is missing, an entry is gone after its time.
    """
    examples = 2 * settings.default.max_examples
    run_state_machine_as_test(
        Calls, settings=settings(max_examples=examples, stateful_step_count=60)
    )
