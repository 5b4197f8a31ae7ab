"""Tests of topologies without Kafka, ZooKeeper or Spark."""

from partition.retries import RetryPolicy
from service.screen import ScreenPolicy
from service.testkit import NotSettled, TopologyTest, topology_test

__all__ = ["NotSettled", "RetryPolicy", "ScreenPolicy", "TopologyTest", "topology_test"]
