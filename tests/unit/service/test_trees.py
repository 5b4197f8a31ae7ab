import numpy as np
import pytest
import structlog

from acker.acker import Acker
from service.pipeline.trees import TreeTracker
from topology.advanced import NO_TREE, Emission
from topology.calls import Failure

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
        self.tracker = TreeTracker(self.acker, dict, timeout_seconds, np.random.default_rng(1))
        self.trees = self.tracker.begin(array(A, B, C))
        self.tracker.init(self.trees, edges(1, 2, 3))
        self.a, self.b, self.c = self.trees.tolist()

    def place(self, *anchors):
        """Emit a value per tuple of anchors; gives what was placed."""
        trees = [each[0] if len(each) == 1 else NO_TREE for each in anchors]
        several = {place: each for place, each in enumerate(anchors) if len(each) != 1}
        values = [f"v{place}" for place in range(len(anchors))]
        return self.tracker.place(Emission("default", values, array(*trees), several, {}))

    def join(self, *anchors):
        """Emit one value of several tuples; gives its tree and the edge to ack it by."""
        placed = self.place(anchors)
        return placed.trees, placed.edges

    def resolved(self):
        resolved = self.tracker.drain()
        failed = dict(resolved.failed)
        assert len(failed) == len(resolved.failed)
        self.failures = failed
        found = {"acked": sorted(resolved.acked.tolist()), "failed": sorted(failed)}
        return {kind: record_ids for kind, record_ids in found.items() if record_ids}


@pytest.mark.parametrize("how", ["fails", "is rejected", "expires"])
def test_lost_unanchored_tuple_is_counted_and_logged(how):
    world = World()
    (tree,), (edge,) = world.join()
    assert world.acker.statistics().unanchored == 1
    with structlog.testing.capture_logs() as logs:
        if how == "fails":
            world.tracker.fail(int(tree), BROKEN)
        elif how == "is rejected":
            assert world.tracker.split(int(tree), int(edge), BROKEN) == []
        else:
            for now in range(20):
                world.tracker.touch(world.trees)
                world.acker.expire(float(now))
        assert world.resolved() == {}
    assert world.tracker.lost == 1
    assert [(line["event"], line["count"]) for line in logs] == [("unanchored_tuples_lost", 1)]
    assert not world.tracker.has_compound


def test_compound_tree_without_records_is_discarded():
    """Their partition is lost: what waits of them is not to be begun."""
    world = World()
    of_lost, _ = world.join(world.a, world.b)
    world.place((int(of_lost[0]), world.b))
    of_both, _ = world.join(world.a, world.c)
    of_none, _ = world.join()
    gone = world.tracker.discard(lambda record_ids: np.isin(record_ids, [A, B]))
    assert len(gone) == 2
    assert (world.acker.owners(of_lost) < 0).all()
    assert (world.acker.owners(of_both) >= 0).all()
    assert (world.acker.owners(of_none) >= 0).all()
    assert len(world.tracker._compound) == 2
    assert world.tracker.lost == 0


def test_waiting_trees_do_not_expire():
    world = World()
    slow = world.trees[:1]
    for now in range(100):
        world.tracker.expire(float(now), lambda: [(slow, None)])
    assert world.resolved() == {"failed": [B, C]}
    for now in range(100, 120):
        world.tracker.expire(float(now), list)
    assert world.resolved() == {"failed": [A]}
