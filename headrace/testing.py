"""Tests of topologies without Kafka, ZooKeeper or Spark."""

from partition.ledger import RetryPolicy
from service.pipeline.failures import ScreenPolicy
from service.testing.kit import NotSettled, TopologyTest, topology_test
from service.testing.timeline import Event

__all__ = ["Event", "NotSettled", "RetryPolicy", "ScreenPolicy", "TopologyTest", "topology_test"]
