"""Building a topology: kinds of bolts, steps, batches, guarantees, and drawings."""

import inspect
import re
from collections.abc import AsyncIterator, Iterator
from typing import Any, ClassVar

import pyarrow as pa
import pytest

import headrace.sinks
from headrace import (
    AdvancedBolt,
    Bolt,
    InvalidTopology,
    RetryPolicy,
    Topology,
    all_tasks,
    bolt,
    fields,
)
from headrace.sinks import (
    DiscardSink,
    MemoryDeadLetters,
    MemorySink,
    Sink,
    SinkContext,
    SparkSink,
    Staged,
)
from sinks.state.store import MemoryState
from tests.support.front import Front
from topology.aggregates import count
from topology.bolt import Kind, VectorisedBolt, kind_of
from topology.sink import Kind as TransactionKind
from topology.state import State
from topology.steps import BatchPolicy, Order
from topology.topology import as_facts, as_mermaid, as_text, guarantee_of


@bolt
def same(value):
    return value


@bolt
def spread(number: int) -> Iterator[int]:
    yield from range(number)


@bolt
def annotated(number: int) -> Iterator[int]:
    return iter([number, number])


@bolt
async def wait(number: int) -> int:
    return number


@bolt
async def stream(number: int) -> AsyncIterator[int]:
    yield number


