"""The variants of the table suites.

Orders are parsed, their users looked up, totals made, small ones dropped. All make the same rows
of nine columns, and find a table that is there and empty, or make it. On the local engine the
bolts run in Python, and Arrow writes the files; on the spark engine executors do all but the
commit. `sink_alone` and `write_deltalake` write ready batches of such rows, without Kafka.
"""

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
from deltalake import write_deltalake

from benchmarks.job import Figures, Job
from benchmarks.kinds import CATALOGUED, DELTA, ICEBERG, Kind
from benchmarks.measured import Memory, Moment, figures, run_headrace
from benchmarks.order_table import NAME, ORDER, PRICED
from benchmarks.orders import Orders
from benchmarks.orders_topologies import MODULE, PriceColumns, make
from benchmarks.place import Place, place
from benchmarks.processes import tree_seconds
from benchmarks.structured import BATCH_ROWS, structured
from headrace.sinks import DeltaSink, IcebergSink, Sink, SparkSink
from sinks.tables.files import sync
from topology.sink import Batch, Fence, Share, SinkContext, Staged
from topology.topology import Reliability

TRANSACTION_RECORDS = 1_000_000  # of the spark engine
SPARK_SINK_ROWS = 500_000
LARGE_ROWS, LARGE_BYTES = 1_500_000, 512 * 1024 * 1024
_LINE = f"{NAME}[0]"


def local(
    job: Job,
    flow: str,
    sink: Callable[..., Sink[Any]] = DeltaSink,
    kind: Kind = DELTA,
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
    with place(job, DELTA) as there:
        found = run_headrace(
            make(flow, job.topic),
            job,
            pipeline={"engine": "spark"},
            storage=there.config,
            spark={"transaction_records": TRANSACTION_RECORDS},
            before=there.prepare,
            cpu=tree_seconds,
            wired=there.wired(f"{MODULE}:{flow}"),
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
    with place(job, DELTA) as there:
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
    "structured_delta": partial(structured, kind=DELTA),
    "delta_vectorised": partial(local, flow="vectorised"),
    "delta_functions": partial(local, flow="functions"),
    "delta_large": _large,
    "delta_delayed": _large,  # its endpoint is slow
    "engine_vectorised": partial(on_executors, flow="vectorised"),
    "engine_functions": partial(on_executors, flow="functions"),
    "spark_sink": partial(_by_spark, flow="vectorised"),
    "spark_sink_functions": partial(_by_spark, flow="functions"),
    "structured_iceberg": partial(structured, kind=ICEBERG),
    "iceberg_vectorised": partial(_to_iceberg, flow="vectorised"),
    "iceberg_functions": partial(_to_iceberg, flow="functions"),
    "write_deltalake": bare_loop,
    "sink_alone": sink_alone,
}
