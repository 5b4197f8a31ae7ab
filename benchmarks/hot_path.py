"""Suite hot-path: Headrace end to end against the bare consume loop, on one topic.

Every variant reads the same records in a process and session of its own, several rounds
with the order turned each time; medians count. Rates shift with what else the machine
does, so the ratios of one run are what to quote.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import orjson
from confluent_kafka import Message

from benchmarks.bench import Bench, medians
from benchmarks.child import Figures, Job
from benchmarks.measured import AT_ONCE, FEW_AT_ONCE, BareLoop, run_headrace
from benchmarks.result import Result, divide, facts, goals, table
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
COLUMNS = {
    "records/s": "{per_second:,.0f}", "CPU µs/record": "{cpu_us:.2f}",
    "ratio": "{ratio:.2f} of {against} ({ratio_few:.2f})",
    "MB at 1/4": "{early_mb:,.0f}", "MB at end": "{end_mb:,.0f}",
}  # fmt: skip


def run(bench: Bench) -> Result:
    rounds, records = bench.asked(ROUNDS, RECORDS)
    total = bench.publish_flights(TOPIC, records)
    figures = medians(bench.rounds(MODULE, NAMES, TOPIC, total, rounds=rounds))
    divide(figures, "ratio", "per_second", AGAINST)
    divide(figures, "ratio_few", "per_second", {name: f"{AGAINST[name]}_few" for name in AGAINST})
    for name, other in AGAINST.items():
        figures[name]["against"] = other
    memory = {
        name: {"early": round(found["early_mb"]), "end": round(found["end_mb"])}
        for name, found in figures.items()
    }
    rounded = facts(figures, open_seconds=3, cpu_us=3, per_second=None, ratio=3, ratio_few=3)
    return Result(
        "hot-path",
        {"records": total, "rounds": rounds, **rounded, "memory_mb": memory},
        [table(f"{total:,} records, medians of {rounds} rounds", figures, COLUMNS)],
        goals(figures, "ratio", LEAST, "rate"),
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


def headrace(job: Job, *bolts: Any) -> Figures:
    topology = Topology("hot-path")
    stream: Any = topology.source(job.topic)
    for each in bolts:
        stream = stream.then(each)
    stream.into(DiscardSink())
    return run_headrace(topology, job)


VARIANTS: dict[str, Callable[[Job], Figures]] = {
    "raw": raw,
    "raw_json": raw_json,
    "raw_few": partial(raw, at_once=FEW_AT_ONCE),
    "raw_json_few": partial(raw_json, at_once=FEW_AT_ONCE),
    "noop": lambda job: headrace(job, pass_on),
    "functions": lambda job: headrace(job, parse),
    "vectorised": lambda job: headrace(job, parse_columns),
    "functions_flights": lambda job: headrace(job, parse, keep_flown, NameCarrier),
    "vectorised_flights": lambda job: headrace(job, parse_columns, name_carriers),
}
