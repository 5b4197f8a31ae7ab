"""Topologies that Spark runs alone: which they are, what a range held, and what ends a run."""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from headrace import InvalidTopology, Record, SinkFailed, Topology, bolt
from headrace.sinks import MemoryDeadLetters, MemorySink
from partition.chunk import Partition
from partition.memory import MemoryCatalogue, MemoryLog
from partition.position import Position
from partition.retries import RetryPolicy
from service import parts
from service.account import Tally
from service.config import load
from service.parts import wire
from service.screen import ScreenPolicy
from service.spark_engine.native import native_run, native_sinks, run_native
from service.spark_engine.native_logs import NativeLogs
from service.spark_engine.native_reads import lost_partition, range_reads
from service.spark_engine.task import (
    RangeRead,
    Task,
    TaskDone,
    TaskFailed,
    TaskRange,
    TaskSettings,
    decode,
    encode,
)
from tests.worlds.frames import Driver
from transactions.digest import RangeDigest

SETTINGS = TaskSettings(
    "p", "", (), {}, "", RetryPolicy(), ScreenPolicy(), 30.0, 1000, 1000, 1000, 1000
)
LOST = """An error occurred while calling o90.count.
: org.apache.spark.sql.kafka010.KafkaIllegalStateException: Some data may have been lost because \
they are not available in Kafka any more;
either the data was aged out by Kafka or the topic may have been deleted before all the data in the
topic was processed.
Reason: Could not read records in offset [2, 8) for topic partition orders-1
with consumer group headrace.
\tat org.apache.spark.sql.kafka010.KafkaExceptions$.couldNotReadOffsetRange(KafkaExceptions.scala)
"""
ORDERS = [Partition("orders", number) for number in range(2)]


@bolt
def parse(record: Record) -> dict[str, int]:
    return {"size": len(record.value or b"")}


def same(frame: Any) -> Any:
    return frame


@pytest.fixture
def topology() -> Topology:
    topology = Topology("t", reliability="exactly-once")
    topology.dead_letters.into(MemoryDeadLetters())
    return topology


def test_a_topology_is_native_when_every_topic_leads_to_spark_steps_alone(topology: Topology):
    first, second = MemorySink[Any]("first"), MemorySink[Any]("second")
    orders = topology.source("orders")
    orders.spark(same).into(first, name="a")
    orders.spark(same).into(second, name="b")
    assert native_sinks(topology) == {"a": first, "b": second}
    topology.source("users").spark(same).into(MemorySink[Any](), name="c")
    assert [*native_sinks(topology)] == ["a", "b", "c"]


def test_spark_steps_behind_bolts_are_not_native(topology: Topology):
    stream = topology.source("orders").then(parse)
    stream.spark(same, schema=pa.schema({"size": pa.int64()})).into(MemorySink[Any]())
    assert native_sinks(topology) == {}


def test_topics_that_lead_to_spark_steps_and_others_are_refused(topology: Topology):
    orders = topology.source("orders")
    orders.spark(same).into(MemorySink[Any](), name="table")
    orders.then(parse).into(MemorySink[Any](), name="sizes")
    with pytest.raises(InvalidTopology, match="'table' stands directly behind a topic, and so doe"):
        native_sinks(topology)


CONFIG = {"kafka": {"bootstrap.servers": "-"}, "zookeeper": {"hosts": "-"}}


def test_a_spark_step_gets_a_spark_whatever_its_sink_needs(topology: Topology):
    topology.source("orders").spark(same).into(MemorySink[Any]())
    assert wire(topology, load(None, CONFIG)).spark is not None


def test_records_that_a_run_would_not_see_are_refused_where_spark_reads_them(topology: Topology):
    topology.source("orders").spark(same).into(MemorySink[Any]())
    for setting in ({"null_values": "skip"}, {"max_record_bytes": 9}):
        config = load(None, {**CONFIG, "pipeline": {"engine": "spark", **setting}})
        with pytest.raises(InvalidTopology, match="filter in the Spark step"):
            wire(topology, config, "module:topology")
        wire(topology, load(None, {**CONFIG, "pipeline": setting}))


@pytest.mark.parametrize(
    ("properties", "said"),
    [
        ({"ssl.keystore.location": "x"}, "'ssl.keystore.location': .* no such property"),
        ({"ssl.ca.location": "/no/such.pem"}, "'ssl.ca.location': found /no/such.pem"),
    ],
)
def test_properties_that_sparks_source_cannot_have_are_refused_before_anything_is_opened(
    topology: Topology, properties: dict[str, str], said: str
):
    topology.source("orders").spark(same).into(MemorySink[Any]())
    kafka = CONFIG["kafka"] | properties
    config = load(None, {**CONFIG, "kafka": kafka, "pipeline": {"engine": "spark"}})
    with pytest.raises(SinkFailed, match=said):
        wire(topology, config, "module:topology")
    wire(topology, load(None, {**CONFIG, "kafka": kafka}))


