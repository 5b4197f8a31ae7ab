import inspect
import re
from collections.abc import AsyncIterator, Iterator
from functools import partial
from operator import itemgetter
from typing import Any, TypedDict
from unittest.mock import Mock

import pyarrow as pa
import pytest

import headrace.sinks
from headrace import InvalidTopology, RetryPolicy, SinkFailed, Topology, all_tasks, bolt, fields
from headrace.sinks import DiscardSink, MemorySink, Sink, SinkContext, SparkSink
from headrace.testing import topology_test
from sinks.state.store import MemoryState
from sinks.storage import Storage
from tests.support.bolts import Keeps, Own, columns, made, new_topology, same, wait
from tests.support.front import Front
from topology.aggregates import count
from topology.bolt import Kind, VectorisedBolt, kind_of
from topology.sink import Batch, Fence, Share, chain_of, innermost
from topology.spark_step import KAFKA_COLUMNS, ThroughSpark, spark_step
from topology.state import State
from topology.steps import BatchPolicy, Order
from topology.topology import as_facts, as_mermaid, as_text, guarantee_of


@bolt
def spread(number: int) -> Iterator[int]:
    yield from range(number)


@bolt
def annotated(number: int) -> Iterator[int]:
    return iter([number, number])


@bolt
async def stream(number: int) -> AsyncIterator[int]:
    yield number


def test_kind_follows_from_function_and_marks():
    pure = made(Own, vectorised=True, concurrent=True)()
    kinds = {
        same: Kind.FUNCTION,
        Own(): Kind.FUNCTION,
        spread: Kind.FAN_OUT,
        annotated: Kind.FAN_OUT,
        bolt(partial(annotated.function, number=2)): Kind.FAN_OUT,
        wait: Kind.ASYNC,
        stream: Kind.ASYNC,
        columns: Kind.VECTORISED,
        pure: Kind.VECTORISED,
        Keeps(): Kind.ADVANCED,
    }
    assert {each: kind_of(each) for each in kinds} == kinds
    assert list(spread(2)) == [0, 1], "a decorated function can be called"
    concurrent = bolt(vectorised=True, concurrent=True)(columns.function)
    assert (columns.concurrent, concurrent.concurrent) == (False, True)
    assert not VectorisedBolt.concurrent


def test_steps_of_one_name_are_numbered():
    topology, records = new_topology()
    records.then(same, name="same_2").into(MemorySink("x"))
    records.then(same).then(same).into(MemorySink("x"))
    assert {step.name for step in topology.steps()} == {"same", "same_2", "same_3", "x", "x_2"}


def test_step_of_a_function_without_a_name_is_called_like_the_method():
    topology, records = new_topology()
    stream = records.map(lambda v: v).map(partial(max, 1)).map(itemgetter("n"), name="n")
    stream = (
        stream.flat_map(lambda v: [v]).filter(bool).map(lambda v: v).then(bolt(partial(pow, 2)))
    )
    stream.branch(odd=bool)["odd"].keyed_by("n").map(same).into(MemorySink("x"))
    assert [step.name for step in topology.steps()] == [
        "map", "max", "n", "flat_map", "bool", "map_2", "pow", "branch", "same", "x",
    ]  # fmt: skip


def test_steps_come_once_and_after_their_parents():
    topology, records = new_topology()
    late = records.then(same, name="a")
    joined = records.then(same, name="b").then(same, name="c").merge(late)
    joined.then(same, name="d").into(MemorySink("out"))
    late.into(MemorySink("aside"))
    names = [step.name for step in topology.steps()]
    assert sorted(names) == ["a", "aside", "b", "c", "d", "out"]
    for before, after in (("a", "d"), ("b", "c"), ("c", "d"), ("d", "out"), ("a", "aside")):
        assert names.index(before) < names.index(after)


