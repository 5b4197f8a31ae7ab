"""Flights from Kafka into a Delta table of departures and arrivals.

headrace run examples.flights.pipeline:topology --config examples/flights/service.toml
"""

from typing import Any

from examples.flights.bolts import Enrich, events, keep_flown, parse
from examples.flights.rows import FlightEvent
from headrace import Topology
from headrace.sinks import DeltaSink, KafkaDeadLetters, Sink, SparkSink

TABLE = "flight_events"


def flights_into(table: Sink[Any]) -> Topology:
    """The pipeline, with a sink of FlightEvents."""
    topology = Topology("flights")

    # Every record becomes a flight, or a dead letter if it is none.
    flights = topology.source("flights").then(parse)

    # Cancelled flights end here, on purpose and counted; the others are looked up.
    enriched = flights.then(keep_flown).then(Enrich)

    # One flight becomes one or two rows. Its offset is committed once all of them are in the table.
    enriched.then(events).into(table, batch_seconds=1)

    topology.dead_letters.into(KafkaDeadLetters("flights.dead"))
    return topology


# Spark writes the table.
topology = flights_into(SparkSink(TABLE, format="delta", schema=FlightEvent))

# Arrow writes its files.
native = flights_into(DeltaSink(TABLE, schema=FlightEvent))
