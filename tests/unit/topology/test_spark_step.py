"""Drawing Spark steps: where they may stand, what they are given, and what they keep."""

from collections.abc import Iterator
from typing import Any, TypedDict

import pyarrow as pa
import pytest

from headrace import InvalidTopology, Record, SinkFailed, Topology, bolt
from headrace.sinks import (
    DiscardSink,
    MemoryDeadLetters,
    MemorySink,
    Sink,
    SinkContext,
)
from headrace.testing import topology_test
from sinks.storage import Storage
from topology.sink import BATCH_ROWS, Batch, Fence, Share, Staged, chain_of, innermost
from topology.spark_step import KAFKA_COLUMNS, ThroughSpark, spark_step
from topology.steps import SinkStep
from topology.topology import as_facts, as_text, guarantee_of


class Size(TypedDict):
    size: int


@bolt
def measure(record: Record) -> Size:
    return {"size": len(record.value or b"")}


def large(frame: Any) -> Any:
    return frame.where("size > 100")


def drawn(sink: Sink[Any], **options: Any) -> Topology:
    topology = Topology("sizes", **options)
    topology.source("orders").then(measure).spark(large, schema=Size).into(sink)
    topology.dead_letters.into(MemoryDeadLetters())
    return topology


def front_of(topology: Topology) -> ThroughSpark:
    (step,) = (step for step in topology.steps() if isinstance(step, SinkStep))
    assert isinstance(step.sink, ThroughSpark)
    return step.sink


def test_a_step_stands_before_its_sink_and_promises_what_that_does():
    sink = MemorySink[Any]("table")
    topology = drawn(sink, reliability="exactly-once")
    topology.validate()
    front = front_of(topology)
    assert front.step.schema == pa.schema([pa.field("size", pa.int64(), nullable=False)])
    assert chain_of(front) == [front, sink]
    assert innermost(front) is sink
    assert guarantee_of(front) == guarantee_of(sink)
    assert front.needs_spark


def test_a_micro_batch_is_worth_a_spark_job():
    few, many = MemorySink[Any](), DiscardSink()
    many.batch_rows = 10 * BATCH_ROWS
    for sink, rows in ((few, BATCH_ROWS), (many, 10 * BATCH_ROWS)):
        (step,) = (each for each in drawn(sink).steps() if isinstance(each, SinkStep))
        assert step.policy.batch_rows == rows
    topology = Topology("t")
    topology.source("t").spark(large).into(few, name="few", batch_rows=7, batch_seconds=2.0)
    (step,) = (each for each in topology.steps() if isinstance(each, SinkStep))
    assert (step.name, step.policy.batch_rows, step.policy.batch_seconds) == ("few", 7, 2.0)


def test_directly_behind_a_source_a_step_gets_kafkas_columns():
    topology = Topology("t")
    topology.source("orders").spark(large).into(MemorySink[Any]())
    topology.dead_letters.into(MemoryDeadLetters())
    topology.validate()
    assert front_of(topology).step.schema is KAFKA_COLUMNS


def test_a_step_says_its_columns_behind_a_bolt_and_not_behind_a_source():
    behind_bolt = Topology("t")
    behind_bolt.source("orders").then(measure).spark(large).into(MemorySink[Any]())
    behind_source = Topology("t")
    schema = pa.schema({"size": pa.int64()})
    behind_source.source("orders").spark(large, schema=schema).into(MemorySink[Any]())
    for topology, said in (
        (behind_bolt, "Spark step 'large' after bolt 'measure' needs schema="),
        (behind_source, "found schema= directly after topic 'orders'"),
    ):
        topology.dead_letters.into(MemoryDeadLetters())
        with pytest.raises(InvalidTopology, match=said):
            topology.validate()


def test_only_a_function_and_a_sink_make_a_step():
    stream = Topology("t").source("orders")
    with pytest.raises(InvalidTopology, match="expected a function of a DataFrame"):
        stream.spark("SELECT 1")  # type: ignore[arg-type]
    with pytest.raises(InvalidTopology, match="expected an instance of Sink"):
        stream.spark(large).into(MemorySink)  # type: ignore[arg-type]
    with pytest.raises(InvalidTopology, match=r"found spark\(\) after keyed_by"):
        stream.keyed_by("size").spark(large)


def test_a_drawing_shows_the_step_and_the_sink():
    topology = drawn(MemorySink[Any]("table"))
    assert "-> table  (Spark step large -> MemorySink, every 100000 rows" in as_text(topology)
    facts = as_facts(topology)["steps"]
    assert [(each["name"], each.get("spark_step"), each.get("sink")) for each in facts] == [
        ("measure", None, None),
        ("table", "large", "MemorySink"),
    ]
    plain = Topology("t")
    plain.source("t").into(MemorySink[Any]("table"))
    assert as_facts(plain)["steps"][0]["spark_step"] is None


def test_the_test_kit_shows_what_a_step_would_be_given():
    with topology_test(drawn(MemorySink[Any]("table", schema=pa.schema({"a": pa.int8()})))) as kit:
        kit.send(b"abc", None)
        assert kit.rows_of("table") == [{"size": 3}, {"size": 0}]
        assert len(kit.acked) == 2
    topology = Topology("t")
    topology.source("orders").spark(large).into(MemorySink[Any]("table", schema=Size))
    topology.dead_letters.into(MemoryDeadLetters())
    with topology_test(topology) as kit:
        kit.send(b"abc")
        assert [row.value for row in kit.rows] == [b"abc"]


class Passing:
    """A Spark that hands everything on."""

    def __init__(self) -> None:
        self.closed = 0
        self.opened: list[str] = []

    def run(self, job: Any, *, group: str, deadline_seconds: float | None = None) -> Any:
        raise NotImplementedError

    def passage(self, step: Any, sink: Any, context: SinkContext) -> "Passing":
        self.opened.append(f"{step.name} {context.sink}")
        self.sink = sink
        return self

    def stage(self, group: Batch) -> Staged:
        staged: Staged = self.sink.stage(group)
        return staged

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def spark() -> Iterator[Passing]:
    made = Passing()
    yield made
    assert made.closed == 1


def test_rows_pass_spark_and_the_rest_is_the_sinks(spark: Passing):
    sink = MemorySink[Any]("table")
    front = ThroughSpark(spark_step(large, None, None), sink)
    front.open(SinkContext("p", "table", {}, Storage(""), spark, exactly_once=True))
    front.write(Batch(1, [["a"]], 1))
    share = Share("orders[0]", 1, 1, 1, 0, 1, "", 1)
    assert front.fence([Fence("orders[0]", 1)]) == front.committed(["orders[0]"])
    front.discard(front.stage(Batch(1, [["b"]], 1, (share,))))
    front.commit(front.stage(Batch(1, [["c"]], 1, (share,))))
    assert sink.rows == ["a", "c"]
    assert [line.txid for line in front.committed(["orders[0]"])] == [1]
    assert spark.opened == ["large table"]
    for _ in range(2):
        front.close()


def test_a_step_without_spark_or_before_it_is_open_fails():
    front = ThroughSpark(spark_step(large, None, None), MemorySink[Any]())
    with pytest.raises(SinkFailed, match="is not open"):
        front.write(Batch(1, [], 0))
    with pytest.raises(SinkFailed, match="needs Spark: set"):
        front.open(SinkContext("p", "s", {}, Storage(""), None))
