"""Orders into a topic and into SQLite, exactly once: a topology to be killed."""

import os
from pathlib import Path

import msgspec

from examples.foreach.target import Order, SqliteOrders
from headrace import Record, Topology, bolt
from headrace.sinks import KafkaSink, TopicSink, TransactionalForeachSink

SOURCE = os.environ.get("SOURCE", "orders")

_decode_order = msgspec.json.Decoder(Order).decode


@bolt
def parse(record: Record) -> Order:
    """An order of its JSON."""
    return _decode_order(record.value or b"")


topology = Topology(f"exact-{SOURCE}", reliability="exactly-once")
orders = topology.source(SOURCE).then(parse)
orders.into(
    TopicSink(f"{SOURCE}.out", value=msgspec.json.encode),
    name="topic",
    batch_rows=400,
    batch_seconds=0.2,
)
orders.into(
    TransactionalForeachSink(SqliteOrders(Path(os.environ.get("ORDERS_DB", "-"))), schema=Order),
    name="sqlite",
    batch_rows=400,
    batch_seconds=0.2,
)
topology.dead_letters.into(KafkaSink(f"{SOURCE}.dead"))
