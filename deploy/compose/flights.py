"""The flights of docker-compose.yml: events into a Delta table, late ones into PostgreSQL."""

import os
from datetime import datetime
from typing import TypedDict

from examples.flights.bolts import Enrich, events, keep_flown, parse
from examples.flights.rows import EnrichedFlight, FlightEvent
from headrace import SKIP, Skip, Topology, bolt
from headrace.sinks import DeltaSink, KafkaDeadLetters, PostgresSink

LATE_MINUTES = 180


class Late(TypedDict):
    """A departure that is three hours late or more."""

    hour: datetime
    carrier: str
    flight: int
    origin: str
    carrier_name: str
    delay_minutes: int


@bolt
def keep_late(enriched: EnrichedFlight) -> Late | Skip:
    """Keep departures that are very late."""
    flight = enriched.flight
    if flight.dep_delay is None or flight.dep_delay < LATE_MINUTES:
        return SKIP
    return {
        "hour": enriched.hour,
        "carrier": flight.carrier,
        "flight": flight.flight,
        "origin": flight.origin,
        "carrier_name": enriched.carrier_name,
        "delay_minutes": flight.dep_delay,
    }


topology = Topology("flights")
enriched = topology.source("flights").then(parse).then(keep_flown).then(Enrich)
enriched.then(events).into(
    DeltaSink("flight_events", schema=FlightEvent), batch_rows=100_000, batch_seconds=5
)
late = PostgresSink(
    os.environ["FLIGHTS_URL"],
    "late_departures",
    schema=Late,
    key=("hour", "carrier", "flight", "origin"),  # a flight that comes twice is there once
)
enriched.then(keep_late).into(late, batch_seconds=5)
topology.dead_letters.into(KafkaDeadLetters("flights.dead"))
