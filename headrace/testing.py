"""Tests of topologies without Kafka, ZooKeeper or Spark."""

from partition.retries import RetryPolicy
from service.testkit import NotSettled, TopologyTest, topology_test

__all__ = ["NotSettled", "RetryPolicy", "TopologyTest", "topology_test"]
