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
from benchmarks.result import Comparison, Goal, Result
from benchmarks.structured import BATCH_ROWS, MOST_OFFSETS, structured
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
WORK = """\
Orders as JSON of 111 bytes in four partitions. Each is parsed, joined with a table of 100,000
users, quantity and price are multiplied, totals below 50 dropped (one order in twelve), and rows
of nine columns written to a table. Their number, the sum of the order numbers and the sum of the
totals are read from the files that the tables name after each run, and are the same for all."""
MEASURED = f"""\
Structured Streaming has its Kafka source, native steps, a broadcast join and the trigger
`availableNow`; it is exactly once by its checkpoint. `maxOffsetsPerTrigger` is {MOST_OFFSETS:,},
for at {BATCH_ROWS:,} its rounding would leave a last batch of a handful of records. Before, it
takes two batches into another table, to warm its JVM. `batches` is how many there were.

Rates and CPU count from the first partition's opening, or the first trigger's start, until
everything is committed, and on a local disk synced, which Structured Streaming leaves out. CPU is
that of the whole tree of processes, so Python and, where there is one, the JVM (`local[2]`).
Each ratio is to the run of the same round, the median and the spread are over the rounds."""
NOTES = f"""\
{WORK}

- `structured_delta` and `structured_iceberg` are PySpark's Structured Streaming; the ratios are to
  the one that writes such a table.
- `delta_…` and `iceberg_…` are `DeltaSink` and `IcebergSink` on the local engine, exactly once,
  with two vectorised bolts or three functions, and micro-batches of up to {BATCH_ROWS:,} rows.
- `engine_…` are the same topologies into Delta on the spark engine, with up to
  {TRANSACTION_RECORDS:,} records in a transaction. Its Python workers start with the first task,
  which is in their rates and CPU.
- `spark_sink` and `spark_sink_functions` are `SparkSink` into Delta on the local engine, at least
  once, with {SPARK_SINK_ROWS:,} rows in a batch and a cold JVM.
- `sink_alone` is a `DeltaSink` exactly once that gets ready batches, what is left of
  {BATCH_ROWS:,} orders; `write_deltalake` is delta-rs's own writer in a loop, with the same syncs
  after each batch. The ratio is `bare_loop` in the JSON.

{MEASURED}"""


def run(bench: Bench) -> Result:
    rounds = bench.options.rounds or ROUNDS
    records = bench.options.records or RECORDS
    bench.publish(TOPIC, Orders().value, records)
    runs = bench.rounds(MODULE, NAMES, TOPIC, records, rounds=rounds)
    found = Comparison(runs, AGAINST)
    pair = (*ALONE.values(), *ALONE)
    alone_rounds = bench.options.rounds or ALONE_ROUNDS
    alone = Comparison(bench.rounds(MODULE, pair, TOPIC, records, rounds=alone_rounds), ALONE)
    facts = found.facts
    for key in ("batches", "cpu_us", "per_second"):
        facts[key] |= alone.facts[key]
    for key in ("ratio", "cpu_ratio", "spread"):
        facts[key]["bare_loop"] = alone.facts[key]["sink_alone"]
    return Result(
        "tables",
        {"records": records, "rounds": rounds, "against": AGAINST, **facts},
        [
            found.table(f"{records:,} records, medians of {rounds} rounds"),
            alone.table(f"{records:,} records as ready batches, medians of {alone_rounds} rounds"),
        ],
        [
            *(Goal(f"{name}: rate", found.ratio[name], least) for name, least in LEAST.items()),
            *(
                Goal(f"{name}: CPU", found.cpu_ratio[name], most, at_most=True)
                for name, most in MOST_CPU.items()
            ),
            Goal("bare_loop: rate", alone.ratio["sink_alone"], LEAST_ALONE),
        ],
        NOTES,
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
            before=there.prepare,
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
            before=there.prepare,
            cpu=tree_seconds,
            wired=there.wired(f"{orders_topologies.MODULE}:{flow}"),
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
