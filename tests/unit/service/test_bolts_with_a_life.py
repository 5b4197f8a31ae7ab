"""Async and vectorised bolts with a life of their own, in whole topologies."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from headrace import Bolt, Record, Topology
from headrace.sinks import MemoryDeadLetters, MemorySink
from headrace.testing import topology_test


def alone(bolt_: Any, **options: Any) -> Topology:
    topology = Topology("alone")
    topology.source("in").then(bolt_, **options).into(MemorySink("out"))
    topology.dead_letters.into(MemoryDeadLetters())
    return topology


def test_running_calls_are_cancelled_before_close() -> None:
    events: list[str] = []

    class Endless(Bolt[Record, int]):
        async def process(self, record: Record, /) -> int:
            events.append("begun")
            try:
                await asyncio.Event().wait()
            finally:
                events.append("cancelled")
            return record.offset

        async def close(self) -> None:
            events.append("closed")

    with topology_test(alone(Endless), patience_seconds=0.2) as kit:
        with pytest.raises(AssertionError):
            kit.send(b"a")
        assert events == ["begun"]
    assert events == ["begun", "cancelled", "closed"]


class Counting(Bolt[Any, pa.RecordBatch]):
    """A vectorised bolt with a life, ticks, and news."""

    vectorised = True
    columns = ("offset",)
    tick_seconds = 5.0

    def __init__(self) -> None:
        self.events: list[str] = []

    def open(self) -> None:
        self.events.append("open")

    def process(self, batch: pa.RecordBatch, /) -> Mapping[str, pa.RecordBatch]:
        assert batch.schema.names[0] == "offset"
        self.events.append(f"process {batch.num_rows}")
        odd = pc.equal(pc.bit_wise_and(batch["offset"], 1), 1)
        return {"default": batch.filter(pc.invert(odd)), "odd": batch.filter(odd)}

    def tick(self) -> None:
        self.events.append("tick")

    def partition_assigned(self, topic: str, partition: int) -> None:
        self.events.append(f"{topic} {partition}")

    def close(self) -> None:
        self.events.append("close")


def test_vectorised_bolt_opens_ticks_and_closes() -> None:
    inner = Counting()
    topology = Topology("counted")
    split = topology.source("in").then(inner, streams=("odd",))
    split.into(MemorySink("even"))
    split["odd"].into(MemorySink("odd"))
    topology.dead_letters.into(MemoryDeadLetters())
    with topology_test(topology) as kit:
        kit.send(b"a", b"b", b"c")
        kit.advance(6)
        assert kit.rows_of("even") == [{"offset": 0}, {"offset": 2}]
        assert kit.rows_of("odd") == [{"offset": 1}]
    assert inner.events == ["open", "in 0", "process 3", "tick", "close"]
