"""What each of the replicas of suite scale runs: it reads a topic and drops the records."""

import os

from headrace import Record, Topology, bolt
from headrace.sinks import DiscardSink, KafkaDeadLetters

TOPIC = os.environ["SCALE_TOPIC"]


@bolt
def pass_on(record: Record) -> Record:
    """Do nothing."""
    return record


topology = Topology("scale")
topology.source(TOPIC).then(pass_on).into(DiscardSink(), batch_seconds=0.2)
topology.dead_letters.into(KafkaDeadLetters(f"{TOPIC}.dead"))
