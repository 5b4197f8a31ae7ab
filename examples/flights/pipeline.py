"""Flights from Kafka into a Delta table of departures and arrivals.

headrace run examples.flights.pipeline:topology --config examples/flights/service.toml
"""

from examples.flights.bolts import Enrich, events, keep_flown, parse
from examples.flights.rows import FlightEvent
from headrace import Topology
from headrace.sinks import DeltaSink, KafkaSink

topology = Topology("flights")

# Every record becomes a flight, or a dead letter if it is none.
flights = topology.source("flights").then(parse)

# Cancelled flights end here, on purpose and counted; the others are looked up.
enriched = flights.then(keep_flown).then(Enrich)

# One flight becomes one or two rows. Its offset is committed once all of them are in the table.
enriched.then(events).into(
    DeltaSink("flight_events", schema=FlightEvent), batch_rows=100_000, batch_seconds=5
)

topology.dead_letters.into(KafkaSink("flights.dead"))
