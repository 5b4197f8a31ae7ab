"""Advanced bolts: what they emit, ack and fail, what they keep, and calls that raise."""

import asyncio
import threading
from types import SimpleNamespace

import numpy as np
import pytest

from topology.advanced import NO_TREE, AdvancedBolt, AdvancedRunner
from topology.errors import BoltError
from topology.record import SKIP


class Scripted(AdvancedBolt):
    def __init__(self, process, tick):
        self._process, self.tick = process, tick

    def process(self, tuple_, collector, /):
        return self._process(tuple_, collector)


class Bench:
    """The step of one advanced bolt, without a pipeline, and trees that have resolved."""

    def __init__(self, process, tick=None, timeout_seconds=None):
        self.step = SimpleNamespace(
            name="join",
            bolts=[Scripted(process, tick)],
            streams=("default", "late"),
            timeout_seconds=timeout_seconds,
        )
        self.resolved = set()
        self.runner = AdvancedRunner(
            [self.step], self.record_ids, lambda record_ids: record_ids % 2
        )
        self.sent = 0

    def record_ids(self, trees):
        return np.array([-1 if tree in self.resolved else tree for tree in trees.tolist()], int)

    def run(self, *values, now=0.0):
        """Run values whose trees are 1, 2, 3, … and whose edges are 101, 102, 103, …."""
        trees = np.arange(self.sent + 1, self.sent + 1 + len(values))
        self.sent += len(values)
        edges = (trees + 100).astype(np.uint64)
        return self.runner.run(self.step, values, trees, edges, now, source="orders")

    @property
    def kept(self):
        return self.runner.kept["join"]

    def overdue(self, now):
        return self.runner.overdue(self.step, now).failed


def test_emissions_have_the_trees_and_tasks_of_each_stream():
    held = []

    def process(tuple_, collector):
        held.append(tuple_)
        collector.emit(tuple_.value, anchors=tuple_, task=7)
        collector.emit("-", anchors=(), stream="late", task=3)
        if len(held) == 3:
            collector.emit("two", anchors=[held[0], held[2]], stream="late")
            collector.emit("one", anchors=[held[1], held[1]], stream="late")
            collector.emit("three", anchors=reversed(held), stream="late", task=4)
            for each in held:
                collector.ack(each)

    actions = Bench(process).run("a", "b", "c")
    default, late = actions.emissions()
    assert (default.stream, default.values, default.several) == ("default", ["a", "b", "c"], {})
    assert (default.trees.tolist(), default.tasks) == ([1, 2, 3], {0: 7, 1: 7, 2: 7})
    assert (late.stream, late.values) == ("late", ["-", "-", "-", "two", "one", "three"])
    assert late.trees.tolist() == [NO_TREE, NO_TREE, NO_TREE, NO_TREE, 2, NO_TREE]
    assert late.several == {0: (), 1: (), 2: (), 3: (1, 3), 5: (3, 2, 1)}
    assert late.tasks == {0: 3, 1: 3, 2: 3, 5: 4}
    trees, edges = actions.acks()
    assert (trees.tolist(), edges.tolist(), edges.dtype) == ([1, 2, 3], [101, 102, 103], np.uint64)


def then(*methods):
    """A call of each method for the tuple."""

    def process(tuple_, collector):
        for method in methods:
            method(collector, tuple_)

    return process


def ack(collector, tuple_):
    collector.ack(tuple_)


def fail(collector, tuple_):
    collector.fail(tuple_)


def emit(collector, tuple_):
    collector.emit("x", anchors=[tuple_])


@pytest.mark.parametrize(
    ("process", "reason"),
    [
        (then(ack, ack), "'join' acked a tuple from 'orders' that it had acked or failed before"),
        (then(ack, fail), "'join' failed a tuple from 'orders' that it had acked or failed"),
        (then(fail, emit), "anchored a value to a tuple from 'orders' that it had acked or failed"),
        (lambda t, c: c.emit(None, anchors=t), "bolt 'join' emitted None, expected a value"),
        (lambda t, c: c.emit(SKIP, anchors=t), "bolt 'join' emitted SKIP, expected a value"),
        (
            lambda t, c: c.emit(1, anchors=t, stream="lat"),
            "bolt 'join' emitted to stream 'lat', expected default, late",
        ),
        (lambda t, c: 5, "bolt 'join': found int returned from process, expected None"),
        (lambda t, c: (x for x in "ab"), "bolt 'join': found generator returned from process"),
        (lambda t, c: asyncio.sleep(0), "bolt 'join': found an awaitable returned from process"),
    ],
)
def test_broken_contract_fails_the_tuple_and_loses_nothing(process, reason):
    actions = Bench(process).run("a")
    ((tuple_, error),) = actions.failed
    assert tuple_.tree == 1
    assert isinstance(error, BoltError)
    assert reason in str(error)
    assert (actions.acked, list(actions.emissions())) == ([], [])


