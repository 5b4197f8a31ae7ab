"""Topologies whose trouble takes what a process has: all memory, or all descriptors.

traces.py says how they meet with their tests.
"""

import contextlib
import os
import time

from headrace import Record, Topology, bolt
from headrace.sinks import KafkaSink
from tests.acceptance.traces import FOLDER, TOPIC, TROUBLE, Lines, is_opened, text
from tests.acceptance.troubled import BATCH_SECONDS, POLL_SECONDS, THREADS

_PIECE_BYTES = 16 << 20


@bolt
def takes_memory(record: Record) -> str:
    """Take memory, and use it, until there is none."""
    place = text(record)
    taken = []
    while place in TROUBLE and not is_opened(place):
        taken.append(b"x" * _PIECE_BYTES)
    return place


@bolt(blocking=True)
def takes_descriptors(record: Record) -> str:
    """Take all descriptors, and each that comes free, until the record is opened.

    The sink is left to open its file first.
    """
    place = text(record)
    taken: list[int] = []
    rows = FOLDER / f"rows-{os.getpid()}"
    while place in TROUBLE and not rows.exists():
        time.sleep(POLL_SECONDS)
    while place in TROUBLE and not is_opened(place):
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.open(os.devnull, os.O_RDONLY))
        time.sleep(POLL_SECONDS)
    for each in taken:
        os.close(each)
    return place


def _through(bolt: object) -> Topology:
    made = Topology("starved")
    stream = made.source(TOPIC).then(bolt, workers=THREADS if bolt is takes_descriptors else 1)  # type: ignore[call-overload]
    stream.into(Lines(), batch_seconds=BATCH_SECONDS)
    made.dead_letters.into(KafkaSink(f"{TOPIC}.dead"))
    return made


memory = _through(takes_memory)
descriptors = _through(takes_descriptors)
