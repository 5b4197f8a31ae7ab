"""Suite hot-path: Headrace end to end against the bare consume loop, on one topic.

Every variant reads the same records in a process and session of its own, several rounds
with the order turned each time; medians count. Rates shift with what else the machine
does, so the ratios of one run are what to quote.
"""

from benchmarks.bench import Bench, medians, opened
from benchmarks.measured import AT_ONCE, FEW_AT_ONCE
from benchmarks.result import Goal, Result, Table
from examples.flights.publish import publish

RECORDS = 2_000_000
ROUNDS = 3
TOPIC = "flights"
FLIGHTS = 336_776
MODULE = "benchmarks.hot_path_variants"
# Which bare loop each variant of Headrace is held against, and the part of its rate to reach.
AGAINST = {
    "noop": "raw",
    "functions": "raw_json",
    "vectorised": "raw_json",
    "functions_flights": "raw_json",
    "vectorised_flights": "raw_json",
}
VARIANTS = ("raw", "raw_json", "raw_few", "raw_json_few", *AGAINST)
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
    """Measure."""
    rounds = bench.options.rounds or ROUNDS
    records = bench.options.records or RECORDS
    published = publish(
        bench.servers.kafka.address,
        TOPIC,
        limit=min(records, FLIGHTS),
        repeat=-(-records // FLIGHTS),
        malformed=0,
        progress=lambda done, total: bench.progress.step("publishing", done, total),
    )
    runs = bench.rounds(
        MODULE, VARIANTS, TOPIC, published.total, rounds=rounds, profile=list(LEAST)
    )
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
    title = f"{published.total:,} records, medians of {rounds} rounds"
    return Result(
        "hot-path",
        {
            "records": published.total,
            "rounds": rounds,
            "open_seconds": opened(figures),
            "cpu_us": {name: round(found["cpu_us"], 3) for name, found in figures.items()},
            "per_second": {name: round(found["per_second"]) for name, found in figures.items()},
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
