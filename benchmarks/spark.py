"""Suite spark: orders enriched into a Delta table, against Spark's Structured Streaming."""

from benchmarks.bench import Bench, medians, opened
from benchmarks.orders import Orders
from benchmarks.result import Goal, Result, Table
from benchmarks.structured import BATCH_ROWS

RECORDS = 2_000_000
ROUNDS = 3
TOPIC = "orders-spark"
MODULE = "benchmarks.spark_variants"
AGAINST = "structured"
EXACTLY, AT_LEAST = "local_vectorised", "local_at_least_once"
LOCAL = ("local_vectorised", "local_functions", "local_at_least_once")
VARIANTS = (AGAINST, *LOCAL)
LEAST = {"local_vectorised": 4.0, "local_functions": 2.5}  # times the rate
MOST_CPU = {"local_vectorised": 0.25}  # of the CPU per record
LEAST_KEPT = 0.9  # of the rate at least once, by exactly once
SAME = ("rows", "order_ids", "cents")  # found alike in all tables
NOTES = f"""\
Orders as JSON of 111 bytes in four partitions. Each is parsed, joined with a table of 100,000
users, quantity and price are multiplied, totals below 50 dropped (one order in twelve), and nine
columns written to a Delta table, {BATCH_ROWS:,} rows in a micro-batch. Number of rows, sum of the
order numbers and sum of the totals are read from the tables after each run, and are the same for
all.

- `structured` is PySpark's Structured Streaming: Kafka source, native steps, a broadcast join,
  trigger `availableNow`, `maxOffsetsPerTrigger` {BATCH_ROWS:,}, Delta's sink; exactly once by its
  checkpoint. Before, it takes two batches into another table, to warm its JVM.
- `local_vectorised` and `local_functions` are the local engine exactly once, with two vectorised
  and three function bolts, `local_at_least_once` is `local_vectorised` at least once.

All use the same Spark properties (`local[2]`) in a JVM of their own, on a table that is there and
empty. Rates and CPU count from the first partition's opening, or the first trigger's start, until
everything is committed. CPU is that of the whole tree of processes, so Python and the JVM.
Headrace's JVM is a cold one. Ratios are to `structured`. Variants of the spark engine come with
that engine."""


def run(bench: Bench) -> Result:
    """Measure."""
    rounds = bench.options.rounds or ROUNDS
    records = bench.options.records or RECORDS
    bench.publish(TOPIC, Orders().value, records)
    runs = bench.rounds(MODULE, VARIANTS, TOPIC, records, rounds=rounds, profile=list(LEAST))
    made = {
        name: {tuple(run[key] for key in SAME) for run in found} for name, found in runs.items()
    }
    if len(set().union(*made.values())) > 1:
        raise SystemExit(f"the variants do not make the same rows ({', '.join(SAME)}): {made}")
    figures = {name: medians(found) for name, found in runs.items()}
    cpu = {name: found["cpu_us"] for name, found in figures.items()}
    rate = {name: found["per_second"] for name, found in figures.items()}
    ratios = {name: rate[name] / rate[AGAINST] for name in LOCAL}
    cpu_ratios = {name: cpu[name] / cpu[AGAINST] for name in LOCAL}
    kept = rate[EXACTLY] / rate[AT_LEAST]
    rows = [
        (
            name,
            f"{rate[name]:,.0f}",
            f"{cpu[name]:.2f}",
            f"{ratios[name]:.2f}" if name in ratios else "",
            f"{cpu_ratios[name]:.2f}" if name in cpu_ratios else "",
        )
        for name in figures
    ]
    columns = ("variant", "records/s", "CPU µs/record", "rate ratio", "CPU ratio")
    title = f"{records:,} records, medians of {rounds} rounds"
    return Result(
        "spark",
        {
            "records": records,
            "rounds": rounds,
            "open_seconds": opened(figures),
            "rows": int(figures[AGAINST]["rows"]),
            "cpu_us": {name: round(value, 3) for name, value in cpu.items()},
            "per_second": {name: round(value) for name, value in rate.items()},
            "ratio": {name: round(value, 3) for name, value in ratios.items()},
            "cpu_ratio": {name: round(value, 3) for name, value in cpu_ratios.items()},
            "exactly_once_cost": round(1 - kept, 3),
        },
        [Table(title, columns, rows)],
        [
            *(Goal(f"{name}: rate", ratios[name], least) for name, least in LEAST.items()),
            *(
                Goal(f"{name}: CPU", cpu_ratios[name], most, at_most=True)
                for name, most in MOST_CPU.items()
            ),
            Goal("exactly once: rate of at least once", kept, LEAST_KEPT),
        ],
        NOTES,
    )
