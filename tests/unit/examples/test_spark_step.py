"""The orders that go into the example's Spark step; what comes out is tested on a real Spark."""

from examples.spark_step.__main__ import orders
from examples.spark_step.pipeline import Bill, billing
from headrace.testing import topology_test
from topology.schema import schema_of
from topology.spark_step import ThroughSpark
from topology.steps import SinkStep
from topology.topology import guarantee_of


def test_every_order_goes_into_spark_but_those_that_are_torn():
    with topology_test(billing("customers")) as kit:
        published = [value for _, value in orders()]
        kit.send(*published)
        assert len(kit.rows) == len(published) - 6
        assert len(kit.rejected) == 6
        assert kit.rows[0].customer == 0


def test_bills_are_there_exactly_once():
    topology = billing("customers")
    topology.validate()
    (step,) = (each for each in topology.steps() if isinstance(each, SinkStep))
    assert isinstance(step.sink, ThroughSpark)
    assert guarantee_of(step.sink).startswith("exactly-once")
    assert schema_of(Bill).names == ["id", "customer", "country", "cents", "tax"]
