"""What the wiring makes of the configuration."""

from functools import partial
from pathlib import Path

import pyarrow as pa

from headrace import Topology
from headrace.sinks import MemoryDeadLetters, SparkSink
from service.config.settings import load
from service.wiring import spark_for, wire
from tests.support.front import Front

NEEDED = {"kafka": {"bootstrap.servers": "b:9092"}, "zookeeper": {"hosts": "z:2181"}}


def test_spark_is_started_for_a_sink_behind_others(tmp_path: Path) -> None:
    config = load(None, NEEDED | {"storage": {"warehouse": str(tmp_path)}})
    topology = Topology("numbers")
    table = SparkSink("numbers", format="parquet", schema=pa.schema([("n", pa.int64())]))
    topology.source("t").into(Front(Front(table)))
    topology.dead_letters.into(MemoryDeadLetters())
    assert wire(topology, config).spark is not None


def test_s3_brings_its_jars_and_properties_to_spark(tmp_path: Path) -> None:
    sink = SparkSink("numbers", format="parquet", schema=pa.schema([("n", pa.int64())]))
    for warehouse, sets in ((str(tmp_path), []), ("s3://lake/t", ["s3a"])):
        config = load(None, NEEDED | {"storage": {"warehouse": warehouse}})
        driver = spark_for([sink], "numbers", config)
        assert driver is not None
        assert isinstance(driver._jars, partial)
        assert driver._jars.args == (sets,)
        # A sink may name a place in S3 by itself, whatever the warehouse is.
        assert driver._conf["spark.hadoop.fs.s3.impl"].endswith(".S3AFileSystem")
