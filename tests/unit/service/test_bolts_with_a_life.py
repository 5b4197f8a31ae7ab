"""Async and vectorised bolts with a life of their own, in whole topologies."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from headrace import Bolt, InvalidTopology, Record, Topology, bolt
from headrace.sinks import MemoryDeadLetters, MemorySink
from headrace.testing import topology_test


def alone(bolt_: Any, **options: Any) -> Topology:
    topology = Topology("alone")
    topology.source("in").then(bolt_, **options).into(MemorySink("out"))
    topology.dead_letters.into(MemoryDeadLetters())
    return topology


class Connected(Bolt[Record, int]):
    """Uses what belongs to the event loop from `open` to `close`."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.loops: set[Any] = set()

    def note(self, event: str) -> None:
        self.events.append(event)
        self.loops.add(asyncio.get_running_loop())

    async def open(self) -> None:
        self.note("open")
        self.lock = asyncio.Lock()

    async def process(self, record: Record, /) -> int:
        async with self.lock:
            self.note("process")
        return record.offset

    async def close(self) -> None:
        self.note("close")


def test_a_client_of_the_event_loop_lives_from_open_to_close() -> None:
    inner = Connected()
    topology = alone(inner, workers=2)
    with topology_test(topology) as kit:
        assert inner.events == ["open"]
        kit.send(b"a", b"b")
        assert sorted(kit.rows) == [0, 1]
    assert inner.events == ["open", "process", "process", "close"]
    assert len(inner.loops) == 1


def test_calls_that_still_run_are_cancelled_before_their_bolt_is_closed() -> None:
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


def test_the_event_loop_ends_when_a_bolt_cannot_be_opened() -> None:
    loops: list[asyncio.AbstractEventLoop] = []

    class Refused(Connected):
        async def open(self) -> None:
            loops.append(asyncio.get_running_loop())
            raise ConnectionRefusedError("nobody there")

    with (
        pytest.raises(ConnectionRefusedError, match="nobody there") as caught,
        topology_test(alone(Refused)),
    ):
        raise AssertionError("it must not open")
    assert caught.value.__notes__ == ["open() of bolt 'Refused'"]
    assert loops[0].is_closed()


def test_an_open_that_nobody_awaits_is_refused() -> None:
    class Odd(Bolt[Record, int]):
        async def open(self) -> None:
            pass

        def process(self, record: Record, /) -> int:
            return record.offset

    with pytest.raises(InvalidTopology), topology_test(alone(Odd)):
        raise AssertionError("it must not open")


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


def test_a_vectorised_bolt_may_have_a_life_like_any_other() -> None:
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


def test_a_vectorised_bolt_after_rows_gets_their_columns() -> None:
    @bolt
    def numbered(record: Record) -> dict[str, int]:
        return {"n": record.offset}

    class Doubled(Bolt[Any, pa.RecordBatch]):
        vectorised = True

        def process(self, batch: pa.RecordBatch, /) -> pa.RecordBatch:
            place = batch.schema.get_field_index("n")
            return batch.set_column(place, "n", pc.multiply(batch["n"], 2))

    topology = Topology("rows")
    topology.source("in").then(numbered).then(Doubled).into(MemorySink("out"))
    topology.dead_letters.into(MemoryDeadLetters())
    with topology_test(topology) as kit:
        assert kit.send(b"", b"").rows == [{"n": 0}, {"n": 2}]
