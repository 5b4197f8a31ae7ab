"""How large a sink's micro-batches are: what suits the sink, or what `into` says."""

from typing import Any

import pyarrow as pa
import pytest

from headrace import Topology
from headrace.sinks import DiscardSink, MemorySink, Sink, SinkContext, SparkSink, Staged
from topology.steps import BatchPolicy, SinkStep


class Table(Sink[Any]):
    """A sink that says nothing about batches."""

    def __init__(self) -> None:
        self.name = "table"

    def open(self, context: SinkContext) -> None:
        """Nothing to open."""

    def commit(self, staged: Staged) -> None:
        """Write nothing."""

    def close(self) -> None:
        """Nothing to close."""


class Fast(Table):
    batch_rows = 300


class Sized(Table):
    """Each has a size of its own."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.batch_rows = rows


def policy_of(sink: Sink[Any], **said: Any) -> BatchPolicy:
    topology = Topology("batches")
    topology.source("in").into(sink, **said)
    (step,) = topology.steps()
    assert isinstance(step, SinkStep)
    return step.policy


@pytest.mark.parametrize(
    ("sink", "rows"),
    [
        (Table(), 100_000),
        (SparkSink("table", format="parquet", schema=pa.schema([("n", pa.int64())])), 500_000),
        (Fast(), 300),
        (Sized(20), 20),
        (DiscardSink(), 8_000),
        (MemorySink(), 8_000),
    ],
)
def test_a_sink_says_how_many_rows_make_its_batch_full(sink, rows):
    assert policy_of(sink) == BatchPolicy(batch_rows=rows)
    assert policy_of(sink, batch_rows=None, batch_seconds=1.0).batch_rows == rows


def test_what_into_says_comes_before_what_the_sink_says():
    assert policy_of(Fast(), batch_rows=7).batch_rows == 7


def test_what_into_says_may_replace_what_the_sink_must_not_say():
    assert policy_of(Sized(0), batch_rows=7).batch_rows == 7
