"""Routing by the executor: streams, tasks, and records that leave as a whole."""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest

from headrace import SKIP, Bolt, To, Topology, all_tasks, bolt, custom, direct, fields
from headrace.sinks import MemoryDeadLetters, MemorySink
from partition.records import Partition
from tests.support.messages import message
from topology.errors import BoltError, LineageLost
from topology.executor import Executor


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


@bolt(vectorised=True)
def columns(batch):
    return batch


@bolt(vectorised=True)
def lost(batch):
    return {"default": batch.slice(0, 1), "other": batch.slice(1)}


@bolt(vectorised=True)
def halves(batch):
    odd = [n % 2 == 1 for n in batch["n"].to_pylist()]
    even = batch.filter(pa.array([not each for each in odd]))
    return {"default": even, "odd": batch.filter(pa.array(odd))}


class Own(Bolt):
    def process(self, value, /):
        return value


def step_before(build):
    """The step before those that `build` adds; it has the streams default and "to"."""
    topology = Topology("t")
    topology.dead_letters.into(MemoryDeadLetters())
    build(topology.source("in").then(same, name="first", streams=("to",)))
    return next(topology.bolts())


def found(outcome):
    """(step, task, input, value) of all deliveries."""
    return [
        (delivery.boundary.name, task, int(parent), value)
        for delivery in outcome.deliveries
        for value, parent, task in zip(
            delivery.piece if isinstance(delivery.piece, list) else delivery.piece.to_pylist(),
            range(len(delivery.piece)) if delivery.parents is None else delivery.parents,
            [None] * len(delivery.piece) if delivery.tasks is None else delivery.tasks,
            strict=True,
        )
    ]


def run(build, values):
    """(input, value) of all deliveries by step, and the failures of inputs."""
    outcome = Executor().run_after(step_before(build), list(values))
    delivered = {}
    for name, _task, parent, value in found(outcome):
        delivered.setdefault(name, []).append((parent, value))
    return delivered, {index: str(f.error) for index, f in outcome.failures.items()}


def into(stream, *names, default="out"):
    """Sinks for the default stream and those of the names."""
    if default:
        stream.into(MemorySink(default))
    for name in names:
        stream[name].into(MemorySink(name))


def rows(*numbers):
    return [{"n": n} for n in numbers]


@pytest.mark.parametrize(
    ("build", "values", "delivered", "failed"),
    [
        (  # a function names the stream of each value
            lambda s: into(s.then(sort_out, streams=("late",)), "late"), [4, 3, 0, 2, 1],
            {"out": [(0, 4), (3, 2)], "late": [(1, 3), (4, 1)]}, {},
        ),
        (  # a generator sends into several, also by the name of the default one
            lambda s: into(s.then(both, streams=("copies",)), "copies"), [1, 2],
            {"out": [(0, 1), (0, 10), (1, 2), (1, 20)], "copies": [(0, -1), (1, -2)]}, {},
        ),
        (  # an undeclared stream
            lambda s: into(s.then(sort_out, streams=("early",)), "early"), [2, 3],
            {"out": [(0, 2)]},
            {1: "bolt 'sort_out' sent to stream 'late', expected default, early"},
        ),
        (  # no default stream
            lambda s: into(s.then(sort_out, streams=("late", "x")), "late", "x", default=""),
            [2, 3], {"late": [(1, 3)]},
            {0: "bolt 'sort_out' sent to stream 'default', expected late, x"},
        ),
        (  # None in a stream
            lambda s: into(s.then(bolt(lambda v: To("to", None) if v else 1), streams=("to",))),
            [0, 1], {"out": [(0, 1)]},
            {1: "bolt '<lambda>' returned None, expected a value, or SKIP to drop it"},
        ),
        *(  # no name of a stream
            (lambda s, name=name: into(s.then(bolt(lambda v: To(name, v) if v else 1), name="b")),
             [0, 1], {"out": [(0, 1)]},
             {1: f"stream of bolt 'b': found {name!r}, expected the name of a stream"})
            for name in (None, 7, ["late"])
        ),
        (  # a vectorised bolt returns a batch per stream
            lambda s: into(s.then(halves, streams=("odd",)), "odd"), rows(0, 1, 2, 3),
            {"out": [(0, {"n": 0}), (2, {"n": 2})], "odd": [(1, {"n": 1}), (3, {"n": 3})]}, {},
        ),
        (  # and one for an undeclared stream
            lambda s: into(s.then(lost)), rows(1, 2), {"out": [(0, {"n": 1})]},
            {1: "bolt 'lost' sent to stream 'other', expected default"},
        ),
        (  # values that are no rows
            lambda s: into(s.then(columns)), [{"n": 1}, 7, {"n": 2}, {"n": "three"}],
            {"out": [(0, {"n": 1}), (2, {"n": 2}), (3, {"n": "three"})]},
            {1: "bolt 'columns' takes columns: found a int, expected a mapping, a dataclass or a "
                "msgspec.Struct"},
        ),
        (  # merged streams
            lambda s: into((late := s.then(sort_out, streams=("late",))).merge(late["late"])
                           .then(same)), [4, 3, 1], {"out": [(0, 4), (1, 3), (2, 1)]}, {},
        ),
        (  # a diamond
            lambda s: into(s.then(Own, name="l").merge(s.then(same, name="r")).then(Own, name="b")),
            [1, 2], {"out": [(0, 1), (0, 1), (1, 2), (1, 2)]}, {},
        ),
    ],
)  # fmt: skip
def test_values_reach_the_steps_of_their_streams(build, values, delivered, failed):
    found_values, failures = run(build, values)
    assert {name: sorted(each, key=str) for name, each in found_values.items()} == {
        name: sorted(each, key=str) for name, each in delivered.items()
    }
    assert failures == failed


