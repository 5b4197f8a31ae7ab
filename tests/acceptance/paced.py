"""A topology whose sink takes its time: `TRIAL_PACE` says how many rows it writes a second."""

import os
import time
from typing import Any

from headrace import Record, Topology, bolt
from headrace.sinks import KafkaDeadLetters, Staged
from tests.acceptance.traces import TOPIC, Lines, text

PACE = float(os.environ.get("TRIAL_PACE", "inf"))
BATCH_ROWS = 500
BATCH_SECONDS = 0.2


class Paced(Lines):
    """Writes so many rows a second, as a store that is far away."""

    def commit(self, staged: Staged) -> None:
        time.sleep(staged.num_rows / PACE)
        super().commit(staged)


@bolt
def place(record: Record) -> str:
    """The record's place, which is what its value begins with."""
    return text(record).partition(" ")[0]


def _made(sink: Lines) -> Topology:
    made = Topology("paced")
    stream: Any = made.source(TOPIC).then(place)
    stream.into(sink, batch_rows=BATCH_ROWS, batch_seconds=BATCH_SECONDS)
    made.dead_letters.into(KafkaDeadLetters(f"{TOPIC}.dead"))
    return made


paced = _made(Paced())
