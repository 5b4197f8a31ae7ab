"""Suite fanout: ten tuples per record through three bolts, and what one tuple costs."""

from benchmarks.bench import Bench, medians, opened
from benchmarks.fanout_variants import WORDS, line
from benchmarks.result import Goal, Result, Table

RECORDS = 500_000
ROUNDS = 3
TOPIC = "lines"
MODULE = "benchmarks.fanout_variants"
VARIANTS = ("loop", "functions", "vectorised")
HEADRACE = ("functions", "vectorised")
MOST_US = 1.5
BOLTS = 3
NOTES = f"""\
A record is a line of {WORDS} words. The first bolt makes a tuple of each, the second turns it into
capitals, the third adds its length, and a sink counts. Everything is divided by {WORDS} tuples
per record, that is, the reading of the record and all three bolts are in the figure; a step is
one tuple through one bolt. `loop` is the same work by hand, without any tracking or commit."""


def run(bench: Bench) -> Result:
    """Measure."""
    rounds = bench.options.rounds or ROUNDS
    records = bench.options.records or RECORDS
    bench.publish(TOPIC, line, records)
    runs = bench.rounds(MODULE, VARIANTS, TOPIC, records, rounds=rounds, profile=HEADRACE)
    figures = {name: medians(found) for name, found in runs.items()}
    for name, found in figures.items():
        if found["rows"] != records * WORDS:
            raise SystemExit(f"{name} made {found['rows']:,} rows of {records:,} records")
    cpu = {name: found["cpu_us"] / WORDS for name, found in figures.items()}
    wall = {name: 1e6 / found["per_second"] / WORDS for name, found in figures.items()}
    rows = [
        (
            name,
            f"{found['per_second'] * WORDS:,.0f}",
            f"{cpu[name]:.2f}",
            f"{wall[name]:.2f}",
            f"{cpu[name] / BOLTS:.2f}",
            f"{found['peak_mb']:,.0f}",
        )
        for name, found in figures.items()
    ]
    columns = ("variant", "tuples/s", "CPU µs/tuple", "wall µs/tuple", "CPU µs/step", "peak MB")
    title = f"{records * WORDS:,} tuples of {records:,} records, medians of {rounds} rounds"
    goals = [
        Goal(f"{name}: {kind} µs/tuple", of[name], MOST_US, at_most=True)
        for name in HEADRACE
        for kind, of in (("CPU", cpu), ("wall", wall))
    ]
    return Result(
        "fanout",
        {
            "records": records,
            "rounds": rounds,
            "open_seconds": opened(figures),
            "tuples_per_record": WORDS,
            "cpu_us_per_tuple": {name: round(value, 3) for name, value in cpu.items()},
            "wall_us_per_tuple": {name: round(value, 3) for name, value in wall.items()},
        },
        [Table(title, columns, rows)],
        goals,
        NOTES,
    )
