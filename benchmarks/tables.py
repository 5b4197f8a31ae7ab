"""Suite tables: into Delta and Iceberg tables, against Structured Streaming and delta-rs."""

from benchmarks.bench import Bench
from benchmarks.comparison import Comparison
from benchmarks.orders import Orders
from benchmarks.orders_topologies import TOPIC
from benchmarks.result import Goal, Result
from benchmarks.structured import BATCH_ROWS, MOST_OFFSETS
from benchmarks.tables_variants import SPARK_SINK_ROWS, TRANSACTION_RECORDS

RECORDS = 2_000_000
ROUNDS = 2  # three take more than ten minutes
MODULE = "benchmarks.tables_variants"
DELTA = ("delta_vectorised", "delta_functions")
ENGINE = ("engine_vectorised", "engine_functions")
SPARK = ("spark_sink", "spark_sink_functions")
ICEBERG = ("iceberg_vectorised", "iceberg_functions")
AGAINST = {
    **dict.fromkeys((*DELTA, *ENGINE, *SPARK), "structured_delta"),
    **dict.fromkeys(ICEBERG, "structured_iceberg"),
}
VARIANTS = ("structured_delta", *DELTA, *SPARK, "structured_iceberg", *ICEBERG, *ENGINE)
ALONE = {"sink_alone": "write_deltalake"}
ALONE_ROUNDS = 5  # they are short
PROFILED = DELTA
LEAST = {  # times the rate
    "delta_vectorised": 5.9, "delta_functions": 2.7, "iceberg_vectorised": 4.0,
    "iceberg_functions": 2.5, "engine_vectorised": 4.0, "engine_functions": 2.5,
    "spark_sink": 2.0, "spark_sink_functions": 1.5,
}  # fmt: skip
MOST_CPU = {"delta_vectorised": 0.15, "delta_functions": 0.35}  # of the CPU per record
LEAST_ALONE = 0.8
WORK = """\
Orders as JSON of 111 bytes in four partitions. Each is parsed, joined with a table of 100,000
users, quantity and price are multiplied, totals below 50 dropped (one order in twelve), and rows
of nine columns written to a table. Their number, the sum of the order numbers and the sum of the
totals are read from the files that the tables name after each run, and are the same for all."""
MEASURED = f"""\
Structured Streaming has its Kafka source, native steps, a broadcast join and the trigger
`availableNow`; it is exactly once by its checkpoint. `maxOffsetsPerTrigger` is {MOST_OFFSETS:,},
for at {BATCH_ROWS:,} its rounding would leave a last batch of a handful of records. Before, it
takes two batches into another table, to warm its JVM. `batches` is how many there were.

Rates and CPU count from the first partition's opening, or the first trigger's start, until
everything is committed, and on a local disk synced, which Structured Streaming leaves out. CPU is
that of the whole tree of processes, so Python and, where there is one, the JVM (`local[2]`).
Each ratio is to the run of the same round, the median and the spread are over the rounds."""
NOTES = f"""\
{WORK}

- `structured_delta` and `structured_iceberg` are PySpark's Structured Streaming; the ratios are to
  the one that writes such a table.
- `delta_…` and `iceberg_…` are `DeltaSink` and `IcebergSink` on the local engine, exactly once,
  with two vectorised bolts or three functions, and micro-batches of up to {BATCH_ROWS:,} rows.
- `engine_…` are the same topologies into Delta on the spark engine, with up to
  {TRANSACTION_RECORDS:,} records in a transaction. Its Python workers start with the first task,
  which is in their rates and CPU.
- `spark_sink` and `spark_sink_functions` are `SparkSink` into Delta on the local engine, at least
  once, with {SPARK_SINK_ROWS:,} rows in a batch and a cold JVM.
- `sink_alone` is a `DeltaSink` exactly once that gets ready batches, what is left of
  {BATCH_ROWS:,} orders; `write_deltalake` is delta-rs's own writer in a loop, with the same syncs
  after each batch. The ratio is `bare_loop` in the JSON.

{MEASURED}"""


def run(bench: Bench) -> Result:
    """Measure."""
    rounds = bench.options.rounds or ROUNDS
    records = bench.options.records or RECORDS
    bench.publish(TOPIC, Orders().value, records)
    runs = bench.rounds(MODULE, VARIANTS, TOPIC, records, rounds=rounds, profile=PROFILED)
    found = Comparison(runs, AGAINST)
    pair = (*ALONE.values(), *ALONE)
    alone_rounds = bench.options.rounds or ALONE_ROUNDS
    alone = Comparison(bench.rounds(MODULE, pair, TOPIC, records, rounds=alone_rounds), ALONE)
    facts = found.facts
    for key in ("batches", "cpu_us", "per_second"):
        facts[key] |= alone.facts[key]
    for key in ("ratio", "cpu_ratio", "spread"):
        facts[key]["bare_loop"] = alone.facts[key]["sink_alone"]
    return Result(
        "tables",
        {"records": records, "rounds": rounds, "against": AGAINST, **facts},
        [
            found.table(f"{records:,} records, medians of {rounds} rounds"),
            alone.table(f"{records:,} records as ready batches, medians of {alone_rounds} rounds"),
        ],
        [
            *(Goal(f"{name}: rate", found.ratio[name], least) for name, least in LEAST.items()),
            *(
                Goal(f"{name}: CPU", found.cpu_ratio[name], most, at_most=True)
                for name, most in MOST_CPU.items()
            ),
            Goal("bare_loop: rate", alone.ratio["sink_alone"], LEAST_ALONE),
        ],
        NOTES,
    )