def test_collector_is_valid_during_a_call_on_its_thread_only():
    """Storm 51: other threads get an error, instead of losing acks."""
    kept, errors = [], []

    def process(tuple_, collector):
        kept.extend([tuple_, collector])
        thread = threading.Thread(target=call_all)
        thread.start()
        thread.join()

    def call_all():
        tuple_, collector = kept
        for call in (ack, fail, emit, type(collector).reset_timeout):
            with pytest.raises(BoltError, match="outside its own call or on another thread"):
                call(collector, tuple_)
        with pytest.raises(BoltError, match="outside its own call or on another thread"):
            collector.pending([tuple_])
        errors.append("all")

    assert Bench(process).run("a").acked == []
    call_all()
    assert errors == ["all", "all"]
    assert not kept[0].is_settled


def test_kept_tuples_are_counted_by_partition():
    held = []

    def process(tuple_, collector):
        held.append(tuple_)
        if tuple_.value == "go":
            collector.ack(held.pop(0))

    bench = Bench(process)
    bench.run("a", "b", "c", "d")
    assert bench.kept.by_partition == {1: 2, 0: 2}
    bench.run("go")
    assert bench.kept.by_partition == {1: 2, 0: 2}
    assert set(bench.runner.holders().values()) == {"join"}
    bench.resolved = {2, 4}
    bench.runner.forget_resolved()
    assert bench.kept.by_partition == {1: 2}


def test_tuple_kept_for_too_long_fails_unless_its_time_was_reset():
    held = []

    def process(tuple_, collector):
        held.append(tuple_)
        if tuple_.value == "again":
            collector.reset_timeout(held[0])
            collector.ack(held.pop(1))

    bench = Bench(process, timeout_seconds=5.0)
    bench.run("a", "b", "c", now=1.0)
    bench.run("again", now=3.0)
    assert bench.overdue(5.9) == []
    ((tuple_, error),) = bench.overdue(6.0)
    assert (tuple_.value, tuple_.is_settled) == ("c", False)
    assert str(error) == "bolt 'join' neither acked nor failed a tuple in time: timeout_seconds=5"
    assert bench.overdue(7.9) == []
    assert [each.value for each, _error in bench.overdue(8.0)] == ["a", "again"]
    assert len(bench.kept) == 0


def test_settled_and_resolved_tuples_are_not_pending():
    held, pending = [], []

    def process(tuple_, collector):
        held.append(tuple_)
        if tuple_.value == "look":
            collector.ack(held[2])
            pending.extend(collector.pending(held))

    bench = Bench(process)
    bench.run("a", "b", "c")
    bench.resolved = {1}
    bench.run("look")
    assert [tuple_.value for tuple_ in pending] == ["b", "look"]


def test_call_that_raises_changes_nothing_and_its_neighbours_are_untouched():
    held = []

    def process(tuple_, collector):
        if tuple_.value == "bad":
            for each in held:
                collector.emit("x", anchors=[each, tuple_], task=1)
                collector.reset_timeout(each)
            collector.ack(held[0])
            collector.fail(held[1])
            collector.ack(tuple_)
            raise ValueError("bad")
        collector.emit(tuple_.value, anchors=tuple_, task=0)
        held.append(tuple_)

    actions = Bench(process).run("a", "b", "bad", "c")
    (emission,) = actions.emissions()
    assert (emission.values, emission.trees.tolist()) == (["a", "b", "c"], [1, 2, 4])
    assert (emission.several, emission.tasks) == ({}, {0: 0, 1: 0, 2: 0})
    assert (actions.acked, actions.reset) == ([], [])
    assert [(each.tree, str(error)) for each, error in actions.failed] == [(3, "bad")]
    assert [each.is_settled for each in held] == [False] * 3


def test_tick_that_raises_changes_nothing():
    held = []

    def tick(collector):
        collector.emit(len(held), anchors=held)
        for each in held:
            collector.ack(each)
        if len(held) < 3:
            raise ValueError("too few")

    bench = Bench(lambda tuple_, _: held.append(tuple_), tick)
    bench.run("a", "b")
    actions = bench.runner.tick(bench.step, 1.0)
    assert [str(error) for error in actions.errors] == ["too few"]
    assert (list(actions.emissions()), actions.acked) == ([], [])
    bench.run("c")
    actions = bench.runner.tick(bench.step, 2.0)
    assert actions.errors == []
    assert [each.values for each in actions.emissions()] == [[3]]
    assert actions.acks()[0].tolist() == [1, 2, 3]
