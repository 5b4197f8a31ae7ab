"""Orders from Kafka into SQLite, exactly once.

ORDERS_DB=orders.db headrace run examples.own_sink.pipeline:topology --config service.toml
"""

import os
from pathlib import Path

import msgspec

from examples.own_sink.sink import Order, SqliteOrders
from headrace import Record, Reject, Topology, bolt
from headrace.sinks import KafkaDeadLetters

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
    orders.into(SqliteOrders(path))
    topology.dead_letters.into(KafkaDeadLetters("orders.dead"))
    return topology


topology = stored(Path(os.environ.get("ORDERS_DB", "orders.db")))
