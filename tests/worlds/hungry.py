"""Topologies for replicas one of which may be made to ask for ever more: memory, or descriptors.

They are as those of tests/acceptance/replicated.py. As long as the file `hungry-<name>` is there,
the replica of that name never has enough of what `HUNGRY_FOR` names: memory, or descriptors.
"""

import contextlib
import os
import re
import threading
import time
from typing import Any

from headrace import Bolt, Topology
from headrace.sinks import DeltaSink, KafkaDeadLetters, KafkaTopicSink, Sink
from tests.acceptance.replicated import (
    BATCH_SECONDS,
    TABLE,
    WORKERS,
    Row,
    as_bytes,
    as_line,
    derive,
)
from tests.acceptance.traces import FOLDER, TOPIC, Lines
from topology.stream import Stream

HUNGRY = FOLDER / f"hungry-{os.environ.get('HEADRACE_REPLICAS__NAME', '')}"
_PIECE = 8 * 1024 * 1024
_PAUSE_SECONDS = 0.2


class EatsMemory(Bolt[Row, Row]):
    """Takes memory until the process is dead."""

    def process(self, row: Row, /) -> Row:
        eaten = []
        while HUNGRY.exists():
            eaten.append(b"x" * _PIECE)
        return row


class TakesDescriptors(Bolt[Row, Row]):
    """Has a thread that takes all there are, and gives them back once it is not hungry."""

    def open(self) -> None:
        threading.Thread(target=_take, daemon=True).start()

    def process(self, row: Row, /) -> Row:
        return row


def _take() -> None:
    taken: list[int] = []
    while True:
        if HUNGRY.exists():
            with contextlib.suppress(OSError):  # there are no more
                while True:
                    taken.append(os.open(os.devnull, os.O_RDONLY))
        while taken and not HUNGRY.exists():
            os.close(taken.pop())
        time.sleep(_PAUSE_SECONDS)


def _topology(step: Any, reliability: Any) -> tuple[Topology, Stream[Row]]:
    made = Topology("hungry", reliability=reliability)
    made.dead_letters.into(KafkaDeadLetters(f"{TOPIC}.dead"))
    source = made.source(re.compile(rf"{re.escape(TOPIC)}\.in-\w+"))
    return made, source.then(derive, workers=WORKERS).then(step)


def _lines(step: Any) -> Topology:
    made, rows = _topology(step, "at-least-once")
    rows.then(as_line).into(Lines(), batch_seconds=BATCH_SECONDS)
    return made


def _exactly_once(step: Any, sink: Sink[Any]) -> Topology:
    made, rows = _topology(step, "exactly-once")
    rows.into(sink, name=TABLE, batch_seconds=BATCH_SECONDS)
    return made


_eats = TakesDescriptors if os.environ.get("HUNGRY_FOR") == "descriptors" else EatsMemory
lines = _lines(_eats)
delta = _exactly_once(_eats, DeltaSink(TABLE, schema=Row))
messages = _exactly_once(_eats, KafkaTopicSink(f"{TOPIC}.rows", value=as_bytes))
