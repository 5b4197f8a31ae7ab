"""Drawing streams: names, several inputs and outputs, orders, and errors that name the step."""

from collections.abc import Iterator

import pyarrow as pa
import pytest

from headrace import (
    SKIP,
    AdvancedBolt,
    Bolt,
    InvalidTopology,
    RetryPolicy,
    To,
    Topology,
    all_tasks,
    bolt,
    custom,
    direct,
    fields,
)
from headrace.sinks import MemoryDeadLetters, MemorySink
from topology.executor import Executor
from topology.grouping import ByKey, Fields, Shuffle
from topology.steps import BoltStep, Order, SinkStep
from topology.topology import as_facts, as_mermaid, as_text


@bolt
def same(value):
    return value


@bolt
def sort_out(value):
    """Odd numbers are late, zero is dropped."""
    if value == 0:
        return To("late", SKIP)
    return To("late", value) if value % 2 else value


@bolt
def both(value) -> Iterator:
    yield value
    yield To("copies", -value)
    yield To("default", value * 10)


@bolt
async def wait(value):
    return value


@bolt(vectorised=True)
def columns(batch):
    return batch


class Own(Bolt):
    def process(self, value, /):
        return value


class Kept(AdvancedBolt):
    def process(self, tuple_, collector, /):
        collector.ack(tuple_)


def drawn():
    """A topology that lacks nothing but what the test draws, and its source's stream."""
    topology = Topology("drawn")
    topology.dead_letters.into(MemoryDeadLetters())
    return topology, topology.source("in")


def run(topology, values):
    """What the executor delivers of values that come out of the first step, and what fails."""
    step = next(topology.bolts())
    outcome = Executor().run_after(step, list(values))
    delivered = {}
    for delivery in outcome.deliveries:
        piece = delivery.piece
        rows = piece if isinstance(piece, list) else piece.to_pylist()
        origins = range(len(rows)) if delivery.parents is None else delivery.parents.tolist()
        delivered.setdefault(delivery.boundary.name, []).extend(zip(origins, rows, strict=True))
    return delivered, {place: str(f.error) for place, f in outcome.failures.items()}


# What goes where


def test_a_function_sends_each_value_into_the_stream_that_it_names():
    topology, records = drawn()
    checked = records.then(same).then(sort_out, streams=("late",))
    checked.into(MemorySink("good"))
    checked["late"].into(MemorySink("late"))
    topology.validate()
    delivered, failed = run(topology, [4, 3, 0, 2, 1])
    assert delivered == {"good": [(0, 4), (3, 2)], "late": [(1, 3), (4, 1)]}
    assert failed == {}


def test_a_generator_sends_into_several_streams_and_the_default_one_by_its_name():
    topology, records = drawn()
    split = records.then(same).then(both, streams=("copies",))
    split["default"].into(MemorySink("out"))
    split["copies"].into(MemorySink("copies"))
    delivered, failed = run(topology, [1, 2])
    assert delivered == {"out": [(0, 1), (0, 10), (1, 2), (1, 20)], "copies": [(0, -1), (1, -2)]}
    assert failed == {}


def test_what_a_bolt_sends_to_a_stream_it_has_not_fails_its_record_and_names_those_it_has():
    topology, records = drawn()
    checked = records.then(same).then(sort_out, streams=("early",))
    checked.into(MemorySink("good"))
    checked["early"].into(MemorySink("early"))
    delivered, failed = run(topology, [2, 3])
    assert delivered == {"good": [(0, 2)]}
    assert failed == {1: "bolt 'sort_out' sent to stream 'late'; allowed: default, early"}


def test_a_bolt_that_only_sends_by_name_needs_no_default_stream():
    topology, records = drawn()
    routed = records.then(same).then(sort_out, streams=("late", "early"))
    routed["late"].into(MemorySink("late"))
    routed["early"].into(MemorySink("early"))
    topology.validate()
    delivered, failed = run(topology, [2, 3])
    assert delivered == {"late": [(1, 3)]}
    assert failed == {0: "bolt 'sort_out' sent to stream 'default'; allowed: late, early"}


def test_a_grouping_of_one_task_still_says_what_goes_there():
    topology, records = drawn()
    one = records.then(same).then(Own, grouping=custom(lambda value, count: value % 2))
    one.into(MemorySink("out"))
    delivered, failed = run(topology, [1, 2, 3])
    assert delivered == {"Own": [(1, 2)]}
    assert sorted(failed) == [0, 2]


@pytest.mark.parametrize("stream", [None, 7, ["late"]])
def test_a_stream_whose_name_is_no_text_fails_the_record_alone(stream):
    topology, records = drawn()

    @bolt
    def odd(value):
        return To(stream, value) if value % 2 else value

    records.then(same).then(odd).into(MemorySink("good"))
    delivered, failed = run(topology, [2, 3])
    assert delivered == {"good": [(0, 2)]}
    assert "the name of a stream is allowed" in failed[1]


