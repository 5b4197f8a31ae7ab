"""Suite enrich: parse, look up, multiply, filter and commit, against a loop written by hand."""

from benchmarks.bench import Bench, medians, opened
from benchmarks.measured import AT_ONCE, FEW_AT_ONCE
from benchmarks.orders import Orders
from benchmarks.result import Goal, Result, Table

RECORDS = 2_000_000
ROUNDS = 3
TOPIC = "orders"
MODULE = "benchmarks.enrich_variants"
VARIANTS = ("loop", "loop_few", "functions", "vectorised")
MOST = {"functions": 1.25, "vectorised": 1.0}  # of the loop's CPU per record
NOTES = f"""\
Orders as JSON of 111 bytes. Each is parsed, its user looked up among 100,000, quantity and
price are multiplied, and totals below 50 dropped (one order in twelve). `loop` is written by
hand with confluent-kafka, takes {AT_ONCE:,} messages at once and commits to its consumer group
once a second; Headrace stores its offsets in ZooKeeper as often. All make the same rows and give
them to a sink that counts. The ratios are to the loop; those in brackets to `loop_few`, which
takes {FEW_AT_ONCE:,} messages at once and is otherwise the same."""


def run(bench: Bench) -> Result:
    """Measure."""
    rounds = bench.options.rounds or ROUNDS
    records = bench.options.records or RECORDS
    bench.publish(TOPIC, Orders().value, records)
    runs = bench.rounds(MODULE, VARIANTS, TOPIC, records, rounds=rounds, profile=list(MOST))
    figures = {name: medians(found) for name, found in runs.items()}
    rows_found = {found["rows"] for found in figures.values()}
    if len(rows_found) > 1:
        raise SystemExit(f"the variants do not make the same rows: {rows_found}")
    ratios = {name: figures[name]["cpu_us"] / figures["loop"]["cpu_us"] for name in MOST}
    few = {name: figures[name]["cpu_us"] / figures["loop_few"]["cpu_us"] for name in MOST}
    rates = {name: figures[name]["per_second"] / figures["loop"]["per_second"] for name in MOST}
    rows = [
        (
            name,
            f"{found['per_second']:,.0f}",
            f"{found['cpu_us']:.2f}",
            f"{ratios[name]:.2f} ({few[name]:.2f})" if name in ratios else "",
            f"{rates[name]:.2f}" if name in rates else "",
            f"{found['peak_mb']:,.0f}",
        )
        for name, found in figures.items()
    ]
    columns = ("variant", "records/s", "CPU µs/record", "CPU ratio", "rate ratio", "peak MB")
    title = f"{records:,} records, medians of {rounds} rounds"
    return Result(
        "enrich",
        {
            "records": records,
            "rounds": rounds,
            "open_seconds": opened(figures),
            "rows": int(rows_found.pop()),
            "cpu_us": {name: round(found["cpu_us"], 3) for name, found in figures.items()},
            "per_second": {name: round(found["per_second"]) for name, found in figures.items()},
            "cpu_ratio": {name: round(ratio, 3) for name, ratio in ratios.items()},
            "cpu_ratio_few": {name: round(ratio, 3) for name, ratio in few.items()},
        },
        [Table(title, columns, rows)],
        [Goal(f"{name}: CPU", ratios[name], most, at_most=True) for name, most in MOST.items()],
        NOTES,
    )
