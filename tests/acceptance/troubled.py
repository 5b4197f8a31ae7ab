"""Topologies in which some records are trouble, each with another kind of bolt.

traces.py says how they meet with their tests.
"""

import asyncio
import os
import threading
import time
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from headrace import Record, Topology, bolt
from headrace.sinks import KafkaDeadLetters
from tests.acceptance.traces import TOPIC, TROUBLE, Lines, Trouble, check, is_opened, text
from topology.sink import Staged
from topology.stream import Stream

WORKERS = 200
THREADS = 4
SLOW_SECONDS = 3.0
POLL_SECONDS = 0.02
KEYS = 20
BATCH_SECONDS = 0.05


@bolt
def fails(record: Record) -> str:
    check(text(record))
    return text(record)


@bolt
async def fails_awaited(record: Record) -> str:
    await asyncio.sleep(0)
    check(text(record))
    return text(record)


@bolt
async def hangs(record: Record) -> str:
    """Never come back, instead of failing; the step's time-out sees to it."""
    try:
        check(text(record))
    except Trouble:
        await asyncio.Event().wait()
    return text(record)


@bolt(blocking=True)
def fails_in_a_thread(record: Record) -> str:
    check(text(record))
    return text(record)


@bolt(blocking=True)
def hangs_in_a_thread(record: Record) -> str:
    """Never return, instead of failing; the thread is left behind."""
    try:
        check(text(record))
    except Trouble:
        threading.Event().wait()
    return text(record)


@bolt(vectorised=True, columns=["value"])
def fails_as_a_batch(batch: pa.RecordBatch) -> pa.RecordBatch:
    places = pc.cast(batch["value"], pa.string())
    for place in map(str, places.to_pylist()):
        check(place)
    return batch.set_column(batch.schema.get_field_index("value"), "value", places)


@bolt
async def waits(record: Record) -> str:
    place = text(record)
    while place in TROUBLE and not is_opened(place):  # noqa: ASYNC110 - another process opens it
        await asyncio.sleep(POLL_SECONDS)
    return place


@bolt
async def takes_long(record: Record) -> str:
    await asyncio.sleep(SLOW_SECONDS if text(record) in TROUBLE else 0)
    return text(record)


@bolt
def passes(record: Record) -> str:
    return text(record)


@bolt
def place(record: Record) -> str:
    return text(record).partition(" ")[0]


class Paced(Lines):
    """Writes `TRIAL_PACE` rows a second, as a store that is far away."""

    def commit(self, staged: Staged) -> None:
        time.sleep(staged.num_rows / float(os.environ.get("TRIAL_PACE", "inf")))
        super().commit(staged)


def _through(
    bolt: Any,
    workers: int = 1,
    *,
    timeout_seconds: float | None = None,
    sink: Lines | None = None,
    arrange: Callable[[Stream[Record]], Stream[Record]] = lambda stream: stream,
    **batch: float,
) -> Topology:
    made = Topology("troubled")
    stream = arrange(made.source(TOPIC)).then(
        bolt, workers=workers, timeout_seconds=timeout_seconds
    )
    stream.into(sink or Lines(), **{"batch_seconds": BATCH_SECONDS, **batch})
    made.dead_letters.into(KafkaDeadLetters(f"{TOPIC}.dead"))
    return made


function = _through(fails)
awaited = _through(fails_awaited, WORKERS)
hanging = _through(hangs, WORKERS, timeout_seconds=0.5)
blocking = _through(fails_in_a_thread, THREADS)
hanging_thread = _through(hangs_in_a_thread, THREADS, timeout_seconds=0.5)
by_key = _through(
    fails_awaited,
    WORKERS,
    arrange=lambda stream: stream.keyed_by(lambda record: record.offset % KEYS),
)
in_order = _through(fails_in_a_thread, THREADS, arrange=Stream.ordered)
vectorised = _through(fails_as_a_batch)
rejected = _through(passes, sink=Lines(rejects=TROUBLE))
waiting = _through(waits, WORKERS)
slow = _through(takes_long, WORKERS)
paced = _through(place, sink=Paced(), batch_rows=500, batch_seconds=0.2)
