"""The variants of suite hot-path, each run in a process of its own.

`raw` is `Consumer.consume()` alone, `raw_json` parses every value as well. The others are
Headrace as it is deployed: real partitions, acker, offsets in ZooKeeper, and a sink that
only counts. All use the same consumer settings.
"""

from collections.abc import Callable

import orjson
from confluent_kafka import Message

from benchmarks.job import Figures, Job
from benchmarks.measured import BareLoop, run_headrace
from examples.flights.bolts import NameCarrier, keep_flown, parse
from examples.flights.columns import name_carriers, parse_columns
from headrace import Record, Topology, bolt
from headrace.sinks import DiscardSink


@bolt
def pass_on(record: Record) -> Record:
    """Do nothing."""
    return record


def raw(job: Job) -> Figures:
    """The bare loop, as fast as it goes."""
    return BareLoop(job).run(lambda _messages: None)


def raw_json(job: Job) -> Figures:
    """The bare loop that parses every value."""
    loads = orjson.loads

    def work(messages: list[Message]) -> None:
        for message in messages:
            loads(message.value() or b"")

    return BareLoop(job).run(work)


def noop(job: Job) -> Figures:
    """One bolt that does nothing."""
    topology = Topology("noop")
    topology.source(job.topic).then(pass_on).into(DiscardSink())
    return run_headrace(topology, job)


def functions(job: Job) -> Figures:
    """The flights bolts as functions: parse, keep those that flew, look the carrier up."""
    topology = Topology("functions")
    flown = topology.source(job.topic).then(parse).then(keep_flown)
    flown.then(NameCarrier).into(DiscardSink())
    return run_headrace(topology, job)


def vectorised(job: Job) -> Figures:
    """The same work as vectorised bolts."""
    topology = Topology("vectorised")
    flights = topology.source(job.topic).then(parse_columns)
    flights.then(name_carriers).into(DiscardSink())
    return run_headrace(topology, job)


VARIANTS: dict[str, Callable[[Job], Figures]] = {
    "raw": raw,
    "raw_json": raw_json,
    "noop": noop,
    "functions": functions,
    "vectorised": vectorised,
}