def test_options_and_order_are_in_the_next_step_only():
    topology, records = new_topology()
    policy = RetryPolicy(limit=1)
    asked = records.ordered().then(wait, name="ask", retries=policy, timeout_seconds=2.5, workers=9)
    asked.then(Own, name="free").into(MemorySink())
    records.keyed_by(["a", "b"]).then(Own, name="by fields").into(MemorySink())
    records.keyed_by(lambda value: value % 3).then(Own, name="by function").into(MemorySink())
    steps = {step.name: step for step in topology.bolts()}
    ask = steps["ask"]
    assert (ask.retries, ask.timeout_seconds, ask.workers) == (policy, 2.5, 9)
    assert [ask.order, steps["free"].order] == [Order.PARTITION, Order.NONE]
    assert not steps["free"].is_boundary
    assert steps["by fields"].key({"a": 1, "b": 2, "c": 3}) == (1, 2)
    assert steps["by function"].key(7) == 1


def test_tasks_are_instances_with_a_default_grouping():
    topology, records = new_topology()
    records.then(Own, tasks=3).into(MemorySink())
    records.then(Own, tasks=2, grouping=fields("user")).into(MemorySink())
    records.keyed_by("user").then(Own, tasks=2).into(MemorySink())
    records.then(Own, grouping=fields("user")).into(MemorySink())
    found = list(topology.bolts())
    groupings = [(len(set(step.bolts)), step.grouping.name) for step in found]
    assert groupings == [(3, "shuffle"), (2, "fields"), (2, "bykey"), (1, "fields")]
    assert all(step.is_boundary for step in found)


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


class Plain(Sink[Any]):
    """Without transactions and a size of its batches; it may stand in front of another."""

    def __init__(self, sink=None):
        self.name = "table"
        self.sink = sink

    def commit(self, staged): ...


def large(frame):
    return frame.where("size > 100")


@pytest.mark.parametrize(
    ("build", "rows"),
    [
        (lambda s: s.into(Plain()), 100_000),
        (lambda s: s.into(SparkSink("t", format="parquet", schema=KAFKA_COLUMNS)), 500_000),
        (lambda s: s.into(made(MemorySink, batch_rows=300)()), 300),
        (lambda s: s.into(made(MemorySink, batch_rows=0)(), batch_rows=7), 7),
        (lambda s: s.into(DiscardSink()), 8_000),
        (lambda s: s.spark(large).into(MemorySink()), 100_000),
        (lambda s: s.spark(large).into(made(MemorySink, batch_rows=10**6)()), 10**6),
        (lambda s: s.spark(large).into(MemorySink(), batch_rows=7), 7),
    ],
)
def test_batch_has_the_size_of_into_or_of_the_sink(build, rows):
    topology, records = new_topology()
    build(records)
    (step,) = topology.steps()
    assert step.policy == BatchPolicy(rows)


@pytest.mark.parametrize(
    ("then", "meet"),
    [
        (lambda stream: stream.then(Keeps), True),
        (lambda stream: stream.then(same).then(Keeps), True),
        (lambda stream: stream.keyed_by("user").then(same), True),
        (lambda stream: stream.then(Own, tasks=2, grouping=fields("user")), True),
        (lambda stream: stream.then(Own, tasks=2), False),
    ],
)
def test_sources_meet_in_a_step_that_needs_whole_keys(then, meet):
    topology, left = new_topology()
    right = topology.source("right")
    then(left.then(same).merge(right.then(same))).then(same).into(MemorySink())
    topology.source("other").then(Keeps).into(MemorySink())
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


def refusal(sink, transactions="transactional"):
    """The error of an exactly-once topology with this sink, or ""."""
    topology, records = new_topology(reliability="exactly-once", transactions=transactions)
    records.into(sink, name="table")
    try:
        topology.validate()
    except InvalidTopology as error:
        return str(error)
    return ""


def state_sink():
    return State("words", key={"word": str}, into=MemoryState()).sink({"n": count()})


