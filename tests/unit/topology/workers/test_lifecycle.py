"""The life of bolts and hooks: in which order, and what happens when one of them fails."""

import asyncio
import threading
import time
from contextlib import ExitStack

import pytest
import structlog.testing

from headrace import Bolt, Hooks, InvalidTopology, Topology
from headrace.sinks import MemoryDeadLetters, MemorySink
from topology.workers.lifecycle import EventLoop, Lifecycle


class Told(Bolt):
    """Writes down what it is told, and raises where it is asked to."""

    def __init__(self, name, events, failing=()):
        self.name = name
        self.events = events
        self.failing = failing

    def note(self, what):
        self.events.append(f"{self.name} {what}")
        if what in self.failing:
            raise ValueError(f"{self.name} cannot {what}")

    def process(self, value, /):
        return value

    def open(self):
        self.note("open")

    def close(self):
        self.note("close")

    def partition_assigned(self, topic, partition):
        self.note(f"+{topic}{partition}")

    def partition_revoked(self, topic, partition):
        self.note(f"-{topic}{partition}")


class Hooked(Hooks):
    def __init__(self, name, events, failing=()):
        self.note = Told(name, events, failing).note

    def started(self):
        self.note("start")

    def stopped(self):
        self.note("stop")

    def partition_assigned(self, topic, partition):
        self.note(f"+{topic}{partition}")

    def partition_revoked(self, topic, partition):
        self.note(f"-{topic}{partition}")


def life(events, **failing):
    """Two hooks, and two bolts of which the second has two tasks."""
    topology = Topology("life")
    topology.hooks(*(Hooked(name, events, failing.get(name, ())) for name in ("h1", "h2")))
    names = iter(["b2a", "b2b"])
    topology.source("t").then(Told("b1", events, failing.get("b1", ()))).then(
        lambda: Told(name := next(names), events, failing.get(name, ())), tasks=2, name="b2"
    ).into(MemorySink())
    topology.dead_letters.into(MemoryDeadLetters())
    return Lifecycle(topology.bolts(), topology.listeners, EventLoop())


def test_hooks_start_first_and_stop_last_and_every_task_is_opened_and_closed_once():
    events = []
    made = life(events)
    made.open()
    made.close()
    made.close()
    assert events == [
        "h1 start", "h2 start", "b1 open", "b2a open", "b2b open",
        "b2b close", "b2a close", "b1 close", "h2 stop", "h1 stop",
    ]  # fmt: skip


def test_a_bolt_that_cannot_be_opened_ends_the_start_and_what_is_open_is_closed():
    events = []
    with pytest.raises(ValueError, match="b2a cannot open") as caught:
        life(events, b2a=["open"]).open()
    assert caught.value.__notes__ == ["open() of bolt 'b2'"]
    assert events == [
        "h1 start", "h2 start", "b1 open", "b2a open",
        "b2a close", "b1 close", "h2 stop", "h1 stop",
    ]  # fmt: skip


def test_a_hook_that_cannot_start_ends_the_start_before_a_bolt_is_opened():
    events = []
    with pytest.raises(ValueError, match="h2 cannot start"):
        life(events, h2=["start"]).open()
    assert events == ["h1 start", "h2 start", "h2 stop", "h1 stop"]


def test_hooks_hear_of_a_new_partition_before_the_bolts_and_of_a_lost_one_after_them():
    events = []
    made = life(events)
    made.open()
    events.clear()
    made.partition_assigned("t", 1)
    made.partition_revoked("t", 1)
    assert events == [
        "h1 +t1", "h2 +t1", "b1 +t1", "b2a +t1", "b2b +t1",
        "b2b -t1", "b2a -t1", "b1 -t1", "h2 -t1", "h1 -t1",
    ]  # fmt: skip


def test_before_the_start_and_after_the_end_nobody_is_told_of_partitions():
    events = []
    made = life(events)
    made.partition_assigned("t", 1)
    assert events == []
    made.open()
    made.close()
    events.clear()
    made.partition_revoked("t", 1)
    assert events == []


