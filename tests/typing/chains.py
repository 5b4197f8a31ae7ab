"""Chains that mypy must take, and chains that it must refuse. Checked, never run.

`test_typing.py` runs mypy --strict over this file. An `ignore` that nothing needs is an
error itself, so each line below that carries one is a line that mypy refuses.
"""

from collections.abc import AsyncIterator, Iterator
from functools import partial
from typing import Any, TypedDict, assert_type

import pyarrow as pa

from headrace import (
    SKIP,
    AdvancedBolt,
    Bolt,
    Collector,
    Hooks,
    Record,
    Reject,
    RetryPolicy,
    Skip,
    To,
    Topology,
    Tuple,
    all_tasks,
    bolt,
    custom,
    fields,
    reference,
)
from headrace.sinks import DeltaSink, DiscardSink, KafkaDeadLetters, MemorySink, SparkSink
from headrace.testing import topology_test
from topology.stream import Stream


class Flight(TypedDict):
    carrier: str
    delay: int


class Event(TypedDict):
    kind: str


@bolt
def parse(record: Record) -> Flight | Skip:
    if record.value is None:
        return SKIP
    if not record.value:
        raise Reject("empty")
    return {"carrier": record.value.decode(), "delay": len(record.headers)}


@bolt
def fan_out(flight: Flight) -> Iterator[Event]:
    yield {"kind": flight["carrier"]}


@bolt
async def ask(flight: Flight) -> Flight | Skip:
    return flight


async def ask_plainly(flight: Flight) -> Flight | Skip:
    return flight


@bolt
def sort_out(flight: Flight) -> Flight | To | Skip:
    return To("late", flight) if flight["delay"] else flight


@bolt
def spread(flight: Flight) -> Iterator[Event | To]:
    yield {"kind": flight["carrier"]}
    yield To("late", flight)


@bolt
async def sort_out_later(flight: Flight) -> Flight | To:
    return flight


@bolt
async def stream(flight: Flight) -> AsyncIterator[Event]:
    yield {"kind": flight["carrier"]}


@bolt(blocking=True)
def fetch(flight: Flight) -> Flight | Skip:
    return flight


@bolt(blocking=True)
def pages(flight: Flight) -> Iterator[Event]:
    yield {"kind": flight["carrier"]}


@bolt
def only_by_name(flight: Flight) -> To:
    return To("late", flight)


@bolt(vectorised=True)
def split(batch: pa.RecordBatch) -> dict[str, pa.RecordBatch]:
    return {"default": batch, "late": batch}


