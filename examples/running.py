"""Runs an example on a Kafka and a ZooKeeper of its own, and prints its account.

What stands behind it, `headrace run MODULE:TOPOLOGY --embedded`, a user has as well; an example
also fills its topics, and looks at what came out without asking the pipeline.
"""

import argparse
import fcntl
import json
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeAlias, get_args
from urllib.parse import unquote

from confluent_kafka import KafkaError, Producer
from rich.console import Console

from headrace import Topology
from service.app import run_pipeline
from service.cli.run import RunProgress, Servers, embedded, show_summary
from service.config.settings import Config, EngineName, load
from service.jars.resolver import resolve
from service.observability import logs
from service.observability.snapshot import RunSummary
from sinks.spark.driver import SparkDriver

INTERRUPTED = 130
PARTITIONS = 4
_PUBLISH_SECONDS = 60.0

Message: TypeAlias = tuple[str, bytes]
"""Key and value; those of one key stay in order."""
Change: TypeAlias = tuple[str, bytes | None]
"""The same; without a value it is a tombstone."""


class Outcome(NamedTuple):
    """What a run came to."""

    account: RunSummary
    gaps: Sequence[str] = ()  # what contradicts the account, in words
    shown: Sequence[str] = ()  # what came out, for people


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What an example has for one run: servers, an empty folder, a line that shows progress."""

    servers: Servers
    folder: Path
    progress: RunProgress
    spark: SparkDriver | None = None  # started beside the servers

    @property
    def warehouse(self) -> Path:
        """Where tables lie."""
        return self.folder / "warehouse"

    def publish(self, topic: str, messages: Iterable[Change]) -> None:
        """Create a topic and send these; return when the broker has them all."""
        self.progress.step(f"publishing {topic}")
        self.servers.kafka.create_topic(topic, PARTITIONS)
        failed: list[KafkaError] = []
        producer = Producer(
            {
                "bootstrap.servers": self.servers.kafka.address,
                "enable.idempotence": True,
                "linger.ms": 20,
                "on_delivery": lambda error, _: failed.append(error) if error else None,
                "log_level": 3,
            }
        )
        for key, value in messages:
            producer.produce(topic, value, key)
        if producer.flush(_PUBLISH_SECONDS) or failed:
            raise RuntimeError(f"not all of '{topic}' was published: {failed[:1]}")

    def config(self, path: Path | None = None, engine: EngineName | None = None) -> Config:
        """The configuration of a file, if one is named, led to these surroundings."""
        return load(
            path,
            {
                **self.servers.overrides,
                "pipeline": {} if engine is None else {"engine": engine},
                "storage": {"warehouse": str(self.warehouse)},
                "http": {"port": 0},
            },
        )

    def run(
        self, topology: Topology, config: Config | None = None, *, target: str | None = None
    ) -> RunSummary:
        """Run a topology until all that was published is resolved.

        `target` is where Spark's executors find it, "module:name"; the spark engine needs it.
        """
        self.progress.step("starting")
        return run_pipeline(
            topology,
            config or self.config(),
            target=target,
            until_caught_up=True,
            on_snapshot=self.progress.snapshot,
            spark=self.spark,
        )


def arguments(name: str, doc: str | None) -> argparse.ArgumentParser:
    """What every example can be told on its command line."""
    parser = argparse.ArgumentParser(
        prog=f"python -m examples.{name}",
        description=doc,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--state-dir", type=Path, default=Path(".headrace"))
    return parser


def on_engines(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """The same, of an example that runs on either engine."""
    parser.add_argument("--engine", choices=get_args(EngineName), default="local")
    return parser


def delta_files(table: Path) -> list[Path]:
    """The files that a Delta table consists of now, by its log alone."""
    files: set[str] = set()
    for commit in sorted((table / "_delta_log").glob("*.json")):
        for line in commit.read_text(encoding="utf-8").splitlines():
            action = json.loads(line)
            files |= {action["add"]["path"]} if "add" in action else set()
            files -= {action["remove"]["path"]} if "remove" in action else set()
    return [table / unquote(file) for file in sorted(files)]


def run_example(
    name: str,
    state_dir: Path,
    run: Callable[[Surroundings], Outcome],
    *,
    spark: SparkDriver | None = None,
) -> int:
    """Run an example in a fresh folder, print what came of it, and return the exit code.

    The last line of standard output is the account as one JSON object.
    """
    console, began = Console(stderr=True), time.monotonic()
    logs.configure("warning", "console")
    try:
        with _fresh(state_dir, name) as folder, RunProgress(console, lines=True) as progress:
            if spark is not None:
                resolve("delta", progress=progress.jars)
            beside = "Kafka and ZooKeeper" if spark is None else "Kafka, ZooKeeper and Spark"
            progress.step(f"starting {beside}")
            with embedded(folder, progress.jars, spark=spark) as servers:
                outcome = run(Surroundings(servers, folder, progress, spark))
    except KeyboardInterrupt:
        console.print("interrupted")
        return INTERRUPTED
    account = outcome.account
    show_summary(console, account)
    rate, flowed = account.records_per_second, account.seconds
    total = time.monotonic() - began
    console.print(f"{rate:,.0f} records/s once they flowed, for {flowed:.0f} s of {total:.0f} s")
    for gap in outcome.gaps:
        console.print(f"[bold red]open:[/] {gap}", soft_wrap=True)
    for line in outcome.shown:
        print(line)
    print(json.dumps(account.as_json()))
    if not account.caught_up:
        return INTERRUPTED
    return 1 if outcome.gaps or account.problems() else 0


@contextmanager
def _fresh(state_dir: Path, name: str) -> Iterator[Path]:
    """An empty folder for the run's servers and tables; two runs never share one."""
    state_dir.mkdir(parents=True, exist_ok=True)
    state = state_dir.resolve() / name
    with (state_dir / f"{name}.lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            message = f"another run uses {state}; wait for it, or give another --state-dir"
            raise SystemExit(message) from None
        shutil.rmtree(state, ignore_errors=True)
        state.mkdir()
        yield state
