"""Suite tables-s3: the same into tables on SeaweedFS, and through a connection that is slow."""

from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.bench import Bench
from benchmarks.comparison import Comparison
from benchmarks.orders import Orders
from benchmarks.result import Goal, Result
from benchmarks.tables import DELTA, ICEBERG, MEASURED, MODULE, WORK
from tests.support.seaweed import EmbeddedSeaweed
from tests.worlds.relay import Relay

RECORDS = 2_000_000
ROUNDS = 2
TOPIC = "orders-tables-s3"
DELAYED = "delta_delayed"
DELAY_SECONDS = 0.2  # of each request
AGAINST = {
    **dict.fromkeys(DELTA, "structured_delta"),
    **dict.fromkeys(ICEBERG, "structured_iceberg"),
    DELAYED: "delta_vectorised",
}
VARIANTS = ("structured_delta", *DELTA, DELAYED, "structured_iceberg", *ICEBERG)
LEAST = {
    "delta_vectorised": 4.0, "delta_functions": 2.5, "iceberg_vectorised": 4.0,
    "iceberg_functions": 2.5, DELAYED: 0.8,
}  # fmt: skip
NOTES = f"""\
{WORK}

All tables lie on SeaweedFS, which shares the machine, and the variants are those of suite `tables`.
Structured Streaming writes through Hadoop's S3A, its checkpoint and Iceberg's SQLite catalogue
are on the local disk. `{DELAYED}` is `delta_vectorised` through a proxy that delays each request by
{DELAY_SECONDS * 1000:.0f} ms, and held against it.

{MEASURED}"""


def run(bench: Bench) -> Result:
    """Measure."""
    rounds = bench.options.rounds or ROUNDS
    records = bench.options.records or RECORDS
    bench.publish(TOPIC, Orders().value, records)
    with TemporaryDirectory(prefix="headrace-bench-", ignore_cleanup_errors=True) as folder:
        store = EmbeddedSeaweed(Path(folder))
        store.open()
        slow = Relay(store.port)
        slow.delay = DELAY_SECONDS / 2  # each way
        try:
            endpoints = {**dict.fromkeys(VARIANTS, store.url), DELAYED: f"http://{slow.address}"}
            runs = bench.rounds(
                MODULE, VARIANTS, TOPIC, records, rounds=rounds, endpoints=endpoints
            )
        finally:
            slow.close()
            store.close()
    found = Comparison(runs, AGAINST)
    facts = found.facts
    for key in ("ratio", "cpu_ratio", "spread"):
        facts[key] = {f"s3_{name}": value for name, value in facts[key].items()}
    return Result(
        "tables-s3",
        {"records": records, "rounds": rounds, "against": AGAINST, **facts},
        [found.table(f"{records:,} records, medians of {rounds} rounds")],
        [Goal(f"s3_{name}: rate", found.ratio[name], least) for name, least in LEAST.items()],
        NOTES,
    )