@pytest.mark.parametrize("who", ["h1", "b1", "b2a"])
def test_whoever_raises_when_it_is_told_is_logged_and_keeps_nobody_else_from_hearing_it(who):
    events = []
    made = life(events, **{who: ["+t1", "-t1", "stop"]})
    with structlog.testing.capture_logs() as logs:
        made.open()
        made.partition_assigned("t", 1)
        made.partition_revoked("t", 1)
        made.close()
    assert len(events) == 20
    assert {each["event"] for each in logs} == {"hook_failed"}
    ends = ["stopped"] if who == "h1" else []
    assert [each["hook"] for each in logs] == ["partition_assigned", "partition_revoked", *ends]
    kind = "Hooked" if who == "h1" else "Told"
    assert all(kind in each["of"] for each in logs)


def test_a_bolt_that_cannot_be_closed_keeps_no_other_open():
    events = []
    made = life(events, b2a=["close"])
    made.open()
    events.clear()
    with pytest.raises(ValueError, match="b2a cannot close"):
        made.close()
    assert events == ["b2b close", "b2a close", "b1 close", "h2 stop", "h1 stop"]
    made.close()
    assert len(events) == 5


def test_a_close_that_raises_does_not_hide_why_the_start_failed():
    events = []
    with structlog.testing.capture_logs() as logs, pytest.raises(ValueError, match="cannot open"):
        life(events, b1=["close"], b2a=["open"]).open()
    assert events[-3:] == ["b1 close", "h2 stop", "h1 stop"]
    assert [each["hook"] for each in logs] == ["close"]


class Awaited(Bolt):
    """An async bolt with a client that belongs to its loop."""

    def __init__(self, *, closes=True):
        self.threads = []
        self.closes = closes

    async def open(self):
        await asyncio.sleep(0)
        self.threads.append(threading.current_thread().name)

    async def process(self, value, /):
        return value

    async def close(self):
        self.threads.append(threading.current_thread().name)
        await (asyncio.sleep(0) if self.closes else asyncio.Event().wait())


class NotAwaited(Bolt):
    async def open(self):
        """Nobody would await it."""

    def process(self, value, /):
        return value


def on_a_loop(bolt):
    topology = Topology("life")
    topology.source("t").then(lambda: bolt, name="b").into(MemorySink())
    topology.dead_letters.into(MemoryDeadLetters())
    loop = EventLoop()
    loop.open()
    return Lifecycle(topology.bolts(), topology.listeners, loop), loop


def test_an_async_bolt_may_be_opened_and_closed_on_its_loop():
    bolt = Awaited()
    made, loop = on_a_loop(bolt)
    made.open()
    made.close()
    loop.close(time.monotonic() + 5)
    assert bolt.threads == ["headrace-async", "headrace-async"]


def test_an_open_that_nobody_would_await_is_refused_when_the_topology_is_drawn():
    with pytest.raises(InvalidTopology, match="bolt 'b' is function and has async def open"):
        Topology("life").source("t").then(NotAwaited, name="b")


def test_a_close_that_never_ends_is_cancelled():
    made, loop = on_a_loop(Awaited(closes=False))
    made.open()
    with pytest.raises(TimeoutError):
        made.close(0.01)
    loop.close(time.monotonic() + 5)


@pytest.mark.parametrize("what", ["open", "close"])
def test_what_an_async_open_or_close_raises_is_raised_and_names_the_bolt(what):
    class Failing(Awaited):
        async def open(self):
            self.note("open")

        async def close(self):
            self.note("close")

        def note(self, which):
            self.threads.append(which)
            if which == what:
                raise ValueError(f"cannot {which}")

    bolt = Failing()
    made, loop = on_a_loop(bolt)
    both = ExitStack()
    both.callback(made.close)
    both.callback(made.open)
    with pytest.raises(ValueError, match=f"cannot {what}") as caught:
        both.close()
    loop.close(time.monotonic() + 5)
    assert caught.value.__notes__ == [f"{what}() of bolt 'b'"]
    assert bolt.threads == ["open", "close"]


def test_a_bolt_that_gives_a_coroutine_to_nobody_is_told_at_the_start():
    class Outer(Bolt):
        def open(self):
            return Awaited().open()

        def process(self, value, /):
            return value

    made, loop = on_a_loop(Outer())
    with pytest.raises(InvalidTopology, match="process is async are awaited") as caught:
        made.open()
    loop.close(time.monotonic() + 5)
    assert caught.value.__notes__ == ["open() of bolt 'b'"]
