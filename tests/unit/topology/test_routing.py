import os
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa
import pytest

from headrace import SKIP, Bolt, To, Topology, all_tasks, bolt, custom, fields, global_, stable_hash
from headrace.sinks import MemorySink
from partition.records import Partition
from tests.support.bolts import Own, columns, same
from tests.support.messages import message
from tests.support.patience import seconds
from topology.errors import BoltError
from topology.executor import Executor
from topology.grouping import key_of


@bolt
def sort_out(value):
    """Odd numbers are late, zero is dropped."""
    if value == 0:
        return To("late", SKIP)
    return To("late", value) if value % 2 else value


@bolt
def both(value):
    yield value
    yield To("copies", -value)
    yield To("default", value * 10)


def pair(value):
    yield value
    yield -value


@bolt(vectorised=True)
def halves(batch):
    return {"default": batch.slice(0, 1), "other": batch.slice(1)}


class Fresh(Bolt):
    vectorised = row_by_row = True

    def process(self, batch, /):
        return pa.RecordBatch.from_pydict({"n": [-n for n in batch["n"].to_pylist()]})


def step_before(build):
    """The step before those that `build` adds; it has the streams default and "to"."""
    topology = Topology("t")
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


def into(stream, *names):
    """Sinks for the default stream and those of the names."""
    stream.into(MemorySink("out"))
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
        (  # a default stream that leads nowhere
            lambda s: s.then(sort_out, streams=("late",))["late"].into(MemorySink("late")),
            [2, 3], {"late": [(1, 3)]},
            {0: "bolt 'sort_out' sent to stream 'default', expected late"},
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
            for name in (None, ["late"])
        ),
        (  # a vectorised bolt returns a batch per stream, one of them undeclared
            lambda s: into(s.then(halves)), rows(1, 2), {"out": [(0, {"n": 1})]},
            {1: "bolt 'halves' sent to stream 'other', expected default"},
        ),
        (  # functions without @bolt: one value, or SKIP
            lambda s: into(s.map(lambda v: v * 2 if v else SKIP).map(partial(pow, exp=2))),
            [1, 0, 2], {"out": [(0, 4), (2, 16)]}, {},
        ),
        (  # several values: a list, a generator
            lambda s: into(s.flat_map(lambda v: [v] * v).flat_map(pair)), [2, 0],
            {"out": [(0, 2), (0, -2), (0, 2), (0, -2)]}, {},
        ),
        *(  # surely a mistake
            (lambda s, made=made: into(s.flat_map(lambda v: made if v == 1 else [v])), [1, 2],
             {"out": [(1, 2)]},
             {0: f"flat_map(): 'flat_map' returned {type(made).__name__}, expected an iterable of "
                 "values"})
            for made in (None, "abc", {"n": 1})
        ),
        (  # a filter, whose predicate must answer
            lambda s: into(s.filter(lambda v: None if v == 2 else v % 2)), [1, 2, 4, 3],
            {"out": [(0, 1), (3, 3)]},
            {1: "predicate 'filter' returned None, expected True or False"},
        ),
        (  # the first true predicate, or none of them
            lambda s: into(s.branch(big=lambda v: v > 2, odd=lambda v: v % 2), "big", "odd"),
            [2, 1, 4, 3], {"out": [(0, 2)], "odd": [(1, 1)], "big": [(2, 4), (3, 3)]}, {},
        ),
        (  # none of them, and no stream for that
            lambda s: s.branch("size", big=lambda v: v > 2)["big"].into(MemorySink("big")),
            [2, 4], {"big": [(1, 4)]},
            {0: "bolt 'size' sent to stream 'default', expected big"},
        ),
        (  # values that are no rows
            lambda s: into(s.then(columns)), [{"n": 1}, 7, {"n": 2}, {"n": "three"}, [{}]],
            {"out": [(0, {"n": 1}), (2, {"n": 2}), (3, {"n": "three"})]},
            {1: "bolt 'columns' takes columns: found a int, expected a mapping, a dataclass or a "
                "msgspec.Struct",
             4: "bolt 'columns' takes columns: found a list, expected a mapping, a dataclass or a "
                "msgspec.Struct. To send each of its items, use flat_map() or yield"},
        ),
        (  # a class that drops the lineage, row by row
            lambda s: into(s.then(Fresh)), rows(1, 2), {"out": [(0, {"n": -1}), (1, {"n": -2})]},
            {},
        ),
        (  # merged streams, and a diamond
            lambda s: into((late := s.then(sort_out, streams=("late",))).merge(late["late"], s)
                           .then(same)), [4, 3, 1],
            {"out": [(0, 4), (1, 3), (2, 1), (0, 4), (1, 3), (2, 1)]}, {},
        ),
    ],
)  # fmt: skip
def test_values_reach_the_steps_of_their_streams(build, values, delivered, failed):
    assert run(build, values) == (delivered, failed)


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


