"""Suite latency: from an order's making until it can be read in a Delta table."""

from benchmarks.bench import Bench, Runs, medians
from benchmarks.comparison import check_rows
from benchmarks.latency_variants import BATCH_SECONDS, PER_SECOND
from benchmarks.publishing import PARTITIONS
from benchmarks.result import Goal, Result, Table

RECORDS = 90 * PER_SECOND  # the first third is not counted, so that is a minute
ROUNDS = 2
TOPIC = "orders-latency"
MODULE = "benchmarks.latency_variants"
VARIANTS = ("structured", "headrace")
PERCENTILES = ("p50", "p99")
MOST = 0.5  # of Structured Streaming's
NOTES = f"""\
A publisher in a process of its own makes {PER_SECOND:,} orders a second, which carry the
millisecond at which they were made, and puts them into four partitions. They are processed as in
suite `tables`, into a Delta table, exactly once: by Structured Streaming with a trigger every
{BATCH_SECONDS:g} s, and by the local engine with two vectorised bolts and micro-batches of as long.
A row can be read once the entry of the table's log is there that names its file, so the entry's
modification time less the order's millisecond is its latency. The first third of the orders is
not counted: until then a JVM warms up. Number of rows, sum of the order numbers and sum of the
totals are the same for both."""


def run(bench: Bench) -> Result:
    """Measure."""
    rounds = bench.options.rounds or ROUNDS
    records = bench.options.records or RECORDS
    runs: Runs = {name: [] for name in VARIANTS}
    names = list(VARIANTS)
    for turn in range(rounds):
        for place, name in enumerate(names):
            done, total = turn * len(names) + place, rounds * len(names)
            bench.progress.step(f"round {turn + 1}: {name}", done, total)
            topic = f"{TOPIC}-{name}-{turn}"  # filled while it is read
            bench.servers.kafka.create_topic(topic, PARTITIONS)
            runs[name].append(bench.run(MODULE, name, topic, records))
        names.reverse()
    check_rows(runs)
    figures = {name: medians(found) for name, found in runs.items()}
    latency = {
        name: {each: round(found[f"{each}_ms"]) for each in PERCENTILES}
        for name, found in figures.items()
    }
    ratio = {
        each: figures["headrace"][f"{each}_ms"] / figures["structured"][f"{each}_ms"]
        for each in PERCENTILES
    }
    rows = [
        (
            name,
            *(f"{found[f'{each}_ms']:,.0f}" for each in PERCENTILES),
            f"{found['most_ms']:,.0f}",
            f"{found['commits']:.0f}",
            f"{found['published_per_second']:,.0f}",
        )
        for name, found in figures.items()
    ]
    columns = ("variant", "p50 ms", "p99 ms", "longest ms", "commits", "published/s")
    title = f"{records:,} records, medians of {rounds} rounds"
    return Result(
        "latency",
        {
            "records": records,
            "rounds": rounds,
            "rows": int(figures["headrace"]["rows"]),
            "commits": {name: round(found["commits"]) for name, found in figures.items()},
            "published_per_second": {
                name: round(found["published_per_second"]) for name, found in figures.items()
            },
            "latency_ms": latency,
            "ratio": {each: round(value, 3) for each, value in ratio.items()},
        },
        [Table(title, columns, rows)],
        [
            Goal(f"{each}: of Structured Streaming's", value, MOST, at_most=True)
            for each, value in ratio.items()
        ],
        NOTES,
    )
