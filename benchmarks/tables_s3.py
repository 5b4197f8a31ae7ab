"""Suite tables-s3: the same into tables on SeaweedFS, and through a connection that is slow."""

from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.bench import Bench
from benchmarks.orders import Orders
from benchmarks.result import Comparison, Goal, Result
from benchmarks.tables import DELTA, ICEBERG, LARGE_ROWS, MEASURED, MODULE, WORK
from tests.support.network import Relay
from tests.support.seaweed import EmbeddedSeaweed

RECORDS = 2_000_000
ROUNDS = 2
TOPIC = "orders-tables-s3"
LONG_RECORDS = 9_000_000  # so that the last commit is a small part
LONG_TOPIC = "orders-tables-s3-long"
DELAYED, LARGE = "delta_delayed", "delta_large"
DELAY_SECONDS = 0.2  # of each request
AGAINST = {
    **dict.fromkeys(DELTA, "structured_delta"),
    **dict.fromkeys(ICEBERG, "structured_iceberg"),
}
NAMES = ("structured_delta", *DELTA, "structured_iceberg", *ICEBERG)
LEAST = {
    "delta_vectorised": 4.0, "delta_functions": 2.5, "iceberg_vectorised": 4.0,
    "iceberg_functions": 2.5,
}  # fmt: skip
LEAST_DELAYED = 0.8
NOTES = f"""\
{WORK}

All tables lie on SeaweedFS, which shares the machine, and the variants are those of suite `tables`.
Structured Streaming writes through Hadoop's S3A, its checkpoint and Iceberg's SQLite catalogue
are on the local disk. `{DELAYED}` is `{LARGE}` through a proxy that delays each request by
{DELAY_SECONDS * 1000:.0f} ms, and held against it: two vectorised bolts with micro-batches of
{LARGE_ROWS:,} rows and a window for three of them, for a commit is eight requests, one after the
other.

{MEASURED}"""


def run(bench: Bench) -> Result:
    rounds = bench.options.rounds or ROUNDS
    records = bench.options.records or RECORDS
    long_records = bench.options.records or LONG_RECORDS
    bench.publish(TOPIC, Orders().value, records)
    bench.publish(LONG_TOPIC, Orders().value, long_records)
    with TemporaryDirectory(prefix="headrace-bench-", ignore_cleanup_errors=True) as folder:
        store = EmbeddedSeaweed(Path(folder))
        store.open()
        slow = Relay(store.port)
        slow.delay = DELAY_SECONDS / 2  # each way
        try:
            endpoints = {
                **dict.fromkeys((*NAMES, LARGE), store.url),
                DELAYED: f"http://{slow.address}",
            }
            runs, delayed_runs = (
                bench.rounds(MODULE, variants, topic, count, rounds=rounds, endpoints=endpoints)
                for variants, topic, count in (
                    (NAMES, TOPIC, records),
                    ((LARGE, DELAYED), LONG_TOPIC, long_records),
                )
            )
        finally:
            slow.close()
            store.close()
    found = Comparison(runs, AGAINST)
    delayed = Comparison(delayed_runs, {DELAYED: LARGE})
    facts = found.facts
    for key in ("ratio", "cpu_ratio", "spread"):
        both = facts[key] | delayed.facts[key]
        facts[key] = {f"s3_{name}": value for name, value in both.items()}
    facts["per_second"] |= delayed.facts["per_second"]
    return Result(
        "tables-s3",
        {"records": records, "rounds": rounds, "against": AGAINST, **facts},
        [
            found.table(f"{records:,} records, medians of {rounds} rounds"),
            delayed.table(f"{long_records:,} records, medians of {rounds} rounds"),
        ],
        [
            *(Goal(f"s3_{name}: rate", found.ratio[name], least) for name, least in LEAST.items()),
            Goal(f"s3_{DELAYED}: rate", delayed.ratio[DELAYED], LEAST_DELAYED),
        ],
        NOTES,
    )
