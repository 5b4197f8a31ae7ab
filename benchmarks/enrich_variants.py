"""The variants of suite enrich: orders parsed, their users looked up, totals, small ones dropped.

`loop` is what one would write by hand with confluent-kafka: lists of messages, one pass over
each, a commit to the consumer group once a second. The others are Headrace with the same
consumer, the same parser, the same table of users and the same rows.
"""

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
import numpy as np
import orjson
import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, KafkaException, Message

from benchmarks.job import Figures, Job
from benchmarks.measured import AT_ONCE, FEW_AT_ONCE, BareLoop, run_headrace
from benchmarks.orders import LEAST_TOTAL, users
from headrace import SKIP, Bolt, Record, Reject, Skip, Topology, bolt
from headrace.sinks import DiscardSink

COMMIT_SECONDS = 1.0

Order = dict[str, Any]


def loop(job: Job, at_once: int = AT_ONCE) -> Figures:
    """The hand-written loop. A record that it cannot process is counted and passed over."""
    segments = users()
    bare = BareLoop(job, at_once, store_offsets=True)
    consumer, commit_due = bare.consumer, time.monotonic() + COMMIT_SECONDS
    rows_written = bad = 0

    def work(messages: list[Message]) -> None:
        nonlocal commit_due, rows_written, bad
        rows = []
        for message in messages:
            try:
                order = orjson.loads(message.value() or b"")
                segment = segments[order["user_id"]]
                total = order["qty"] * order["price"]
            except (KeyError, TypeError, orjson.JSONDecodeError):
                bad += 1
                continue
            if total >= LEAST_TOTAL:
                rows.append({"order_id": order["order_id"], "segment": segment, "total": total})
        rows_written += len(rows)  # the sink counts
        if time.monotonic() >= commit_due:
            commit_due = time.monotonic() + COMMIT_SECONDS
            commit(consumer)

    found = bare.run(work, at_end=lambda: commit(consumer))
    return {**found, "rows": rows_written, "bad": bad}


def commit(consumer: Consumer) -> None:
    """Commit what was read; nothing may have been since the last time."""
    try:
        consumer.commit(asynchronous=False)
    except KafkaException as error:
        if error.args[0].code() != KafkaError._NO_OFFSET:  # noqa: SLF001 - librdkafka's own codes begin so
            raise


@bolt
def parse(record: Record) -> Order:
    """Read an order; what is none is rejected."""
    try:
        order: Order = orjson.loads(record.value or b"")
    except orjson.JSONDecodeError as error:
        raise Reject(f"not an order: {error}") from error
    return order


class Price(Bolt[Order, Order]):
    """Looks the user up, and multiplies."""

    def open(self) -> None:
        """Load the users."""
        self._segments = users()

    def process(self, order: Order, /) -> Order:
        """Make the row. An order of an unknown user is rejected."""
        try:
            return {
                "order_id": order["order_id"],
                "segment": self._segments[order["user_id"]],
                "total": order["qty"] * order["price"],
            }
        except KeyError as error:
            raise Reject(f"no such user or field: {error}") from None


@bolt
def keep_large(row: Order) -> Order | Skip:
    """Drop small orders."""
    return row if row["total"] >= LEAST_TOTAL else SKIP


def functions(job: Job) -> Figures:
    """Three bolts in a row."""
    topology = Topology("enrich-functions")
    topology.source(job.topic).then(parse).then(Price).then(keep_large).into(DiscardSink())
    return run_headrace(topology, job)


class _Fields(msgspec.Struct, gc=False):
    order_id: int
    user_id: int
    qty: int
    price: float


class Columns:
    """The same work on a chunk at once, on any thread: nothing is changed after `__init__`.

    The table of users is a sorted array here.
    """

    def __init__(self) -> None:
        segments = users()
        self._numbers = np.array(list(segments), np.int64)
        self._segments = pa.array(list(segments.values()), pa.string())
        self._decode = msgspec.json.Decoder(list[_Fields]).decode

    def enrich(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Make the rows of a chunk. Raises Reject if any record is bad: the executor halves it."""
        values: list[Any] = batch.column("value").to_pylist()
        try:
            orders = self._decode(b"[" + b",".join(values) + b"]")
        except (msgspec.DecodeError, TypeError) as error:  # TypeError: no value
            raise Reject(f"not an order: {error}") from error
        count = batch.num_rows
        if len(orders) != count:
            raise Reject("not one order per record")
        numbers = np.fromiter((order.user_id for order in orders), np.int64, count)
        places = np.searchsorted(self._numbers, numbers)
        found = self._numbers[np.minimum(places, len(self._numbers) - 1)] == numbers
        if not found.all():
            raise Reject(f"no such user: {numbers[~found][0]}")
        price = np.fromiter((order.price for order in orders), np.float64, count)
        quantity = np.fromiter((order.qty for order in orders), np.int64, count)
        total = quantity * price
        columns: dict[str, Any] = {
            "order_id": pa.array([order.order_id for order in orders], pa.int64()),
            "segment": self._segments.take(pa.array(places, pa.int64())),
            "total": pa.array(total),
        }
        for name in batch.schema.names:
            if name != "value":
                columns[name] = batch.column(name)  # the lineage
        return pa.RecordBatch.from_pydict(columns).filter(pa.array(total >= LEAST_TOTAL))


def vectorised(job: Job) -> Figures:
    """One vectorised bolt."""
    topology = Topology("enrich-vectorised")
    columns = Columns()
    enrich = bolt(vectorised=True, columns=["value"], concurrent=True)(columns.enrich)
    topology.source(job.topic).then(enrich).into(DiscardSink())
    return run_headrace(topology, job)


VARIANTS: dict[str, Callable[[Job], Figures]] = {
    "loop": loop,
    "loop_few": partial(loop, at_once=FEW_AT_ONCE),
    "functions": functions,
    "vectorised": vectorised,
}
