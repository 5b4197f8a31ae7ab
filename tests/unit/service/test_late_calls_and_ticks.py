"""Time by the test kit: calls that take too long, and ticks of every kind of bolt."""

import threading

import structlog.testing

from headrace import AdvancedBolt, Bolt
from headrace.sinks import MemorySink
from headrace.testing import topology_test
from tests.support.pipeline import Works, drawn, payload


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


def test_tick_of_an_advanced_bolt_emits_anchored_values():
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
