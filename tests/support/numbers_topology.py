"""Numbers from a topic into a Delta table, exactly once: a topology for commands."""

import os
from typing import TypedDict

from headrace import Record, Topology, bolt
from headrace.sinks import DeltaSink, KafkaDeadLetters

TOPIC = os.environ.get("NUMBERS", "numbers")


class Number(TypedDict):
    number: int


@bolt
def parse(record: Record) -> Number:
    return {"number": int(record.value or b"")}


topology = Topology(TOPIC, reliability="exactly-once")
topology.source(TOPIC).then(parse).into(
    DeltaSink("numbers", schema=Number), batch_rows=200, batch_seconds=0.2
)
topology.dead_letters.into(KafkaDeadLetters(f"{TOPIC}.dead"))
