from typing import Any

import pyarrow as pa
import pytest

from sinks import ForeachSink, MemoryDeadLetters
from topology.bolt import bolt
from topology.errors import InvalidTopology, RowsRejected
from topology.sink import Batch
from topology.topology import Topology


def test_a_function_gets_the_rows_of_a_batch() -> None:
    got: list[list[Any]] = []
    sink = ForeachSink(got.append, name="mine")
    columns = pa.RecordBatch.from_pylist([{"n": 2}])
    sink.write(Batch(1, [[{"n": 1}], columns], 2))
    assert got == [[{"n": 1}, {"n": 2}]]
    assert sink.name == "mine"


def test_what_a_function_raises_is_what_the_sink_raises() -> None:
    def write(rows: list[Any]) -> None:
        raise RowsRejected({0: "no"})

    with pytest.raises(RowsRejected):
        ForeachSink(write).write(Batch(1, [[1]], 1))
    assert ForeachSink(write).name == "write"


def test_a_function_is_refused_under_exactly_once() -> None:
    @bolt
    def number(record: Any) -> dict[str, int]:
        return {"n": 1}

    topology = Topology("t", reliability="exactly-once")
    topology.source("orders").then(number).into(ForeachSink(print))
    topology.dead_letters.into(MemoryDeadLetters())
    with pytest.raises(InvalidTopology, match=r"\(ForeachSink\) gives at-least-once"):
        topology.validate()
