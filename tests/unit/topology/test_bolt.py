"""What a bolt says of itself, and how it has to be called."""

import pyarrow as pa
import pytest

from headrace import AdvancedBolt, Bolt, InvalidTopology, Topology, bolt
from topology.bolt import Kind, VectorisedBolt, kind_of


class Plain(Bolt):
    def process(self, value, /):
        return value


def same(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


def test_a_vectorised_bolt_is_concurrent_only_if_it_says_so():
    assert not bolt(vectorised=True)(same).concurrent
    made = bolt(vectorised=True, concurrent=True)(same)
    assert (made.concurrent, made.row_by_row, kind_of(made)) == (True, False, Kind.VECTORISED)
    assert not VectorisedBolt.concurrent


def test_a_class_is_concurrent_if_it_says_so_and_is_vectorised():
    class Pure(Plain):
        vectorised = concurrent = True

    assert not Plain.concurrent
    assert kind_of(Pure()) is Kind.VECTORISED


@pytest.mark.parametrize("base", [Plain, AdvancedBolt])
@pytest.mark.parametrize("blocking", [False, True])
def test_a_bolt_that_is_concurrent_and_not_vectorised_is_refused_by_name(base, blocking):
    class Alone(base):
        def process(self, value, collector=None, /):
            """Never called."""

    Alone.concurrent = True
    Alone.blocking = blocking
    records = Topology("drawn").source("in")
    with pytest.raises(InvalidTopology, match="bolt 'Alone' is concurrent; only a vectorised"):
        records.then(Alone)


def test_only_a_bolt_that_asks_for_it_gets_line_breaks():
    assert not VectorisedBolt(same).line_breaks
    assert not bolt(vectorised=True, concurrent=True)(same).line_breaks
