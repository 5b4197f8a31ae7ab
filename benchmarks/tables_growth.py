"""Suite tables-growth: commits into large tables, many writers at once, a process's memory."""

import statistics

from benchmarks.bench import Bench
from benchmarks.comparison import spread
from benchmarks.orders import Orders
from benchmarks.orders_topologies import GROWTH_TOPIC
from benchmarks.result import Goal, Result, Table
from benchmarks.tables_growth_variants import COMMIT_ROWS, WRITERS

RECORDS = 2_000_000
ROUNDS = 3
COMMITS = 40
SECONDS = 20
MODULE = "benchmarks.tables_growth_variants"
MOST_MS = {100: 20.0, 10_000: 35.0, 100_000: 150.0}  # by files of the table
BOUNDED = "_bounded"
MOST_P99_MS = 1_000.0
LEAST_PER_SECOND = 14.0
MOST_MB = 350.0
MOST_FIRST_SECONDS = 3.0
NOTES = f"""\
- `commit_ms` is the median of {COMMITS} commits, each of one file of {COMMIT_ROWS:,} rows, by a
  `DeltaSink` exactly once, into a table on a local disk that has so many files; syncs are part of
  it. Of these files only the log knows: it was given them, and a checkpoint. Of each it has the
  number of rows; in `{BOUNDED[1:]}` also the bounds of nine columns, which delta-rs parses anew
  with each commit.
- `writers`: {WRITERS} processes, each with a partition of its own, commit to one table once a
  second for {SECONDS} seconds, after a first commit that is not counted. All rows are there once.
- `pipeline`: `headrace run` with two vectorised bolts into a `DeltaSink`, the default
  configuration, a topic that is full, and no pandas, as in the images: where it is installed,
  pyarrow imports it (40 MB). `peak_mb` is the most memory that its one process has had,
  `first_row_seconds` what passes from its start until the first row can be read."""


def run(bench: Bench) -> Result:
    """Measure."""
    rounds = bench.options.rounds or ROUNDS
    records = bench.options.records or RECORDS
    quick = bench.options.records is not None
    found: dict[str, list[float]] = {}

    def measure(variant: str, records: int, suffix: str = "", **options: float) -> None:
        figures = bench.run(MODULE, variant, GROWTH_TOPIC, records, options=options)
        for key, value in figures.items():
            found.setdefault(f"{key}{suffix}", []).append(value)

    bench.publish(GROWTH_TOPIC, Orders().value, records)
    sizes = [min(files, records) for files in MOST_MS]
    for turn in range(rounds):
        bench.progress.step(f"round {turn + 1}", turn, rounds)
        for files in sizes:
            measure("commits", 4 if quick else COMMITS, f"_{files}", files=files)
        measure("commits_bounded", 4 if quick else COMMITS, f"_{sizes[1]}{BOUNDED}", files=sizes[1])
        measure("writers", WRITERS * (3 if quick else SECONDS))
        measure("pipeline", records)
    figures = {name: statistics.median(each) for name, each in found.items()}
    spreads = {name: spread(each) for name, each in found.items()}
    shown = [name for name in figures if not name.startswith(("records", "rows"))]
    commit = {
        name.removeprefix("commit_ms_"): figures[name] for name in shown if "commit_ms" in name
    }
    return Result(
        "tables-growth",
        {
            "records": records,
            "rounds": rounds,
            "commit_ms": {name: round(value, 1) for name, value in commit.items()},
            **{name: round(figures[name], 3) for name in shown if "commit_ms" not in name},
            "spread": {name: spreads[name] for name in shown},
        },
        [
            Table(
                f"medians of {rounds} rounds",
                ("figure", "median", "lowest", "highest"),
                [
                    (f"`{name}`", *(f"{each:,.1f}" for each in (figures[name], *spreads[name])))
                    for name in shown
                ],
            )
        ],
        [
            *(
                Goal(f"commit at {files:,} files, ms", commit[str(size)], most, at_most=True)
                for size, (files, most) in zip(sizes, MOST_MS.items(), strict=True)
            ),
            Goal("writers: commits a second", figures["commits_per_second"], LEAST_PER_SECOND),
            Goal("writers: p99, ms", figures["p99_ms"], MOST_P99_MS, at_most=True),
            Goal("pipeline: MB", figures["peak_mb"], MOST_MB, at_most=True),
            Goal(
                "pipeline: first row, s",
                figures["first_row_seconds"],
                MOST_FIRST_SECONDS,
                at_most=True,
            ),
        ],
        NOTES,
    )
