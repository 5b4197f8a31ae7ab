"""The executor: what it delivers where, what leaves together, and what fails alone."""

import numpy as np
import pyarrow as pa
import pytest

from headrace import Bolt, To, Topology, all_tasks, bolt, custom, direct, fields
from headrace.sinks import MemoryDeadLetters, MemorySink
from partition.memory import MemoryMessage
from partition.records import Partition
from topology.errors import BoltError, LineageLost
from topology.executor import Executor
from topology.vectorised import PARENT, call_columns


class Own(Bolt):
    def process(self, value, /):
        return value


@bolt
def same(value):
    return value


def first_step(draw):
    """The first step of a topology that `draw` draws behind it."""
    topology = Topology("drawn")
    topology.dead_letters.into(MemoryDeadLetters())
    stream = topology.source("in").then(same, streams=("to",))
    draw(stream)
    return next(topology.bolts())


def found(outcome):
    """(step, task, input, value) of all that is delivered."""
    return [
        (delivery.boundary.name, task, int(parent), value)
        for delivery in outcome.deliveries
        for value, parent, task in zip(
            delivery.piece,
            range(len(delivery.piece)) if delivery.parents is None else delivery.parents,
            [None] * len(delivery.piece) if delivery.tasks is None else delivery.tasks,
            strict=True,
        )
    ]


def test_values_go_to_the_tasks_that_the_grouping_chooses_and_it_goes_on_in_turn():
    step = first_step(lambda s: s.then(Own, tasks=3).into(MemorySink()))
    executor = Executor()
    assert found(executor.run_after(step, ["a", "b"])) == [("Own", 0, 0, "a"), ("Own", 1, 1, "b")]
    assert found(executor.run_after(step, ["c", "d"])) == [("Own", 2, 0, "c"), ("Own", 0, 1, "d")]


def test_branches_and_tasks_get_the_same_object_so_nobody_may_change_it_in_place():
    def draw(stream):
        stream.then(Own, tasks=2, grouping=all_tasks()).into(MemorySink("a"))
        stream.into(MemorySink("b"))

    value = {"n": 1}
    delivered = found(Executor().run_after(first_step(draw), [value]))
    assert [each[0] for each in delivered] == ["Own", "Own", "b"]
    assert all(each[3] is value for each in delivered)


def test_a_value_for_every_task_is_so_many_tuples_with_one_input():
    step = first_step(lambda s: s.then(Own, tasks=2, grouping=all_tasks()).into(MemorySink()))
    assert found(Executor().run_after(step, ["a"])) == [("Own", 0, 0, "a"), ("Own", 1, 0, "a")]


def test_a_value_that_no_task_can_be_told_for_fails_with_the_name_of_the_step():
    step = first_step(
        lambda s: s.then(Own, name="count", tasks=2, grouping=fields("k")).into(MemorySink())
    )
    outcome = Executor().run_after(step, [{"k": 1}, {"j": 2}, {"k": 1}])
    assert [each[2] for each in found(outcome)] == [0, 2]
    assert outcome.failures[1].step == "count"
    assert "has no field 'k'" in str(outcome.failures[1].error)


