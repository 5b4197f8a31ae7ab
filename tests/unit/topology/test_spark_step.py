from typing import TypedDict

import pyarrow as pa
import pytest

from headrace import SinkFailed, bolt
from headrace.sinks import MemorySink, SinkContext
from headrace.testing import topology_test
from sinks.storage import Storage
from tests.support.bolts import new_topology
from topology.sink import Batch, Fence, Share, chain_of, innermost
from topology.spark_step import KAFKA_COLUMNS, ThroughSpark, spark_step


class Size(TypedDict):
    size: int


@bolt
def measure(record):
    return {"size": len(record.value or b"")}


def large(frame):
    return frame.where("size > 100")


@pytest.mark.parametrize(
    ("before", "schema", "columns", "rows"),
    [
        (
            lambda stream: stream.then(measure),
            Size,
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


class Passing:
    """A Spark that hands everything on."""

    closed = 0

    def passage(self, step, sink, context):
        self.opened = f"{step.name} {context.sink}"
        self.stage = sink.stage
        return self

    def close(self):
        self.closed += 1


def test_rows_pass_spark_and_the_rest_is_the_sinks():
    sink, spark = MemorySink("table"), Passing()
    front = ThroughSpark(spark_step(large, None, None), sink)
    front.open(SinkContext("p", "table", {}, Storage(""), spark, exactly_once=True))
    front.write(Batch(1, [["a"]], 1))
    share = Share("orders[0]", 1, 1, 1, 0, 1, "", 1)
    assert front.fence([Fence("orders[0]", 1)]) == front.committed(["orders[0]"])
    front.discard(front.stage(Batch(1, [["b"]], 1, (share,))))
    front.commit(front.stage(Batch(1, [["c"]], 1, (share,))))
    assert sink.rows == ["a", "c"]
    assert [line.txid for line in front.committed(["orders[0]"])] == [1]
    for _ in range(2):
        front.close()
    assert (spark.opened, spark.closed) == ("large table", 1)


def test_a_step_without_spark_or_before_it_is_open_fails():
    front = ThroughSpark(spark_step(large, None, None), MemorySink())
    with pytest.raises(SinkFailed, match="is not open"):
        front.write(Batch(1, [], 0))
    with pytest.raises(SinkFailed, match="needs Spark: set"):
        front.open(SinkContext("p", "s", {}, Storage(""), None))
