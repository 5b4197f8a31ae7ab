"""The variant that suite spark holds Headrace against: PySpark's Structured Streaming.

Spark's own Kafka source, native steps only (no Python worker runs), trigger `availableNow`, and
Delta's sink, which is exactly once by its checkpoint. It runs in the JVM that Headrace would
start for its tables, with the same properties.
"""

import json
import time
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa

from benchmarks import order_table
from benchmarks.bench import TIMEOUT_SECONDS
from benchmarks.job import Figures, Job
from benchmarks.measured import Memory, Moment, figures
from benchmarks.orders import LEAST_TOTAL, users
from benchmarks.processes import tree_seconds
from benchmarks.publishing import PARTITIONS
from service.jars.resolver import resolve
from sinks.spark.driver import SparkDriver
from sinks.spark.existing import spark_schema

BATCH_ROWS = 200_000
_JARS = ("delta", "kafka-source")
_WARM_UP_ROWS = 2 * BATCH_ROWS
_POLL_SECONDS = 0.005
# Spark rounds each partition's part of a batch down. Without these few more, what is left over at
# the end would be a batch of a handful of records, at a second or two.
_SPARE_ROWS = 1_000


def structured(job: Job) -> Figures:
    """Run the query; see `_run` for what is measured."""
    began = time.monotonic()
    with TemporaryDirectory(prefix="headrace-bench-") as folder:
        driver = SparkDriver(
            "structured",
            jars=lambda: [jar for name in _JARS for jar in resolve(name)],
            job_deadline_seconds=TIMEOUT_SECONDS,
        )
        try:
            return driver.run(partial(_run, job, Path(folder), began), group="structured")
        finally:
            driver.close()


def _run(job: Job, folder: Path, began: float, session: Any) -> Figures:
    """Run the query twice, each time into a table of its own, and measure the second run.

    The first one takes the topic's last two batches, which warms the JVM; Headrace's variants do
    without. `open_seconds` is what came before the second: the JVM's start, the users' loading,
    the first run.
    """
    held = _users(session)
    first = max(0, job.records // PARTITIONS - _WARM_UP_ROWS // PARTITIONS)
    offsets = json.dumps({job.topic: {str(number): first for number in range(PARTITIONS)}})
    _measured(session, _priced(session, held, job, offsets), job, folder / "warm-up")
    path = folder / order_table.NAME
    opened = time.monotonic()
    return {
        **_measured(session, _priced(session, held, job, "earliest"), job, path),
        "open_seconds": opened - began,
        **order_table.contents(path)._asdict(),
    }


def _measured(session: Any, priced: Any, job: Job, path: Path) -> Figures:
    """Measure from the first trigger's start until the query has ended.

    The table's creation and the query's planning are not measured, as they are not in Headrace's
    variants. The end comes right after the last batch's commit to the table and the checkpoint.
    """
    order_table.create(session, path)
    query = (
        priced.writeStream.format("delta")
        .option("checkpointLocation", f"{path}-checkpoint")
        .trigger(availableNow=True)
        .start(str(path))
    )
    while query.isActive and not query.status["isTriggerActive"]:
        time.sleep(_POLL_SECONDS)
    start = Moment.now(0, tree_seconds)
    query.awaitTermination()
    read = sum(progress["numInputRows"] for progress in query.recentProgress)
    end = Moment.now(read, tree_seconds)
    return figures(start, end, Memory(job.records))


def _users(session: Any) -> Any:
    """The table of users, in memory."""
    segments = users()
    table = pa.table({"user_id": list(segments), "segment": list(segments.values())})
    held = session.createDataFrame(table).cache()
    held.count()  # so that it is there
    return held


def _priced(session: Any, held: Any, job: Job, offsets: str) -> Any:
    """The query, from these offsets on: parse, join, multiply, filter."""
    from pyspark.sql import functions as f  # noqa: PLC0415 - see sinks/__init__

    source = (
        session.readStream.format("kafka")
        .option("kafka.bootstrap.servers", job.kafka)
        .option("kafka.max.poll.records", 20_000)  # three times as fast as with the default
        .option("subscribe", job.topic)
        .option("startingOffsets", offsets)
        .option("maxOffsetsPerTrigger", BATCH_ROWS + _SPARE_ROWS)
        .load()
    )
    order = f.from_json(source["value"].cast("string"), spark_schema(order_table.ORDER))
    return (
        source.select(order.alias("order"))
        .select("order.*")
        .join(f.broadcast(held), "user_id")
        .withColumn("total", f.col("qty") * f.col("price"))
        .where(f.col("total") >= LEAST_TOTAL)
        .select(*order_table.PRICED.names)
    )