def test_sending_nothing_to_a_stream_is_an_error_like_returning_nothing():
    topology, records = drawn()

    @bolt
    def forgetful(value):
        return To("late", None) if value % 2 else value

    records.then(same).then(forgetful, streams=("late",)).into(MemorySink("good"))
    delivered, failed = run(topology, [2, 3])
    assert delivered == {"good": [(0, 2)]}
    assert "'forgetful' returned None" in failed[1]


def test_a_failure_in_one_stream_takes_the_records_values_out_of_the_others():
    """Promise 4: they leave together, or not at all."""
    topology, records = drawn()
    split = records.then(same).then(both, streams=("copies",))
    split.into(MemorySink("out"))

    @bolt
    def picky(value):
        if value == -2:
            raise ValueError(value)
        return value

    split["copies"].then(picky).into(MemorySink("copies"))
    delivered, failed = run(topology, [1, 2, 3])
    assert delivered == {
        "out": [(0, 1), (0, 10), (2, 3), (2, 30)],
        "copies": [(0, -1), (2, -3)],
    }
    assert failed == {1: "-2"}


def test_a_vectorised_bolt_gives_a_batch_per_stream_and_keeps_the_lineage_of_each():
    topology, records = drawn()

    @bolt(vectorised=True)
    def halves(batch):
        places = [n % 2 for n in batch["n"].to_pylist()]
        odd = batch.filter(pa.array([place == 1 for place in places]))
        even = batch.filter(pa.array([place == 0 for place in places]))
        return {"default": even, "odd": odd}

    split = records.then(same).then(halves, streams=("odd",))
    split.into(MemorySink("even"))
    split["odd"].into(MemorySink("odd"))
    delivered, failed = run(topology, [{"n": n} for n in range(5)])
    assert delivered == {
        "even": [(0, {"n": 0}), (2, {"n": 2}), (4, {"n": 4})],
        "odd": [(1, {"n": 1}), (3, {"n": 3})],
    }
    assert failed == {}


def test_a_vectorised_bolt_that_names_a_stream_it_has_not_fails_the_rows_in_it():
    topology, records = drawn()

    @bolt(vectorised=True)
    def lost(batch):
        return {"default": batch.slice(0, 1), "other": batch.slice(1)}

    records.then(same).then(lost).into(MemorySink("out"))
    delivered, failed = run(topology, [{"n": 1}, {"n": 2}])
    assert delivered == {"out": [(0, {"n": 1})]}
    assert failed == {1: "bolt 'lost' sent to stream 'other'; allowed: default"}


def test_a_value_that_gives_no_columns_fails_alone_before_a_vectorised_bolt():
    topology, records = drawn()
    records.then(same).then(columns).into(MemorySink("out"))
    delivered, failed = run(topology, [{"n": 1}, 7, {"n": 2}, {"n": "three"}])
    assert sorted(delivered["out"]) == [(0, {"n": 1}), (2, {"n": 2}), (3, {"n": "three"})]
    assert list(failed) == [1]
    assert failed[1] == (
        "bolt 'columns' takes columns, and a int gives none: "
        "a mapping, a dataclass or a msgspec.Struct is allowed"
    )


def test_streams_that_are_merged_reach_the_step_from_each_of_them():
    topology, records = drawn()
    checked = records.then(same).then(sort_out, streams=("late",))
    checked.merge(checked["late"]).then(same, name="all").into(MemorySink("out"))
    topology.validate()
    delivered, _failed = run(topology, [4, 3, 1])
    assert sorted(delivered["out"]) == [(0, 4), (1, 3), (2, 1)]


def test_a_diamond_gives_a_value_for_each_way_through_it():
    topology, records = drawn()
    top = records.then(same)
    left, right = top.then(Own, name="left"), top.then(same, name="right")
    left.merge(right).then(Own, name="bottom").into(MemorySink("out"))
    delivered, _failed = run(topology, [1, 2])
    assert sorted(delivered["out"]) == [(0, 1), (0, 1), (1, 2), (1, 2)]
    assert [step.name for step in topology.steps()] == ["same", "left", "right", "bottom", "out"]


def test_several_sources_may_lead_to_one_step_and_one_sink():
    topology, first = drawn()
    merged = first.merge(topology.source("more"))
    merged.then(same).into(MemorySink("out"))
    topology.validate()
    assert [len(source.children) for source in topology.sources] == [1, 1]
    assert topology.sources[0].children == topology.sources[1].children


def test_a_stream_that_is_used_twice_feeds_both_steps():
    topology, records = drawn()
    step = records.then(same)
    step.into(MemorySink("one"))
    step.into(MemorySink("two"))
    assert run(topology, [1])[0] == {"one": [(0, 1)], "two": [(0, 1)]}