@pytest.mark.parametrize(
    ("sink", "given"),
    [
        (MemorySink(), "exactly-once (transactional and opaque)"),
        (Front(Front(MemorySink())), "exactly-once (transactional and opaque)"),
        (state_sink(), "exactly-once (transactional)"),
        (DiscardSink(), "at-least-once"),
    ],
)
def test_sink_must_keep_the_kind_of_transactions(sink, given):
    assert guarantee_of(sink) == given
    for kind in ("transactional", "opaque"):
        assert (refusal(sink, kind) == "") == (kind in given)
        topology, records = new_topology(reliability="exactly-once", transactions=kind)
        records.spark(large).into(sink)
        (step,) = topology.steps()
        assert guarantee_of(step.sink) == given


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
    for sink in (state_sink(), Front(state_sink())):
        assert refusal(sink, "opaque").endswith(" Use it with layout='opaque'")
    assert "Use it with" not in refusal(Plain(state_sink()), "opaque")


def test_advanced_bolt_cannot_be_exactly_once():
    topology, records = new_topology(reliability="exactly-once")
    records.then(Keeps, name="join").into(MemorySink())
    with pytest.raises(InvalidTopology, match=r"'join' is an AdvancedBolt.*no one transaction"):
        topology.validate()


def test_drawings_show_streams_tasks_orders_and_shared_steps():
    topology, records = new_topology()
    checked = records.then(same, name="sort", streams=("late",))
    merged = checked.merge(checked["late"])
    merged.keyed_by("user").then(wait, workers=8).into(MemorySink("out"))
    records.then(Own, tasks=2, grouping=all_tasks()).into(MemorySink("copies"))
    records.spark(large).into(MemorySink("large"))
    assert as_text(topology).splitlines() == [
        "topology t  (at-least-once)",
        "  source in",
        "    -> sort  (function)",
        "      -> wait  (async, 8 at once, in order per key)",
        "        -> out  (MemorySink, every 8000 rows or 5 s)",
        "      [late] -> wait  (see above)",
        "    -> Own  (function, 2 tasks by all)",
        "      -> copies  (MemorySink, every 8000 rows or 5 s)",
        "    -> large  (Spark step large -> MemorySink, every 100000 rows or 5 s)",
        "  dead letters -> dead letters in memory",
    ]
    chart = as_mermaid(topology)
    assert '-- "late" -->' in chart
    assert "n0 --> n1" in chart
    facts = as_facts(topology)
    to = ["sort", "Own", "large"]
    assert facts["sources"] == [{"topic": "in", "records_per_second": None, "to": to}]
    steps = {step["name"]: step for step in facts["steps"]}
    assert steps["sort"]["to"] == {"default": ["wait"], "late": ["wait"]}
    assert (steps["wait"]["order"], steps["Own"]["grouping"]) == ("key", "all")
    found = [(steps[name]["spark_step"], steps[name]["sink"]) for name in ("out", "large")]
    assert found == [(None, "MemorySink"), ("large", "MemorySink")]


def test_notebook_shows_the_chart_of_a_topology_and_of_its_streams():
    topology, records = new_topology()
    assert repr(topology) == "Topology('t', at-least-once: in -> no step)"
    stream = records.then(same, name="a<b")
    stream.into(MemorySink("out"))
    assert repr(topology) == "Topology('t', at-least-once: in -> a<b, out)"
    assert (repr(records), repr(stream)) == ("Stream(topic 'in')", "Stream(bolt 'a<b')")
    page = topology._repr_html_()
    assert page.count("<rect") == page.count("l-6,4") + 1 == 3
    assert [page.count(f">{text}</text>") for text in ("in", "a&lt;b", "out")] == [1, 1, 1]
    assert "<script" not in page
    assert "http" not in page.replace("http://www.w3.org/2000/svg", ""), "it works offline"
    assert stream._repr_html_() == f"<p>Stream(bolt &#x27;a&lt;b&#x27;) in</p>{page}"