ROW = pa.schema([("n", pa.int64()), ("text", pa.string())])
MANY = [{"n": n, "text": f"{n}"} for n in range(299)]


@pytest.mark.parametrize(
    ("values", "schema", "are_columns"),
    [
        ([*MANY, {"n": 299}], ROW, True),
        ([*MANY, {"n": 299}], None, False),
        ([{"n": 1}], ROW, False),
        *(
            ([*MANY, last], ROW, False)
            for last in [{"n": "no number"}, {"n": 1.5}, {"other": 1}, ("no", "row")]
        ),
    ],
)
def test_many_rows_that_all_fit_become_columns(values, schema, are_columns):
    topology = Topology("t")
    made = bolt(lambda record: values[int(record.value)])
    topology.source("in").then(made, name="make").into(MemorySink("out"))
    messages = [message(Partition("in", 0), n, b"%d" % n) for n in range(len(values))]
    executor = Executor(schemas={"out": schema})
    (delivery,) = executor.run_source(topology.sources[0], messages).deliveries
    if are_columns:
        assert delivery.piece.schema.equals(ROW)
        assert delivery.piece.to_pylist() == [{"text": None} | row for row in values]
    else:
        assert delivery.piece == values


VECTORS = {
    b"": 0,
    b"123456789": 0xCBF43926,  # the check value of CRC-32
    b"user-1": 2116437524,
    "user-1": 1591425390,
    "ß": 2603566977,
    0: 4108050209,
    42: 841265288,
    -1: 808273962,
    1.5: 2270993338,
    True: 4261170317,
    None: 634125391,
    ("a", 1): 3127077433,
}


@dataclass(frozen=True)
class Order:
    user: str
    item: int


def routed(grouping, values, count):
    found = grouping.route(values, count, 0)
    return list(zip(found.indices.tolist(), found.tasks, strict=True)), found.failures


def test_one_task_or_several_are_chosen():
    assert routed(global_(), "ab", 4) == ([(0, 0), (1, 0)], {})
    chosen = {"one": 2, "some": [0, 2], "numpy": np.int32(1), "set": {1}}
    found = routed(custom(lambda value, count: chosen[value]), list(chosen), 3)
    assert found == ([(0, 2), (1, 0), (1, 2), (2, 1), (3, 1)], {})
    assert all(type(task) is int for _place, task in found[0])


@pytest.mark.parametrize("choice", [3, -1, [0, 3], "x", [1.0], (), None], ids=str)
def test_invalid_choice_fails_its_value_alone(choice):
    found, failures = routed(custom(lambda value, count: choice if value else 1), [0, 1, 0], 3)
    assert found == [(0, 1), (2, 1)]
    assert isinstance(failures[1], BoltError)
    assert "expected some of 0 to 2" in str(failures[1])


@pytest.mark.parametrize("value", [{"item": 1}, Order, None])
def test_value_without_the_field_fails_alone(value):
    found, failures = routed(fields("user"), [{"user": 1}, value], 1)
    assert found == [(0, 0)]
    kind = type(value).__name__
    assert str(failures[1]) == f"{kind} lacks the field 'user', which groups or orders values"


@pytest.mark.parametrize("key", [object(), {1, 2}, 2**64, {3: 4}])
def test_key_that_json_cannot_encode_fails(key):
    found, failures = routed(fields("k"), [{"k": key}], 2)
    assert found == []
    assert "expected bytes or JSON values" in str(failures[0])


def test_a_key_of_several_fields_is_the_tuple():
    assert key_of({"a": 1, "b": 2}, ["b", "a"]) == (2, 1)
    assert key_of(Order("ann", 3), ["user"]) == "ann"


def test_hash_never_changes_in_any_process():
    """State that is split by it would go elsewhere. Text and the same bytes are two keys."""
    code = f"from headrace import stable_hash; print([stable_hash(v) for v in {list(VECTORS)!r}])"
    for seed in ("1", "77"):
        done = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True, text=True, check=True, timeout=seconds(60),
            env=os.environ | {"PYTHONHASHSEED": seed},
        )  # fmt: skip
        assert done.stdout.strip() == str(list(VECTORS.values()))


@pytest.mark.parametrize("tasks", [2, 3, 16])
@pytest.mark.parametrize("make", [str, int, lambda n: f"user-{n:08}", lambda n: str(n).encode()])
def test_keys_spread_evenly_over_the_tasks(make, tasks):
    count = 8_000
    found = Counter(stable_hash(make(n)) % tasks for n in range(count))
    fair = count / tasks
    assert len(found) == tasks
    assert all(0.85 * fair < number < 1.15 * fair for number in found.values())
