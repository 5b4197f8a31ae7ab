"""When bolts are ticked."""

from headrace import Bolt
from topology.bolt import Kind
from topology.steps import BoltStep
from topology.ticks import Ticks


def step(name, seconds):
    class Ticking(Bolt):
        tick_seconds = seconds

        def process(self, value, /):
            return value

    return BoltStep(name, (Ticking(),), Kind.FUNCTION)


def due(ticks, now):
    return [each.name for each in ticks.due(now)]


def test_the_first_tick_comes_one_interval_after_the_start():
    ticks = Ticks([step("two", 2.0), step("three", 3.0), step("never", None)])
    assert due(ticks, 5.0) == []
    ticks.start(10.0)
    assert [due(ticks, now) for now in (11.9, 12.0, 12.1, 13.0)] == [[], ["two"], [], ["three"]]


def test_ticks_that_were_missed_are_not_made_up_for():
    ticks = Ticks([step("one", 1.0)])
    ticks.start(0.0)
    assert due(ticks, 7.5) == ["one"]
    assert due(ticks, 8.4) == []
    assert due(ticks, 8.5) == ["one"]


def test_a_clock_that_stands_still_ticks_once():
    ticks = Ticks([step("one", 1.0)])
    ticks.start(0.0)
    assert [due(ticks, 1.0), due(ticks, 1.0)] == [["one"], []]
