"""Advanced bolts whose call raises: nothing of it has happened."""

from tests.worlds.advancing import Bench, Scripted, emitted, failures, run


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
