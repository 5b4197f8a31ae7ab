"""The customers of a shop: their changes from Kafka into a Delta table with a row for each.

headrace run examples.upserts.pipeline:topology --config service.toml
"""

from typing import TypedDict

import msgspec

from headrace import Record, Reject, Topology, bolt
from headrace.sinks import DeltaSink, KafkaDeadLetters


class Told(msgspec.Struct, frozen=True, gc=False):
    """What a record's value says of a customer."""

    name: str
    town: str | None = None


class Customer(TypedDict):
    """A row of the table `customers`: there is one for each customer that is not deleted.

    `gone` is no column of it: where it is true, the customer's row is deleted.
    """

    id: int
    name: str | None
    town: str | None
    gone: bool


_decode_told = msgspec.json.Decoder(Told).decode


@bolt
def changed(record: Record) -> Customer:
    """What the record makes of a customer, whose number is its key; without a value, nothing."""
    try:
        number = int(record.key or b"")
        if record.value is None:  # a tombstone
            return {"id": number, "name": None, "town": None, "gone": True}
        told = _decode_told(record.value)
    except ValueError as error:  # msgspec's, too
        raise Reject(f"no customer: {error}") from error
    return {"id": number, "name": told.name, "town": told.town, "gone": False}


topology = Topology("customers", reliability="exactly-once")
# The last row of a customer counts: its changes are in one partition, and stay in order.
topology.source("customers").then(changed).into(
    DeltaSink("customers", schema=Customer, key=["id"], deleted="gone"), name="customers"
)
topology.dead_letters.into(KafkaDeadLetters("customers.dead"))
