"""Chains that mypy must take, and chains that it must refuse. Checked, never run.

`test_typing.py` runs mypy --strict over this file. An `ignore` that nothing needs is an
error itself, so each line below that carries one is a line that mypy refuses.
"""

from collections.abc import Iterator
from typing import TypedDict, assert_type

import pyarrow as pa

from headrace import SKIP, Bolt, Record, Reject, Skip, Topology, bolt
from headrace.sinks import DeltaSink, DiscardSink, KafkaSink, MemorySink, ParquetSink
from topology.topology import Stream


class Flight(TypedDict):
    carrier: str
    delay: int


class Event(TypedDict):
    kind: str


@bolt
def parse(record: Record) -> Flight | Skip:
    """Filter and reject."""
    if record.value is None:
        return SKIP
    if not record.value:
        raise Reject("empty")
    return {"carrier": record.value.decode(), "delay": len(record.headers)}


@bolt
def fan_out(flight: Flight) -> Iterator[Event]:
    """Give any number of values."""
    yield {"kind": flight["carrier"]}


@bolt
async def ask(flight: Flight) -> Flight | Skip:
    """Wait for an answer."""
    return flight


@bolt(vectorised=True)
def columns(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Work on a whole chunk."""
    return batch


class Enrich(Bolt[Flight, Flight]):
    """A bolt with a life."""

    def process(self, value: Flight, /) -> Flight | Skip:
        """Return it."""
        return value


class Split(Bolt[Flight, Event]):
    """A bolt with arguments that gives several values."""

    def __init__(self, count: int) -> None:
        self.count = count

    def process(self, value: Flight, /) -> Iterator[Event]:
        """Give some."""
        for _ in range(self.count):
            yield {"kind": value["carrier"]}


class Query(Bolt[Flight, Event]):
    """An async bolt with a life."""

    async def process(self, value: Flight, /) -> Event:
        """Wait for an answer."""
        return {"kind": value["carrier"]}


def right() -> None:
    """All of this is right."""
    topology = Topology("right")
    records = assert_type(topology.source("flights"), Stream[Record])
    flights = assert_type(records.then(parse), Stream[Flight])
    assert_type(flights.then(Enrich), Stream[Flight])
    assert_type(flights.then(Enrich()), Stream[Flight])
    assert_type(flights.then(ask, workers=8, timeout_seconds=2.0), Stream[Flight])
    events = assert_type(flights.then(fan_out, name="events"), Stream[Event])
    assert_type(flights.then(Split(2)), Stream[Event])
    assert_type(flights.then(Query, workers=4), Stream[Event])
    assert_type(records.then(columns), Stream[pa.RecordBatch])
    events.into(ParquetSink("events", schema=Event), batch_rows=10, batch_seconds=1)
    events.into(DeltaSink("events", schema=Event))
    events.into(MemorySink("events", schema=Event))
    events.into(MemorySink())
    events.into(DiscardSink())
    events.into(ParquetSink("events", schema=pa.schema([])))
    records.then(columns).into(ParquetSink("columns", schema=pa.schema([])))
    topology.dead_letters.into(KafkaSink("flights.dead"))


def wrong() -> None:
    """All of this is refused."""
    topology = Topology("wrong")
    records = topology.source("flights")
    flights = records.then(parse)
    events = flights.then(fan_out)
    records.then(fan_out)  # type: ignore[arg-type]  # it takes flights, not records
    flights.then(parse)  # type: ignore[arg-type]  # it takes records, not flights
    events.then(Enrich)  # type: ignore[arg-type]  # a class whose input is a flight
    events.then(Enrich())  # type: ignore[arg-type]
    events.then(ask)  # type: ignore[arg-type]  # an async function of a flight
    events.then(Split(1))  # type: ignore[arg-type]
    flights.then(Split)  # type: ignore[arg-type]  # a class that needs an argument
    flights.then(len)  # type: ignore[arg-type]  # no bolt
    flights.into(ParquetSink("t", schema=Event))  # type: ignore[arg-type]  # another row
    events.into(DeltaSink("t", schema=Flight))  # type: ignore[arg-type]
    events.into(MemorySink("t", schema=Flight))  # type: ignore[arg-type]
    events.into(KafkaSink("t"))  # type: ignore[arg-type]  # dead letters only
    topology.dead_letters.into(DiscardSink())  # type: ignore[arg-type]  # rows only
    topology.source(7)  # type: ignore[arg-type]


class WrongInput(Bolt[Flight, Event]):
    """Its process takes another value than it says."""

    def process(self, value: Record, /) -> Event:  # type: ignore[override]
        """Refused."""
        return {"kind": value.topic}


class WrongOutput(Bolt[Flight, Event]):
    """Its process gives another value than it says."""

    def process(self, value: Flight, /) -> Flight:  # type: ignore[override]
        """Refused."""
        return value


@bolt(vectorised=True)  # type: ignore[arg-type]
def not_columns(flight: Flight) -> Flight:
    """A vectorised bolt takes and gives a RecordBatch."""
    return flight
