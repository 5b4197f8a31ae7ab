"""What advanced bolts keep: it is counted, it may be kept too long, it is drained."""

from tests.worlds.advancing import Bench, Draining, Scripted


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
