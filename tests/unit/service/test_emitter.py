"""The way out of the executor: edges for values, and how long their trees may take."""

from types import SimpleNamespace

import numpy as np
import pytest

from acker.acker import Acker
from headrace import Topology, bolt
from headrace.sinks import MemoryDeadLetters, MemorySink
from service.emitter import Emitter, tree_seconds
from service.trees import TreeTracker
from topology.outcome import Delivery, Origin


@bolt
async def look_up(value: object) -> object:
    return value


def expires_at(timeout_seconds: float | None) -> float:
    """When a tree expires whose tuple is at an async bolt with this time-out; they have 2 s."""
    topology = Topology("t")
    topology.source("t").then(look_up, timeout_seconds=timeout_seconds).into(MemorySink())
    topology.dead_letters.into(MemoryDeadLetters())
    step = next(topology.steps())
    acker = Acker(timeout_seconds=2.0, longest_seconds=tree_seconds(step))
    runner = SimpleNamespace(submit=lambda *_: None)
    tracker = TreeTracker(acker, dict, 2.0, np.random.default_rng(1))
    emitter = Emitter(tracker, {}, runner)
    roots = np.zeros(1, np.uint64)
    delivery = Delivery(step, [b"x"], None, Origin("t"))
    edges = emitter.edges_of(delivery, roots)
    trees = acker.begin(np.array([7]))
    now = 0.0
    acker.expire(now)
    emitter.deliver(delivery, trees, edges, now)
    acker.init(trees, roots)
    while acker.in_flight:
        now += 0.01
        acker.expire(now)
    return now


def test_a_tree_at_a_bolt_without_a_time_out_of_its_own_has_the_topology_s():
    assert 2.0 <= expires_at(None) <= 2.6


@pytest.mark.parametrize("seconds", [5.0, 30.0])
def test_a_tree_at_a_slower_bolt_has_that_bolt_s_time_and_a_moment(seconds):
    assert seconds + 1 <= expires_at(seconds) <= seconds + 3
