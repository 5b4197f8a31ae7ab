"""Suite hot-path: Headrace end to end against the bare consume loop, on one topic.

Every variant reads the same records in a process and session of its own, several rounds
with the order turned each time; medians count. Rates shift with what else the machine
does, so the ratios of one run are what to quote.
"""

import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.variants import VARIANTS
from examples.flights.publish import publish
from service import logs
from service.cli.embedded import Servers, embedded
from service.cli.render import RunProgress

TOPIC = "flights"
FLIGHTS = 336_776
TIMEOUT_SECONDS = 180
# Which bare loop each variant of Headrace is held against.
AGAINST = {"noop": "raw", "functions": "raw_json", "vectorised": "raw_json"}

Figures = dict[str, float]


def main(*, records: int = 2_000_000, rounds: int = 3) -> int:
    """Measure, print tables, and the JSON object as the last line."""
    console = Console(stderr=True)
    logs.configure("warning", "console")
    with (
        tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder,
        RunProgress(console) as progress,
        embedded(Path(folder), progress.jars) as servers,
    ):
        published = publish(
            servers.kafka.address,
            TOPIC,
            repeat=-(-records // FLIGHTS),
            malformed=0,
            progress=lambda done, total: progress.step("publishing", done, total),
        )
        runs = _measure(servers, published.total, rounds, progress)
    figures = {name: _medians(found) for name, found in runs.items()}
    _show(console, figures, published.total, rounds)
    print(json.dumps(_facts(figures, published.total, rounds)))
    return 0


def _measure(
    servers: Servers, records: int, rounds: int, progress: RunProgress
) -> dict[str, list[Figures]]:
    runs: dict[str, list[Figures]] = {name: [] for name in VARIANTS}
    names = list(VARIANTS)
    for turn in range(rounds):
        for place, name in enumerate(names):
            progress.step(
                f"round {turn + 1}: {name}", turn * len(names) + place, rounds * len(names)
            )
            runs[name].append(_run(servers, name, records, f"{name}-{turn}"))
        names = names[1:] + names[:1]
    return runs


def _run(servers: Servers, variant: str, records: int, pipeline: str) -> Figures:
    """One variant in a process and session of its own."""
    ended = subprocess.run(
        [
            sys.executable, "-m", "benchmarks.variants", variant, servers.kafka.address,
            servers.zookeeper.address, TOPIC, str(records), pipeline,
        ],
        capture_output=True, text=True, timeout=TIMEOUT_SECONDS, start_new_session=True,
        check=False,
    )  # fmt: skip
    if ended.returncode:
        raise SystemExit(f"variant {variant} failed:\n{ended.stderr}")
    figures: Figures = json.loads(ended.stdout.splitlines()[-1])
    if figures["records"] != records:
        raise SystemExit(f"variant {variant} read {figures['records']} of {records} records")
    return figures


def _medians(runs: list[Figures]) -> Figures:
    return {key: statistics.median(run[key] for run in runs) for key in runs[0]}


def _facts(figures: dict[str, Figures], records: int, rounds: int) -> dict[str, Any]:
    return {
        "suite": "hot-path",
        "records": records,
        "rounds": rounds,
        "cpu_us": {name: round(found["cpu_us"], 3) for name, found in figures.items()},
        "per_second": {name: round(found["per_second"]) for name, found in figures.items()},
        "ratio": {name: round(_ratio(figures, name), 3) for name in AGAINST},
        "memory_mb": {
            name: {"early": round(found["early_mb"]), "end": round(found["end_mb"])}
            for name, found in figures.items()
        },
    }


def _ratio(figures: dict[str, Figures], name: str) -> float:
    return figures[name]["per_second"] / figures[AGAINST[name]]["per_second"]


def _show(console: Console, figures: dict[str, Figures], records: int, rounds: int) -> None:
    table = Table(title=f"{records:,} records, medians of {rounds} rounds", title_justify="left")
    table.add_column("variant")
    for name in ("records/s", "CPU µs/record", "ratio", "against", "MB at 1/4", "MB at end"):
        table.add_column(name, justify="right")
    for name, found in figures.items():
        against = AGAINST.get(name)
        table.add_row(
            name,
            f"{found['per_second']:,.0f}",
            f"{found['cpu_us']:.2f}",
            f"{_ratio(figures, name):.2f}" if against else "",
            against or "",
            f"{found['early_mb']:,.0f}",
            f"{found['end_mb']:,.0f}",
        )
    console.print(table)