def test_what_fails_elsewhere_takes_its_tasks_along():
    step = first_step(
        lambda s: (
            s.then(Own, tasks=2, grouping=custom(lambda v, n: v % n)).into(MemorySink("a")),
            s.then(bolt(lambda v: 6 // (v - 2))).into(MemorySink("b")),
        )
    )
    outcome = Executor().run_after(step, [1, 2, 3])
    assert found(outcome) == [("Own", 1, 0, 1), ("Own", 1, 2, 3), ("b", None, 0, -6),
                              ("b", None, 2, 6)]  # fmt: skip
    assert list(outcome.failures) == [1]


def direct_step():
    return first_step(
        lambda s: (
            s["to"].then(Own, tasks=2, grouping=direct(), name="x").into(MemorySink("a")),
            s["to"].then(Own, tasks=3, grouping=direct(), name="y").into(MemorySink("b")),
            s.into(MemorySink("c")),
        )
    )


def test_a_direct_stream_goes_to_the_task_that_each_value_names_in_every_step_behind_it():
    outcome = Executor().run_after(direct_step(), [To("to", "a", task=1), "b", To("to", "c", 0)])
    assert found(outcome) == [
        ("c", None, 1, "b"),
        ("x", 1, 0, "a"), ("x", 0, 2, "c"),
        ("y", 1, 0, "a"), ("y", 0, 2, "c"),
    ]  # fmt: skip


@pytest.mark.parametrize("task", [2, -1, "1", 1.0])
def test_a_task_that_a_step_has_not_fails_the_record_alone(task):
    outcome = Executor().run_after(direct_step(), [To("to", "a", task=task), To("to", "b", 1)])
    assert [each[2:] for each in found(outcome)] == [(1, "b"), (1, "b")]
    assert isinstance(outcome.failures[0].error, BoltError)
    assert f"has no task {task!r}; 0 to " in str(outcome.failures[0].error)


def test_a_direct_stream_needs_a_task_for_each_value():
    outcome = Executor().run_after(direct_step(), [To("to", "a")])
    assert found(outcome) == []
    assert "'same' named no task in its direct stream 'to'" in str(outcome.failures[0].error)


def test_a_task_that_is_named_where_nobody_asks_changes_nothing():
    step = first_step(lambda s: (s["to"].into(MemorySink("a")), s.into(MemorySink("b"))))
    outcome = Executor().run_after(step, [To("to", 1, task=3), To("default", 2, task=1)])
    assert found(outcome) == [("a", None, 0, 1), ("b", None, 1, 2)]


def test_what_an_advanced_bolt_emits_is_sent_into_its_stream_and_to_its_tasks():
    outcome = Executor().run_emitted(direct_step(), "to", ["a", "b"], {0: 1, 1: 0})
    assert found(outcome)[:2] == [("x", 1, 0, "a"), ("x", 0, 1, "b")]
    outcome = Executor().run_emitted(direct_step(), "default", ["c"], {})
    assert found(outcome) == [("c", None, 0, "c")]
    outcome = Executor().run_emitted(direct_step(), "to", ["a", "b"], {0: 1})
    assert sorted(outcome.failures) == [0, 1]


def test_a_call_that_gave_nothing_has_no_delivery_and_no_failure():
    step = first_step(lambda s: s.into(MemorySink("out")))
    outcome = Executor().run_after(step, ["a", "b", "c"], np.array([0, 2, 2]))
    assert found(outcome) == [("out", None, 0, "a"), ("out", None, 2, "b"), ("out", None, 2, "c")]
    assert found(Executor().run_after(step, [], np.empty(0, np.int64))) == []


def fresh(batch):
    return pa.RecordBatch.from_pydict({"n": [-n for n in batch["n"].to_pylist()]})


class Fresh(Bolt):
    vectorised = True
    row_by_row = True

    def process(self, batch, /):
        return fresh(batch)


@pytest.mark.parametrize(
    "made",
    [
        bolt(vectorised=True, row_by_row=True)(fresh),
        Fresh,
    ],
    ids=["function", "class"],
)
def test_a_bolt_that_says_row_by_row_may_build_its_batch_anew(made):
    step = first_step(lambda s: s.then(made).into(MemorySink("out")))
    outcome = Executor().run_after(step, [{"n": 1}, "no row", {"n": 2}])
    assert [delivery.piece.to_pylist() for delivery in outcome.deliveries] == [
        [{"n": -1}, {"n": -2}]
    ]
    assert outcome.deliveries[0].parents.tolist() == [0, 2]
    assert list(outcome.failures) == [1]


def test_one_that_does_not_say_so_fails_its_rows():
    step = first_step(lambda s: s.then(bolt(vectorised=True)(fresh)).into(MemorySink("out")))
    outcome = Executor().run_after(step, [{"n": 1}, {"n": 2}])
    assert outcome.deliveries == []
    assert {type(failure.error) for failure in outcome.failures.values()} == {LineageLost}


# Vectorised bolts that do not play by the rules


def rows(*numbers):
    return pa.RecordBatch.from_pydict({"n": list(numbers)})


def test_halves_of_other_types_are_joined_if_one_type_has_room_for_both():
    def odd_types(batch):
        if len(batch) > 1:
            raise ValueError("not together")
        number = batch["n"][0].as_py()
        return pa.RecordBatch.from_pydict({"n": [number + 0.5 if number > 1 else number]})

    called = call_columns("odd", odd_types, rows(1, 2), row_by_row=True)
    assert called.piece["n"].to_pylist() == [1.0, 2.5]
    assert called.failures == {}


def test_halves_that_cannot_be_joined_fail_and_the_bolt_is_named():
    def odd_types(batch):
        if len(batch) > 1:
            raise ValueError("not together")
        number = batch["n"][0].as_py()
        return pa.RecordBatch.from_pydict({"n": ["text" if number > 1 else number]})

    called = call_columns("odd", odd_types, rows(1, 2), row_by_row=True)
    assert sorted(called.failures) == [0, 1]
    assert "bolt 'odd' gave other columns for other rows" in str(called.failures[0])


@pytest.mark.parametrize(
    "parents",
    [
        pa.array([0, None]), pa.array([0, 2]), pa.array([-1, 0]), pa.array([0.0, 1.0]),
        pa.array(["0", "1"]),
    ],
    ids=["null", "behind", "before", "float", "text"],
)  # fmt: skip
def test_a_lineage_that_a_bolt_has_changed_is_no_lineage(parents):
    def meddle(batch):
        return pa.RecordBatch.from_pydict({"n": batch["n"], PARENT: parents})

    called = call_columns("meddle", meddle, rows(1, 2))
    assert sorted(called.failures) == [0, 1]
    assert isinstance(called.failures[0], LineageLost)
    assert "bolt 'meddle' returned rows whose column '__parent' it had changed" in str(
        called.failures[0]
    )


ROW = pa.schema([("n", pa.int64()), ("text", pa.string())])


class Panic(BaseException):
    """What a Rust extension raises."""


class Panicking:
    def __index__(self):
        raise Panic

    __int__ = __float__ = __index__


def delivered_to_sink(rows, schema=ROW):
    """What comes to the sink of records that become these rows, one each."""
    topology = Topology("drawn")
    topology.dead_letters.into(MemoryDeadLetters())
    made = bolt(lambda record: rows[int(record.value)])
    topology.source("in").then(made, name="make").into(MemorySink("out"))
    topology.validate()
    messages = [
        MemoryMessage(Partition("in", 0), place, b"%d" % place) for place in range(len(rows))
    ]
    executor = Executor(schemas={"out": schema})
    (delivery,) = executor.run_source(topology.sources[0], messages).deliveries
    return delivery.piece


def many_rows(last=None):
    """So many rows that columns are worth it."""
    return [*({"n": n, "text": f"{n}"} for n in range(299)), last or {"n": 299}]


def test_rows_for_a_sink_that_has_columns_leave_as_columns_while_they_are_in_the_caches():
    columns = delivered_to_sink(many_rows())
    assert columns.schema.equals(ROW)
    assert columns.to_pylist()[-2:] == [{"n": 298, "text": "298"}, {"n": 299, "text": None}]


@pytest.mark.parametrize(
    "last", [{"n": "no number"}, {"n": 1.5}, {"other": 1}, ("no", "row"), {"n": Panicking()}]
)
def test_where_a_row_does_not_fit_all_of_the_chunk_stay_rows_for_the_sink_to_judge(last):
    rows = many_rows(last)
    assert delivered_to_sink(rows) == rows


def test_a_few_rows_and_those_for_other_sinks_stay_rows():
    assert delivered_to_sink([{"n": 1}]) == [{"n": 1}]
    assert delivered_to_sink(many_rows(), schema=None) == many_rows()
