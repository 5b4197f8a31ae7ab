"""Suite tables: suite spark's orders into Iceberg and Parquet, against Structured Streaming.

Beside suite spark, because all of them together would not end within ten minutes.
"""

from benchmarks.bench import Bench
from benchmarks.comparison import Comparison
from benchmarks.orders import Orders
from benchmarks.result import Goal, Result
from benchmarks.spark import MEASURED, WORK

RECORDS = 2_000_000
ROUNDS = 3
TOPIC = "orders-tables"
MODULE = "benchmarks.tables_variants"
AGAINST = {
    "local_iceberg": "structured_iceberg",
    "local_spool": "structured_parquet",
}
# One of Structured Streaming's, then what is held against it.
VARIANTS = (
    "structured_iceberg", "local_iceberg", "structured_parquet", "local_spool",
)  # fmt: skip
PROFILED = ("local_iceberg",)
LEAST = {"local_iceberg": 3.0, "local_spool": 1.5}  # times the rate
NOTES = f"""\
{WORK}

- `structured_iceberg` is Structured Streaming into an Iceberg table, `local_iceberg` is
  `IcebergSink` into one behind a catalogue, exactly once. Both write Parquet with Snappy.
- `structured_parquet` is Structured Streaming's own Parquet sink, exactly once by its log of
  files. `local_spool` is `SparkSink(format="parquet")`, at least once: its rows go through Spark by
  the spool, as those of any step do that needs Spark.

Headrace's variants have two vectorised bolts. Ratios are to the one of Structured Streaming that
writes such a table.

{MEASURED}"""


def run(bench: Bench) -> Result:
    """Measure."""
    rounds = bench.options.rounds or ROUNDS
    records = bench.options.records or RECORDS
    bench.publish(TOPIC, Orders().value, records)
    runs = bench.rounds(MODULE, VARIANTS, TOPIC, records, rounds=rounds, profile=PROFILED)
    found = Comparison(runs, AGAINST)
    return Result(
        "tables",
        {"records": records, "rounds": rounds, "against": AGAINST, **found.facts},
        [found.table(f"{records:,} records, medians of {rounds} rounds")],
        [Goal(f"{name}: rate", found.ratio[name], least) for name, least in LEAST.items()],
        NOTES,
    )