@bolt(vectorised=True)
def columns(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


class Add(Bolt):
    def process(self, number, /):
        return number + 1


class Pure(Add):
    vectorised = concurrent = True


class Keeps(AdvancedBolt):
    def process(self, tuple_, collector, /):
        collector.ack(tuple_)


def new(**options):
    """A topology that lacks only its steps, and its source's stream."""
    topology = Topology("numbers", **options)
    topology.dead_letters.into(MemoryDeadLetters())
    return topology, topology.source("in")


def test_kind_follows_from_function_and_marks():
    kinds = [
        (same, Kind.FUNCTION), (Add(), Kind.FUNCTION), (spread, Kind.FAN_OUT),
        (annotated, Kind.FAN_OUT), (wait, Kind.ASYNC), (stream, Kind.ASYNC),
        (columns, Kind.VECTORISED), (Pure(), Kind.VECTORISED), (Keeps(), Kind.ADVANCED),
    ]  # fmt: skip
    assert [kind_of(each) for each, _ in kinds] == [kind for _, kind in kinds]
    assert list(spread(2)) == [0, 1], "a decorated function can be called"


def test_vectorised_function_is_concurrent_on_request():
    made = bolt(vectorised=True, concurrent=True)(columns.function)
    assert (columns.concurrent, made.concurrent, made.row_by_row) == (False, True, False)
    assert not made.line_breaks
    assert not VectorisedBolt.concurrent


def test_steps_of_one_name_are_numbered():
    topology, records = new()
    records.then(same, name="same_2").into(MemorySink("x"))
    records.then(same).then(same).into(MemorySink("x"))
    assert {step.name for step in topology.steps()} == {"same", "same_2", "same_3", "x", "x_2"}


def test_steps_come_once_and_after_their_parents():
    topology, records = new()
    late = records.then(same, name="a")
    joined = records.then(same, name="b").then(same, name="c").merge(late)
    joined.then(same, name="d").into(MemorySink("out"))
    late.into(MemorySink("aside"))
    names = [step.name for step in topology.steps()]
    assert sorted(names) == ["a", "aside", "b", "c", "d", "out"]
    for before, after in (("a", "d"), ("b", "c"), ("c", "d"), ("d", "out"), ("a", "aside")):
        assert names.index(before) < names.index(after)


def test_options_are_in_the_step():
    topology, records = new()
    policy = RetryPolicy(limit=1)
    asked = records.then(wait, name="ask", retries=policy, timeout_seconds=2.5, workers=9)
    asked.into(MemorySink("out"))
    ask, _sink = topology.steps()
    assert (ask.name, ask.retries, ask.timeout_seconds, ask.workers) == ("ask", policy, 2.5, 9)


def test_order_is_for_the_next_bolt_only():
    topology, records = new()
    keyed = records.keyed_by(["a", "b"]).then(Add, name="keyed")
    keyed.then(Add, name="free").into(MemorySink("out"))
    records.keyed_by(lambda value: value % 3).then(Add, name="by function").into(MemorySink("x"))
    records.ordered().then(wait, workers=2).into(MemorySink("two"))
    steps = {step.name: step for step in topology.bolts()}
    assert {name: step.order for name, step in steps.items()} == {
        "keyed": Order.KEY, "free": Order.NONE, "by function": Order.KEY, "wait": Order.PARTITION,
    }  # fmt: skip
    assert not steps["free"].is_boundary
    assert steps["keyed"].key({"a": 1, "b": 2, "c": 3}) == (1, 2)
    assert steps["by function"].key(7) == 1


def test_tasks_are_instances_with_a_default_grouping():
    topology, records = new()
    records.then(Add, tasks=3).into(MemorySink("a"))
    records.then(Add, tasks=2, grouping=fields("user")).into(MemorySink("b"))
    records.keyed_by("user").then(Add, tasks=2).into(MemorySink("c"))
    records.then(Add, grouping=fields("user")).into(MemorySink("d"))
    in_turn, by_field, by_key, alone = topology.bolts()
    assert len({id(each) for each in in_turn.bolts}) == 3
    assert in_turn.grouping.name == "shuffle"
    assert by_field.grouping.name == "fields"
    assert by_key.grouping.name == "bykey"
    assert (len(alone.bolts), alone.grouping.name, alone.is_boundary) == (1, "fields", True)


def test_pattern_reads_topics_whose_whole_name_matches():
    topology = Topology("orders")
    topology.source("orders-eu").then(same).into(MemorySink("eu"))
    topology.source(re.compile("orders-.*")).then(same).into(MemorySink("all"))
    named, matching = topology.sources
    assert topology.source_of("orders-eu") is named
    assert topology.source_of("orders-us") is matching
    with pytest.raises(KeyError):
        topology.source_of("all-orders-us")
    assert "/orders-.*/" in as_text(topology)


class Fast(MemorySink[Any]):
    batch_rows = 300


class Faulty(MemorySink[Any]):
    batch_rows = 0


class Plain(Sink[Any]):
    """Without transactions and a size of its batches; it may stand in front of another."""

    def __init__(self, sink: Sink[Any] | None = None) -> None:
        self.name = "table"
        self.sink = sink

    def open(self, context: SinkContext) -> None: ...

    def commit(self, staged: Staged) -> None: ...

    def close(self) -> None: ...


@pytest.mark.parametrize(
    ("sink", "said", "rows"),
    [
        (Plain(), None, 100_000),
        (SparkSink("t", format="parquet", schema=pa.schema([("n", pa.int64())])), None, 500_000),
        (Fast(), None, 300),
        (Fast(), 7, 7),
        (Faulty(), 7, 7),
        (DiscardSink(), None, 8_000),
        (MemorySink(), None, 8_000),
    ],
)  # fmt: skip
def test_batch_has_the_size_of_into_or_of_the_sink(sink, said, rows):
    topology, records = new()
    records.into(sink, batch_rows=said, batch_seconds=1.0)
    (step,) = topology.steps()
    assert step.policy == BatchPolicy(rows, batch_seconds=1.0)


def joined(then):
    topology, left = new()
    right = topology.source("right")
    then(left.then(same).merge(right.then(same))).then(same).into(MemorySink())
    topology.source("other").then(Keeps).into(MemorySink())
    return topology


@pytest.mark.parametrize(
    ("then", "meet"),
    [
        (lambda stream: stream.then(Keeps), True),
        (lambda stream: stream.then(same).then(Keeps), True),
        (lambda stream: stream.keyed_by("user").then(same), True),
        (lambda stream: stream.then(Add, tasks=2, grouping=fields("user")), True),
        (lambda stream: stream.then(same), False),
        (lambda stream: stream.then(Add, tasks=2), False),
    ],
)
def test_sources_meet_in_a_step_that_needs_whole_keys(then, meet):
    topology = joined(then)
    topology.validate()
    found = [[source.label for source in group] for group in topology.meetings()]
    assert found == ([["in", "right"]] if meet else [])


def test_meetings_that_share_a_source_are_one():
    topology = Topology("t")
    streams = {name: topology.source(name).then(same) for name in "abcde"}
    for one, two in ("ab", "cd", "bc"):
        streams[one].merge(streams[two]).then(Keeps).into(MemorySink())
    streams["e"].then(Keeps).into(MemorySink())
    topology.source(re.compile("t-.*")).then(Keeps).into(MemorySink())
    assert [[s.label for s in group] for group in topology.meetings()] == [["a", "b", "c", "d"]]


# Guarantees


class OnlyTransactional(MemorySink[Any]):
    kinds: ClassVar[frozenset[TransactionKind]] = frozenset({"transactional"})


def refusal(sink, transactions="transactional"):
    """The error of an exactly-once topology with this sink, or ""."""
    topology, records = new(reliability="exactly-once", transactions=transactions)
    records.into(sink, name="table")
    try:
        topology.validate()
    except InvalidTopology as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("sink", "given"),
    [
        (MemorySink(), "exactly-once (transactional and opaque)"),
        (Front(Front(MemorySink())), "exactly-once (transactional and opaque)"),
        (OnlyTransactional(), "exactly-once (transactional)"),
        (DiscardSink(), "at-least-once"),
    ],
)
def test_sink_must_keep_the_kind_of_transactions(sink, given):
    assert guarantee_of(sink) == given
    assert (refusal(sink) == "") == ("transactional" in given)
    assert (refusal(sink, "opaque") == "") == ("opaque" in given)


