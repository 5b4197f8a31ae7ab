"""Topologies of the table suites: orders to rows of nine columns.

Executors and the command line find some by their names.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.order_table import NAME, ORDER, PRICED
from benchmarks.orders import LEAST_TOTAL, users
from benchmarks.structured import BATCH_ROWS
from headrace import SKIP, Bolt, Record, Reject, Skip, Topology, bolt
from headrace.payloads import json_columns
from headrace.sinks import DeltaSink, MemoryDeadLetters, Sink
from topology.stream import Stream
from topology.topology import Reliability

Order = dict[str, Any]
TOPIC = "orders-tables"
GROWTH_TOPIC = "orders-growth"
MODULE = "benchmarks.orders_topologies"


@bolt
def parse(record: Record) -> Order:
    try:
        order: Order = orjson.loads(record.value or b"")
    except orjson.JSONDecodeError as error:
        raise Reject(f"not an order: {error}") from error
    return order


class Price(Bolt[Order, Order]):
    """Looks the user up, and multiplies."""

    def open(self) -> None:
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


@bolt
def keep_large(row: Order) -> Order | Skip:
    return row if row["total"] >= LEAST_TOTAL else SKIP


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


def priced_columns(topology: Topology, topic: str) -> Stream[Any]:
    price = bolt(vectorised=True, concurrent=True)(PriceColumns().price)
    return topology.source(topic).then(json_columns(ORDER)).then(price)


def priced_functions(topology: Topology, topic: str) -> Stream[Any]:
    return topology.source(topic).then(parse).then(Price).then(keep_large)


FLOWS = {"vectorised": priced_columns, "functions": priced_functions}


def make(
    flow: str,
    topic: str,
    sink: Callable[..., Sink[Any]] = DeltaSink,
    *,
    reliability: Reliability = "exactly-once",
    **batch: Any,
) -> Topology:
    """A topology of one of the flows into such a sink; `batch` says how large micro-batches are."""
    topology = Topology(flow, reliability=reliability)
    topology.dead_letters.into(MemoryDeadLetters())
    FLOWS[flow](topology, topic).into(
        sink(NAME, schema=PRICED), **{"batch_rows": BATCH_ROWS, **batch}
    )
    return topology


vectorised = make("vectorised", TOPIC)
functions = make("functions", TOPIC)
growing = make("vectorised", GROWTH_TOPIC, batch_rows=DeltaSink.batch_rows)