def test_steps_come_once_and_after_everything_before_them():
    topology, records = drawn()
    late = records.then(same, name="a")
    early = records.then(same, name="b")
    joined = early.then(same, name="c").merge(late)
    joined.then(same, name="d").into(MemorySink("out"))
    late.into(MemorySink("aside"))
    names = [step.name for step in topology.steps()]
    assert sorted(names) == ["a", "aside", "b", "c", "d", "out"]
    for before, after in (("a", "d"), ("b", "c"), ("c", "d"), ("d", "out"), ("a", "aside")):
        assert names.index(before) < names.index(after)


# How steps are made


def test_an_order_belongs_to_the_next_bolt_only():
    topology, records = drawn()
    rows = records.then(same)
    keyed = rows.keyed_by("user").then(Own, name="keyed")
    keyed.then(Own, name="free").into(MemorySink("out"))
    rows.ordered().then(wait, workers=2).into(MemorySink("two"))
    steps = {step.name: step for step in topology.bolts()}
    assert {name: step.order for name, step in steps.items()} == {
        "same": Order.NONE, "keyed": Order.KEY, "free": Order.NONE, "wait": Order.PARTITION,
    }  # fmt: skip
    assert [name for name, step in steps.items() if step.is_boundary] == ["keyed", "wait"]
    assert steps["keyed"].key({"user": 7}) == 7


def test_a_key_may_be_several_fields_or_a_function():
    topology, records = drawn()
    records.keyed_by(["a", "b"]).then(Own).into(MemorySink("x"))
    records.keyed_by(lambda value: value % 3).then(Own).into(MemorySink("y"))
    two, function = topology.bolts()
    assert two.key({"a": 1, "b": 2, "c": 3}) == (1, 2)
    assert function.key(7) == 1


def test_tasks_are_instances_of_their_own_and_get_values_in_turn_unless_told():
    topology, records = drawn()
    records.then(Own, tasks=3).into(MemorySink("a"))
    records.then(Own, tasks=2, grouping=fields("user")).into(MemorySink("b"))
    records.keyed_by("user").then(Own, tasks=2).into(MemorySink("c"))
    records.then(Own, grouping=fields("user")).into(MemorySink("d"))
    in_turn, by_field, by_key, alone = topology.bolts()
    assert len({id(each) for each in in_turn.bolts}) == 3
    assert isinstance(in_turn.grouping, Shuffle)
    assert by_field.grouping == Fields(("user",))
    assert isinstance(by_key.grouping, ByKey)
    assert (len(alone.bolts), alone.grouping, alone.is_boundary) == (1, Fields(("user",)), True)


def test_a_drawing_shows_streams_tasks_orders_and_what_is_reached_twice():
    topology, records = drawn()
    checked = records.then(sort_out, streams=("late",))
    merged = checked.merge(checked["late"])
    merged.keyed_by("user").then(wait, workers=8).into(MemorySink("out"))
    records.then(Own, tasks=2, grouping=all_tasks()).into(MemorySink("copies"))
    text = as_text(topology)
    assert "    -> sort_out  (function)" in text
    assert "      -> wait  (async, 8 at once, in order per key)" in text
    assert "      [late] -> wait  (see above)" in text
    assert "    -> Own  (function, 2 tasks by all)" in text
    assert '-- "late" -->' in as_mermaid(topology)
    facts = {step["name"]: step for step in as_facts(topology)["steps"]}
    assert facts["sort_out"]["to"] == {"default": ["wait"], "late": ["wait"]}
    assert (facts["wait"]["order"], facts["Own"]["grouping"]) == ("key", "all")


def test_beside_a_bolt_that_is_grouped_directly_all_must_be():
    topology, records = drawn()
    split = records.then(same, streams=("to",))
    split["to"].then(Own, tasks=2, grouping=direct(), name="chosen").into(MemorySink("a"))
    split["to"].into(MemorySink("b"))
    split.into(MemorySink("c"))
    with pytest.raises(InvalidTopology, match="'b' stands behind bolt 'same' beside a bolt"):
        topology.validate()


def test_a_policy_a_name_and_a_time_out_stand_in_the_step():
    topology, records = drawn()
    policy = RetryPolicy(limit=1)
    records.then(wait, name="ask", retries=policy, timeout_seconds=2.5, workers=9).into(
        MemorySink("out")
    )
    ask, sink = topology.steps()
    assert isinstance(ask, BoltStep)
    assert isinstance(sink, SinkStep)
    assert (ask.name, ask.retries, ask.timeout_seconds, ask.workers) == ("ask", policy, 2.5, 9)


def test_a_function_of_the_users_may_choose_the_tasks():
    topology, records = drawn()
    records.then(Own, tasks=4, grouping=custom(lambda value, count: value % count)).into(
        MemorySink("out")
    )
    (step,) = topology.bolts()
    assert list(step.grouping.tasks_of(6, 4, 0)) == [2]
