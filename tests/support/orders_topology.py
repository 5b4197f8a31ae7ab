"""A topology that has something of everything that metrics tell: for the tests of dashboards."""

import asyncio
import json
from typing import TypedDict

from headrace import SKIP, Record, Reject, Skip, Topology, bolt
from headrace.sinks import DeltaSink, KafkaDeadLetters

TOPIC = "watched-orders"


class Order(TypedDict):
    id: int
    euros: float


_failed: set[int] = set()


@bolt
def parse(record: Record) -> Order | Skip:
    try:
        order: Order = json.loads(record.value or b"")
    except ValueError as error:
        raise Reject("not JSON") from error
    if order["id"] % 50 == 1 and order["id"] not in _failed:
        _failed.add(order["id"])
        raise RuntimeError("fails once")
    return order if order["id"] % 10 else SKIP


@bolt
async def enrich(order: Order) -> Order:
    await asyncio.sleep(0.001)
    return order


topology = Topology("watched-orders", reliability="exactly-once")
enriched = topology.source(TOPIC).then(parse).then(enrich, workers=8)
enriched.into(DeltaSink("orders", schema=Order), batch_seconds=1, name="orders")
topology.dead_letters.into(KafkaDeadLetters(f"{TOPIC}.dead"))
