"""Orders from Kafka into SQLite, exactly once.

ORDERS_DB=orders.db headrace run examples.foreach.pipeline:topology --config service.toml
"""

import os
from pathlib import Path

import msgspec

from examples.foreach.target import Order, SqliteOrders
from headrace import Record, Reject, Topology, bolt
from headrace.sinks import KafkaDeadLetters, TransactionalForeachSink

_decode_order = msgspec.json.Decoder(Order).decode


@bolt
def parse(record: Record) -> Order:
    """An order of its JSON."""
    try:
        return _decode_order(record.value or b"")
    except msgspec.MsgspecError as error:
        raise Reject(f"no order: {error}") from error


def stored(path: Path) -> Topology:
    """The topology, with the file at `path`."""
    topology = Topology("stored-orders", reliability="exactly-once")
    orders = topology.source("orders").then(parse)
    orders.into(TransactionalForeachSink(SqliteOrders(path), schema=Order), name="sqlite")
    topology.dead_letters.into(KafkaDeadLetters("orders.dead"))
    return topology


topology = stored(Path(os.environ.get("ORDERS_DB", "orders.db")))
