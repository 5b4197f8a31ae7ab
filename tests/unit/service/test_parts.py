"""What the wiring makes of the configuration."""

from pathlib import Path

import pyarrow as pa

from headrace import Topology
from headrace.sinks import MemoryDeadLetters, SparkSink
from service.config import load
from service.parts import wire
from tests.support.front import Front

NEEDED = {"kafka": {"bootstrap.servers": "b:9092"}, "zookeeper": {"hosts": "z:2181"}}


def test_spark_is_started_for_a_sink_behind_others(tmp_path: Path) -> None:
    config = load(None, NEEDED | {"storage": {"warehouse": str(tmp_path)}})
    topology = Topology("numbers")
    table = SparkSink("numbers", format="parquet", schema=pa.schema([("n", pa.int64())]))
    topology.source("t").into(Front(Front(table)))
    topology.dead_letters.into(MemoryDeadLetters())
    assert wire(topology, config).spark is not None
