"""Every way of running a bolt, by the same suite."""

import asyncio
import threading

import pytest

from tests.support.step_workers import SECONDS, Bench
from topology.bolt import Bolt, FunctionBolt, Kind
from topology.errors import BoltError, NothingReturned
from topology.record import SKIP
from topology.steps import Order
from topology.workers.key_queue import Many

KINDS = {"inline": Kind.FUNCTION, "threads": Kind.BLOCKING, "event loop": Kind.ASYNC}
FIRST_LETTER = {"order": Order.KEY, "key": lambda value: value[0]}


@pytest.fixture(params=KINDS)
def kind(request):
    return KINDS[request.param]


def bolt_of(kind, function):
    """The function as a bolt of that kind."""
    if kind is not Kind.ASYNC:
        return FunctionBolt(function, blocking=kind is Kind.BLOCKING)

    async def process(value):
        await asyncio.sleep(0)
        return function(value)

    return FunctionBolt(process)


def bench_of(kind, function, **options):
    workers = 1 if kind is Kind.FUNCTION else 4
    return Bench([bolt_of(kind, function)], kind, workers=workers, **options)


def fails_once_on(bad):
    """A function that keeps what it got, and raises on a value the first time."""

    def process(value):
        process.seen.append(value)
        if value == bad and process.seen.count(bad) == 1:
            raise RuntimeError(f"no {value}")
        return value

    process.seen = []
    return process


def by_tree(calls):
    return sorted(calls, key=lambda call: call.tree)


def test_each_value_has_its_own_outcome_and_those_of_resolved_trees_none(kind):
    results = {1: 1, 3: SKIP, 4: None, 5: 5}  # 2 raises
    with bench_of(kind, lambda value: results[value]) as bench:
        bench.submit(1, 2, 3, 4, 5, record_ids=[1, 2, 3, 4, -1], tasks=[0] * 5)
        one, raised, skipped, nothing = by_tree(bench.take(4))
        assert bench.answers.empty()
    assert [(call.value, call.error) for call in (one, skipped)] == [(1, None), (SKIP, None)]
    assert isinstance(raised.error, KeyError)
    assert isinstance(nothing.error, NothingReturned)


def test_a_key_keeps_its_order_and_a_record_that_failed_goes_first_when_it_comes_again(kind):
    process = fails_once_on("a1")
    with bench_of(kind, process, **FIRST_LETTER) as bench:
        bench.submit("a1", "a2", "b1", record_ids=[1, 2, 3])
        assert {call.value for call in bench.take(2)} == {"a1", "b1"}
        assert bench.runners.held
        assert bench.figures().held == 1
        assert {step.name: trees for step, trees in bench.runners.waiting()} == {"step": [1]}
        assert bench.runners.backlog(bench.step) == 0  # a2 waits for a1, not for a worker
        bench.submit("a3", record_ids=[4])
        bench.submit("a1", record_ids=[1])
        assert [call.value for call in bench.take(3)] == ["a1", "a2", "a3"]
        assert not bench.runners.held
    assert [value for value in process.seen if value[0] == "a"] == ["a1", "a1", "a2", "a3"]


def test_partition_order_is_per_partition(kind):
    with bench_of(kind, fails_once_on(10), order=Order.PARTITION) as bench:
        bench.submit(10, 11, 20, 21, partitions=[1, 1, 2, 2], record_ids=[10, 11, 20, 21])
        assert {call.value for call in bench.take(3)} == {10, 20, 21}
        bench.runners.release([10])
        assert [call.value for call in bench.take(1)] == [11]


def test_waiting_values_of_a_lost_partition_are_not_called(kind):
    process = fails_once_on("a1")
    with bench_of(kind, process, **FIRST_LETTER) as bench:
        bench.submit("a1", "a2", "a3", partitions=[1, 2, 1], record_ids=[1, 2, 3])
        bench.take(1)
        bench.runners.drop(lambda call: call.partition == 1)
        assert [call.value for call in bench.take(1)] == ["a2"]
        assert not bench.runners.held
    assert process.seen == ["a1", "a2"]


def test_waiting_values_are_not_called_once_the_runners_have_stopped(kind):
    process = fails_once_on("a1")
    with bench_of(kind, process, **FIRST_LETTER) as bench:
        bench.submit("a1", "a2", record_ids=[1, 2])
        bench.take(1)
        bench.runners.stop(SECONDS)
        bench.runners.release([1])
        bench.submit("b1", record_ids=[3])
    assert process.seen == ["a1"]
    assert bench.answers.empty()


def test_a_value_without_a_key_fails_for_good_and_alone(kind):
    options = {"order": Order.KEY, "key": lambda value: value["id"]}
    with bench_of(kind, lambda value: value, **options) as bench:
        bench.submit({"id": 1}, {}, {"id": [2]})
        good, *bad = by_tree(bench.take(3))
    assert good.error is None
    for call, reason in zip(bad, ("KeyError('id')", "unhashable"), strict=True):
        assert isinstance(call.error, BoltError)
        assert "bolt 'step': the key" in str(call.error)
        assert reason in str(call.error)


class Ticking(Bolt):
    """Notes on which thread it ticks and processes; its first tick fails."""

    def __init__(self):
        self.ticks, self.threads, self.ticked = 0, set(), threading.Event()

    def process(self, value):
        self.threads.add(threading.current_thread().name)
        return value

    def tick(self):
        self.threads.add(threading.current_thread().name)
        self.ticks += 1
        self.ticked.set()
        if self.ticks == 1:
            raise RuntimeError("cold")


class TickingAsync(Ticking):
    async def process(self, value):
        return super().process(value)


def test_ticks_come_on_the_thread_of_the_calls_and_a_failing_one_is_counted_and_logged(kind):
    bolt = TickingAsync() if kind is Kind.ASYNC else Ticking()
    with Bench([bolt], kind) as bench:
        bench.runners.tick(bench.step)
        bench.wait_until(lambda: len(bench.failed_ticks) == 1)
        bolt.ticked.clear()
        bench.runners.tick(bench.step)
        assert bolt.ticked.wait(SECONDS)
        bench.submit(1)
        bench.take(1)
    assert (bolt.ticks, len(bolt.threads)) == (2, 1)
    assert [failed.step for failed in bench.failed_ticks] == ["step"]


def split(value):
    yield from value


async def split_later(value):
    for each in value:
        await asyncio.sleep(0)
        yield each


@pytest.mark.parametrize(
    ("function", "kind"),
    [(split, Kind.FAN_OUT), (split, Kind.BLOCKING), (split_later, Kind.ASYNC)],
)
def test_a_generator_gives_many_values_in_order_and_without_what_it_skips(function, kind):
    with Bench([FunctionBolt(function)], kind) as bench:
        bench.submit([1, SKIP, 2], [], [3, None])
        two, none, bad = by_tree(bench.take(3))
    assert isinstance(two.value, Many)
    assert (two.value, none.value) == ([1, 2], [])
    assert isinstance(bad.error, NothingReturned)
