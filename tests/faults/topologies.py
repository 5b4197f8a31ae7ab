"""Topologies that are hit at every crash point, one for each kind of sink; crash.py runs them.

They read every topic that is called as the trial and ".in-" and something. A record's value is its
id. The first bolt takes a moment, has a side effect and derives the row's payload from the id;
every tenth record is refused. Bolts and the sink of lines pass places of their own.
"""

import asyncio
import os
import re
from dataclasses import dataclass
from typing import Any

from headrace import Record, Reject, Topology, bolt
from headrace.sinks import DeltaSink, KafkaDeadLetters, KafkaTopicSink
from service.failpoints import failpoints
from tests.acceptance.feed import is_refused, payload
from tests.acceptance.traces import FOLDER, TOPIC, Lines, note, text
from topology.sink import Sink, Staged
from topology.stream import Stream

MOMENT_SECONDS = 0.05
STUCK_POLL_SECONDS = 0.2
WORKERS = 500
BATCH_SECONDS = 0.1
TABLE = "rows"

_at = failpoints(os.environ)
_stuck = FOLDER / f"stuck-{os.environ['HEADRACE_REPLICAS__NAME']}"


@dataclass
class Row:
    id: str
    payload: int


@bolt
async def derive(record: Record) -> Row:
    await asyncio.sleep(MOMENT_SECONDS)
    while _stuck.exists():  # noqa: ASYNC110 - another process makes it
        await asyncio.sleep(STUCK_POLL_SECONDS)
    id_ = text(record)
    if is_refused(record.offset):
        raise Reject("it is refused")
    note("effects", id_)
    _at("own_effect_done")
    return Row(id_, payload(id_))


@bolt
def passed(row: Row) -> Row:
    _at("own_mid_tree")
    return row


@bolt
def as_line(row: Row) -> str:
    return _line(row)


def _as_bytes(row: Row) -> bytes:
    return _line(row).encode()


def _line(row: Row) -> str:
    return f"{row.id} {row.payload}"


class HalfLines(Lines):
    """Writes a batch's lines, and passes a place between two halves of them."""

    def commit(self, staged: Staged) -> None:
        for piece in staged.parts:
            lines: Any = piece  # text: never columns
            half = len(lines) // 2
            for part in (lines[:half], lines[half:]):
                note(self.name, *part)
                _at("own_sink_writing")


def _rows_of(made: Topology) -> Stream[Row]:
    made.dead_letters.into(KafkaDeadLetters(f"{TOPIC}.dead"))
    source = made.source(re.compile(rf"{re.escape(TOPIC)}\.in-\w+"))
    return source.then(derive, workers=WORKERS).then(passed)


def _at_least_once() -> Topology:
    made = Topology("faults-at-least-once")
    _rows_of(made).then(as_line).into(HalfLines(), batch_seconds=BATCH_SECONDS)
    return made


def _exactly_once(sink: Sink[Any]) -> Topology:
    made = Topology("faults-exactly-once", reliability="exactly-once")
    _rows_of(made).into(sink, name=TABLE, batch_seconds=BATCH_SECONDS)
    return made


lines = _at_least_once()
messages = _exactly_once(KafkaTopicSink(f"{TOPIC}.rows", value=_as_bytes))
delta = _exactly_once(DeltaSink(TABLE, schema=Row))
