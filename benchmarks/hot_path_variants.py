"""The variants of suite hot-path, each run in a process of its own.

`raw` is `Consumer.consume()` alone, `raw_json` parses every value as well. The others are
Headrace as it is deployed: real partitions, acker, offsets in ZooKeeper, and a sink that
only counts. All use the same consumer settings; the `…_few` take few messages at once. `noop`
does what `raw` does, `functions` and `vectorised` what `raw_json` does; the `…_flights` do more,
the flights example's whole light job.
"""

from collections.abc import Callable
from functools import partial

import orjson
from confluent_kafka import Message

from benchmarks.job import Figures, Job
from benchmarks.measured import AT_ONCE, FEW_AT_ONCE, BareLoop, run_headrace
from examples.flights.bolts import NameCarrier, keep_flown, parse
from examples.flights.columns import name_carriers, parse_columns
from headrace import Record, Topology, bolt
from headrace.sinks import DiscardSink


@bolt
def pass_on(record: Record) -> Record:
    """Do nothing."""
    return record


def raw(job: Job, at_once: int = AT_ONCE) -> Figures:
    """The bare loop, as fast as it goes."""
    return BareLoop(job, at_once).run(lambda _messages: None)


def raw_json(job: Job, at_once: int = AT_ONCE) -> Figures:
    """The bare loop that parses every value, into a dict of all its members."""
    loads = orjson.loads

    def work(messages: list[Message]) -> None:
        for message in messages:
            loads(message.value() or b"")

    return BareLoop(job, at_once).run(work)


def noop(job: Job) -> Figures:
    """One bolt that does nothing."""
    topology = Topology("noop")
    topology.source(job.topic).then(pass_on).into(DiscardSink())
    return run_headrace(topology, job)


def functions(job: Job) -> Figures:
    """One function that parses, into a typed struct that it checks."""
    topology = Topology("functions")
    topology.source(job.topic).then(parse).into(DiscardSink())
    return run_headrace(topology, job)


def vectorised(job: Job) -> Figures:
    """One vectorised bolt that parses, into the columns that the flights example needs."""
    topology = Topology("vectorised")
    topology.source(job.topic).then(parse_columns).into(DiscardSink())
    return run_headrace(topology, job)


def functions_flights(job: Job) -> Figures:
    """The flights bolts as functions: parse, keep those that flew, look the carrier up."""
    topology = Topology("functions-flights")
    flown = topology.source(job.topic).then(parse).then(keep_flown)
    flown.then(NameCarrier).into(DiscardSink())
    return run_headrace(topology, job)


def vectorised_flights(job: Job) -> Figures:
    """The same work as vectorised bolts."""
    topology = Topology("vectorised-flights")
    flights = topology.source(job.topic).then(parse_columns)
    flights.then(name_carriers).into(DiscardSink())
    return run_headrace(topology, job)


VARIANTS: dict[str, Callable[[Job], Figures]] = {
    "raw": raw,
    "raw_json": raw_json,
    "raw_few": partial(raw, at_once=FEW_AT_ONCE),
    "raw_json_few": partial(raw_json, at_once=FEW_AT_ONCE),
    "noop": noop,
    "functions": functions,
    "vectorised": vectorised,
    "functions_flights": functions_flights,
    "vectorised_flights": vectorised_flights,
}
