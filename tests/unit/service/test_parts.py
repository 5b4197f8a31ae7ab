from pathlib import Path
from unittest.mock import Mock

import pyarrow as pa
import pytest

from headrace import Topology
from headrace.sinks import MemoryDeadLetters, MemorySink, SparkSink
from service.config.settings import load
from service.wiring import Deadline, spark_of, wire
from sinks.spark.driver import SparkDriver
from sinks.spark.settings import check, settings
from tests.support.commands import topology_of
from tests.support.front import Front
from topology.errors import SinkFailed

NEEDED = {"kafka": {"bootstrap.servers": "b:9092"}, "zookeeper": {"hosts": "z:2181"}}
TABLE = SparkSink("numbers", format="parquet", schema=pa.schema([("n", pa.int64())]))


def wired(tmp_path, sink, letters=None, **given):
    config = load(None, NEEDED | {"storage": {"warehouse": str(tmp_path)}})
    topology = Topology("numbers")
    topology.source("t").into(sink)
    topology.dead_letters.into(letters or MemoryDeadLetters())
    return wire(topology, config, **given)


def test_spark_is_started_for_a_sink_behind_others(tmp_path):
    assert wired(tmp_path, Front(Front(TABLE))).spark is not None


def test_a_spark_that_is_given_is_used_and_left_running(tmp_path):
    spark = SparkDriver("given")
    spark.close = Mock()
    parts = wired(tmp_path, MemorySink(), given_spark=spark)
    assert parts.spark is spark
    parts.close(Deadline(0))
    assert not spark.close.called


def test_s3_brings_its_jars_and_properties_to_spark(tmp_path):
    for warehouse, sets in ((str(tmp_path), []), ("s3://lake/t", ["s3a"])):
        config = load(None, NEEDED | {"storage": {"warehouse": warehouse}})
        driver = spark_of(topology_of([TABLE]), config)
        assert driver._jars.args == (sets,)
        # A sink may name a place in S3 by itself, whatever the warehouse is.
        assert driver._conf["spark.hadoop.fs.s3.impl"].endswith(".S3AFileSystem")


def test_dead_letters_ask_the_broker_before_a_sink_may_start_spark(tmp_path):
    letters, sink = MemoryDeadLetters(), MemorySink()
    letters.open, sink.open = Mock(side_effect=SinkFailed("no broker")), Mock()
    parts = wired(tmp_path, sink, letters)
    with pytest.raises(SinkFailed, match="no broker"):
        parts.open()
    assert not sink.open.called
    parts.close(Deadline(0))


def test_properties_of_spark_on_kubernetes_reach_its_session(tmp_path, monkeypatch):
    """Spark finds the driver's address itself; 127.0.0.1 would be that of the executor's pod."""
    monkeypatch.setenv("HEADRACE_SPARK__CONF", '{"spark.kubernetes.namespace": "pipelines"}')
    path = tmp_path / "service.toml"
    path.write_text(
        "[kafka]\nbootstrap.servers = 'b:1'\n[zookeeper]\nhosts = 'z:1'\n[spark.conf]\n"
        "spark.master = 'k8s://https://kubernetes.default.svc:443'\n'spark.executor.cores' = 2\n"
        "'spark.kubernetes.executor.deleteOnTermination' = false\n"
        '"spark.kubernetes.executor.annotation.note" = "a = b, c: \'d\'"\n'
    )
    driver = spark_of(Topology("orders"), load(path, {"pipeline": {"engine": "spark"}}))
    check(driver._conf)
    log4j = Path("/run/log4j2.properties")
    session = settings("headrace-orders", driver._conf, [], log4j, ["/app"])
    wanted = {
        "spark.master": "k8s://https://kubernetes.default.svc:443",
        "spark.executor.cores": "2",
        "spark.kubernetes.namespace": "pipelines",
        "spark.kubernetes.executor.deleteOnTermination": "false",
        "spark.kubernetes.executor.annotation.note": "a = b, c: 'd'",
    }
    assert {name: session.get(name) for name in wanted} == wanted
    assert not {"spark.driver.host", "spark.driver.bindAddress"} & session.keys()
