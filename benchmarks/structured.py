"""The peer of the table suites: PySpark's Structured Streaming.

Spark's own Kafka source, native steps only (no Python worker runs), trigger `availableNow`, and
the table's own sink, which is exactly once by its checkpoint (Delta, Iceberg) or its log of
files (Parquet). It runs in the JVM that Headrace would start for its tables, with the same
properties.
"""

import json
import time
from functools import partial
from typing import Any

import pyarrow as pa

from benchmarks import order_table
from benchmarks.child import Figures, Job
from benchmarks.measured import Memory, Moment, figures, tree_seconds
from benchmarks.orders import LEAST_TOTAL, users
from benchmarks.place import KAFKA_SOURCE, Kind, Place, place
from benchmarks.publishing import PARTITIONS
from sinks.spark.frames import spark_schema

BATCH_ROWS = 200_000
# Spark rounds each partition's part of a batch down. Without a few more, what is left over at the
# end would be a batch of a handful of records, at a second or two.
MOST_OFFSETS = BATCH_ROWS + 1_000
_WARM_UP_ROWS = 2 * BATCH_ROWS
_POLL_SECONDS = 0.005


def structured(job: Job, kind: Kind) -> Figures:
    """Run the query into a table of this kind; see `_run` for what is measured."""
    began = time.monotonic()
    with place(job, kind, KAFKA_SOURCE) as there:
        found = there.spark.run(partial(_run, job, there, began), group="structured")
        return {**found, **there.contents()}


def _run(job: Job, there: Place, began: float, session: Any) -> Figures:
    """Run the query twice, each time into a table of its own, and measure the second run.

    The first one takes the topic's last two batches, which warms the JVM; Headrace's variants do
    without. A topic of fewer records is read once. `open_seconds` is what came before the second:
    the JVM's start, the users' loading, the first run.
    """
    held = users_table(session)
    if job.records >= _WARM_UP_ROWS:
        first = (job.records - _WARM_UP_ROWS) // PARTITIONS
        offsets = json.dumps({job.topic: {str(number): first for number in range(PARTITIONS)}})
        _measured(session, priced(session, held, job, offsets, MOST_OFFSETS), there, "warm_up")
    opened = time.monotonic()
    query = priced(session, held, job, "earliest", MOST_OFFSETS)
    found = _measured(session, query, there, order_table.NAME)
    held.unpersist()
    return {**found, "open_seconds": opened - began}


def _measured(session: Any, query: Any, there: Place, name: str) -> Figures:
    """Measure from the first trigger's start until the query has ended.

    The table's creation and the query's planning are not measured, as they are not in Headrace's
    variants. The end comes right after the last batch's commit to the table and the checkpoint.
    """
    uri = there.storage.uri(name)
    there.kind.create(session, uri)
    running = there.kind.start(writer(query, there, name).trigger(availableNow=True), uri)
    while running.isActive and not running.status["isTriggerActive"]:
        time.sleep(_POLL_SECONDS)
    start = Moment.now(0, tree_seconds)
    running.awaitTermination()
    batches = [progress["numInputRows"] for progress in running.recentProgress]
    end = Moment.now(sum(batches), tree_seconds)
    return {**figures(start, end, Memory(end.read)), "batches": sum(map(bool, batches))}


def writer(query: Any, there: Place, name: str) -> Any:
    """Return the writer of a query's rows, with a checkpoint on a local disk."""
    return query.writeStream.option("checkpointLocation", f"{there.folder}/{name}-checkpoint")


def users_table(session: Any) -> Any:
    segments = users()
    table = pa.table({"user_id": list(segments), "segment": list(segments.values())})
    held = session.createDataFrame(table).cache()
    held.count()  # so that it is there
    return held


def priced(session: Any, held: Any, job: Job, offsets: str, most: int | None = None) -> Any:
    """The query, from these offsets on, of so many records at a time at the most."""
    source = (
        session.readStream.format("kafka")
        .option("kafka.bootstrap.servers", job.kafka)
        .option("kafka.max.poll.records", 20_000)  # three times as fast as with the default
        .option("subscribe", job.topic)
        .option("startingOffsets", offsets)
    )
    if most is not None:
        source = source.option("maxOffsetsPerTrigger", most)
    return priced_orders(source.load(), held)


def priced_orders(records: Any, held: Any) -> Any:
    """Return the enriched columns of Kafka's records, with the table of users.

    Parse, join, multiply, filter.
    """
    from pyspark.sql import functions as f  # noqa: PLC0415 - see sinks/__init__

    order = f.from_json(records["value"].cast("string"), spark_schema(order_table.ORDER))
    return (
        records.select(order.alias("order"))
        .select("order.*")
        .join(f.broadcast(held), "user_id")
        .withColumn("total", f.col("qty") * f.col("price"))
        .where(f.col("total") >= LEAST_TOTAL)
        .select(*order_table.PRICED.names)
    )
