"""The variants of suite spark: orders parsed, their users looked up, totals, small ones dropped.

All write the same rows of nine columns into a Delta table that is there and empty. `structured`
is Structured Streaming. The others are Headrace's local engine, as it is deployed: the bolts run
in Python, pyarrow writes the files, and Spark's JVM commits them.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks import order_table
from benchmarks.enrich_variants import Order, keep_large, parse
from benchmarks.job import Figures, Job
from benchmarks.kinds import DELTA, Kind
from benchmarks.measured import run_headrace
from benchmarks.order_table import ORDER, PRICED
from benchmarks.orders import LEAST_TOTAL, users
from benchmarks.place import place
from benchmarks.processes import tree_seconds
from benchmarks.structured import BATCH_ROWS, structured
from headrace import Bolt, Reject, Topology, bolt
from headrace.payloads import json_columns
from headrace.sinks import DeltaSink
from topology.stream import Stream
from topology.topology import Reliability


class Price(Bolt[Order, Order]):
    """Looks the user up, multiplies, and keeps what the order had."""

    def open(self) -> None:
        """Load the users."""
        self._segments = users()

    def process(self, order: Order, /) -> Order:
        """Make the row. An order of an unknown user is rejected."""
        try:
            return {
                **order,
                "segment": self._segments[order["user_id"]],
                "total": order["qty"] * order["price"],
            }
        except KeyError as error:
            raise Reject(f"no such user or field: {error}") from None


class PriceColumns:
    """The same on columns, on any thread: nothing is changed after `__init__`.

    The table of users is a sorted array here. Small orders are dropped first, as Spark's
    optimizer does, too.
    """

    def __init__(self) -> None:
        segments = users()
        self._numbers = np.array(list(segments), np.int64)
        self._segments = pa.array(list(segments.values()), pa.string())

    def price(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Make the rows of a chunk. Raises Reject if a user is unknown: the executor halves it."""
        total = pc.multiply(batch["qty"].cast(pa.float64()), batch["price"])
        large = pc.greater_equal(total, pa.scalar(LEAST_TOTAL))
        kept, totals = batch.filter(large), total.filter(large)
        wanted = kept["user_id"].to_numpy()
        places = np.searchsorted(self._numbers, wanted)
        known = self._numbers[np.minimum(places, len(self._numbers) - 1)] == wanted
        if not known.all():
            raise Reject(f"no such user: {wanted[~known][0]}")
        columns: dict[str, Any] = dict(zip(kept.schema.names, kept.columns, strict=True))
        columns["segment"] = self._segments.take(pa.array(places, pa.int64()))
        columns["total"] = totals
        # The lineage is a column too: what is not ours travels on.
        others = [field for field in kept.schema if field.name not in PRICED.names]
        schema = pa.schema([*PRICED, *others])
        return pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)


def functions(job: Job) -> Figures:
    """Three bolts in a row, exactly once."""
    topology = Topology("spark-functions", reliability="exactly-once")
    rows = topology.source(job.topic).then(parse).then(Price).then(keep_large)
    rows.into(DeltaSink(order_table.NAME, schema=PRICED), batch_rows=BATCH_ROWS)
    return filled(topology, job, DELTA)


def vectorised(job: Job, reliability: Reliability = "exactly-once") -> Figures:
    """Two vectorised bolts."""
    topology = Topology("spark-vectorised", reliability=reliability)
    rows = priced_columns(topology, job)
    rows.into(DeltaSink(order_table.NAME, schema=PRICED), batch_rows=BATCH_ROWS)
    return filled(topology, job, DELTA)


def priced_columns(topology: Topology, job: Job) -> Stream[pa.RecordBatch]:
    """The rows, by two vectorised bolts."""
    price = bolt(vectorised=True, concurrent=True)(PriceColumns().price)
    return topology.source(job.topic).then(json_columns(ORDER)).then(price)


def filled(topology: Topology, job: Job, kind: Kind) -> Figures:
    """Measure from the first partition's opening until everything is committed.

    By then the JVM runs, if one is needed, and the table is there. The processor time is that of
    Python and the JVM.
    """
    with place(job, kind) as there:
        found = run_headrace(
            topology,
            job,
            spark={"warehouse": there.warehouse},
            before=there.prepare,
            cpu=tree_seconds,
        )
        return {**found, **there.contents()}


VARIANTS: dict[str, Callable[[Job], Figures]] = {
    "structured": partial(structured, kind=DELTA),
    "local_vectorised": vectorised,
    "local_functions": functions,
    "local_at_least_once": partial(vectorised, reliability="at-least-once"),
}
