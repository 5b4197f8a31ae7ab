"""Suite commits: whether Python and Spark's JVM stay flat over hundreds of small transactions."""

from benchmarks.bench import Bench, medians, opened
from benchmarks.commits_variants import COMMIT_RECORDS, EARLY, END
from benchmarks.orders import Orders
from benchmarks.result import Goal, Result, Table

COMMITS = 320
TOPIC = "orders-commits"
MODULE = "benchmarks.commits_variants"
VARIANTS = ("local",)
PARTS = {"heap_mb": "JVM's heap", "jvm_mb": "JVM resident", "python_mb": "Python resident"}
MOST_GROWTH = 1.1  # from the first commits to the last
NOTES = f"""\
The orders of suite spark into a Delta table, exactly once, by the local engine with two vectorised
bolts: {COMMIT_RECORDS:,} records of one partition in a transaction, each a commit of its own.

After a hundred commits and after the last one Python collects its garbage, and Spark's JVM its own
by `System.gc()`. `JVM's heap` are the bytes that its objects take then, `resident` is what
both processes have of the machine's memory, in MB."""


def run(bench: Bench) -> Result:
    """Measure."""
    rounds = bench.options.rounds or 1
    records = bench.options.records or COMMITS * COMMIT_RECORDS
    bench.publish(TOPIC, Orders().value, records, partitions=1)
    runs = bench.rounds(MODULE, VARIANTS, TOPIC, records, rounds=rounds)
    figures = {name: medians(found) for name, found in runs.items()}
    commits = {
        name: [round(found[f"{mark}_commits"]) for mark in (EARLY, END)]
        for name, found in figures.items()
    }
    held = {
        name: {part: [found[f"{mark}_{part}"] for mark in (EARLY, END)] for part in PARTS}
        for name, found in figures.items()
    }
    growth = {
        name: {part: end / early for part, (early, end) in parts.items()}
        for name, parts in held.items()
    }
    return Result(
        "commits",
        {
            "records": records,
            "rounds": rounds,
            "open_seconds": opened(figures),
            "commits": commits,
            "per_second": {
                name: round(found["per_second"] / COMMIT_RECORDS, 2)
                for name, found in figures.items()
            },
            "held": {
                name: {part: [round(mb, 1) for mb in marks] for part, marks in parts.items()}
                for name, parts in held.items()
            },
            "growth": {
                name: {part: round(times, 3) for part, times in parts.items()}
                for name, parts in growth.items()
            },
        },
        [
            Table(
                f"MB after {early:,} commits and after {end:,} in `{name}`",
                ("of", f"after {early:,}", f"after {end:,}", "growth"),
                [
                    (PARTS[part], *(f"{mb:,.1f}" for mb in marks), f"{growth[name][part]:.3f}")
                    for part, marks in held[name].items()
                ],
            )
            for name, (early, end) in commits.items()
        ],
        [
            Goal(f"{name}: growth of {PARTS[part]}", times, MOST_GROWTH, at_most=True)
            for name, parts in growth.items()
            for part, times in parts.items()
        ],
        NOTES,
    )
