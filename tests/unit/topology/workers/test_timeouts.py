"""Calls that take too long, that never end, or that end oddly; and how many run at once."""

import asyncio
import contextlib
import threading
import time

import pytest
from structlog.testing import capture_logs

from tests.support.step_workers import SECONDS, Bench
from topology.bolt import Bolt, FunctionBolt, Kind


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
    made = Gate()
    yield made
    made.opened.set()


@contextlib.contextmanager
def bench_of(gate, bolt=None, kind=Kind.BLOCKING, **options):
    bolt = bolt or FunctionBolt(gate.process, blocking=True)
    with Bench([bolt], kind, 30.0, **options) as bench:
        try:
            yield bench
        finally:
            gate.opened.set()


class Stubborn:
    """An async bolt whose "slow" calls will not be cancelled until the gate opens."""

    def __init__(self, gate):
        self.gate = gate

    async def process(self, value):
        ends = asyncio.ensure_future(asyncio.to_thread(self.gate.process, value))
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.shield(ends)
        return await ends


@pytest.mark.parametrize("kind", [Kind.BLOCKING, Kind.ASYNC])
def test_a_call_that_takes_too_long_is_replaced_and_its_late_result_dropped(gate, kind):
    bolt = FunctionBolt(Stubborn(gate).process) if kind is Kind.ASYNC else None
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


class StuckTick(Bolt):
    def __init__(self, gate):
        self.gate = gate

    def process(self, value):
        return value

    def tick(self):
        self.gate.process("slow tick")


def test_a_tick_that_never_ends_is_a_failed_tick_and_stops_no_call(gate):
    with bench_of(gate, StuckTick(gate)) as bench:
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

    async def process_too(value):
        begin(1)
        await asyncio.sleep(0.001)
        begin(-1)
        return value

    function = process_too if kind is Kind.ASYNC else process
    with Bench([FunctionBolt(function)], kind, workers=3) as bench:
        for _ in range(10):
            bench.submit(*range(6))
        bench.take(60)
    assert peak == 3
