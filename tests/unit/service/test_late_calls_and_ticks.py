"""Time by the test kit: calls that take too long, and ticks of every kind of bolt."""

import threading
from collections import Counter

import pytest
import structlog.testing

from headrace import AdvancedBolt, Bolt, bolt
from headrace.sinks import MemorySink
from headrace.testing import topology_test
from tests.support.patience import seconds
from tests.worlds.noting import drawn, payload
from tests.worlds.running import Works


def test_a_blocking_call_that_takes_too_long_fails_and_is_tried_again_while_others_go_on():
    gate, calls = threading.Event(), Counter()

    @bolt(blocking=True)
    def slow(value):
        calls[value["n"]] += 1
        if value["n"] == 1 and calls[1] == 1:
            gate.wait(seconds(30))
        return value

    topology = drawn(
        lambda s: s.then(slow, workers=2, timeout_seconds=0.05).into(MemorySink("out"))
    )
    with topology_test(topology) as kit:
        kit.send(*[payload(n=n) for n in range(4)])
        assert sorted(row["n"] for row in kit.rows) == [0, 2, 3]
        assert kit.retrying == 1
        failed = [event for event in kit.history(1) if event.what == "failed"]
        assert [event.reason for event in failed] == [
            "bolt 'slow' took longer than its 0.05 seconds"
        ]
        gate.set()
        kit.advance(60)
        assert sorted(row["n"] for row in kit.rows) == [0, 1, 2, 3]
        assert calls == {0: 1, 1: 2, 2: 1, 3: 1}


class Ticking(Bolt):
    """Notes its calls and its ticks, and the threads they ran on."""

    tick_seconds = 5.0

    def __init__(self):
        self.threads = set()
        self.ticks = 0

    def note(self):
        self.threads.add(threading.current_thread().name.split("-")[0])

    def process(self, value, /):
        self.note()
        return value

    def tick(self):
        self.note()
        self.ticks += 1
        if self.ticks == 2:
            raise ValueError("second")


class TickingAsync(Ticking):
    async def process(self, value, /):
        self.note()
        return value


class TickingBlocking(Ticking):
    blocking = True


@pytest.mark.parametrize("tasks", [1, 2])
@pytest.mark.parametrize("make", [Ticking, TickingAsync, TickingBlocking])
def test_every_task_is_ticked_where_it_is_called_and_a_tick_that_raises_is_logged(make, tasks):
    made = []

    def create():
        made.append(make())
        return made[-1]

    topology = drawn(lambda s: s.then(create, name="t", tasks=tasks).into(MemorySink("out")))
    with structlog.testing.capture_logs() as logs, topology_test(topology) as kit:
        kit.send(payload(n=1), payload(n=2))
        kit.advance(4.9)
        assert [each.ticks for each in made] == [0] * tasks
        for seconds, count in ((0.2, 1), (5, 2), (5, 3)):
            kit.advance(seconds)
            while any(each.ticks < count for each in made):  # on its own thread
                threading.Event().wait(0.001)
            assert [each.ticks for each in made] == [count] * tasks
        assert kit.metrics['headrace_topology_failed_ticks_total{step="t"}'] == tasks
    assert all(len(each.threads) == 1 for each in made)
    failed = [each for each in logs if each["event"] == "tick_failed"]
    assert [(each["step"], each["error"]) for each in failed] == [("t", "second")] * tasks


def test_what_an_advanced_bolt_emits_in_its_tick_is_anchored_and_one_that_raises_sends_nothing():
    errors = [ValueError("first")]

    class Sums(AdvancedBolt):
        tick_seconds = 5.0

        def __init__(self):
            self.kept = []

        def process(self, tuple_, collector, /):
            self.kept.append(tuple_)

        def tick(self, collector, /):
            kept = collector.pending(self.kept)
            if kept:
                collector.emit({"sum": sum(t.value["n"] for t in kept)}, anchors=kept)
                for each in kept:
                    collector.ack(each)
            if errors:
                raise errors.pop()
            self.kept.clear()

    topology = drawn(lambda s: s.then(Sums).into(MemorySink("out")))
    with structlog.testing.capture_logs() as logs, topology_test(topology) as kit:
        kit.send(payload(n=1), payload(n=2))
        kit.advance(5)
        assert (kit.rows, kit.acked) == ([], [])
        kit.advance(5)
        assert kit.rows == [{"sum": 3}]
        assert len(kit.acked) == 2
    assert [each["event"] for each in logs if each["log_level"] == "warning"] == ["tick_failed"]


def test_missed_ticks_are_not_made_up_for():
    class Ticking(Bolt):
        tick_seconds = 2.0

        def open(self):
            self.ticks = 0

        def process(self, record, /):
            return f"{self.ticks} ticks"

        def tick(self):
            self.ticks += 1

    with Works(Ticking()) as works:
        for passed, ticks in ((1.9, 0), (0.1, 1), (0.0, 1), (7.0, 2), (2.0, 3)):
            works.now += passed
            works.turn(1)
            works.send(b"x")
            works.finish()
            assert works.sink.rows[-1] == f"{ticks} ticks"
