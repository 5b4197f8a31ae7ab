import asyncio
import time

import pytest
from structlog.testing import capture_logs

from headrace import Bolt, Hooks, InvalidTopology
from tests.support.bolts import Own, new_topology, wait
from topology.workers.lifecycle import EventLoop, Lifecycle


class Noting:
    """Notes its calls in `events`, and raises in those that are `failing`."""

    def __init__(self, name, events, failing=()):
        self.name, self.events, self.failing = name, events, failing

    def note(self, what):
        self.events.append(f"{self.name} {what}")
        if what in self.failing:
            raise ValueError(f"{self.name} cannot {what}")

    def partition_assigned(self, topic, partition):
        self.note(f"+{topic}{partition}")

    def partition_revoked(self, topic, partition):
        self.note(f"-{topic}{partition}")


class NotingBolt(Noting, Own):
    def open(self):
        self.note("open")

    def close(self):
        self.note("close")


class NotingHooks(Noting, Hooks):
    def started(self):
        self.note("start")

    def stopped(self):
        self.note("stop")


@pytest.fixture
def events():
    return []


@pytest.fixture
def make(events):
    """Make two hooks, and two bolts of which the second has two tasks."""

    def made(**failing):
        names = iter(["b2a", "b2b"])

        def noting(kind, name):
            return kind(name, events, failing.get(name, ()))

        topology, stream = new_topology()
        topology.hooks(*(noting(NotingHooks, name) for name in ("h1", "h2")))
        stream = stream.then(noting(NotingBolt, "b1"))
        stream.then(lambda: noting(NotingBolt, next(names)), tasks=2, name="b2")
        return Lifecycle(topology.bolts(), topology.listeners, EventLoop())

    return made


OPENED = ["h1 start", "h2 start", "b1 open", "b2a open", "b2b open"]
CLOSED = ["b2b close", "b2a close", "b1 close", "h2 stop", "h1 stop"]
ASSIGNED = ["h1 +t1", "h2 +t1", "b1 +t1", "b2a +t1", "b2b +t1"]
REVOKED = ["b2b -t1", "b2a -t1", "b1 -t1", "h2 -t1", "h1 -t1"]


def test_hooks_start_first_and_stop_last(make, events):
    lifecycle = make()
    lifecycle.partition_assigned("t", 0)  # too early
    lifecycle.open()
    lifecycle.partition_assigned("t", 1)
    lifecycle.partition_revoked("t", 1)
    lifecycle.close()
    lifecycle.close()
    lifecycle.partition_revoked("t", 1)  # too late
    assert events == [*OPENED, *ASSIGNED, *REVOKED, *CLOSED]


@pytest.mark.parametrize(
    ("failing", "calls"),
    [
        ({"b2a": ["open"]}, [*OPENED[:4], *CLOSED[1:]]),
        ({"h2": ["start"]}, ["h1 start", "h2 start", "h2 stop", "h1 stop"]),
        ({"b1": ["close"], "b2a": ["open"]}, [*OPENED[:4], *CLOSED[1:]]),
    ],
)
def test_failed_start_closes_the_open_ones(make, events, failing, calls):
    *_, (name, (what, *_)) = failing.items()
    error = pytest.raises(ValueError, match=f"{name} cannot {what}")
    with capture_logs() as logs, error as caught:
        make(**failing).open()
    assert events == calls
    notes = ["open() of bolt 'b2'"] if name == "b2a" else []
    assert getattr(caught.value, "__notes__", []) == notes
    assert [each["hook"] for each in logs] == ["close"] * ("b1" in failing)


@pytest.mark.parametrize("name", ["h1", "b1", "b2a"])
def test_failing_listener_is_logged_and_stops_no_other(make, events, name):
    lifecycle = make(**{name: ["+t1", "-t1", "stop"]})
    with capture_logs() as logs:
        lifecycle.open()
        lifecycle.partition_assigned("t", 1)
        lifecycle.partition_revoked("t", 1)
        lifecycle.close()
    assert events == [*OPENED, *ASSIGNED, *REVOKED, *CLOSED]
    assert {each["event"] for each in logs} == {"hook_failed"}
    ends = ["stopped"] if name == "h1" else []
    assert [each["hook"] for each in logs] == ["partition_assigned", "partition_revoked", *ends]


def test_failing_close_keeps_no_other_bolt_open(make, events):
    lifecycle = make(b2a=["close"])
    lifecycle.open()
    with pytest.raises(ValueError, match="b2a cannot close"):
        lifecycle.close()
    assert events == [*OPENED, *CLOSED]


class Awaited(Bolt):
    """An async bolt; `failing` raises, and a close that is "endless" never ends."""

    failing = ""
    process = wait.function

    async def note(self, what):
        await asyncio.sleep(0)
        if self.failing == what:
            raise ValueError(f"cannot {what}")
        if self.failing == "endless" and what == "close":
            await asyncio.Event().wait()

    async def open(self):
        await self.note("open")

    async def close(self):
        await self.note("close")


class Outer(Own):
    """A bolt in a bolt, whose coroutine the topology cannot see."""

    def open(self):
        return Awaited().open()


@pytest.mark.parametrize(
    ("kind", "failing", "error", "message"),
    [
        (Awaited, "open", ValueError, "cannot open"),
        (Awaited, "close", ValueError, "cannot close"),
        (Awaited, "endless", TimeoutError, None),
        (Outer, "open", InvalidTopology, "it is a coroutine function"),
    ],
)
def test_error_of_a_coroutine_names_the_bolt(kind, failing, error, message):
    bolt, loop = kind(), EventLoop()
    bolt.failing = failing
    topology, stream = new_topology()
    stream.then(bolt, name="b")
    lifecycle = Lifecycle(topology.bolts(), (), loop)
    loop.open()
    with pytest.raises(error, match=message) as caught:  # noqa: PT012 - either of them
        lifecycle.open()
        lifecycle.close(0.05)
    loop.close(time.monotonic() + 5)
    method = "close" if failing == "endless" else failing
    assert caught.value.__notes__ == [f"{method}() of bolt 'b'"]
