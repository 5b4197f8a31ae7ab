"""What comes out of bolts on its way: how long its trees may take, and when bolts are ticked."""

from types import SimpleNamespace

import numpy as np
import pytest

from acker.acker import Acker
from headrace import Bolt, Topology, bolt
from headrace.sinks import MemoryDeadLetters, MemorySink
from partition.memory import MemoryMessage
from partition.records import Chunk, Partition
from service.pipeline.context import Observers
from service.pipeline.router import Router, tree_seconds
from service.pipeline.trees import TreeTracker
from topology.executor import Executor

PLACE = Partition("t", 0)
CONTEXT = SimpleNamespace(on=Observers())


@bolt
async def look_up(value: object) -> object:
    return value


def routed(topology: Topology, tracker: TreeTracker | None = None) -> Router:
    """A router whose bolts are called later by nobody, and without sinks."""
    topology.dead_letters.into(MemoryDeadLetters())
    topology.validate()
    runners = SimpleNamespace(submit=lambda *_: None, poll=lambda _now: None, holders=lambda: ())
    runners.release = runners.poll
    advanced = SimpleNamespace(forget_resolved=lambda: None)
    failures = SimpleNamespace(comes_again=None)
    committer = SimpleNamespace(add=None)
    return Router(topology, Executor(), runners, advanced, tracker, committer, failures, CONTEXT)


def expires_at(timeout_seconds: float | None) -> float:
    """When a tree expires whose tuple is at an async bolt with this time-out; they have 2 s."""
    topology = Topology("t")
    topology.source("t").then(look_up, timeout_seconds=timeout_seconds).into(MemorySink())
    step = next(topology.bolts())
    acker = Acker(timeout_seconds=2.0, longest_seconds=tree_seconds(step))
    router = routed(topology, TreeTracker(acker, dict, 2.0, np.random.default_rng(1)))
    now = 0.0
    acker.expire(now)
    outcome = router.run(
        Chunk(PLACE, np.array([7]), [MemoryMessage(PLACE, 7, b"x")]), np.array([7]), now
    )
    assert not outcome.failures
    assert acker.in_flight == 1
    while acker.in_flight:
        now += 0.01
        acker.expire(now)
    return now


def test_a_tree_at_a_bolt_without_a_time_out_of_its_own_has_the_topology_s():
    assert 2.0 <= expires_at(None) <= 2.6


@pytest.mark.parametrize("seconds", [5.0, 30.0])
def test_a_tree_at_a_slower_bolt_has_that_bolt_s_time_and_a_moment(seconds):
    assert seconds + 1 <= expires_at(seconds) <= seconds + 3


class Ticked:
    """A router with a bolt for each of some intervals, and which of them it has ticked."""

    def __init__(self, **seconds: float | None) -> None:
        self.ticked: list[str] = []
        topology = Topology("t")
        stream = topology.source("t")
        for name, each in seconds.items():
            stream = stream.then(self._ticking(name, each), name=name)
        stream.into(MemorySink())
        self.router = routed(topology)

    def _ticking(self, name: str, seconds: float | None) -> type[Bolt]:
        ticked = self.ticked

        class Ticking(Bolt):
            tick_seconds = seconds

            def process(self, value, /):
                return value

            def tick(self):
                ticked.append(name)

        return Ticking

    def at(self, now: float) -> list[str]:
        self.ticked.clear()
        assert self.router.tick(now, drain=False) == bool(self.ticked)
        return list(self.ticked)


def test_the_first_tick_comes_one_interval_after_the_start():
    ticks = Ticked(two=2.0, three=3.0, never=None)
    assert ticks.at(5.0) == []
    assert ticks.router.next_tick is None
    ticks.router.start(10.0)
    assert ticks.router.next_tick == 12.0
    assert [ticks.at(now) for now in (11.9, 12.0, 12.1, 13.0)] == [[], ["two"], [], ["three"]]


def test_ticks_that_were_missed_are_not_made_up_for():
    ticks = Ticked(one=1.0)
    ticks.router.start(0.0)
    assert ticks.at(7.5) == ["one"]
    assert ticks.at(8.4) == []
    assert ticks.at(8.5) == ["one"]


def test_a_clock_that_stands_still_ticks_once():
    ticks = Ticked(one=1.0)
    ticks.router.start(0.0)
    assert [ticks.at(1.0), ticks.at(1.0)] == [["one"], []]
