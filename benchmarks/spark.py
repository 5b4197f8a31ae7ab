"""Suite spark: orders enriched into a Delta table, against Spark's Structured Streaming."""

from benchmarks.bench import Bench
from benchmarks.comparison import Comparison
from benchmarks.orders import Orders
from benchmarks.result import Goal, Result
from benchmarks.structured import BATCH_ROWS, MOST_OFFSETS

RECORDS = 2_000_000
ROUNDS = 3
TOPIC = "orders-spark"
MODULE = "benchmarks.spark_variants"
STRUCTURED = "structured"
EXACTLY, AT_LEAST = "local_vectorised", "local_at_least_once"
AGAINST = dict.fromkeys(("local_vectorised", "local_functions", "local_at_least_once"), STRUCTURED)
VARIANTS = (STRUCTURED, *AGAINST)
LEAST = {"local_vectorised": 4.0, "local_functions": 2.5}  # times the rate
MOST_CPU = {"local_vectorised": 0.25}  # of the CPU per record
LEAST_KEPT = 0.9  # of the rate at least once, by exactly once
WORK = """\
Orders as JSON of 111 bytes in four partitions. Each is parsed, joined with a table of 100,000
users, quantity and price are multiplied, totals below 50 dropped (one order in twelve), and rows
of nine columns written to a table. Their number, the sum of the order numbers and the sum of the
totals are read from the files that the tables name after each run, and are the same for all."""
MEASURED = f"""\
Structured Streaming has its Kafka source, native steps, a broadcast join and the trigger
`availableNow`; it is exactly once by its checkpoint. `maxOffsetsPerTrigger` is {MOST_OFFSETS:,},
for at {BATCH_ROWS:,} its rounding would leave a last batch of a handful of records. Before, it
takes two batches into another table, to warm its JVM. Headrace's micro-batches are of
{BATCH_ROWS:,} rows at the most, and its JVM is a cold one. `batches` is how many there were.

All use the same Spark properties (`local[2]`), in a JVM of their own. Rates and CPU count from
the first partition's opening, or the first trigger's start, until everything is committed. CPU
is that of the whole tree of processes, so Python and the JVM."""
NOTES = f"""\
{WORK}

- `structured` is PySpark's Structured Streaming into a Delta table; all ratios are to it.
- `local_vectorised` and `local_functions` are the local engine exactly once, with two vectorised
  and three function bolts, `local_at_least_once` is `local_vectorised` at least once.

{MEASURED}

All find a table that is there and empty. Variants of the spark engine come with that engine."""


def run(bench: Bench) -> Result:
    """Measure."""
    rounds = bench.options.rounds or ROUNDS
    records = bench.options.records or RECORDS
    bench.publish(TOPIC, Orders().value, records)
    runs = bench.rounds(MODULE, VARIANTS, TOPIC, records, rounds=rounds, profile=list(LEAST))
    found = Comparison(runs, AGAINST)
    kept = found.per_second[EXACTLY] / found.per_second[AT_LEAST]
    return Result(
        "spark",
        {
            "records": records,
            "rounds": rounds,
            **found.facts,
            "exactly_once_cost": round(1 - kept, 3),
        },
        [found.table(f"{records:,} records, medians of {rounds} rounds")],
        [
            *(Goal(f"{name}: rate", found.ratio[name], least) for name, least in LEAST.items()),
            *(
                Goal(f"{name}: CPU", found.cpu_ratio[name], most, at_most=True)
                for name, most in MOST_CPU.items()
            ),
            Goal("exactly once: rate of at least once", kept, LEAST_KEPT),
        ],
        NOTES,
    )
