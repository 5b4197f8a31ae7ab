"""Advanced bolts: what they emit, ack and fail, what they keep, and calls that raise."""

import asyncio
import threading

import numpy as np
import pytest

from tests.support.advanced_step import Bench, Scripted, emitted, failures, run
from topology.advanced import NO_TREE
from topology.errors import BoltError
from topology.record import SKIP


def test_a_value_emitted_and_a_tuple_acked_are_recorded_with_their_trees_and_edges():
    def process(tuple_, collector):
        collector.emit(tuple_.value * 2, anchors=tuple_)
        collector.ack(tuple_)

    actions = run(process, "a", "b")

    (emission,) = actions.emissions()
    assert emission.stream == "default"
    assert emission.values == ["aa", "bb"]
    assert emission.trees.tolist() == [1, 2]
    assert emission.several == {}
    trees, edges = actions.acks()
    assert trees.tolist() == [1, 2]
    assert edges.tolist() == [101, 102]
    assert edges.dtype == np.uint64
    assert actions.failed == []


def test_a_value_of_several_tuples_has_the_tree_of_each_once():
    held = []

    def process(tuple_, collector):
        held.append(tuple_)
        if len(held) == 3:
            collector.emit("two", anchors=[held[0], held[2]])
            collector.emit("one", anchors=[held[1], held[1]])
            collector.emit("three", anchors=reversed(held))
            collector.emit("none", anchors=())

    (emission,) = run(process, "a", "b", "c").emissions()

    assert emission.trees.tolist() == [NO_TREE, 2, NO_TREE, NO_TREE]
    assert emission.several == {0: (1, 3), 2: (3, 2, 1), 3: ()}


def test_each_stream_has_its_own_values_anchors_and_tasks():
    def process(tuple_, collector):
        collector.emit(tuple_.value, anchors=tuple_, task=7)
        collector.emit("x", anchors=(), stream="late", task=3)
        collector.emit("y", anchors=tuple_, stream="late")
        collector.emit("z", anchors=(), stream="late", task=4)

    default, late = run(process, "a", "b").emissions()

    assert (default.values, default.trees.tolist()) == (["a", "b"], [1, 2])
    assert (default.several, default.tasks) == ({}, {0: 7, 1: 7})
    assert late.values == ["x", "y", "z"] * 2
    assert late.trees.tolist() == [NO_TREE, 1, NO_TREE, NO_TREE, 2, NO_TREE]
    assert late.several == {0: (), 2: (), 3: (), 5: ()}
    assert late.tasks == {0: 3, 2: 4, 3: 3, 5: 4}


# What a bolt must not do


def double_ack(tuple_, collector):
    collector.ack(tuple_)
    collector.ack(tuple_)


def ack_and_fail(tuple_, collector):
    collector.ack(tuple_)
    collector.fail(tuple_)


def emit_after_ack(tuple_, collector):
    collector.ack(tuple_)
    collector.emit("x", anchors=tuple_)


def emit_several_after_ack(tuple_, collector):
    collector.ack(tuple_)
    collector.emit("x", anchors=[tuple_])


