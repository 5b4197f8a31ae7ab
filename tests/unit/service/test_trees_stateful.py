"""Joint trees against a naive model of Storm's multi-anchoring, by any calls in any order."""

from dataclasses import dataclass, field

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from acker.acker import Acker
from service.pipeline.trees import TreeTracker
from tests.support.patience import seconds
from topology.advanced import NO_TREE, Emission
from topology.calls import Failure
from topology.errors import BoltError

TIMEOUT = 16.0
PICK = st.integers(0, 10_000)


@dataclass
class Record:
    """What the model knows of a record: which tuples it waits for."""

    outstanding: set[int] = field(default_factory=set)
    has_init: bool = False
    has_failed: bool = False
    flags: int = 0
    came_to: str = ""


@dataclass
class Tuple:
    """A tuple on its way: the records it belongs to, and its real tree and edge."""

    roots: frozenset[int]
    tree: int
    edge: int


class Tuples(RuleBasedStateMachine):
    """Promises 4 and 5: a record is acked when all that is anchored to it is, and else fails."""

    def __init__(self):
        super().__init__()
        self.acker = Acker(timeout_seconds=TIMEOUT, capacity=2)
        self.records: dict[int, Record] = {}
        self.handles: dict[int, tuple[int, int]] = {}  # of records without init: tree and root
        self.tuples: dict[int, Tuple] = {}
        self.count = 0
        self.now = 0.0
        self.loose: dict[int, int] = {}  # what has no anchor is a root of its own: its tree
        self.lost = 0
        self.told: dict[int, str] = {}
        self.acker.expire(self.now)

    @initialize(seed=st.integers(0, 2**32 - 1))
    def edges(self, seed):
        self.tracker = TreeTracker(self.acker, dict, TIMEOUT, np.random.default_rng(seed))
        self.new_edges = self.tracker.new_edges

    def add(self, roots, tree, edge):
        self.count += 1
        self.tuples[self.count] = Tuple(frozenset(roots), tree, edge)
        for root in roots:
            self.records[root].outstanding.add(self.count)

    def settle(self, record_id):
        record = self.records[record_id]
        if not record.came_to and record.has_init:
            if record.has_failed:
                record.came_to = "failed"
            elif not record.outstanding:
                record.came_to = "acked"

    def model_ack(self, number):
        for root in self.tuples[number].roots:
            self.records[root].outstanding.discard(number)
            self.settle(root)

    def model_fail(self, number):
        for root in self.tuples[number].roots:
            if not self.records[root].came_to:
                self.records[root].has_failed = True
                self.settle(root)
                self.lost += root in self.loose

    def record_id(self, tree):
        return int(self.acker.owners(array(tree))[0])

    def pick(self, number):
        return list(self.tuples)[number % len(self.tuples)]

    @rule(count=st.integers(1, 3), init=st.booleans())
    def emit_record(self, count, init):
        """A record becomes some tuples; its init may come later."""
        record_id = (5 << 48) + len(self.records)  # as the reader makes them
        self.records[record_id] = Record()
        tree = int(self.acker.begin(array(record_id))[0])
        edges = self.new_edges(count)
        for edge in edges.tolist():
            self.add({record_id}, tree, edge)
        self.handles[record_id] = (tree, int(np.bitwise_xor.reduce(edges)))
        if init:
            self.init(0)

    @precondition(lambda self: self.handles)
    @rule(pick=PICK)
    def init(self, pick):
        record_id = list(self.handles)[-1 - pick % len(self.handles)]
        tree, root = self.handles.pop(record_id)
        self.acker.init(array(tree), one(root))
        self.records[record_id].has_init = True
        self.settle(record_id)

    @precondition(lambda self: self.tuples)
    @rule(picks=st.lists(st.lists(PICK, max_size=4), min_size=1, max_size=4), fan=st.integers(1, 2))
    def emit(self, picks, fan):
        """Bolts emit values that are anchored to any tuples, of which each becomes `fan`."""
        anchors = [[self.tuples[self.pick(number)] for number in each] for each in picks]
        trees = [tuple(dict.fromkeys(tuple_.tree for tuple_ in each)) for each in anchors]
        emission = Emission(
            "default",
            list(range(len(anchors))),
            array(*(each[0] if len(each) == 1 else NO_TREE for each in trees)),
            {place: each for place, each in enumerate(trees) if len(each) != 1},
            {place: place for place in range(len(anchors))},
        )
        placed = self.tracker.place(emission)
        assert placed.tasks == dict(enumerate(placed.values))
        for value, tree, root in zip(
            placed.values, placed.trees.tolist(), placed.edges.tolist(), strict=True
        ):
            roots = {root for tuple_ in anchors[value] for root in tuple_.roots}
            if not anchors[value]:
                roots = {-len(self.loose) - 1}
                self.loose[-len(self.loose) - 1] = tree
                self.records[min(roots)] = Record(has_init=True)
            for edge in self.new_edges(fan).tolist():
                root ^= edge  # noqa: PLW2901
                self.add(roots, tree, edge)
            self.acker.ack(array(tree), one(root))
        for place in set(range(len(anchors))) - set(placed.values):
            roots = {root for tuple_ in anchors[place] for root in tuple_.roots}
            assert all(self.records[r].has_failed for r in roots), "else it must not be left out"

    @precondition(lambda self: self.tuples)
    @rule(picks=st.lists(PICK, min_size=1, max_size=6))
    def ack(self, picks):
        numbers = {self.pick(pick) for pick in picks}
        tuples = [self.tuples[number] for number in numbers]
        self.acker.ack(
            array(*(each.tree for each in tuples)),
            np.array([each.edge for each in tuples], np.uint64),
        )
        for number in numbers:
            self.model_ack(number)
            del self.tuples[number]

    @precondition(lambda self: self.tuples)
    @rule(pick=PICK)
    def fail(self, pick):
        number = self.pick(pick)
        tuple_ = self.tuples[number]
        self.tracker.fail(tuple_.tree, Failure("step", ValueError(str(number))))
        self.model_fail(number)
        del self.tuples[number]

    @precondition(lambda self: self.tuples)
    @rule(pick=PICK)
    def bury(self, pick):
        """What cannot be processed gets a letter for each of its records."""
        self.drain()
        number = self.pick(pick)
        tuple_ = self.tuples[number]
        if self.record_id(tuple_.tree) >= 0:
            failure = Failure("step", BoltError("no"))
            letters = self.tracker.split(tuple_.tree, tuple_.edge, failure)
            record_ids = [self.record_id(tree) for tree, _edge in letters]
            roots = [root for root in tuple_.roots if not self.records[root].came_to]
            records = {root for root in roots if root not in self.loose}
            # One that has failed, and whose init has not come, is tried again without a letter.
            wanted = {root for root in records if not self.records[root].has_failed}
            assert len(record_ids) == len(set(record_ids))
            assert wanted <= set(record_ids) <= records
            self.lost += not record_ids and any(root in self.loose for root in roots)
            for record_id, (tree, edge) in zip(record_ids, letters, strict=True):
                self.add({record_id}, tree, edge)
        self.model_ack(number)
        del self.tuples[number]

    @precondition(lambda self: self.tuples)
    @rule(pick=PICK, flag=st.sampled_from([1, 2]))
    def mark(self, pick, flag):
        tuple_ = self.tuples[self.pick(pick)]
        self.acker.mark(array(tuple_.tree), flag)
        for root in tuple_.roots:
            self.records[root].flags |= flag

    @precondition(lambda self: self.tuples)
    @rule(pick=PICK)
    def reset_timeout(self, pick):
        self.drain()
        tuple_ = self.tuples[self.pick(pick)]
        self.tracker.touch(array(tuple_.tree))

    @rule()
    def drain(self):
        resolved = self.tracker.drain()
        for record_id, flag in zip(resolved.acked.tolist(), resolved.flags.tolist(), strict=True):
            assert record_id not in self.told, "a record resolves once"
            assert flag == self.records[record_id].flags
            self.told[record_id] = "acked"
        for record_id, failure in resolved.failed:
            assert record_id not in self.told, "a record resolves once"
            assert failure.step == "step"
            self.told[record_id] = "failed"
        assert self.told == {
            record_id: record.came_to
            for record_id, record in self.records.items()
            if record.came_to and record_id not in self.loose
        }

    @rule(seconds=st.sampled_from([1.0, 5.0, 40.0]))
    def wait(self, seconds):
        """Time passes; what expires fails."""
        while self.handles:  # a pipeline gives a tree its init in the turn in which it begins it
            self.init(0)
        self.drain()
        for _ in range(int(seconds)):
            self.now += 1.0
            self.acker.expire(self.now)
            resolved = self.tracker.drain()
            assert not len(resolved.acked)
            for record_id, failure in resolved.failed:
                assert record_id not in self.told, "a record resolves once"
                assert failure.step == "topology"
                record = self.records[record_id]
                assert not record.came_to
                record.came_to = self.told[record_id] = "failed"
                record.has_failed = True
        for root, tree in self.loose.items():
            if not self.records[root].came_to and self.record_id(tree) < 0:
                self.records[root].came_to = "failed"
                self.records[root].has_failed = True
                self.lost += 1

    @invariant()
    def nothing_is_lost_but_what_has_no_anchor(self):
        self.drain()
        assert self.tracker.lost == self.lost

    def teardown(self):
        if hasattr(self, "new_edges"):
            self.wait(seconds(40.0))
            self.wait(seconds(40.0))
            self.nothing_is_lost_but_what_has_no_anchor()
            assert all(record.came_to for record in self.records.values())
            assert not self.tracker.has_compound
            assert self.acker.in_flight == 0
            assert not self.tracker._reasons


def array(*numbers):
    return np.array(numbers, np.int64)


def one(edge):
    return np.array([edge], np.uint64)


TestTuples = Tuples.TestCase
TestTuples.settings = settings(max_examples=100, stateful_step_count=40)
