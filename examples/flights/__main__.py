"""The main job: a year of real flights, from an own Kafka into an own Delta table.

python -m examples.flights [--state-dir DIR] [--limit N]
"""

import argparse
import fcntl
import json
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from examples.flights.pipeline import topology
from examples.flights.proof import dead_letters_in, rows_in_table
from examples.flights.publish import publish
from service import logs
from service.account import Account
from service.cli.embedded import Servers, embedded
from service.cli.render import RunProgress, show_account
from service.config import Config, load
from service.jars.resolver import resolve
from service.running import run_pipeline

CONFIG = Path(__file__).with_name("service.toml")
TOPIC = "flights"
INTERRUPTED = 130


def main() -> int:
    """Publish, run until caught up, print the account; return the exit code."""
    options = _options()
    console = Console(stderr=True)
    logs.configure("warning", "console")
    try:
        with _fresh(options.state_dir) as state, RunProgress(console) as progress:
            resolve("delta", progress=progress.jars)
            progress.step("starting Kafka and ZooKeeper")
            with embedded(state, progress.jars) as servers:
                account, gaps = _run(servers, state, options.limit, progress)
    except KeyboardInterrupt:
        console.print("interrupted")
        return INTERRUPTED
    show_account(console, account)
    for gap in gaps:
        console.print(f"[bold red]open:[/] {gap}", soft_wrap=True)
    print(json.dumps(account.as_json()))
    if not account.caught_up:
        return INTERRUPTED
    return 1 if gaps or account.gaps() else 0


def _run(
    servers: Servers, state: Path, limit: int | None, progress: RunProgress
) -> tuple[Account, list[str]]:
    """Run the pipeline over freshly published flights; the account, and what disproves it."""
    progress.step("publishing flights")
    publish(
        servers.kafka.address,
        TOPIC,
        limit=limit,
        progress=lambda done, total: progress.step("publishing flights", done, total),
    )
    config = _config(servers, state)
    progress.step("starting Spark")
    account = run_pipeline(topology, config, until_caught_up=True, on_snapshot=progress.snapshot)
    # The account is the pipeline's own; these two are not.
    gaps = []
    rows = rows_in_table(Path(config.spark.warehouse) / "flight_events")
    if rows != account.rows:
        gaps.append(f"the account has {account.rows} rows, but the table holds {rows}")
    letters = dead_letters_in(servers.kafka.address, str(account.dead_letters))
    if letters != account.dead_lettered:
        gaps.append(f"the account has {account.dead_lettered} dead letters, the topic {letters}")
    return account, gaps


def _config(servers: Servers, state: Path) -> Config:
    return load(
        CONFIG,
        {
            **servers.overrides,
            "spark": {
                "warehouse": str(state / "warehouse"),
            },
            "http": {"port": 0},
        },
    )


@contextmanager
def _fresh(state_dir: Path) -> Iterator[Path]:
    """An empty folder for the run's servers and table; two runs never share one."""
    state_dir.mkdir(parents=True, exist_ok=True)
    state = state_dir.resolve() / "flights"
    with (state_dir / "flights.lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            message = f"another run uses {state}; wait for it, or give another --state-dir"
            raise SystemExit(message) from None
        shutil.rmtree(state, ignore_errors=True)
        state.mkdir()
        yield state


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m examples.flights", description=__doc__)
    parser.add_argument("--state-dir", type=Path, default=Path(".headrace"))
    parser.add_argument("--limit", type=int, help="only the first N flights")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
