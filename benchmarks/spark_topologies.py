"""The topologies of suite spark, where executors find them, too: orders to rows of nine columns.

Each is there once by its name, for executors, and made anew by a function for whoever runs it.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks import order_table
from benchmarks.enrich_variants import Order, Price, keep_large, parse
from benchmarks.order_table import ORDER, PRICED
from benchmarks.orders import LEAST_TOTAL, users
from benchmarks.structured import BATCH_ROWS
from headrace import Reject, Topology, bolt
from headrace.payloads import json_columns
from headrace.sinks import DeltaSink, MemoryDeadLetters
from topology.stream import Stream
from topology.topology import Reliability

TOPIC = "orders-spark"
MODULE = "benchmarks.spark_topologies"


class PriceWhole(Price):
    """The same as `Price`, and keeps what the order had."""

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


def priced_columns(topology: Topology, topic: str) -> Stream[pa.RecordBatch]:
    """The rows, by two vectorised bolts."""
    price = bolt(vectorised=True, concurrent=True)(PriceColumns().price)
    return topology.source(topic).then(json_columns(ORDER)).then(price)


def make_vectorised(reliability: Reliability = "exactly-once") -> Topology:
    """Two vectorised bolts."""
    topology = _named("spark-vectorised", reliability)
    rows = priced_columns(topology, TOPIC)
    rows.into(DeltaSink(order_table.NAME, schema=PRICED), batch_rows=BATCH_ROWS)
    return topology


def make_functions() -> Topology:
    """Three bolts in a row."""
    topology = _named("spark-functions")
    rows = topology.source(TOPIC).then(parse).then(PriceWhole).then(keep_large)
    rows.into(DeltaSink(order_table.NAME, schema=PRICED), batch_rows=BATCH_ROWS)
    return topology


def _named(name: str, reliability: Reliability = "exactly-once") -> Topology:
    topology = Topology(name, reliability=reliability)
    topology.dead_letters.into(MemoryDeadLetters())
    return topology


MAKE: dict[str, Callable[[], Topology]] = {
    "vectorised": make_vectorised,
    "functions": make_functions,
}

vectorised = make_vectorised()
functions = make_functions()
