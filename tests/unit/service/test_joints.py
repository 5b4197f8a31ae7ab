"""Joint trees: a tuple of several records is one tree, and they are its parents."""

import numpy as np
import pytest
import structlog

from acker.acker import Acker
from service.joints import Joints
from topology.actions import NO_TREE, Emission
from topology.outcome import Failure
from topology.signals import Reject

SUNK, LETTERED = 1, 2
A, B, C = 10, 20, 30  # owners
BROKEN = Failure("write", ValueError("broken"))


def array(*numbers):
    return np.array(numbers, np.int64)


def edges(*numbers):
    return np.array(numbers, np.uint64)


class World:
    """Three records, each of which is one tuple that a join holds."""

    def __init__(self, timeout_seconds=8.0):
        self.acker = Acker(timeout_seconds=timeout_seconds)
        self.acker.expire(0.0)
        self.failures = {}
        self.joints = Joints(self.acker, self.failures)
        self.trees = self.acker.begin(array(A, B, C))
        self.acker.init(self.trees, edges(1, 2, 3))
        self.a, self.b, self.c = self.trees.tolist()
        self.next_edge = 1000

    def new_edges(self, count):
        self.next_edge += count
        return np.arange(self.next_edge - count, self.next_edge, dtype=np.uint64)

    def place(self, *anchors):
        """Emit a value per tuple of anchors; gives what was placed."""
        trees = [each[0] if len(each) == 1 else NO_TREE for each in anchors]
        several = {place: each for place, each in enumerate(anchors) if len(each) != 1}
        values = [f"v{place}" for place in range(len(anchors))]
        return self.joints.place(
            Emission("default", values, array(*trees), several, {}), self.new_edges
        )

    def join(self, *anchors):
        """Emit one value of several tuples; gives its tree and the edge to ack it by."""
        placed = self.place(anchors)
        return placed.trees, placed.edges

    def ack_inputs(self, *names):
        for name in names:
            self.acker.ack(array(getattr(self, name)), edges("abc".index(name) + 1))

    def resolved(self):
        resolved = self.joints.resolve(self.acker.drain())
        return {
            kind: owners
            for kind in ("acked", "failed", "expired")
            if (owners := sorted(getattr(resolved, kind).tolist()))
        }


def test_records_are_complete_when_what_was_joined_of_them_is():
    """Promise 3: not when the join has acked them."""
    world = World()
    tree, edge = world.join(world.a, world.b)
    world.ack_inputs("a", "b", "c")
    assert world.resolved() == {"acked": [C]}
    world.acker.ack(tree, edge)
    assert world.resolved() == {"acked": [A, B]}
    assert not world.joints
    assert world.acker.statistics().ignored == 0


def test_a_joint_tree_that_fails_fails_its_records_for_its_reason():
    """Promise 4: also those whose other tuples are all acked."""
    world = World()
    tree, _edge = world.join(world.a, world.b)
    world.ack_inputs("a")
    world.failures[int(world.acker.owners(tree)[0])] = BROKEN
    world.acker.fail(tree)
    assert world.resolved() == {"failed": [A, B]}
    assert world.failures == {A: BROKEN, B: BROKEN}
    world.ack_inputs("b")
    assert world.resolved() == {}


def test_a_joint_tree_that_expires_fails_its_records():
    world = World()
    now = 0.0
    while now < 6.0:
        now += 0.5
        world.acker.expire(now)
    world.join(world.a, world.b)
    world.ack_inputs("a", "b", "c")
    assert world.resolved() == {"acked": [C]}
    for _ in range(100):
        now += 0.5
        world.joints.reset_timeout(world.trees[:2])  # the records themselves are not late
        world.acker.expire(now)
        if resolved := world.resolved():
            break
    assert resolved == {"failed": [A, B]}
    assert now >= 6.0 + 8.0
    assert {type(failure.error) for failure in world.failures.values()} == {TimeoutError}


def test_resetting_a_joint_tree_s_time_resets_that_of_all_it_belongs_to():
    world = World()
    inner, inner_edge = world.join(world.a, world.b)
    outer, outer_edge = world.join(int(inner[0]), world.c)
    world.ack_inputs("a", "b", "c")
    now = 0.0
    while now < 30.0:
        now += 0.5
        world.joints.reset_timeout(outer)
        world.acker.expire(now)
        assert world.resolved() == {}
    world.acker.ack(inner, inner_edge)
    world.acker.ack(outer, outer_edge)
    assert world.resolved() == {"acked": [A, B, C]}


def test_a_join_of_a_join_holds_the_records_of_both():
    world = World()
    inner, inner_edge = world.join(world.a, world.b)
    outer, outer_edge = world.join(int(inner[0]), world.c)
    world.ack_inputs("a", "b", "c")
    world.acker.ack(inner, inner_edge)
    assert world.resolved() == {}
    assert len(world.joints) == 2
    world.acker.ack(outer, outer_edge)
    assert world.resolved() == {"acked": [A, B, C]}
    assert not world.joints