def test_branches_and_tasks_get_the_same_object():
    value = {"n": 1}
    step = step_before(
        lambda s: (
            s.then(Own, tasks=2, grouping=all_tasks()).into(MemorySink("a")),
            s.into(MemorySink("b")),
        )
    )
    delivered = found(Executor().run_after(step, [value]))
    assert [each[:3] for each in delivered] == [("Own", 0, 0), ("Own", 1, 0), ("b", None, 0)]
    assert all(each[3] is value for each in delivered)


def test_a_failure_in_one_stream_takes_the_records_values_out_of_the_others():
    """Promise 4: they leave together, or not at all."""

    def build(stream):
        split = stream.then(both, streams=("copies",))
        split.into(MemorySink("out"))
        split.then(Own, tasks=2, grouping=custom(lambda v, n: v % n)).into(MemorySink("tasks"))
        split["copies"].then(bolt(lambda v: 6 // (v + 2))).into(MemorySink("copies"))

    delivered, failed = run(build, [1, 2, 3])
    assert delivered == {
        "out": [(0, 1), (0, 10), (2, 3), (2, 30)],
        "Own": [(0, 1), (0, 10), (2, 3), (2, 30)],
        "copies": [(0, 6), (2, -6)],
    }
    assert list(failed) == [1]


# Tasks


def test_shuffle_continues_with_the_next_chunk():
    step = step_before(lambda s: s.then(Own, tasks=3).into(MemorySink()))
    executor = Executor()
    assert found(executor.run_after(step, ["a", "b"])) == [("Own", 0, 0, "a"), ("Own", 1, 1, "b")]
    assert found(executor.run_after(step, ["c", "d"])) == [("Own", 2, 0, "c"), ("Own", 0, 1, "d")]


def test_value_that_cannot_be_grouped_fails_at_the_step():
    step = step_before(
        lambda s: s.then(Own, name="count", tasks=2, grouping=fields("k")).into(MemorySink())
    )
    outcome = Executor().run_after(step, [{"k": 1}, {"j": 2}, {"k": 1}])
    assert [each[2] for each in found(outcome)] == [0, 2]
    assert outcome.failures[1].step == "count"
    assert "lacks the field 'k'" in str(outcome.failures[1].error)


@pytest.fixture
def direct_step():
    return step_before(
        lambda s: (
            s["to"].then(Own, tasks=2, grouping=direct(), name="x").into(MemorySink("a")),
            s["to"].then(Own, tasks=3, grouping=direct(), name="y").into(MemorySink("b")),
            s.into(MemorySink("c")),
        )
    )


def test_direct_value_goes_to_its_task_in_every_step(direct_step):
    outcome = Executor().run_after(direct_step, [To("to", "a", task=1), "b", To("to", "c", 0)])
    assert found(outcome) == [
        ("c", None, 1, "b"),
        ("x", 1, 0, "a"), ("x", 0, 2, "c"),
        ("y", 1, 0, "a"), ("y", 0, 2, "c"),
    ]  # fmt: skip


@pytest.mark.parametrize("task", [2, -1, "1", 1.0, None])
def test_direct_value_without_a_valid_task_fails_alone(direct_step, task):
    outcome = Executor().run_after(direct_step, [To("to", "a", task=task)])
    assert found(outcome) == []
    assert isinstance(outcome.failures[0].error, BoltError)
    reason = f"found {task!r}, expected 0 to " if task is not None else "named no task"
    assert reason in str(outcome.failures[0].error)


def test_task_without_direct_grouping_is_ignored():
    step = step_before(lambda s: (s["to"].into(MemorySink("a")), s.into(MemorySink("b"))))
    outcome = Executor().run_after(step, [To("to", 1, task=3), To("default", 2, task=1)])
    assert found(outcome) == [("a", None, 0, 1), ("b", None, 1, 2)]


def test_emitted_values_go_to_their_stream_and_tasks(direct_step):
    outcome = Executor().run_emitted(direct_step, "to", ["a", "b"], {0: 1, 1: 0})
    assert found(outcome)[:2] == [("x", 1, 0, "a"), ("x", 0, 1, "b")]
    outcome = Executor().run_emitted(direct_step, "default", ["c"], {})
    assert found(outcome) == [("c", None, 0, "c")]
    outcome = Executor().run_emitted(direct_step, "to", ["a", "b"], {0: 1})
    assert sorted(outcome.failures) == [0, 1]


def test_call_without_values_has_no_delivery():
    step = step_before(lambda s: s.into(MemorySink("out")))
    outcome = Executor().run_after(step, ["a", "b", "c"], np.array([0, 2, 2]))
    assert found(outcome) == [("out", None, 0, "a"), ("out", None, 2, "b"), ("out", None, 2, "c")]
    assert found(Executor().run_after(step, [], np.empty(0, np.int64))) == []


# Columns


def fresh(batch):
    return pa.RecordBatch.from_pydict({"n": [-n for n in batch["n"].to_pylist()]})


class Fresh(Bolt):
    vectorised = row_by_row = True

    def process(self, batch, /):
        return fresh(batch)


@pytest.mark.parametrize("made", [bolt(vectorised=True, row_by_row=True)(fresh), Fresh])
def test_row_by_row_bolt_may_build_new_batches(made):
    delivered, failed = run(lambda s: into(s.then(made)), [{"n": 1}, "no row", {"n": 2}])
    assert delivered == {"out": [(0, {"n": -1}), (2, {"n": -2})]}
    assert list(failed) == [1]


def test_other_bolt_that_builds_new_batches_fails_its_rows():
    step = step_before(lambda s: into(s.then(bolt(vectorised=True)(fresh))))
    outcome = Executor().run_after(step, rows(1, 2))
    assert outcome.deliveries == []
    assert {type(failure.error) for failure in outcome.failures.values()} == {LineageLost}


ROW = pa.schema([("n", pa.int64()), ("text", pa.string())])


def delivered_to_sink(values, schema=ROW):
    """What a sink gets of records that become these values, one each."""
    topology = Topology("t")
    made = bolt(lambda record: values[int(record.value)])
    topology.source("in").then(made, name="make").into(MemorySink("out"))
    partition = Partition("in", 0)
    messages = [message(partition, n, b"%d" % n) for n in range(len(values))]
    executor = Executor(schemas={"out": schema})
    (delivery,) = executor.run_source(topology.sources[0], messages).deliveries
    return delivery.piece


MANY = [{"n": n, "text": f"{n}"} for n in range(299)]


def test_many_rows_for_a_sink_become_columns():
    made = delivered_to_sink([*MANY, {"n": 299}])
    assert made.schema.equals(ROW)
    assert made.to_pylist()[-2:] == [MANY[-1], {"n": 299, "text": None}]


@pytest.mark.parametrize("last", [{"n": "no number"}, {"n": 1.5}, {"other": 1}, ("no", "row")])
def test_chunk_with_a_misfit_stays_rows(last):
    assert delivered_to_sink([*MANY, last]) == [*MANY, last]


def test_few_rows_and_rows_without_a_schema_stay_rows():
    assert delivered_to_sink([{"n": 1}]) == [{"n": 1}]
    assert delivered_to_sink([*MANY, {"n": 299}], schema=None) == [*MANY, {"n": 299}]
