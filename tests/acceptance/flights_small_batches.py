"""The flights pipeline with many small commits, so that a fault hits between some of them.

`FLIGHTS_SINK` says who writes the table: delta-rs, or Spark, to which a commit costs a hundred
times as much.
"""

import os

from examples.flights.bolts import Enrich, events, keep_flown, parse
from examples.flights.rows import FlightEvent
from headrace import Topology
from headrace.sinks import DeltaSink, KafkaDeadLetters, Sink, SparkSink

BATCH_ROWS = {"delta": 400, "spark": 2_000}

TOPIC = os.environ["TRIAL_TOPIC"]
SINK = os.environ["FLIGHTS_SINK"]
topology = Topology("flights-small-batches")
flights = topology.source(TOPIC).then(parse).then(keep_flown).then(Enrich)
table: Sink[FlightEvent] = (
    SparkSink("flight_events", format="delta", schema=FlightEvent)
    if SINK == "spark"
    else DeltaSink("flight_events", schema=FlightEvent)
)
flights.then(events).into(table, batch_rows=BATCH_ROWS[SINK], batch_seconds=2)
topology.dead_letters.into(KafkaDeadLetters(f"{TOPIC}.dead"))
