"""Calls that take too long, that never end, or that end oddly; and how many run at once."""

import asyncio
import contextlib
import threading
import time

import pytest
from structlog.testing import capture_logs

from headrace import Hooks, InvalidTopology
from tests.support.bolts import Own, made, new_topology, wait
from tests.support.step_workers import SECONDS, Bench
from topology.bolt import Bolt, FunctionBolt, Kind
from topology.workers.lifecycle import EventLoop, Lifecycle


class Gate:
    """A blocking bolt whose calls with "slow" values wait until the gate opens."""

    def __init__(self):
        self.opened, self.began = threading.Event(), threading.Semaphore(0)

    def process(self, value):
        if str(value).startswith("slow"):
            self.began.release()
            self.opened.wait(SECONDS)
        return value

    async def block(self, value):
        return self.process(value)

    def await_calls(self, count):
        for _ in range(count):
            assert self.began.acquire(timeout=SECONDS)


@pytest.fixture
def gate():
    gate = Gate()
    yield gate
    gate.opened.set()


@contextlib.contextmanager
def bench_of(gate, bolt=None, kind=Kind.BLOCKING, **options):
    bolt = bolt or FunctionBolt(gate.process, blocking=True)
    with Bench([bolt], kind, 30.0, **options) as bench:
        try:
            yield bench
        finally:
            gate.opened.set()


@pytest.mark.parametrize("kind", [Kind.BLOCKING, Kind.ASYNC])
def test_a_call_that_takes_too_long_is_replaced_and_its_late_result_dropped(gate, kind):
    async def stubborn(value):
        """It is not cancelled until the gate opens."""
        ends = asyncio.ensure_future(asyncio.to_thread(gate.process, value))
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.shield(ends)
        return await ends

    bolt = FunctionBolt(stubborn) if kind is Kind.ASYNC else None
    with bench_of(gate, bolt, kind) as bench:
        bench.submit("slow", "quick")
        gate.await_calls(1)
        bench.pass_seconds(29.9)
        assert bench.figures().timeouts == 0
        bench.pass_seconds(0.2)
        slow, quick = bench.take(2)
        assert isinstance(slow.error, TimeoutError)
        assert "bolt 'step' took longer than its 30 seconds" in str(slow.error)
        assert quick.value == "quick"
        assert (bench.figures().timeouts, bench.figures().abandoned) == (1, 1)
        gate.opened.set()
        bench.wait_until(lambda: bench.figures().late == 1)
        assert bench.figures().abandoned == 0
        bench.submit("more")
        assert bench.take(1)[0].value == "more"


def test_calls_expire_in_time_whenever_they_start(gate):
    with bench_of(gate, workers=3) as bench:
        bench.pass_seconds(3.0)
        for number in range(2):
            bench.submit(f"slow{number}")
            gate.await_calls(1)
            bench.pass_seconds(10.0)
        for number in range(2):
            bench.pass_seconds(9.9)
            assert bench.figures().timeouts == number
            bench.pass_seconds(0.1)
            assert bench.take(1)[0].tree == number


def test_closing_does_not_wait_for_threads_that_are_stuck(gate):
    with bench_of(gate, workers=2) as bench, capture_logs() as logs:
        for _ in range(2):
            bench.submit("slow")
            gate.await_calls(1)
            bench.pass_seconds(20.0)
        began = time.monotonic()
        bench.runners.stop(0.05)
        assert time.monotonic() - began < SECONDS / 2
    assert [(line["event"], line["threads"]) for line in logs] == [("blocking_bolt_still_runs", 2)]


def test_a_tick_that_never_ends_is_a_failed_tick_and_stops_no_call(gate):
    stuck = made(Own, tick=lambda _self: gate.process("slow tick"))
    with bench_of(gate, stuck()) as bench:
        bench.runners.tick(bench.step)
        gate.await_calls(1)
        bench.submit("value")
        bench.pass_seconds(30.0)
        assert bench.take(1)[0].value == "value"
        assert [failed.step for failed in bench.failed_ticks] == ["step"]


def test_an_async_call_that_blocks_its_loop_and_ends_is_not_late(gate):
    with bench_of(gate, FunctionBolt(gate.block), Kind.ASYNC) as bench:
        bench.submit("slow")
        gate.await_calls(1)
        bench.pass_seconds(30.0)
        gate.opened.set()
        assert bench.take(1)[0].value == "slow"
        assert bench.figures().timeouts == 0


def test_an_async_bolt_that_blocks_its_loop_is_logged_at_the_close(gate):
    with bench_of(gate, FunctionBolt(gate.block), Kind.ASYNC) as bench, capture_logs() as logs:
        bench.submit("slow")
        gate.await_calls(1)
        bench.runners.stop(0.05)
        bench.runners.close(0.05)
        gate.opened.set()
    assert [line["event"] for line in logs] == ["async_bolt_blocks_its_loop"]


@pytest.mark.parametrize("kind", [Kind.ASYNC, Kind.BLOCKING])
def test_at_most_so_many_calls_run_at_once_as_there_are_workers(kind):
    lock, running, peak = threading.Lock(), 0, 0

    def begin(step):
        nonlocal running, peak
        with lock:
            running += step
            peak = max(peak, running)

    def process(value):
        begin(1)
        time.sleep(0.001)
        begin(-1)
        return value

    async def process_beside(value):
        return await asyncio.to_thread(process, value)

    function = process_beside if kind is Kind.ASYNC else process
    with Bench([FunctionBolt(function)], kind, workers=3) as bench:
        for _ in range(10):
            bench.submit(*range(6))
        bench.take(60)
    assert peak == 3


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

    def make(**failing):
        names = iter(["b2a", "b2b"])

        def noting(kind, name):
            return kind(name, events, failing.get(name, ()))

        topology, stream = new_topology()
        topology.hooks(*(noting(NotingHooks, name) for name in ("h1", "h2")))
        stream = stream.then(noting(NotingBolt, "b1"))
        stream.then(lambda: noting(NotingBolt, next(names)), tasks=2, name="b2")
        return Lifecycle(topology.bolts(), topology.listeners, EventLoop())

    return make


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
    def open(self):  # it gives a coroutine that the topology cannot see
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
