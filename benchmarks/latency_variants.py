"""The variants of suite latency: a Delta table that orders flow into as they are made.

Both process a topic that a publisher of its own process fills at a steady rate meanwhile, and
end when all of it is committed. Both are exactly once, and do the work of suite tables.
"""

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import order_table
from benchmarks.children import TIMEOUT_SECONDS
from benchmarks.delays import delays
from benchmarks.job import Figures, Job
from benchmarks.kinds import DELTA
from benchmarks.measured import run_headrace
from benchmarks.order_table import PRICED
from benchmarks.orders_topologies import priced_columns
from benchmarks.place import KAFKA_SOURCE, Place, place
from benchmarks.steady import Publisher
from benchmarks.structured import BATCH_ROWS, priced, users_table, writer
from headrace import Topology
from headrace.sinks import DeltaSink
from partition.kafka.librdkafka import DEFAULTS
from service.app import Service
from service.snapshot import Snapshot

PER_SECOND = 20_000
BATCH_SECONDS = 1.0
_POLL_SECONDS = 0.2
_UNCOUNTED_PART = 3  # of the records, the first: until then a JVM warms up


def headrace(job: Job) -> Figures:
    """Two vectorised bolts, micro-batches of a second, the default configuration."""
    topology = Topology("latency", reliability="exactly-once")
    priced_columns(topology, job.topic).into(
        DeltaSink(order_table.NAME, schema=PRICED),
        batch_rows=BATCH_ROWS,
        batch_seconds=BATCH_SECONDS,
    )
    with place(job, DELTA) as there, Publisher(job, PER_SECOND) as publisher:

        def taken(service: Service, snapshot: Snapshot) -> None:
            publisher.start()  # with the first snapshot all is open
            publisher.check()
            if sum(part.committed for part in snapshot.partitions) >= job.records:
                service.stop()

        found = run_headrace(
            topology,
            job,
            kafka=DEFAULTS,
            storage=there.config,
            before=there.prepare,
            on_snapshot=taken,
            until_caught_up=False,
        )
        return {**found, **_results(job, there, publisher)}


def structured(job: Job) -> Figures:
    """Structured Streaming with a trigger every second."""
    with place(job, DELTA, KAFKA_SOURCE) as there, Publisher(job, PER_SECOND) as publisher:
        read = there.spark.run(partial(_stream, job, there, publisher), group="structured")
        return {"records": read, **_results(job, there, publisher)}


def _stream(job: Job, there: Place, publisher: Publisher, session: Any) -> int:
    """Run the query until it has read everything; returns how many records that were."""
    held = users_table(session)
    there.kind.create(session, there.uri)
    query = priced(session, held, job, "earliest")
    trigger = writer(query, there, order_table.NAME).trigger(
        processingTime=f"{BATCH_SECONDS:g} seconds"
    )
    running = there.kind.start(trigger, there.uri)
    publisher.start()
    ends = time.monotonic() + TIMEOUT_SECONDS
    read: dict[int, int] = {}  # by batch
    while sum(read.values()) < job.records and running.isActive and time.monotonic() < ends:
        publisher.check()
        _note(running, read)
        time.sleep(_POLL_SECONDS)
    error = running.exception()
    running.stop()
    held.unpersist()
    if error is not None:
        raise SystemExit(f"Structured Streaming failed: {error}")
    return sum(read.values())


def _note(running: Any, read: dict[int, int]) -> None:
    """Note how many records the newest batches had."""
    newest = running.lastProgress
    if newest is None:
        return
    missed = newest["batchId"] > max(read, default=-1) + 1
    for progress in running.recentProgress if missed else [newest]:
        if progress["numInputRows"]:  # else it told that there was nothing to do
            read[progress["batchId"]] = progress["numInputRows"]


def _results(job: Job, there: Place, publisher: Publisher) -> Figures:
    return {
        "published_per_second": publisher.per_second(),
        **there.contents(),
        **delays(Path(there.uri), since=job.records // _UNCOUNTED_PART),
    }


VARIANTS: dict[str, Callable[[Job], Figures]] = {"structured": structured, "headrace": headrace}
