"""Suite hot-path: Headrace end to end against the bare consume loop, on one topic.

Every variant reads the same records in a process and session of its own, several rounds
with the order turned each time; medians count. Rates shift with what else the machine
does, so the ratios of one run are what to quote.
"""

from benchmarks.bench import Bench, medians
from benchmarks.result import Goal, Result, Table
from examples.flights.publish import publish

RECORDS = 2_000_000
ROUNDS = 3
TOPIC = "flights"
FLIGHTS = 336_776
MODULE = "benchmarks.hot_path_variants"
VARIANTS = ("raw", "raw_json", "noop", "functions", "vectorised")
# Which bare loop each variant of Headrace is held against, and the rate that it should reach.
AGAINST = {"noop": ("raw", 0.9), "functions": ("raw_json", 0.6), "vectorised": ("raw_json", 1.0)}
NOTES = """\
Flights as JSON, about 295 bytes each. `raw` is `Consumer.consume()` alone, `raw_json` parses
each value with orjson as well. The ratio is that of the rates."""


def run(bench: Bench) -> Result:
    """Measure."""
    rounds = bench.options.rounds or ROUNDS
    records = bench.options.records or RECORDS
    published = publish(
        bench.servers.kafka.address,
        TOPIC,
        repeat=-(-records // FLIGHTS),
        malformed=0,
        progress=lambda done, total: bench.progress.step("publishing", done, total),
    )
    runs = bench.rounds(
        MODULE, VARIANTS, TOPIC, published.total, rounds=rounds, profile=list(AGAINST)
    )
    figures = {name: medians(found) for name, found in runs.items()}
    ratios = {
        name: figures[name]["per_second"] / figures[other]["per_second"]
        for name, (other, _wanted) in AGAINST.items()
    }
    rows = [
        (
            name,
            f"{found['per_second']:,.0f}",
            f"{found['cpu_us']:.2f}",
            f"{ratios[name]:.2f} of {AGAINST[name][0]}" if name in ratios else "",
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
            "cpu_us": {name: round(found["cpu_us"], 3) for name, found in figures.items()},
            "per_second": {name: round(found["per_second"]) for name, found in figures.items()},
            "ratio": {name: round(ratio, 3) for name, ratio in ratios.items()},
            "memory_mb": {
                name: {"early": round(found["early_mb"]), "end": round(found["end_mb"])}
                for name, found in figures.items()
            },
        },
        [Table(title, columns, rows)],
        [Goal(f"{name}: rate", ratios[name], wanted) for name, (_, wanted) in AGAINST.items()],
        NOTES,
    )