@pytest.mark.parametrize(("engine", "sets"), [("local", []), ("spark", ["kafka-source"])])
def test_only_where_spark_reads_topics_the_jars_of_its_source_are_asked_for(
    topology: Topology, monkeypatch: pytest.MonkeyPatch, engine: str, sets: list[str]
):
    asked: list[str] = []
    monkeypatch.setattr(parts, "jars_of", asked.extend)
    topology.source("orders").spark(same).into(MemorySink[Any]())
    spark = wire(topology, load(None, {**CONFIG, "pipeline": {"engine": engine}}), "m:t").spark
    assert spark is not None
    spark._jars()
    assert asked == sets


def lengths(topic: str, partition: int, offsets: list[int], sizes: list[int]) -> pa.RecordBatch:
    """Of Spark's types, which differ from ours."""
    topics = pa.array([topic] * len(offsets), pa.large_string())
    partitions = pa.array([partition] * len(offsets), pa.int64())
    columns = [topics, partitions, pa.array(offsets, pa.int64()), pa.array(sizes, pa.int64())]
    return pa.RecordBatch.from_arrays(columns, ["topic", "partition", "offset", "length"])


def read(partition: Partition, offsets: list[int], sizes: list[int]) -> RangeRead:
    digest = RangeDigest()
    digest.add(np.array(offsets, np.int64), np.array(sizes, np.int64))
    return RangeRead(partition, len(offsets), digest.hex(), None)


def ranges(*ends: tuple[int, int], **more: Any) -> tuple[TaskRange, ...]:
    return tuple(
        TaskRange(partition, Position(first), end, **more)
        for partition, (first, end) in zip(ORDERS, ends, strict=False)
    )


def test_what_a_range_held_does_not_depend_on_who_read_which_part_of_it():
    found = [
        lengths("orders", 0, [7, 9], [3, 0]),
        lengths("orders", 1, [7], [1]),
        lengths("others", 0, [6], [5]),
        lengths("orders", 0, [4, 5], [1, 2]),
    ]
    assert range_reads(ranges((4, 10), (7, 8)), found) == (
        read(ORDERS[0], [4, 5, 7, 9], [1, 2, 3, 0]),
        read(ORDERS[1], [7], [1]),
    )
    assert range_reads(ranges((4, 10)), []) == (read(ORDERS[0], [], []),)


class Told(Driver):
    """A Spark of which each job comes to the same end."""

    def __init__(self, end: Any) -> None:
        super().__init__()
        self.end = end

    def run(
        self, job: Callable[[Any], Any], *, group: str, deadline_seconds: float | None = None
    ) -> Any:
        del job, deadline_seconds
        self.groups.append(group)
        if isinstance(self.end, Exception):
            raise self.end
        return self.end


def test_tasks_are_run_in_one_go(topology: Topology):
    done = TaskDone((read(ORDERS[0], [1], [1]),), {}, Tally(sunk=1), 0)
    driver = Told(done)
    planned = [replace(each, leader_epoch=0) for each in ranges((0, 1), (0, 1))]
    tasks = [Task(SETTINGS, 3, (each,), {}) for each in planned]
    log = MemoryLog({"orders": 2})
    for partition in ORDERS:
        log.append(partition, b"x")
    catalogue = MemoryCatalogue(log)
    catalogue.open()
    logs = NativeLogs(lambda: catalogue, pytest.fail)
    first, second = map(
        decode, native_run(driver, topology, logs)("ranges-3", list(map(encode, tasks)), 9.0)
    )
    assert first == done
    assert (second.ranges, second.staged) == ((), {})
    assert driver.groups == ["ranges-3"]


def test_what_cannot_heal_ends_the_run_and_anything_else_comes_again(topology: Topology):
    task = Task(SETTINGS, 1, ranges((0, 9), (0, 9)), {})
    failed = run_native(Told(SinkFailed("no such row")), task, topology, group="g")
    assert failed == TaskFailed("no such row", "SinkFailed")
    with pytest.raises(OSError, match="away"):
        run_native(Told(OSError("away")), task, topology, group="g")
    lost = run_native(Told(RuntimeError(LOST)), task, topology, group="g")
    assert isinstance(lost, TaskFailed)
    assert (lost.partition, lost.error_class) == (ORDERS[1], "OffsetOutOfRange")


def test_a_row_that_the_sink_refused_here_ends_the_run(topology: Topology):
    refused = ranges((0, 9), refused={0: {"table": {0: "too long"}}})
    failed = run_native(Told(None), Task(SETTINGS, 1, refused, {}), topology, group="g")
    assert isinstance(failed, TaskFailed)
    assert failed.error_class == "SinkFailed"
    assert re.search("sink 'table' .* too long", failed.error)


def test_sparks_words_name_the_partition_that_was_lost():
    assert lost_partition(LOST, ORDERS) == ORDERS[1]
    assert lost_partition(LOST, ORDERS[:1]) is None
    assert lost_partition(LOST.replace("orders-1", "a.b-c-1"), [Partition("a.b-c", 1)]) is not None
    assert lost_partition("Could not connect, for topic partition orders-1", ORDERS) is None
