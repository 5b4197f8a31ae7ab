"""Topologies of replicas in fault tests, one for each kind of sink.

They read every topic named after the trial, ".in-" and a word. A record's value is its id. The
first bolt takes a moment, has a side effect and derives the row's payload from the id; every tenth
record is rejected. Bolts and the sink of lines pass failpoints of their own. While the file
`hungry-<name>` exists, that replica takes all of what `HUNGRY_FOR` names: memory or descriptors.
"""

import asyncio
import contextlib
import os
import re
import threading
import time
from dataclasses import dataclass
from typing import Any

from headrace import Bolt, Record, Reject, Topology, bolt
from headrace.sinks import DeltaSink, KafkaDeadLetters, KafkaTopicSink
from tests.acceptance.feed import is_refused, payload
from tests.acceptance.traces import FOLDER, TOPIC, Lines, note, text
from tests.support.failpoints import install
from topology.sink import Sink, Staged
from topology.stream import Stream

MOMENT_SECONDS = 0.05
STUCK_POLL_SECONDS = 0.2
WORKERS = 500
BATCH_SECONDS = 0.1
TABLE = "rows"

_at = install(os.environ)
_name = os.environ.get("HEADRACE_REPLICAS__NAME", "")
_stuck, _hungry = FOLDER / f"stuck-{_name}", FOLDER / f"hungry-{_name}"
_HUNGRY_FOR = os.environ.get("HUNGRY_FOR", "memory")
_PIECE = 8 * 1024 * 1024


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


class Passed(Bolt[Row, Row]):
    def open(self) -> None:
        if _HUNGRY_FOR == "descriptors":
            threading.Thread(target=_take_descriptors, daemon=True).start()

    def process(self, row: Row, /) -> Row:
        _at("own_mid_tree")
        taken = []
        while _HUNGRY_FOR == "memory" and _hungry.exists():
            taken.append(b"x" * _PIECE)
        return row


def _take_descriptors() -> None:
    taken: list[int] = []
    while True:
        if _hungry.exists():
            with contextlib.suppress(OSError):  # there are no more
                while True:
                    taken.append(os.open(os.devnull, os.O_RDONLY))
        while taken and not _hungry.exists():
            os.close(taken.pop())
        time.sleep(STUCK_POLL_SECONDS)


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
    return source.then(derive, workers=WORKERS).then(Passed)


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
