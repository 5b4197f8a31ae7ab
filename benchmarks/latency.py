"""Suite latency: from an order's making until it can be read in a Delta table."""

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import order_table
from benchmarks.bench import TIMEOUT_SECONDS, Bench, Runs, medians
from benchmarks.child import Figures, Job
from benchmarks.measured import run_headrace
from benchmarks.order_table import PRICED, delays
from benchmarks.orders_topologies import priced_columns
from benchmarks.place import DELTA, KAFKA_SOURCE, Place, place
from benchmarks.publishing import PARTITIONS, Publisher
from benchmarks.result import Goal, Result, check_rows, facts, table
from benchmarks.structured import BATCH_ROWS, priced, users_table, writer
from headrace import Topology
from headrace.sinks import DeltaSink
from partition.kafka.librdkafka import DEFAULTS
from service.app import Service
from service.observability.snapshot import Snapshot

PER_SECOND = 20_000
BATCH_SECONDS = 1.0
_POLL_SECONDS = 0.2
_UNCOUNTED_PART = 3  # of the records, the first: until then a JVM warms up
RECORDS = 90 * PER_SECOND  # the first third is not counted, so that is a minute
ROUNDS = 2
TOPIC = "orders-latency"
MODULE = "benchmarks.latency"
NAMES = ("structured", "headrace")
PERCENTILES = ("p50", "p99")
MOST = 0.5  # of Structured Streaming's
COLUMNS = {
    "p50 ms": "{p50_ms:,.0f}", "p99 ms": "{p99_ms:,.0f}", "longest ms": "{most_ms:,.0f}",
    "commits": "{commits:.0f}", "published/s": "{published_per_second:,.0f}",
}  # fmt: skip


def run(bench: Bench) -> Result:
    rounds, records = bench.asked(ROUNDS, RECORDS)
    runs: Runs = {name: [] for name in NAMES}
    names = list(NAMES)
    for turn in range(rounds):
        for number, name in enumerate(names):
            done, total = turn * len(names) + number, rounds * len(names)
            bench.progress.step(f"round {turn + 1}: {name}", done, total)
            topic = f"{TOPIC}-{name}-{turn}"  # filled while it is read
            bench.servers.kafka.create_topic(topic, PARTITIONS)
            runs[name].append(bench.run(MODULE, name, topic, records))
        names.reverse()
    check_rows(runs)
    figures = medians(runs)
    ours, theirs = figures["headrace"], figures["structured"]
    ratio = {each: ours[f"{each}_ms"] / theirs[f"{each}_ms"] for each in PERCENTILES}
    return Result(
        "latency",
        {
            "records": records,
            "rounds": rounds,
            "rows": int(ours["rows"]),
            **facts(figures, commits=None, published_per_second=None),
            "latency_ms": {
                name: {each: round(found[f"{each}_ms"]) for each in PERCENTILES}
                for name, found in figures.items()
            },
            "ratio": {each: round(value, 3) for each, value in ratio.items()},
        },
        [table(f"{records:,} records, medians of {rounds} rounds", figures, COLUMNS)],
        [
            Goal(f"{each}: of Structured Streaming's", value, MOST, at_most=True)
            for each, value in ratio.items()
        ],
    )


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
            wired=there.wire,
            on_snapshot=taken,
            until_caught_up=False,
        )
        return {**found, **_results(job, there, publisher)}


def structured(job: Job) -> Figures:
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
