from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pytest

from headrace import reference
from headrace.sinks import DiscardSink, IcebergSink
from partition.errors import KafkaMisconfigured, StoreHostsUnknown, StoreUnavailable
from service.cli.check import Check, _begun_spark, _failed, _references, _sinks
from sinks.storage import Storage
from tests.support.commands import topology_of
from topology.errors import ReferenceLoadFailed, SinkFailed
from topology.sink import SinkContext
from topology.steps import SinkStep


def orders():
    return IcebergSink("orders", schema=pa.schema({"number": pa.int64()}))


def checks(warehouse, *sinks):
    topology = topology_of(sinks)
    steps = [step for step in topology.steps() if isinstance(step, SinkStep)]
    context = SinkContext("p", "s", {}, Storage(str(warehouse)), None)
    topology = SimpleNamespace(sink_steps=lambda: steps)
    parts: Any = SimpleNamespace(spark=None, topology=topology, context=lambda _: context)
    found = _sinks(parts, on_spark=False)
    for step in steps:
        step.sink.close()
    return [f"{each.ok} {each.name}: {each.detail}" for each in found]


def test_each_table_of_a_catalogue_has_a_line(tmp_path):
    assert checks(tmp_path, orders(), DiscardSink("rest")) == [
        "True sink: orders",
        "True catalogue: default: create, load, commit to and drop a table in default",
        "True sink: rest",
    ]


def test_missing_right_fails_the_catalogue_not_the_sink(tmp_path, monkeypatch):
    error = SinkFailed("cannot create default.headrace_check: ForbiddenError: not for you")
    monkeypatch.setattr(IcebergSink, "probe", Mock(side_effect=error))
    ok, failed = checks(tmp_path, orders())
    assert ok == "True sink: orders"
    assert failed.startswith("False catalogue: default: cannot create default.headrace_check: F")


def test_a_reference_is_told_with_its_rows_and_the_types_of_its_keys(monkeypatch):
    weather = reference("weather.csv", key=("origin", "hour"))
    gone = reference("gone.csv", key="id")

    found = pa.table({"origin": ["EWR", "JFK"], "hour": [5, 5], "temp": [1.0, 2.0]})
    reads = Mock(side_effect=[found, ReferenceLoadFailed("gone", "no such file")])
    monkeypatch.setattr("service.wiring.read_table", reads)
    parts: Any = SimpleNamespace(spark=None, config=None, name="p")
    assert [(each.ok, each.detail) for each in _references(parts, [weather, gone])] == [
        (True, "weather: 2 rows by origin (string), hour (int64)"),
        (False, "gone: reference 'gone': no such file"),
    ]


REFUSE = Mock(side_effect=SinkFailed("no cluster"))
NOT_STARTED = [
    ("spark", False, "local: not started while Kafka does not answer"),
    ("sink", False, "table: not known while Kafka does not answer"),
]
NOT_THERE = [
    ("spark", False, "local: no cluster"),
    ("sink", False, "table: not known while Spark does not answer"),
]
STARTED = [
    ("spark", True, "local"),
    ("reference", True, "orc: 1 rows by id (int64)"),
    ("sink", True, "table"),
]


@pytest.mark.parametrize(
    ("kafka", "opens", "said"),
    [(False, REFUSE, NOT_STARTED), (True, REFUSE, NOT_THERE), (True, Mock(), STARTED)],
)
def test_spark_is_started_once_kafka_has_answered(kafka, opens, said, monkeypatch):
    monkeypatch.setattr("service.wiring.read_table", lambda *_: pa.table({"id": [1], "v": [2]}))
    sink = DiscardSink("table")
    monkeypatch.setattr(sink, "needs_spark", True, raising=False)
    steps: list[Any] = [SimpleNamespace(name="table", sink=sink)]
    steps += [SimpleNamespace(name="plain", sink=DiscardSink("plain"))]
    storage = SimpleNamespace(storage=lambda: Storage(""))
    config = SimpleNamespace(spark=SimpleNamespace(conf={}), storage=storage)
    tables = [reference("r", format="orc", key="id", name="orc"), reference("p.csv", key="id")]
    parts: Any = SimpleNamespace(
        config=config, name="p", context=lambda _: None, spark=None,
        topology=SimpleNamespace(references=tables, sink_steps=lambda: steps),
    )  # fmt: skip
    spark: Any = SimpleNamespace(open=opens)
    found = _begun_spark(parts, spark, Check("kafka", ok=kafka, detail=""))()
    assert [(each.name, each.ok, each.detail) for each in found] == said


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (KafkaMisconfigured("no.such.property"), 78),
        (StoreHostsUnknown("'abc'", "no address"), 78),
        (StoreUnavailable("at a:1", "no connection"), 1),
        (ValueError(), 1),
    ],
)
def test_a_check_that_fails_for_the_configuration_ends_with_78(error, code):
    assert _failed("kafka", "a:1", error).exit_code == code