@pytest.mark.parametrize(
    ("sink", "called"),
    [
        (DiscardSink(), "DiscardSink"),
        (Front(DiscardSink()), "Front before DiscardSink"),
        (Front(Plain(MemorySink())), "Front before Plain before MemorySink"),
    ],
)
def test_sink_without_transactions_is_refused_by_name(sink, called):
    assert refusal(sink).startswith(
        f"sink 'table' ({called}) gives at-least-once, expected exactly-once (transactional). Use "
    )


@pytest.mark.parametrize("transactions", ["transactional", "opaque"])
def test_refusal_names_the_sinks_that_users_can_make(transactions):
    exported = [getattr(headrace.sinks, name) for name in headrace.sinks.__all__]
    keeping = {
        sink.__name__
        for sink in exported
        if isinstance(sink, type)
        and issubclass(sink, Sink)
        and not inspect.isabstract(sink)
        and (sink is SparkSink or sink.kinds)
    }
    assert refusal(DiscardSink(), transactions).split(" Use ")[1] == ", ".join(sorted(keeping))


def test_refusal_says_how_to_keep_the_other_kind():
    def state_sink():
        return State("words", key={"word": str}, into=MemoryState()).sink({"n": count()})

    for sink in (state_sink(), Front(state_sink())):
        assert refusal(sink) == ""
        assert refusal(sink, "opaque").endswith(" Use it with layout='opaque'")
    assert "Use it with" not in refusal(Plain(state_sink()), "opaque")


def test_advanced_bolt_cannot_be_exactly_once():
    topology, records = new(reliability="exactly-once")
    records.then(Keeps, name="join").into(MemorySink())
    with pytest.raises(InvalidTopology, match=r"'join' is an AdvancedBolt.*no one transaction"):
        topology.validate()


# Drawings


def test_drawings_show_streams_tasks_orders_and_shared_steps():
    topology, records = new()
    checked = records.then(same, name="sort", streams=("late",))
    merged = checked.merge(checked["late"])
    merged.keyed_by("user").then(wait, workers=8).into(MemorySink("out"))
    records.then(Add, tasks=2, grouping=all_tasks()).into(MemorySink("copies"))
    assert as_text(topology).splitlines() == [
        "topology numbers  (at-least-once)",
        "  source in",
        "    -> sort  (function)",
        "      -> wait  (async, 8 at once, in order per key)",
        "        -> out  (MemorySink, every 8000 rows or 5 s)",
        "      [late] -> wait  (see above)",
        "    -> Add  (function, 2 tasks by all)",
        "      -> copies  (MemorySink, every 8000 rows or 5 s)",
        "  dead letters -> dead letters in memory",
    ]
    chart = as_mermaid(topology)
    assert '-- "late" -->' in chart
    assert "n0 --> n1" in chart
    facts = as_facts(topology)
    assert facts["sources"] == [{"topic": "in", "records_per_second": None, "to": ["sort", "Add"]}]
    steps = {step["name"]: step for step in facts["steps"]}
    assert steps["sort"]["to"] == {"default": ["wait"], "late": ["wait"]}
    assert (steps["wait"]["order"], steps["Add"]["grouping"]) == ("key", "all")


@pytest.mark.parametrize(
    ("options", "title", "transactions"),
    [
        ({}, "at-least-once", None),
        ({"reliability": "exactly-once"}, "exactly-once, transactional", "transactional"),
        (
            {"reliability": "exactly-once", "transactions": "opaque"},
            "exactly-once, opaque",
            "opaque",
        ),
    ],
)
def test_drawings_show_the_guarantee(options, title, transactions):
    topology, records = new(**options)
    records.into(MemorySink())
    assert as_text(topology).startswith(f"topology numbers  ({title})\n")
    facts = as_facts(topology)
    assert facts["transactions"] == transactions
    assert facts["steps"][0]["gives"] == "exactly-once (transactional and opaque)"
