"""Spark steps on a real Spark: rows go through a function of its own, and into the table once."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from examples.spark_step.__main__ import customers
from examples.spark_step.pipeline import Bill, Order, billed
from headrace import RowsRejected, SinkFailed, Topology
from headrace.sinks import (
    Batch,
    DeltaSink,
    ManifestSink,
    MemoryDeadLetters,
    MemorySink,
    Sink,
    SinkContext,
    manifest_files,
)
from partition.chunk import Partition
from partition.position import Position
from partition.retries import RetryPolicy
from service.embedded.kafka import EmbeddedKafka
from service.screen import ScreenPolicy
from service.spark_engine.native import run_native
from service.spark_engine.spool import SpoolStager, read_lines
from service.spark_engine.task import Task, TaskDone, TaskFailed, TaskRange, TaskSettings
from sinks.spark.driver import SparkDriver
from tests.support.patience import until
from tests.worlds.delta_table import LINE, Table, group
from tests.worlds.fetching import KafkaWorld
from topology.spark_step import spark_step
from topology.through_spark import ThroughSpark
from topology.transactional import Fence, Share
from transactions.digest import RangeDigest

pytestmark = [
    pytest.mark.integration,
    # PySpark leaves the socket that the rows came through to the garbage collector.
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
]

NUMBERS = pa.schema({"number": pa.int64(), "place": pa.string()})


@pytest.fixture
def table(spark: SparkDriver, tmp_path: Path) -> Table:
    return Table(tmp_path, spark)


def even(frame: Any) -> Any:
    """A join in Spark; odd numbers are left out."""
    names = frame.sparkSession.sql("SELECT 0 AS odd, 'even' AS name")
    numbers = frame.selectExpr("number", "number % 2 AS odd")
    return numbers.join(names, "odd").selectExpr("number", "name AS place")


def opened(
    function: Callable[[Any], Any], sink: Sink[Any], warehouse: Path, spark: SparkDriver
) -> ThroughSpark:
    front = ThroughSpark(spark_step(function, NUMBERS, None), sink)
    front.open(SinkContext("pipeline", "sink", {}, str(warehouse), spark, exactly_once=True))
    return front


def test_what_a_step_makes_of_a_transaction_is_in_the_table_once(
    spark: SparkDriver, table: Table
) -> None:
    sink = DeltaSink[Any]("orders", schema=NUMBERS)
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
    assert len(table.files()) == 2  # of the two that had rows
    front.close()


def test_rows_that_do_not_fit_are_named_before_the_step_and_end_the_run_behind_it(
    spark: SparkDriver, table: Table
) -> None:
    sink = DeltaSink[Any]("orders", schema=pa.schema({"number": pa.int8(), "place": pa.string()}))
    front = opened(even, sink, table.warehouse, spark)
    front.fence([Fence(LINE, 1)])
    good = group(1, 2)
    mixed = [{"number": "x", "place": None}, {"number": 4, "place": None}]
    staged = front.stage(type(good)(1, good.shares, [mixed], 2))
    assert (list(staged.rejected), staged.num_rows) == ([0], 1)
    front.discard(staged)
    with pytest.raises(SinkFailed, match=r"does not take 1 rows of what Spark step 'even' gives"):
        front.stage(group(1, 2, 1_000))
    assert len(table.files()) == 0
    front.close()


def test_a_step_before_a_sink_that_takes_rows_here(spark: SparkDriver, tmp_path: Path) -> None:
    sink = MemorySink[Any]("kept", schema=NUMBERS)
    front = opened(even, sink, tmp_path, spark)
    rows = [{"number": 6, "place": "x"}, {"number": "x"}]
    with pytest.raises(RowsRejected):
        front.write(Batch(1, [rows], 2))
    front.commit(front.stage(group(1, 8)))
    assert sink.rows == [{"number": number, "place": "even"} for number in (6, 8)]
    front.close()
    assert list((tmp_path / ".spool").iterdir()) == []


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda frame: frame.select("nmuber"), "nmuber"),
        (lambda frame: frame.withColumn("other", frame["number"]), "column 'other' is not in the"),
    ],
    ids=["a column that is not there", "one that the sink has not"],
)
def test_a_step_that_cannot_work_fails_the_start(
    spark: SparkDriver, tmp_path: Path, function: Callable[[Any], Any], said: str
) -> None:
    with pytest.raises(SinkFailed, match=said):
        opened(function, MemorySink[Any](schema=NUMBERS), tmp_path, spark)


def test_the_examples_orders_are_billed(spark: SparkDriver, tmp_path: Path) -> None:
    pq.write_table(customers(), tmp_path / "customers.parquet")
    sink = MemorySink[Any]("bills", schema=Bill)
    step = spark_step(lambda frame: billed(frame, str(tmp_path)), Order, "billed")
    front = ThroughSpark(step, sink)
    front.open(SinkContext("pipeline", "sink", {}, str(tmp_path / "w"), spark))
    rows = [Order(1, 4, 1_250), Order(2, 7, 100), Order(3, 113, 100)]
    front.write(Batch(1, [rows], 3))
    assert sorted(sink.rows, key=lambda row: row["id"]) == [
        {"id": 1, "customer": 4, "country": "NL", "cents": 1_250, "tax": Decimal("2.625")},
        {"id": 2, "customer": 7, "country": "CH", "cents": 100, "tax": 0},
    ]
    front.close()


@pytest.fixture
def world(kafka: EmbeddedKafka, topic: Callable[..., str]) -> Iterator[KafkaWorld]:
    made = KafkaWorld(kafka, topic)
    yield made
    made.close()


def counted(frame: Any) -> Any:
    return frame.selectExpr(
        "offset AS number", "concat_ws(' ', string(key), string(value), string(headers)) AS place"
    )


def ranges(topic: str, *ends: tuple[int, int], **more: Any) -> tuple[TaskRange, ...]:
    return tuple(
        TaskRange(Partition(topic, number), Position(first), end, **more)
        for number, (first, end) in enumerate(ends)
    )


def settings(world: KafkaWorld, warehouse: Path) -> TaskSettings:
    return TaskSettings(
        "pipeline", "", (), world.properties, str(warehouse), RetryPolicy(), ScreenPolicy(),
        30.0, 1000, 1000, 1000, 1_000_000,
    )  # fmt: skip


def native(topic: str, *sinks: Sink[Any]) -> Topology:
    topology = Topology("native", reliability="exactly-once")
    stream = topology.source(topic)
    for sink in sinks:
        stream.spark(counted).into(sink, name=sink.name)
    topology.dead_letters.into(MemoryDeadLetters())
    topology.validate()
    return topology


def test_ranges_that_spark_reads_have_the_same_digest_and_go_into_the_table(
    spark: SparkDriver, world: KafkaWorld, tmp_path: Path
) -> None:
    name = world.topic(2)
    first, second = Partition(name, 0), Partition(name, 1)
    world.append(first, [b"a", b"bb", b"ccc"])
    world.append_one(second, None, b"key", [("h", b"1")], 1_500_000_000_000)
    world.transaction(second, [b"aborted"], commit=False)
    until("the marker is there", lambda: world.log(second).end == 3)
    world.append(second, [b"", b"end"])
    table = ManifestSink[Any]("orders", schema=NUMBERS)
    topology = native(name, table, MemorySink[Any]("kept", schema=NUMBERS))
    table.open(SinkContext("pipeline", "sink", {}, str(tmp_path), None, exactly_once=True))
    table.fence([Fence(LINE, 1)])
    stagers = {"orders": table.stager(), "kept": SpoolStager(str(tmp_path / "spool"))}
    task = Task(
        settings(world, tmp_path),
        1,
        ranges(name, (1, 3), (0, 5)),
        stagers,  # type: ignore[arg-type]
    )

    done = run_native(spark, task, topology, group="ranges-1")

    assert isinstance(done, TaskDone)
    assert done.tally.sunk == 5
    assert [read.count for read in done.ranges] == [2, 3]
    assert [read.digest for read in done.ranges] == [
        digest([1, 2], [2, 3]), digest([0, 3, 4], [0, 0, 3])
    ]  # fmt: skip
    wanted = [(0, "key [{h, 1}]"), (1, "bb"), (2, "ccc"), (3, ""), (4, "end")]
    ((pieces, _offsets),) = (
        rows for each in done.staged["kept"] for rows in read_lines(each).values()
    )
    assert sorted(places(pieces)) == wanted
    share = Share(LINE, 1, 1, 1, 0, 5, "", 5)
    table.commit(table.joined((share,), done.staged["orders"]))
    files = [pq.ParquetFile(file).read() for file in manifest_files(tmp_path / "orders")]
    assert sorted(places(files)) == wanted

    skipped = ranges(name, (3, 3), (1, 3), skips=frozenset({"orders"}))
    empty = run_native(spark, replace(task, ranges=skipped), topology, group="ranges-2")
    assert isinstance(empty, TaskDone)
    assert [read.count for read in empty.ranges] == [0, 0]
    assert not empty.staged  # the function was not called


def test_a_log_that_lacks_a_range_is_told_with_its_partition(
    spark: SparkDriver, world: KafkaWorld, tmp_path: Path
) -> None:
    name = world.topic(2)
    for number in range(2):
        world.append(Partition(name, number), [b"a"] * 10)
    world.delete_before(Partition(name, 1), 5)
    topology = native(name, MemorySink[Any]("kept", schema=NUMBERS))
    stagers = {"kept": SpoolStager(str(tmp_path / "spool"))}
    task = Task(settings(world, tmp_path), 1, ranges(name, (0, 10), (2, 8)), stagers)
    failed = run_native(spark, task, topology, group="ranges-1")
    assert isinstance(failed, TaskFailed)
    assert failed.partition == Partition(name, 1)


def digest(offsets: Sequence[int], lengths: Sequence[int]) -> str:
    made = RangeDigest()
    made.add(np.array(offsets, np.int64), np.array(lengths, np.int64))
    return made.hex()


def places(pieces: Sequence[Any]) -> list[tuple[int, str]]:
    return [(row["number"], row["place"]) for piece in pieces for row in piece.to_pylist()]
