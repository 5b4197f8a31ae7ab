"""Tests of topologies without Kafka, ZooKeeper or Spark, and what misbehaves on purpose."""

from partition.retries import RetryPolicy
from service.screen import ScreenPolicy
from service.testing.chaos import ChaosCounts, ChaosError
from service.testing.chaos_advanced import ChaosAdvancedBolt
from service.testing.chaos_bolt import ChaosBolt
from service.testing.chaos_sink import ChaosSink, ChaosSinkCounts
from service.testing.driver import NotSettled
from service.testing.kit import TopologyTest, topology_test
from service.testing.timeline import Event

__all__ = [
    "ChaosAdvancedBolt",
    "ChaosBolt",
    "ChaosCounts",
    "ChaosError",
    "ChaosSink",
    "ChaosSinkCounts",
    "Event",
    "NotSettled",
    "RetryPolicy",
    "ScreenPolicy",
    "TopologyTest",
    "topology_test",
]
