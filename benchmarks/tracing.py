"""Suite tracing: what it costs to trace none or some of the records."""

from benchmarks.bench import Bench, medians, opened
from benchmarks.result import Goal, Result, Table
from examples.flights.publish import publish

RECORDS = 2_000_000
ROUNDS = 5
TOPIC = "flights-traced"
FLIGHTS = 336_776
MODULE = "benchmarks.tracing_variants"
BASE = "off"
VARIANTS = (BASE, "none", "one_in_1000", "one_in_100", "one_in_10")
PROFILED = ("one_in_1000",)
LEAST = 0.85  # of the rate without tracing, while it is on and nothing is traced
MOST_US = 250.0  # of processor time for each record that is traced
NOTES = """\
Flights as JSON through one function that parses them, as in suite `hot-path`, into a sink that
only counts. `off` has no endpoint. The others send to a collector in a process of its own on the
same machine: `none` has a `sample_ratio` of 0, so it only looks at the headers of each record,
which have no `traceparent`; the others trace 0.1 %, 1 % and 10 %. A traced record has two spans,
its own and the bolt's, and each batch that has one has a third. `traced` is how
many were, and what each cost in processor time, `spans` how many arrived: where spans are made
faster than they can be sent, those in the queue are dropped, and beyond 4,096 records at once
none are traced. No record waits for a span."""


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
    runs = bench.rounds(MODULE, VARIANTS, TOPIC, published.total, rounds=rounds, profile=PROFILED)
    figures = {name: medians(found) for name, found in runs.items()}
    base = figures[BASE]
    ratios = {name: figures[name]["per_second"] / base["per_second"] for name in VARIANTS[1:]}
    traced_us = {
        name: (found["cpu_us"] - base["cpu_us"]) * published.total / found["traced"]
        for name, found in figures.items()
        if found["traced"]
    }
    columns = ("variant", "records/s", "ratio", "CPU µs/record", "traced", "µs each", "spans", "MB")
    rows = [
        (
            name,
            f"{found['per_second']:,.0f}",
            f"{ratios[name]:.2f}" if name in ratios else "",
            f"{found['cpu_us']:.2f}",
            f"{found['traced']:,.0f}",
            f"{traced_us[name]:.0f}" if name in traced_us else "",
            f"{found['spans']:,.0f}",
            f"{found['end_mb']:,.0f}",
        )
        for name, found in figures.items()
    ]
    return Result(
        "tracing",
        {
            "records": published.total,
            "rounds": rounds,
            "open_seconds": opened(figures),
            "per_second": {name: round(found["per_second"]) for name, found in figures.items()},
            "cpu_us": {name: round(found["cpu_us"], 3) for name, found in figures.items()},
            "ratio": {name: round(ratio, 3) for name, ratio in ratios.items()},
            "traced_us": {name: round(found, 1) for name, found in traced_us.items()},
            "traced": {name: round(found["traced"]) for name, found in figures.items()},
            "spans": {name: round(found["spans"]) for name, found in figures.items()},
        },
        [Table(f"{published.total:,} records, medians of {rounds} rounds", columns, rows)],
        [
            Goal("none: rate without tracing", ratios["none"], LEAST),
            Goal("one_in_10: µs for each", traced_us["one_in_10"], MOST_US, at_most=True),
        ],
        NOTES,
    )
