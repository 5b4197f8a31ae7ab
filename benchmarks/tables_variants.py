"""The variants of suite tables: the orders of suite spark into other kinds of table.

Each kind has Structured Streaming's own sink for it, and one of Headrace's. They all get the same
rows, and find a table that is there and empty, or an empty folder where a table has no log.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from benchmarks import order_table
from benchmarks.job import Figures, Job
from benchmarks.kinds import CATALOGUED, ICEBERG, PARQUET, Kind
from benchmarks.order_table import PRICED
from benchmarks.spark_topologies import priced_columns
from benchmarks.spark_variants import filled
from benchmarks.structured import BATCH_ROWS, structured
from headrace import Topology
from headrace.sinks import IcebergSink, Sink, SparkSink
from topology.topology import Reliability


def local(
    job: Job, sink: Callable[..., Sink[Any]], kind: Kind, reliability: Reliability = "exactly-once"
) -> Figures:
    """Two vectorised bolts on the local engine, into such a sink."""
    topology = Topology("tables", reliability=reliability)
    rows = priced_columns(topology, job.topic)
    rows.into(sink(order_table.NAME, schema=PRICED), batch_rows=BATCH_ROWS)
    return filled(topology, job, kind)


VARIANTS: dict[str, Callable[[Job], Figures]] = {
    "structured_iceberg": partial(structured, kind=ICEBERG),
    "local_iceberg": partial(local, sink=IcebergSink, kind=CATALOGUED),
    "structured_parquet": partial(structured, kind=PARQUET),
    "local_spool": partial(
        local, sink=partial(SparkSink, format="parquet"), kind=PARQUET, reliability="at-least-once"
    ),
}