@bolt(vectorised=True)
def columns(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


class Enrich(Bolt[Flight, Flight]):
    def process(self, value: Flight, /) -> Flight | Skip:
        return value


class Split(Bolt[Flight, Event]):
    def __init__(self, count: int) -> None:
        self.count = count

    def process(self, value: Flight, /) -> Iterator[Event]:
        for _ in range(self.count):
            yield {"kind": value["carrier"]}


class Query(Bolt[Flight, Event]):
    async def process(self, value: Flight, /) -> Event:
        return {"kind": value["carrier"]}


class Connected(Bolt[Flight, Event]):
    async def open(self) -> None: ...

    async def process(self, value: Flight, /) -> Event:
        return {"kind": value["carrier"]}

    async def tick(self) -> None: ...

    async def close(self) -> None: ...


class Columns(Bolt[Any, pa.RecordBatch]):
    vectorised = True
    columns = ("value", "offset")

    def open(self) -> None: ...

    def process(self, batch: pa.RecordBatch, /) -> dict[str, pa.RecordBatch]:
        return {"default": batch}


class Delays(AdvancedBolt[Flight, Event]):
    def process(self, tuple_: Tuple[Flight], collector: Collector[Event], /) -> None:
        collector.emit({"kind": tuple_.value["carrier"]}, anchors=tuple_)
        collector.ack(tuple_)


class Sorting(Bolt[Flight, Flight]):
    def process(self, value: Flight, /) -> Flight | To | Skip:
        return To("late", value)


def carrier(flight: Flight) -> str:
    return flight["carrier"]


def task_of(flight: Flight, tasks: int) -> int:
    return flight["delay"] % tasks


def right() -> None:
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
    events.into(SparkSink("events", format="parquet", schema=Event), batch_rows=10, batch_seconds=1)
    events.into(DeltaSink("events", schema=Event))
    events.spark(lambda frame: frame.distinct(), schema=Event).into(DeltaSink("t", schema=Flight))
    records.spark(lambda frame: frame.select("value")).into(DiscardSink(), batch_rows=10)
    events.into(MemorySink("events", schema=Event))
    events.into(MemorySink())
    events.into(DiscardSink())
    events.into(SparkSink("events", format="parquet", schema=pa.schema([])))
    records.then(columns).into(SparkSink("columns", format="parquet", schema=pa.schema([])))
    sorted_out = assert_type(flights.then(sort_out, streams=("late",)), Stream[Flight])
    assert_type(sorted_out["late"], Stream[Any])
    assert_type(flights.then(Sorting, streams=("late",)), Stream[Flight])
    assert_type(flights.then(spread, streams=("late",)), Stream[Event])
    assert_type(flights.then(sort_out_later, streams=("late",)), Stream[Flight])
    assert_type(flights.then(stream, workers=2), Stream[Event])
    assert_type(flights.then(fetch, workers=2, timeout_seconds=1.5), Stream[Flight])
    assert_type(records.then(split, streams=("late",)), Stream[pa.RecordBatch])
    assert_type(flights.merge(sorted_out), Stream[Flight])
    assert_type(flights.merge(events), Stream[Flight | Event])
    assert_type(flights.keyed_by("carrier"), Stream[Flight])
    assert_type(flights.keyed_by(("carrier", "delay")).then(Enrich, tasks=2), Stream[Flight])
    assert_type(flights.keyed_by(carrier).then(ask, workers=8), Stream[Flight])
    assert_type(flights.keyed_by(lambda flight: flight["delay"]).then(fetch), Stream[Flight])
    assert_type(flights.ordered().then(fan_out), Stream[Event])
    assert_type(flights.then(Enrich, tasks=3, grouping=all_tasks()), Stream[Flight])
    assert_type(flights.then(Enrich, tasks=3, grouping=fields("carrier")), Stream[Flight])
    assert_type(flights.then(Enrich, tasks=3, grouping=custom(task_of)), Stream[Flight])
    assert_type(flights.then(ask, retries=RetryPolicy(limit=1)), Stream[Flight])
    assert_type(flights.then(Delays, timeout_seconds=60.0), Stream[Event])
    topology.source("slow", records_per_second=10)
    topology.hooks(Hooks())
    Topology("once", reliability="at-most-once")
    topology.dead_letters.into(KafkaDeadLetters("flights.dead"))


@bolt
def either(value: Flight | Event) -> str:
    return str(value)


def right_too() -> None:
    topology = Topology("right")
    records = topology.source("flights")
    flights = records.then(parse)
    events = flights.then(fan_out)
    assert_type(flights.merge(events, records), Stream[Any])
    assert_type(flights.merge(events, events), Stream[Flight | Event])
    assert_type(flights.then(pages, workers=2), Stream[Event])
    assert_type(flights.then(Connected, workers=2), Stream[Event])
    assert_type(records.then(Columns, streams=("late",)), Stream[pa.RecordBatch])
    assert_type(flights.then(only_by_name, streams=("late",))["late"], Stream[Any])
    flights.merge(events).then(either)
    assert_type(records.map(parse), Stream[Flight])
    assert_type(flights.map(carrier), Stream[str])
    assert_type(flights.map(lambda flight: flight["delay"], name="delay"), Stream[int])
    assert_type(flights.map(partial(task_of, tasks=2)), Stream[int])
    assert_type(flights.map(ask, workers=2), Stream[Flight])
    assert_type(flights.map(ask_plainly, workers=2), Stream[Flight])
    assert_type(flights.map(sort_out), Stream[Flight])
    assert_type(flights.flat_map(fan_out), Stream[Event])
    assert_type(flights.flat_map(stream.function), Stream[Any])
    assert_type(flights.flat_map(lambda flight: [flight["carrier"]]), Stream[str])
    assert_type(flights.filter(lambda flight: flight["delay"] > 0), Stream[Flight])
    branches = flights.branch(late=lambda flight: flight["delay"] > 0)
    assert_type(branches["late"], Stream[Flight])
    assert_type(branches.map(carrier), Stream[str])
    topology_test(topology, seed=3, retries=RetryPolicy(limit=1)).close()


def event_kind(event: Event) -> str:
    return event["kind"]


def wrong() -> None:
    seats = reference("seats.parquet", key=["plane", "year"], value="n", key_type=tuple[str, int])
    assert_type(seats["N14228", 1999], Any)
    seats["N14228", "1999"]  # type: ignore[index]  # a year is a number
    seats.get("N14228")  # type: ignore[arg-type]
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
    flights.into(SparkSink("t", format="parquet", schema=Event))  # type: ignore[arg-type]  # mypy only
    events.into(DeltaSink("t", schema=Flight))  # type: ignore[arg-type]  # mypy only
    events.into(MemorySink("t", schema=Flight))  # type: ignore[arg-type]  # mypy only
    for_flights = MemorySink("t", schema=Flight)
    events.into(for_flights)  # type: ignore[arg-type]
    events.into(KafkaDeadLetters("t"))  # type: ignore[arg-type]  # dead letters only
    topology.dead_letters.into(DiscardSink())  # type: ignore[arg-type]  # rows only
    topology.source(7)  # type: ignore[arg-type]
    flights.then(sort_out).then(fan_out).then(ask)  # type: ignore[arg-type]
    flights.then(Enrich(), tasks=2)  # type: ignore[call-overload]  # an instance is one task
    flights.keyed_by(event_kind)  # type: ignore[arg-type]  # a key of events
    flights.keyed_by(7)  # type: ignore[arg-type]
    events.then(Delays)  # type: ignore[arg-type]
    flights.then(ask, retries=3)  # type: ignore[call-overload]  # a policy
    flights.then(Enrich, grouping="shuffle", tasks=2)  # type: ignore[call-overload]
    flights.then(sort_out, streams=7)  # type: ignore[call-overload]
    flights.spark(str, schema=Event)  # type: ignore[arg-type]  # they are flights
    flights.spark(str, schema=Flight).then(ask)  # type: ignore[attr-defined]  # only into()
    events.map(carrier)  # type: ignore[arg-type]  # a function of a flight
    events.flat_map(fan_out)  # type: ignore[arg-type]
    flights.flat_map(lambda flight: flight["delay"])  # type: ignore[arg-type, return-value]
    events.filter(lambda event: event["delay"])  # type: ignore[typeddict-item]
    flights.map(lambda flight: [flight]).then(ask)  # type: ignore[arg-type]  # a list of flights
    flights.branch(late=event_kind)  # type: ignore[arg-type]
    flights.merge(ask)  # type: ignore[call-overload]
    flights.merge(events).then(Enrich)  # type: ignore[arg-type]  # some are events
    flights.then(Delays).then(Enrich)  # type: ignore[arg-type]  # they are events
    flights.then(pages).then(ask)  # type: ignore[arg-type]  # the same
    topology_test(topology, seeed=3)  # type: ignore[call-arg]
    topology.hooks(Enrich())  # type: ignore[arg-type]
    Topology("never", reliability="never")  # type: ignore[arg-type]


class WrongInput(Bolt[Flight, Event]):
    def process(self, value: Record, /) -> Event:  # type: ignore[override]
        return {"kind": value.topic}


class WrongOutput(Bolt[Flight, Event]):
    def process(self, value: Flight, /) -> Flight:  # type: ignore[override]
        return value


@bolt(vectorised=True)  # type: ignore[arg-type]
def not_columns(flight: Flight) -> Flight:
    return flight
