"""Topologies for several replicas, one for each kind of sink; replicas.py runs them.

They read every topic that is called as the trial and ".in-" and something, and make one row of
each record: its id, which is its value, and what is derived from the id. The bolt takes a moment,
so that records are in flight whatever happens to a replica.
"""

import asyncio
import re
from dataclasses import dataclass
from typing import Any

from headrace import Record, Topology, bolt
from headrace.sinks import DeltaSink, KafkaDeadLetters, KafkaTopicSink
from tests.acceptance.feed import payload
from tests.acceptance.traces import TOPIC, Lines, text
from topology.sink import Sink
from topology.stream import Stream

MOMENT_SECONDS = 0.1
WORKERS = 500
BATCH_SECONDS = 0.1
TABLE = "rows"


@dataclass
class Row:
    id: str
    payload: int


@bolt
async def derive(record: Record) -> Row:
    await asyncio.sleep(MOMENT_SECONDS)
    return Row(text(record), payload(text(record)))


@bolt
def as_line(row: Row) -> str:
    return _line(row)


def as_bytes(row: Row) -> bytes:
    return _line(row).encode()


def _line(row: Row) -> str:
    return f"{row.id} {row.payload}"


def _rows_of(made: Topology) -> Stream[Row]:
    made.dead_letters.into(KafkaDeadLetters(f"{TOPIC}.dead"))
    return made.source(re.compile(rf"{re.escape(TOPIC)}\.in-\w+")).then(derive, workers=WORKERS)


def _at_least_once() -> Topology:
    made = Topology("replicas-at-least-once")
    _rows_of(made).then(as_line).into(Lines(), batch_seconds=BATCH_SECONDS)
    return made


def _exactly_once(sink: Sink[Any]) -> Topology:
    made = Topology("replicas-exactly-once", reliability="exactly-once")
    _rows_of(made).into(sink, name=TABLE, batch_seconds=BATCH_SECONDS)
    return made


lines = _at_least_once()
delta = _exactly_once(DeltaSink(TABLE, schema=Row))
messages = _exactly_once(KafkaTopicSink(f"{TOPIC}.rows", value=as_bytes))
