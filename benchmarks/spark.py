"""Suite spark: orders enriched into a Delta table, against Spark's Structured Streaming."""

from benchmarks.bench import Bench
from benchmarks.comparison import Comparison
from benchmarks.orders import Orders
from benchmarks.result import Facts, Goal, Result
from benchmarks.spark_topologies import TOPIC
from benchmarks.spark_variants import LARGE, SMALL
from benchmarks.structured import BATCH_ROWS, MOST_OFFSETS

RECORDS = 2_000_000
ROUNDS = 2  # three take more than ten minutes
MODULE = "benchmarks.spark_variants"
STRUCTURED = "structured"
AGAINST = dict.fromkeys(
    (
        "local_vectorised", "local_functions", "spark_vectorised",
        "spark_vectorised_200k", "spark_functions",
    ),
    STRUCTURED,
)  # fmt: skip
VARIANTS = (STRUCTURED, *AGAINST)
SCALED = ("spark_vectorised_200k", "spark_vectorised")
PROFILED = ("local_vectorised", "local_functions")
LEAST = {  # times the rate
    "local_vectorised": 4.0, "local_functions": 2.5,
    "spark_vectorised": 2.5, "spark_functions": 1.5,
}  # fmt: skip
MOST_CPU = {"local_vectorised": 0.25}  # of the CPU per record
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
  and three function bolts.
- `spark_vectorised` and `spark_functions` are the same topologies on the spark engine, with up to
  {LARGE:,} records in a transaction; `spark_vectorised_200k` has up to {SMALL:,}.
{MEASURED} The spark engine's Python workers
start with the first task, so their start is in its rates and CPU.

All find a table that is there and empty. `scaling` lays a straight line through the CPU of the two
that differ only in the size of their transactions: so much for a record, and so much for a
transaction, however large."""


def run(bench: Bench) -> Result:
    """Measure."""
    rounds = bench.options.rounds or ROUNDS
    records = bench.options.records or RECORDS
    bench.publish(TOPIC, Orders().value, records)
    runs = bench.rounds(MODULE, VARIANTS, TOPIC, records, rounds=rounds, profile=PROFILED)
    found = Comparison(runs, AGAINST)
    return Result(
        "spark",
        {
            "records": records,
            "rounds": rounds,
            **found.facts,
            "scaling": _scaling(found, records),
        },
        [found.table(f"{records:,} records, medians of {rounds} rounds")],
        [
            *(Goal(f"{name}: rate", found.ratio[name], least) for name, least in LEAST.items()),
            *(
                Goal(f"{name}: CPU", found.cpu_ratio[name], most, at_most=True)
                for name, most in MOST_CPU.items()
            ),
        ],
        NOTES,
    )


def _scaling(found: Comparison, records: int) -> Facts:
    """CPU per record and per transaction, of what differs only in the size of its transactions.

    Nothing where the topic is too short for them to differ in their number.
    """
    batches = [found.batches[name] for name in SCALED]
    many, few = batches
    if many == few:
        return {}
    seconds = [found.cpu_us[name] * records / 1e6 for name in SCALED]
    transaction = (seconds[0] - seconds[1]) / (many - few)
    return {
        "transactions": batches,
        "cpu_us_per_record": round((seconds[1] - few * transaction) / records * 1e6, 3),
        "cpu_ms_per_transaction": round(transaction * 1e3, 1),
    }