def test_drawing_has_a_column_per_step_and_arrows_around_boxes():
    topology, records = new_topology()
    assert "<rect" in topology._repr_html_(), "without steps, too"
    first = records.then(same, name="first")
    first.then(same, name="second").into(MemorySink("far"))
    first.branch(odd=lambda _: True)["odd"].into(MemorySink("odd rows"))
    first.into(MemorySink("near"))
    boxes = re.findall(r'<rect x="([\d.]+)" y="([\d.]+)" width="([\d.]+)"', topology._repr_html_())
    by_column = {}
    for x, y, _ in boxes:
        by_column.setdefault(x, set()).add(y)
    assert [len(rows) for rows in by_column.values()] == [1, 1, 2, 3]
    assert sum(map(len, by_column.values())) == len(boxes), "no two boxes in one place"
    assert ">odd</text>" in topology._repr_html_()
    lines = re.findall(r"H[\d.]+", topology._repr_html_())
    assert len(lines) == 1, "one arrow passes a column"


@pytest.mark.parametrize(
    ("title", "transactions"),
    [
        ("at-least-once", None),
        ("exactly-once, transactional", "transactional"),
        ("exactly-once, opaque", "opaque"),
    ],
)
def test_drawings_show_the_guarantee(title, transactions):
    options = {"transactions": transactions} if transactions == "opaque" else {}
    topology, records = new_topology(reliability=title.partition(",")[0], **options)
    records.into(MemorySink())
    assert as_text(topology).startswith(f"topology t  ({title})\n")
    facts = as_facts(topology)
    assert facts["transactions"] == transactions
    assert facts["steps"][0]["gives"] == "exactly-once (transactional and opaque)"


@bolt
def measure(record):
    return {"size": len(record.value or b"")}


@pytest.mark.parametrize(
    ("before", "schema", "columns", "rows"),
    [
        (
            lambda stream: stream.then(measure),
            TypedDict("Size", {"size": int}),
            pa.schema([pa.field("size", pa.int64(), nullable=False)]),
            [{"size": 3}, {"size": 0}],
        ),
        (lambda stream: stream, None, KAFKA_COLUMNS, [b"abc", None]),
    ],
)
def test_step_is_given_rows_or_behind_a_source_kafkas_columns(before, schema, columns, rows):
    topology, stream = new_topology()
    sink = MemorySink("table", schema=pa.schema({"other": pa.int8()}))
    before(stream).spark(large, schema=schema).into(sink)
    (step,) = topology.sink_steps()
    front = step.sink
    assert (front.step.schema, front.needs_spark) == (columns, True)
    assert (chain_of(front), innermost(front)) == ([front, sink], sink)
    with topology_test(topology) as kit:
        kit.send(b"abc", None)
        assert [getattr(row, "value", row) for row in kit.rows_of("table")] == rows
        assert len(kit.acked) == 2


def test_rows_pass_spark_and_the_rest_is_the_sinks():
    sink, spark = MemorySink("table"), Mock()
    spark.passage.return_value, spark.stage = spark, sink.stage
    step = spark_step(large, None, None)
    front = ThroughSpark(step, sink)
    context = SinkContext("p", "table", {}, Storage(""), spark, exactly_once=True)
    front.open(context)
    spark.passage.assert_called_once_with(step, sink, context)
    front.write(Batch(1, [["a"]], 1))
    share = Share("orders[0]", 1, 1, 1, 0, 1, "", 1)
    assert front.fence([Fence("orders[0]", 1)]) == front.committed(["orders[0]"])
    front.discard(front.stage(Batch(1, [["b"]], 1, (share,))))
    front.commit(front.stage(Batch(1, [["c"]], 1, (share,))))
    assert sink.rows == ["a", "c"]
    assert [line.txid for line in front.committed(["orders[0]"])] == [1]
    for _ in range(2):
        front.close()
    spark.close.assert_called_once_with()


def test_a_step_without_spark_or_before_it_is_open_fails():
    front = ThroughSpark(spark_step(large, None, None), MemorySink())
    with pytest.raises(SinkFailed, match="is not open"):
        front.write(Batch(1, [], 0))
    with pytest.raises(SinkFailed, match="needs Spark: set"):
        front.open(SinkContext("p", "s", {}, Storage(""), None))