def test_what_was_marked_on_a_joint_tree_is_marked_on_its_records():
    world = World()
    tree, edge = world.join(world.a, world.b)
    world.acker.mark(tree, SUNK)
    world.acker.mark(array(world.b), LETTERED)
    world.ack_inputs("a", "b")
    world.acker.ack(tree, edge)
    resolved = world.joints.resolve(world.acker.drain())
    flags = dict(zip(resolved.acked.tolist(), resolved.acked_flags.tolist(), strict=True))
    assert flags == {A: SUNK, B: SUNK | LETTERED}


def test_two_anchors_of_one_tree_are_one():
    world = World()
    placed = world.place((world.a,), (world.b,))
    assert placed.trees.tolist() == [world.a, world.b]
    assert placed.edges.tolist() == [0, 0]
    assert not world.joints


def test_an_anchor_whose_record_has_failed_counts_no_more():
    world = World()
    world.failures[A] = BROKEN
    world.acker.fail(array(world.a))
    placed = world.place(
        (world.b,), (world.a,), (world.a, world.c), (world.a, world.b, world.c), ()
    )
    assert placed.values == ["v0", "v2", "v3", "v4"]
    assert placed.trees.tolist()[:2] == [world.b, world.c]
    assert [edge > 0 for edge in placed.edges.tolist()] == [False, False, True, True]
    assert len(world.joints) == 2


def test_tasks_stay_with_their_values_when_some_are_left_out():
    world = World()
    world.acker.fail(array(world.a))
    emission = Emission("s", ["x", "y", "z"], array(world.a, world.b, world.c), {}, {0: 4, 2: 6})
    placed = world.joints.place(emission, world.new_edges)
    assert (placed.values, placed.tasks) == (["y", "z"], {1: 6})


def test_a_letter_goes_to_every_record_of_a_tuple_that_is_rejected():
    """Promise 13: none of them is complete before its letter is durable."""
    world = World()
    inner, inner_edge = world.join(world.a, world.b)
    outer, outer_edge = world.join(int(inner[0]), world.c)
    world.ack_inputs("a", "b", "c")
    world.acker.ack(inner, inner_edge)
    failure = Failure("write", Reject("no"))
    letters = world.joints.split(int(outer[0]), int(outer_edge[0]), failure, world.new_edges)
    assert sorted(tree for tree, _edge in letters) == sorted([world.a, world.b, world.c])
    assert world.resolved() == {}
    for tree, edge in letters:
        owner = int(world.acker.owners(array(tree))[0])
        world.acker.ack(array(tree), edges(edge))
        assert world.resolved() == {"acked": [owner]}
    assert world.joints.lost == 0


def test_a_tuple_of_one_record_is_not_split():
    world = World()
    world.join(world.a, world.b)
    failure = Failure("write", Reject("no"))
    assert world.joints.split(world.c, 3, failure, world.new_edges) == [(world.c, 3)]


@pytest.mark.parametrize("how", ["fails", "is rejected", "expires"])
def test_a_tuple_without_an_anchor_that_fails_is_counted_and_told(how):
    world = World()
    (tree,), (edge,) = world.join()
    assert world.acker.statistics().unanchored == 1
    with structlog.testing.capture_logs() as logs:
        if how == "fails":
            world.failures[int(world.acker.owners(array(tree))[0])] = BROKEN
            world.acker.fail(array(tree))
        elif how == "is rejected":
            assert world.joints.split(int(tree), int(edge), BROKEN, world.new_edges) == []
        else:
            for now in range(20):
                world.joints.reset_timeout(world.trees)
                world.acker.expire(float(now))
        assert world.resolved() == {}
    assert world.joints.lost == 1
    assert [(line["event"], line["count"]) for line in logs] == [("unanchored_tuples_lost", 1)]
    assert not world.joints


def test_a_tuple_without_an_anchor_that_is_acked_is_not_heard_of():
    world = World()
    tree, edge = world.join()
    world.acker.ack(tree, edge)
    assert world.resolved() == {}
    assert not world.joints
    assert world.joints.lost == 0


def test_records_and_joint_trees_that_resolve_together_are_told_apart():
    world = World()
    tree, edge = world.join(world.a, world.b)
    world.ack_inputs("a", "b")
    world.acker.ack(np.append(tree, world.c), np.append(edge, np.uint64(3)))
    assert world.resolved() == {"acked": [A, B, C]}


def test_a_joint_tree_none_of_whose_records_is_left_is_let_go():
    """Their partition is lost: what waits of them is not to be begun."""
    world = World()
    of_lost, _ = world.join(world.a, world.b)
    world.place((int(of_lost[0]), world.b))
    of_both, _ = world.join(world.a, world.c)
    of_none, _ = world.join()
    world.acker.discard(lambda owners: np.isin(owners, [A, B]))
    gone = world.joints.drop_orphans()
    assert len(gone) == 2
    assert (world.acker.owners(of_lost) < 0).all()
    assert (world.acker.owners(of_both) >= 0).all()
    assert (world.acker.owners(of_none) >= 0).all()
    assert len(world.joints) == 2
    assert world.joints.lost == 0
