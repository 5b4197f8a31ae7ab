"""The flights pipeline with many small commits, so that a fault hits between some of them.

`FLIGHTS_TOPIC` names the topic, so that tests can share a broker.
"""

import os

from examples.flights.bolts import Enrich, events, keep_flown, parse
from examples.flights.rows import FlightEvent
from headrace import Topology
from headrace.sinks import DeltaSink, KafkaDeadLetters

BATCH_ROWS = 400

TOPIC = os.environ["FLIGHTS_TOPIC"]
topology = Topology("flights-small-batches")
flights = topology.source(TOPIC).then(parse).then(keep_flown).then(Enrich)
flights.then(events).into(
    DeltaSink("flight_events", schema=FlightEvent), batch_rows=BATCH_ROWS, batch_seconds=2
)
topology.dead_letters.into(KafkaDeadLetters(f"{TOPIC}.dead"))
