"""Advanced bolts: what they emit, ack and fail, what they keep, and calls that raise."""

import threading

import numpy as np
import pytest

from tests.support.advanced_step import Bench, Draining, Scripted, emitted, failures, run
from topology.advanced import NO_TREE
from topology.bolt import Kind, kind_of
from topology.errors import BoltError
from topology.record import SKIP, Reject, Retry


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


def test_a_bolt_that_emits_nothing_has_no_emissions():
    assert list(run(lambda tuple_, collector: collector.ack(tuple_), "a").emissions()) == []


def test_a_tuple_says_where_it_comes_from():
    seen = []
    bench = Bench(Scripted(lambda tuple_, _: seen.append((tuple_.source, tuple_.stream))))

    bench.run("a", source="orders")
    bench.run("b", source="check", stream="late")

    assert seen == [("orders", "default"), ("check", "late")]


def test_each_value_goes_to_its_task_in_order():
    bolts = [Scripted(lambda *_: None) for _ in range(3)]

    Bench(*bolts).run("a", "b", "c", "d", tasks=[2, 0, 2, 1])

    assert [[tuple_.value for tuple_ in bolt.calls] for bolt in bolts] == [["b"], ["d"], ["a", "c"]]


def test_the_collector_has_the_time():
    times = []
    bench = Bench(Scripted(lambda _, collector: times.append(collector.now)))

    bench.run("a", now=3.0)
    bench.run("b", now=4.5)

    assert times == [3.0, 4.5]


@pytest.mark.parametrize(
    ("given", "kind"), [(None, Retry), (Reject("no"), Reject), (ValueError("x"), ValueError)]
)
def test_a_tuple_is_failed_with_the_error_given_or_to_be_tried_again(given, kind):
    (failure,) = failures(run(lambda tuple_, collector: collector.fail(tuple_, given), "a"))
    assert failure[0] == 1
    assert isinstance(failure[1], kind)
    assert given is None or failure[1] is given


def test_a_tuple_s_time_is_reset_as_often_as_it_is_asked_for():
    def process(tuple_, collector):
        collector.reset_timeout(tuple_)

    assert run(process, "a", "b").resets().tolist() == [1, 2]


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
        (emit_several_after_ack, "emit first, then ack or fail each tuple once"),
        (lambda t, c: c.emit(None, anchors=t), "bolt 'join' emitted None; a value is allowed"),
        (lambda t, c: c.emit(SKIP, anchors=t), "bolt 'join' emitted SKIP; a value is allowed"),
        (
            lambda t, c: c.emit(1, anchors=t, stream="lat"),
            "bolt 'join' emitted to stream 'lat'; it has default, late",
        ),
        (lambda t, c: 5, "bolt 'join' returned int from process; an advanced bolt returns None"),
        (lambda t, c: (x for x in "ab"), "bolt 'join' returned generator from process"),
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


def test_a_bolt_whose_process_is_a_coroutine_function_is_told_so():
    async def process(tuple_, collector):
        collector.ack(tuple_)

    ((_tree, error),) = failures(run(process, "a"))

    assert "bolt 'join' returned an awaitable from process" in str(error)


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


def test_an_advanced_bolt_is_told_from_others():
    assert kind_of(Scripted()) is Kind.ADVANCED


def test_the_tuples_that_bolts_keep_are_counted_until_they_are_settled_or_resolved():
    held = []

    def process(tuple_, collector):
        held.append(tuple_)
        if tuple_.value == "go":
            collector.ack(held.pop(0))
            collector.fail(held.pop(0))
            collector.ack(tuple_)

    bench = Bench(Scripted(process))
    bench.run("a", "b", "c", "d")
    assert bench.runner.held(bench.step) == 4
    bench.run("go")
    assert bench.runner.held(bench.step) == 2
    assert set(bench.runner.holders().values()) == {bench.step.name}
    bench.resolved = {3}
    bench.runner.forget_resolved()
    assert bench.runner.held(bench.step) == len(bench.runner.holders()) == 1


def test_the_tuples_that_bolts_keep_are_counted_by_partition():
    held = []

    def process(tuple_, collector):
        held.append(tuple_)
        if tuple_.value == "go":
            collector.ack(held.pop(0))

    bench = Bench(Scripted(process))
    bench.run("a", "b", "c", "d")
    assert bench.runner.held_by_partition(bench.step) == {1: 2, 0: 2}
    bench.run("go")
    assert bench.runner.held_by_partition(bench.step) == {1: 2, 0: 2}
    bench.resolved = {2, 4}
    bench.runner.forget_resolved()
    assert bench.runner.held_by_partition(bench.step) == {1: 2}


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
    assert bench.runner.held(bench.step) == 0


def test_without_a_time_out_no_tuple_is_kept_for_too_long():
    bench = Bench(Scripted(lambda _tuple, _collector: None))
    bench.run("a")
    assert bench.runner.overdue(bench.step, 1e9).failed == []
    assert bench.runner.held(bench.step) == 1


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


def test_only_a_bolt_that_keeps_tuples_is_drained():
    held, calls = [], []

    def drain(collector):
        calls.append(len(held))
        while held:
            collector.ack(held.pop())

    bench = Bench(Draining(lambda tuple_, _: held.append(tuple_), drain=drain))
    assert bench.runner.drain(bench.step, 0.0).acked == []
    bench.run("a", "b")
    assert bench.runner.drain(bench.step, 0.0).acks()[0].tolist() == [2, 1]
    assert bench.runner.drain(bench.step, 0.0).acked == []
    assert calls == [2]


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


def test_what_a_call_that_raised_had_acked_can_be_acked_by_a_later_one():
    held = []

    def process(tuple_, collector):
        if tuple_.value == "keep":
            held.append(tuple_)
            return
        collector.ack(held[0])
        if tuple_.value == "bad":
            raise ValueError("bad")
        collector.ack(tuple_)

    actions = run(process, "keep", "bad", "good")

    assert actions.acks()[0].tolist() == [1, 3]


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


def test_a_tick_that_raises_in_one_task_leaves_the_other_tasks_theirs():
    def broken(_collector):
        raise ValueError("broken")

    fine = Scripted(tick=lambda collector: collector.emit("fine", anchors=()))
    bench = Bench(fine, Scripted(tick=broken), fine)

    actions = bench.runner.tick(bench.step, 1.0)

    assert emitted(actions) == {"default": ["fine", "fine"]}
    assert len(actions.errors) == 1
