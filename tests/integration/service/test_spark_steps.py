from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headrace import SinkFailed
from headrace.sinks import (
    DeltaSink,
    MemorySink,
    Sink,
    SinkContext,
    SparkSink,
)
from partition.records import Partition
from sinks.spark.driver import SparkDriver
from sinks.storage import Storage
from tests.support.batches import LINE, group
from tests.support.delta_table import SparkTable
from tests.support.kafka import KafkaWorld
from tests.support.patience import until
from tests.support.places import Folder
from topology.sink import Fence
from topology.spark_step import ThroughSpark, spark_step

pytestmark = [
    pytest.mark.integration,
    # PySpark leaves the socket that the rows came through to the garbage collector.
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
]

NUMBERS = pa.schema({"number": pa.int64(), "place": pa.string()})


@pytest.fixture
def table(spark, tmp_path):
    return SparkTable(tmp_path, spark)


def even(frame: Any) -> Any:
    """A join in Spark; odd numbers are left out."""
    names = frame.sparkSession.sql("SELECT 0 AS odd, 'even' AS name")
    numbers = frame.selectExpr("number", "number % 2 AS odd")
    return numbers.join(names, "odd").selectExpr("number", "name AS place")


def opened(
    function: Callable[[Any], Any], sink: Sink[Any], warehouse: Path, spark: SparkDriver
) -> ThroughSpark:
    front = ThroughSpark(spark_step(function, NUMBERS, None), sink)
    front.open(
        SinkContext("pipeline", "sink", {}, Storage(str(warehouse)), spark, exactly_once=True)
    )
    return front


@pytest.mark.parametrize(
    "sink",
    [
        DeltaSink[Any]("orders", schema=NUMBERS),
        SparkSink[Any]("orders", format="delta", schema=NUMBERS),
    ],
)
def test_what_a_step_makes_of_a_transaction_is_in_the_table_once(spark, table, sink):
    front = opened(even, sink, table.warehouse, spark)
    front.fence([Fence(LINE, 1)])
    staged = front.stage(group(1, 1, 2, 3, 4))
    assert (staged.shares, staged.num_rows) == (group(1, 1, 2, 3, 4).shares, 2)
    for _ in range(2):
        front.commit(staged)
    front.commit(front.stage(group(2, 8, 9)))
    front.commit(front.stage(group(3, 11)))  # nothing comes out
    assert [line.txid for line in front.committed([LINE])] == [3]
    assert table.read().sort_by("number").to_pylist() == [
        {"number": number, "place": "even"} for number in (2, 4, 8)
    ]
    if isinstance(sink, DeltaSink):
        assert len(table.files()) == 2  # of the two that had rows
    front.close()
    assert list((table.warehouse / ".spool").iterdir()) == []


def test_step_that_spark_rejects_fails_the_start(spark, tmp_path):
    with pytest.raises(SinkFailed, match="nmuber"):
        opened(
            lambda frame: frame.select("nmuber"), MemorySink[Any](schema=NUMBERS), tmp_path, spark
        )


LINES = """
    import os
    import pyarrow as pa
    from headrace import Topology
    from headrace.sinks import DeltaSink, KafkaDeadLetters

    def lined(records):
        return records.selectExpr(
            "concat_ws(':', topic, partition, offset) AS place",
            "concat_ws(' ', string(key), string(value), string(headers)) AS text",
        )

    TOPIC = os.environ["TOPIC"]
    topology = Topology(TOPIC, reliability="exactly-once")
    topology.source(TOPIC).spark(lined).into(
        DeltaSink("orders", schema=pa.schema({"place": pa.string(), "text": pa.string()}))
    )
    topology.dead_letters.into(KafkaDeadLetters(TOPIC + ".dead"))
"""


def test_spark_engine_runs_a_topology_of_spark_steps_alone(table, kafka, zookeeper, tmp_path):
    """Executors read the records, and the driver sends them through the step."""
    world = KafkaWorld(kafka)
    name = world.topic(2)
    first, second = Partition(name, 0), Partition(name, 1)
    world.append(first, [b"a", b"bb", b"ccc"])
    world.append_one(second, None, b"key", [("h", b"1")], 1_500_000_000_000)
    world.transaction(second, [b"aborted"], commit=False)
    until("the marker is there", lambda: world.log(second).end == 3)
    world.append(second, [b"", b"end"])
    world.close()
    place = Folder(tmp_path, name, kafka.address, zookeeper.address, LINES)
    place.configure(f"""
        [pipeline]
        engine = "spark"
        [storage]
        warehouse = "{table.warehouse}"
    """)
    account = place.run()
    assert (account["read"], account["rows"], account["unresolved"]) == (6, 6, 0)
    wanted = {
        f"{name}:0:0": "a", f"{name}:0:1": "bb", f"{name}:0:2": "ccc",
        f"{name}:1:0": "key [{h, 1}]", f"{name}:1:3": "", f"{name}:1:4": "end",
    }  # fmt: skip
    found = table.read().to_pylist()
    assert sorted((row["place"], row["text"]) for row in found) == sorted(wanted.items())
