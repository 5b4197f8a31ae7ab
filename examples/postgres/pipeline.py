"""Where parcels are: scans from Kafka into a table of PostgreSQL with a row for each on its way.

PARCELS_URL=postgresql://db/post PGUSER=post PGPASSWORD=… \
    headrace run examples.postgres.pipeline:topology --config service.toml
"""

import os
from datetime import datetime
from typing import TypedDict

import msgspec

from headrace import Reject, Topology, bolt
from headrace.payloads import json
from headrace.sinks import KafkaDeadLetters, PostgresSink

STATES = {"accepted": "on the way", "sorted": "on the way", "loaded": "out for delivery",
          "handed over": "delivered", "refused": "goes back"}  # fmt: skip


class Scan(msgspec.Struct, frozen=True, gc=False):
    """A parcel was seen somewhere."""

    parcel: str
    event: str
    place: str
    at: datetime


class Parcel(TypedDict):
    """A row of the table `parcels`: there is one for each that is not delivered.

    `is_delivered` is no column of it: where it is true, the parcel's row is deleted.
    """

    parcel: str
    state: str
    place: str
    seen_at: datetime
    is_delivered: bool


@bolt
def located(scan: Scan) -> Parcel:
    """Where the parcel is by this scan."""
    if scan.event not in STATES:
        raise Reject(f"nobody knows what '{scan.event}' is")
    return {
        "parcel": scan.parcel,
        "state": STATES[scan.event],
        "place": scan.place,
        "seen_at": scan.at,
        "is_delivered": scan.event == "handed over",
    }


def tracked(url: str) -> Topology:
    """The topology, with the database at `url`."""
    topology = Topology("parcels", reliability="exactly-once")
    parcels = topology.source("scans").then(json(Scan)).then(located)
    # The last row of a parcel counts: its scans are in one partition, and stay in order.
    table = PostgresSink(url, "parcels", schema=Parcel, key="parcel", deleted="is_delivered")
    parcels.into(table, name="parcels")
    topology.dead_letters.into(KafkaDeadLetters("scans.dead"))
    return topology


topology = tracked(os.environ.get("PARCELS_URL", "postgresql://127.0.0.1:5432/post"))
