"""Suite tables: into Delta and Iceberg tables, against Structured Streaming and delta-rs."""

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
from deltalake import write_deltalake

from benchmarks import orders_topologies
from benchmarks import place as places
from benchmarks.bench import Bench
from benchmarks.child import Figures, Job
from benchmarks.measured import Memory, Moment, figures, run_headrace, tree_seconds
from benchmarks.order_table import NAME, ORDER, PRICED
from benchmarks.orders import Orders
from benchmarks.orders_topologies import TOPIC, PriceColumns, make
from benchmarks.place import CATALOGUED, Kind, Place, place
from benchmarks.result import COMPARED, Goal, Result, compared, compared_facts, facts, goals, table
from benchmarks.structured import BATCH_ROWS, structured
from headrace.sinks import DeltaSink, IcebergSink, Sink, SparkSink
from sinks.tables.files import sync
from topology.sink import Batch, Fence, Share, SinkContext, Staged
from topology.topology import Reliability

TRANSACTION_RECORDS = 1_000_000  # of the spark engine
SPARK_SINK_ROWS = 500_000
LARGE_ROWS, LARGE_BYTES = 1_500_000, 512 * 1024 * 1024
RECORDS = 2_000_000
ROUNDS = 2  # three take more than ten minutes
MODULE = "benchmarks.tables"
DELTA = ("delta_vectorised", "delta_functions")
ENGINE = ("engine_vectorised", "engine_functions")
SPARK = ("spark_sink", "spark_sink_functions")
ICEBERG = ("iceberg_vectorised", "iceberg_functions")
AGAINST = {
    **dict.fromkeys((*DELTA, *ENGINE, *SPARK), "structured_delta"),
    **dict.fromkeys(ICEBERG, "structured_iceberg"),
}
NAMES = ("structured_delta", *DELTA, *SPARK, "structured_iceberg", *ICEBERG, *ENGINE)
ALONE = {"sink_alone": "write_deltalake"}
ALONE_ROUNDS = 5  # they are short
LEAST = {  # times the rate
    "delta_vectorised": 5.9, "delta_functions": 2.7, "iceberg_vectorised": 4.0,
    "iceberg_functions": 2.5, "engine_vectorised": 4.0, "engine_functions": 2.5,
    "spark_sink": 2.0, "spark_sink_functions": 1.5,
}  # fmt: skip
MOST_CPU = {"delta_vectorised": 0.15, "delta_functions": 0.35}  # of the CPU per record
LEAST_ALONE = 0.8


def run(bench: Bench) -> Result:
    rounds, records = bench.asked(ROUNDS, RECORDS)
    bench.publish(TOPIC, Orders().value, records)
    figures = compared(bench.rounds(MODULE, NAMES, TOPIC, records, rounds=rounds), AGAINST)
    pair = (*ALONE.values(), *ALONE)
    alone_rounds = bench.options.rounds or ALONE_ROUNDS
    runs = bench.rounds(MODULE, pair, TOPIC, records, rounds=alone_rounds)
    alone = compared(runs, ALONE)
    found = compared_facts(figures)
    for key in ("batches", "cpu_us", "per_second"):
        found[key] |= facts(alone, batches=None, cpu_us=3, per_second=None)[key]
    for key in ("ratio", "cpu_ratio", "spread"):
        found[key]["bare_loop"] = compared_facts(alone)[key]["sink_alone"]
    return Result(
        "tables",
        {"records": records, "rounds": rounds, "against": AGAINST, **found},
        [
            table(f"{records:,} records, medians of {rounds} rounds", figures, COMPARED),
            table(
                f"{records:,} records as ready batches, medians of {alone_rounds} rounds",
                alone,
                COMPARED,
            ),
        ],
        [
            *goals(figures, "ratio", LEAST, "rate"),
            *goals(figures, "cpu_ratio", MOST_CPU, "CPU", at_most=True),
            Goal("bare_loop: rate", alone["sink_alone"]["ratio"], LEAST_ALONE),
        ],
    )


_LINE = f"{NAME}[0]"


def local(
    job: Job,
    flow: str,
    sink: Callable[..., Sink[Any]] = DeltaSink,
    kind: Kind = places.DELTA,
    reliability: Reliability = "exactly-once",
    pipeline: Mapping[str, Any] | None = None,
    **batch: Any,
) -> Figures:
    """The local engine, from the first partition's opening until everything is committed.

    By then the JVM runs, if one is needed. The processor time is that of Python and the JVM.
    """
    topology = make(flow, job.topic, sink, reliability=reliability, **batch)
    with place(job, kind) as there:
        found = run_headrace(
            topology,
            job,
            pipeline=pipeline,
            storage=there.config,
            wired=there.wire,
            cpu=tree_seconds,
        )
        return {**found, **there.contents()}


