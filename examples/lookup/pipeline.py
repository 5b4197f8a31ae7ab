"""Orders from Kafka, priced by an HTTP service, into a table.

PRICES_URL=http://… headrace run examples.lookup.pipeline:topology --config service.toml
"""

import os

from examples.lookup.bolts import WORKERS, AddPrice, parse
from examples.lookup.rows import PricedOrder
from headrace import Topology
from headrace.sinks import KafkaDeadLetters, SparkSink


def priced(url: str) -> Topology:
    """The topology, with the price service at `url`."""
    topology = Topology("priced-orders")
    orders = topology.source("orders").then(parse)
    # At most WORKERS requests at once; one that outlives its time-out is cancelled and retried.
    orders.then(AddPrice(url), workers=WORKERS, timeout_seconds=10.0).into(
        SparkSink("priced_orders", format="parquet", schema=PricedOrder)
    )
    topology.dead_letters.into(KafkaDeadLetters("orders.dead"))
    return topology


topology = priced(os.environ.get("PRICES_URL", "http://127.0.0.1:8000"))
