"""python -m benchmarks [SUITE]: run a suite of measurements, or all of them.

Tables for people go to standard error; the last line of standard output is one JSON object.
With --report they also go into a page.
"""

import argparse
import importlib
import json
import sys
from pathlib import Path

from rich.console import Console

from benchmarks.bench import Bench, Options
from benchmarks.report import Conditions, written_into
from benchmarks.result import Facts, Result
from service.observability import logs

SUITES = {
    "hot-path": "benchmarks.hot_path",
    "enrich": "benchmarks.enrich",
    "io": "benchmarks.io_bound",
    "fanout": "benchmarks.fanout",
    "memory": "benchmarks.memory",
    "tables": "benchmarks.tables",
    "tables-s3": "benchmarks.tables_s3",
    "tables-growth": "benchmarks.tables_growth",
    "guarantees": "benchmarks.guarantees",
    "latency": "benchmarks.latency",
    "tracing": "benchmarks.tracing",
    "scale": "benchmarks.scale",
    "acker": "benchmarks.acker",
    "start": "benchmarks.start",
}
ALL = "all"


def main() -> int:
    """Run what was asked for; other suites are not imported."""
    suites, report, options = _arguments()
    console = Console(stderr=True)
    logs.configure("warning", "console")
    facts: list[Facts] = []
    conditions = Conditions.now()  # a later suite would see the load of those before it
    with Bench(console, options) as bench:
        for name in SUITES if ALL in suites else suites:
            result: Result = importlib.import_module(SUITES[name]).run(bench)
            for table in result.all_tables:
                table.show(console)
            facts.append(result.json)
            if report is not None:  # at once: a later suite may fail
                page = report.read_text(encoding="utf-8")
                page = written_into(page, result, conditions)
                report.write_text(page, encoding="utf-8")
    is_one = len(suites) == 1 and ALL not in suites
    print(json.dumps(facts[0] if is_one else {"suite": " ".join(suites), "suites": facts}))
    return 0


def _arguments() -> tuple[list[str], Path | None, Options]:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("suites", nargs="*", default="hot-path", choices=[*SUITES, ALL])
    parser.add_argument("--records", type=int, help="how many at least; each suite has its own")
    parser.add_argument("--rounds", type=int, help="runs of each variant; medians count")
    parser.add_argument("--slow-seconds", type=float, help="io: what a slow call takes (10)")
    parser.add_argument("--trees", type=int, help="acker: how many a round (200000)")
    parser.add_argument("--in-flight", type=int, help="acker: when bytes are counted (1000000)")
    parser.add_argument("--report", type=Path, help="a page that has a place for the suite")
    given = parser.parse_args()
    options = Options(
        records=given.records,
        rounds=given.rounds,
        trees=given.trees,
        in_flight=given.in_flight,
        slow_seconds=given.slow_seconds,
    )
    if given.report is not None and not given.report.is_file():  # not after minutes of measuring
        parser.error(f"--report: found no page {given.report}")
    suites = given.suites if given.suites != "hot-path" else ["hot-path"]
    return suites, given.report, options


if __name__ == "__main__":
    sys.exit(main())
