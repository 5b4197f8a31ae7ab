"""Suite hot-path: Headrace end to end against the bare consume loop, on one topic.

Every variant reads the same records in a process and session of its own, several rounds
with the order turned each time; medians count. Rates shift with what else the machine
does, so the ratios of one run are what to quote.
"""

from collections.abc import Callable
from functools import partial

import orjson
from confluent_kafka import Message

from benchmarks.bench import Bench, medians, opened, rounded
from benchmarks.child import Figures, Job
from benchmarks.measured import AT_ONCE, FEW_AT_ONCE, BareLoop, run_headrace
from benchmarks.result import Goal, Result, Table
from examples.flights.bolts import NameCarrier, keep_flown, parse
from examples.flights.columns import name_carriers, parse_columns
from headrace import Record, Topology, bolt
from headrace.sinks import DiscardSink

RECORDS = 2_000_000
ROUNDS = 3
TOPIC = "flights"
MODULE = "benchmarks.hot_path"
# Which bare loop each variant of Headrace is held against, and the part of its rate to reach.
AGAINST = {
    "noop": "raw",
    "functions": "raw_json",
    "vectorised": "raw_json",
    "functions_flights": "raw_json",
    "vectorised_flights": "raw_json",
}
NAMES = ("raw", "raw_json", "raw_few", "raw_json_few", *AGAINST)
LEAST = {"noop": 0.9, "functions": 0.6, "vectorised": 1.0}
NOTES = f"""\
Flights as JSON, about 295 bytes and 19 members each. `raw` and `raw_json` take {AT_ONCE:,}
messages at once, and the ratios to them have the goals. `raw_few`
and `raw_json_few` take {FEW_AT_ONCE:,}, where the bare loop is fastest here; the ratios to these
are in brackets. All ratios are of rates.

- `raw` is `Consumer.consume()` alone, `noop` one bolt that does nothing.
- `raw_json` parses each value as well: orjson builds a dict of all 19 members. `functions` is one
  bolt that parses into a typed `msgspec.Struct` of 16 members and checks them, `vectorised` one
  that parses into ten Arrow columns, those that the flights example needs.
- `functions_flights` (three bolts) and `vectorised_flights` (two) also drop what did not fly and
  look up the carrier's name. `raw_json` does not, so their ratios are for information and have no
  goal."""


def run(bench: Bench) -> Result:
    rounds = bench.options.rounds or ROUNDS
    records = bench.options.records or RECORDS
    total = bench.publish_flights(TOPIC, records)
    runs = bench.rounds(MODULE, NAMES, TOPIC, total, rounds=rounds)
    figures = {name: medians(found) for name, found in runs.items()}
    ratios = {
        name: figures[name]["per_second"] / figures[other]["per_second"]
        for name, other in AGAINST.items()
    }
    few = {
        name: figures[name]["per_second"] / figures[f"{other}_few"]["per_second"]
        for name, other in AGAINST.items()
    }
    rows = [
        (
            name,
            f"{found['per_second']:,.0f}",
            f"{found['cpu_us']:.2f}",
            f"{ratios[name]:.2f} of {AGAINST[name]} ({few[name]:.2f})" if name in ratios else "",
            f"{found['early_mb']:,.0f}",
            f"{found['end_mb']:,.0f}",
        )
        for name, found in figures.items()
    ]
    columns = ("variant", "records/s", "CPU µs/record", "ratio", "MB at 1/4", "MB at end")
    title = f"{total:,} records, medians of {rounds} rounds"
    return Result(
        "hot-path",
        {
            "records": total,
            "rounds": rounds,
            "open_seconds": opened(figures),
            "cpu_us": rounded(figures, "cpu_us", 3),
            "per_second": rounded(figures, "per_second", None),
            "ratio": {name: round(ratio, 3) for name, ratio in ratios.items()},
            "ratio_few": {name: round(ratio, 3) for name, ratio in few.items()},
            "memory_mb": {
                name: {"early": round(found["early_mb"]), "end": round(found["end_mb"])}
                for name, found in figures.items()
            },
        },
        [Table(title, columns, rows)],
        [Goal(f"{name}: rate", ratios[name], least) for name, least in LEAST.items()],
        NOTES,
    )


@bolt
def pass_on(record: Record) -> Record:
    return record


def raw(job: Job, at_once: int = AT_ONCE) -> Figures:
    return BareLoop(job, at_once).run(lambda _messages: None)


def raw_json(job: Job, at_once: int = AT_ONCE) -> Figures:
    """The bare loop that parses every value, into a dict of all its members."""
    loads = orjson.loads

    def work(messages: list[Message]) -> None:
        for message in messages:
            loads(message.value() or b"")

    return BareLoop(job, at_once).run(work)


def noop(job: Job) -> Figures:
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