@pytest.mark.parametrize(
    ("process", "reason"),
    [
        (double_ack, "bolt 'join' acked a tuple from 'orders' that it had acked or failed before"),
        (ack_and_fail, "bolt 'join' failed a tuple from 'orders' that it had acked or failed"),
        (emit_after_ack, "bolt 'join' anchored a value to a tuple from 'orders' that it had acked"),
        (emit_several_after_ack, "Emit first, then ack or fail each tuple once"),
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
def test_a_bolt_that_breaks_its_contract_fails_its_tuple_and_nothing_is_lost(process, reason):
    actions = run(process, "a")

    ((tree, error),) = failures(actions)
    assert tree == 1
    assert isinstance(error, BoltError)
    assert reason in str(error)
    assert actions.acked == []
    assert list(actions.emissions()) == []


def test_a_collector_is_good_only_while_the_bolt_is_called():
    kept = []
    bench = Bench(Scripted(lambda tuple_, collector: kept.append((tuple_, collector))))
    bench.run("a")
    ((tuple_, collector),) = kept

    for call in (
        lambda: collector.emit(1, anchors=tuple_),
        lambda: collector.ack(tuple_),
        lambda: collector.fail(tuple_),
        lambda: collector.reset_timeout(tuple_),
        lambda: collector.pending([tuple_]),
    ):
        with pytest.raises(BoltError, match="outside its own call or on another thread"):
            call()
    assert not tuple_.is_settled


def test_another_thread_cannot_ack():
    """Storm 51: it is told so, instead of acks getting lost between threads."""
    told = []

    def process(tuple_, collector):
        def ack():
            try:
                collector.ack(tuple_)
            except BoltError as error:
                told.append(str(error))

        thread = threading.Thread(target=ack)
        thread.start()
        thread.join()

    actions = run(process, "a")

    assert actions.acked == []
    assert "on another thread" in told[0]


def test_the_tuples_that_bolts_keep_are_counted_by_partition():
    held = []

    def process(tuple_, collector):
        held.append(tuple_)
        if tuple_.value == "go":
            collector.ack(held.pop(0))

    bench = Bench(Scripted(process))
    bench.run("a", "b", "c", "d")
    assert bench.runner.kept["join"].by_partition == {1: 2, 0: 2}
    bench.run("go")
    assert bench.runner.kept["join"].by_partition == {1: 2, 0: 2}
    assert set(bench.runner.holders().values()) == {"join"}
    bench.resolved = {2, 4}
    bench.runner.forget_resolved()
    assert bench.runner.kept["join"].by_partition == {1: 2}


def test_a_tuple_that_is_kept_for_too_long_fails_unless_its_time_was_reset():
    held = []

    def process(tuple_, collector):
        held.append(tuple_)
        if tuple_.value == "again":
            collector.reset_timeout(held[0])
            collector.ack(held.pop(1))

    bench = Bench(Scripted(process), timeout_seconds=5.0)
    bench.run("a", "b", "c", now=1.0)
    bench.run("again", now=3.0)
    assert bench.runner.overdue(bench.step, 5.9).failed == []
    ((tuple_, error),) = bench.runner.overdue(bench.step, 6.0).failed
    assert (tuple_.value, tuple_.is_settled) == ("c", False)
    assert str(error) == ("bolt 'join' neither acked nor failed a tuple in time: timeout_seconds=5")
    assert bench.runner.overdue(bench.step, 7.9).failed == []
    assert [each.value for each, _error in bench.runner.overdue(bench.step, 8.0).failed] == [
        "a",
        "again",
    ]
    assert len(bench.runner.kept["join"]) == 0


def test_tuples_whose_trees_have_resolved_are_not_pending():
    held, pending = [], []

    def process(tuple_, collector):
        held.append(tuple_)
        if tuple_.value == "look":
            collector.ack(held[2])
            pending.extend(collector.pending(held))

    bench = Bench(Scripted(process))
    bench.run("a", "b", "c")
    bench.resolved = {1}
    bench.run("look")

    assert [tuple_.value for tuple_ in pending] == ["b", "look"]


def test_nothing_of_a_call_that_raises_has_happened_and_its_neighbours_are_untouched():
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

    actions = run(process, "a", "b", "bad", "c")

    (emission,) = actions.emissions()
    assert emission.values == ["a", "b", "c"]
    assert emission.trees.tolist() == [1, 2, 4]
    assert emission.several == {}
    assert emission.tasks == {0: 0, 1: 0, 2: 0}
    assert actions.acked == []
    assert actions.reset == []
    ((tree, error),) = failures(actions)
    assert tree == 3
    assert isinstance(error, ValueError)
    assert [each.is_settled for each in held] == [False] * 3


def test_a_tick_that_raises_is_told_and_nothing_of_it_has_happened():
    held = []

    def tick(collector):
        collector.emit(len(held), anchors=held)
        for each in held:
            collector.ack(each)
        if len(held) < 3:
            raise ValueError("too few")

    bench = Bench(Scripted(lambda tuple_, _: held.append(tuple_), tick))
    bench.run("a", "b")
    actions = bench.runner.tick(bench.step, 1.0)
    assert [str(error) for error in actions.errors] == ["too few"]
    assert list(actions.emissions()) == []
    assert actions.acked == []

    bench.run("c")
    actions = bench.runner.tick(bench.step, 2.0)
    assert actions.errors == []
    assert emitted(actions) == {"default": [3]}
    assert actions.acks()[0].tolist() == [1, 2, 3]