def on_executors(job: Job, flow: str) -> Figures:
    """The same on the spark engine.

    Python workers start with the first task, so their start is measured.
    """
    with place(job, places.DELTA) as there:
        found = run_headrace(
            make(flow, job.topic),
            job,
            pipeline={"engine": "spark"},
            storage=there.config,
            spark={"transaction_records": TRANSACTION_RECORDS},
            cpu=tree_seconds,
            wired=partial(there.wire, target=f"{orders_topologies.MODULE}:{flow}"),
        )
        return {**found, **there.contents()}


def sink_alone(job: Job) -> Figures:
    """A DeltaSink exactly once: one batch is staged while the one before it is committed."""
    sink: DeltaSink[Any] = DeltaSink(NAME, schema=PRICED)

    def write(there: Place, batches: Iterator[pa.RecordBatch]) -> None:
        sink.open(SinkContext("bench", NAME, {}, there.storage, None, exactly_once=True))
        sink.fence([Fence(_LINE, 1)])
        with ThreadPoolExecutor(1) as commits:
            under_way: Future[None] | None = None
            for txid, batch in enumerate(batches, 1):
                ready = staged(sink, _LINE, txid, batch)
                if under_way is not None:
                    under_way.result()
                under_way = commits.submit(sink.commit, ready)

    return _ready(job, write)


def staged(sink: DeltaSink[Any], line: str, txid: int, batch: pa.RecordBatch) -> Staged:
    """A transaction of one line whose rows are in a file."""
    share = Share(line, 1, txid, 1, txid, txid + 1, "0" * 32, batch.num_rows)
    return sink.stage(Batch(txid, [batch], batch.num_rows, (share,)))


def bare_loop(job: Job) -> Figures:
    """delta-rs's own writer, and what the sink syncs: the file, the log's entry, the folders."""

    def write(there: Place, batches: Iterator[pa.RecordBatch]) -> None:
        table = Path(there.uri)
        seen: set[Path] = set()
        for batch in batches:
            write_deltalake(table, batch, mode="append")
            new = {*table.glob("*.parquet"), *(table / "_delta_log").glob("*.json")} - seen
            for path in (*new, table, table / "_delta_log"):
                sync(str(path))
            seen |= new

    return _ready(job, write)


def _ready(job: Job, write: Callable[[Place, Iterator[pa.RecordBatch]], None]) -> Figures:
    """Measure how as many rows as there are records are written, in batches that are there."""
    value = Orders().value
    orders = [orjson.loads(value(number)) for number in range(min(BATCH_ROWS, job.records))]
    batch = PriceColumns().price(pa.RecordBatch.from_pylist(orders, schema=ORDER))
    count = max(1, job.records // BATCH_ROWS)
    with place(job, places.DELTA) as there:
        start = Moment.now(0)
        write(there, (batch for _ in range(count)))
        end = Moment.now(count * batch.num_rows)
        found = figures(start, end, Memory(job.records))
        return {**found, "records": job.records, "batches": count, **there.contents()}


_to_iceberg = partial(local, sink=IcebergSink, kind=CATALOGUED)
_large = partial(
    local,
    flow="vectorised",
    pipeline={"max_pending": 3 * LARGE_ROWS, "max_pending_bytes": LARGE_BYTES},
    batch_rows=LARGE_ROWS,
    batch_bytes=LARGE_BYTES,
    batch_seconds=10.0,
)
_by_spark = partial(
    local,
    sink=partial(SparkSink, format="delta"),
    reliability="at-least-once",
    batch_rows=SPARK_SINK_ROWS,
)
VARIANTS: dict[str, Callable[[Job], Figures]] = {
    "structured_delta": partial(structured, kind=places.DELTA),
    "delta_vectorised": partial(local, flow="vectorised"),
    "delta_functions": partial(local, flow="functions"),
    "delta_large": _large,
    "delta_delayed": _large,  # its endpoint is slow
    "engine_vectorised": partial(on_executors, flow="vectorised"),
    "engine_functions": partial(on_executors, flow="functions"),
    "spark_sink": partial(_by_spark, flow="vectorised"),
    "spark_sink_functions": partial(_by_spark, flow="functions"),
    "structured_iceberg": partial(structured, kind=places.ICEBERG),
    "iceberg_vectorised": partial(_to_iceberg, flow="vectorised"),
    "iceberg_functions": partial(_to_iceberg, flow="functions"),
    "write_deltalake": bare_loop,
    "sink_alone": sink_alone,
}
