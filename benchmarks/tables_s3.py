"""Suite tables-s3: the same into tables on SeaweedFS, and through a connection that is slow."""

from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.bench import Bench
from benchmarks.orders import Orders
from benchmarks.result import COMPARED, Goal, Result, compared, compared_facts, table
from benchmarks.tables import DELTA, ICEBERG, MODULE
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


def run(bench: Bench) -> Result:
    rounds, records = bench.asked(ROUNDS, RECORDS)
    _, long_records = bench.asked(ROUNDS, LONG_RECORDS)
    bench.publish(TOPIC, Orders().value, records)
    bench.publish(LONG_TOPIC, Orders().value, long_records)
    with TemporaryDirectory(prefix="headrace-bench-", ignore_cleanup_errors=True) as folder:
        store = EmbeddedSeaweed(Path(folder))
        store.open()
        slow = Relay(store.port)
        slow.delay = DELAY_SECONDS / 2  # each way
        try:
            endpoints = dict.fromkeys((*NAMES, LARGE), store.url)
            endpoints[DELAYED] = f"http://{slow.address}"
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
    figures = compared(runs, AGAINST)
    delayed = compared(delayed_runs, {DELAYED: LARGE})
    found, others = compared_facts(figures), compared_facts(delayed)
    for key in ("ratio", "cpu_ratio", "spread"):
        found[key] = {f"s3_{name}": value for name, value in (found[key] | others[key]).items()}
    found["per_second"] |= others["per_second"]
    return Result(
        "tables-s3",
        {"records": records, "rounds": rounds, "against": AGAINST, **found},
        [
            table(f"{records:,} records, medians of {rounds} rounds", figures, COMPARED),
            table(f"{long_records:,} records, medians of {rounds} rounds", delayed, COMPARED),
        ],
        [
            *(
                Goal(f"s3_{name}: rate", figures[name]["ratio"], least)
                for name, least in LEAST.items()
            ),
            Goal(f"s3_{DELAYED}: rate", delayed[DELAYED]["ratio"], LEAST_DELAYED),
        ],
    )
