"""A bench: servers to measure on, and runs of variants, each in a process of its own."""

import json
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Self

import msgspec
from rich.console import Console

from benchmarks.child import TIMEOUT_SECONDS, Figures, Job
from benchmarks.publishing import publish
from examples.flights.publish import publish as publish_flights
from service.cli.run import RunProgress, Servers, embedded

FLIGHTS = 336_776
Runs = dict[str, list[Figures]]  # by variant


@dataclass(frozen=True, slots=True)
class Options:
    """The command line's options; None leaves it to the suite."""

    records: int | None = None
    rounds: int | None = None
    trees: int | None = None
    in_flight: int | None = None
    slow_seconds: float | None = None


class Bench:
    """Servers, which start when the first suite asks for them, and runs of variants."""

    def __init__(self, console: Console, options: Options) -> None:
        self.options = options
        self.progress = RunProgress(console, lines=True)
        self._servers: Servers | None = None
        self._closing = ExitStack()
        self._count = 0

    def __enter__(self) -> Self:
        self._closing.enter_context(self.progress)
        return self

    def asked(self, rounds: int, records: int) -> tuple[int, int]:
        """The rounds and records that the command line asks for, or else these."""
        return self.options.rounds or rounds, self.options.records or records

    def __exit__(self, *_error: object) -> None:
        self._closing.close()

    @property
    def servers(self) -> Servers:
        if self._servers is None:
            folder = self._closing.enter_context(TemporaryDirectory(prefix="headrace-bench-"))
            servers = embedded(Path(folder), self.progress.jars)
            self._servers = self._closing.enter_context(servers)
        return self._servers

    def publish(
        self, topic: str, value_of: Callable[[int], bytes], records: int, *, partitions: int = 4
    ) -> None:
        """Fill a new topic; see `publishing.publish`."""
        publish(
            self.servers.kafka,
            topic,
            value_of,
            records,
            partitions=partitions,
            progress=lambda done, total: self.progress.step("publishing", done, total),
        )

    def publish_flights(self, topic: str, records: int) -> int:
        """Fill a new topic with the flights as often as it takes; return how many records."""
        return publish_flights(
            self.servers.kafka.address,
            topic,
            limit=min(records, FLIGHTS),
            repeat=-(-records // FLIGHTS),
            malformed=0,
            progress=lambda done, total: self.progress.step("publishing", done, total),
        ).total

    def rounds(
        self,
        module: str,
        variants: Sequence[str],
        topic: str,
        records: int,
        *,
        rounds: int,
        endpoints: Mapping[str, str] | None = None,
    ) -> Runs:
        """Run every variant once a round, on one topic, with the order turned each time.

        `endpoints` are the object stores of the variants whose tables are in one.
        """
        runs: Runs = {name: [] for name in variants}
        names = list(variants)
        for turn in range(rounds):
            for place, name in enumerate(names):
                done, total = turn * len(names) + place, rounds * len(names)
                self.progress.step(f"round {turn + 1}: {name}", done, total)
                endpoint = (endpoints or {}).get(name, "")
                runs[name].append(self.run(module, name, topic, records, endpoint=endpoint))
            names = names[1:] + names[:1]
        return runs

    def run(
        self,
        module: str,
        variant: str,
        topic: str,
        records: int,
        *,
        options: Mapping[str, float] | None = None,
        endpoint: str = "",
    ) -> Figures:
        """Run one variant in a process and session of its own.

        Raises SystemExit, with the process's standard error, if it fails, does not end in time, or
        has not read every record.
        """
        self._count += 1
        job = Job(
            module=module,
            variant=variant,
            kafka=self.servers.kafka.address,
            zookeeper=self.servers.zookeeper.address,
            topic=topic,
            records=records,
            pipeline=f"{variant}-{self._count}",
            options=dict(options or {}),
            endpoint=endpoint,
        )
        figures = run_alone(job)
        if figures["records"] != records:
            raise SystemExit(f"variant {variant} read {figures['records']} of {records} records")
        return figures


def run_alone(job: Job) -> Figures:
    try:
        ran = subprocess.run(
            [sys.executable, "-m", "benchmarks.child", msgspec.json.encode(job).decode()],
            capture_output=True,
            text=True,
            timeout=TIMEOUT_SECONDS,
            start_new_session=True,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise SystemExit(f"variant {job.variant} ran for {TIMEOUT_SECONDS:g} s") from None
    if ran.returncode:
        raise SystemExit(f"variant {job.variant} failed:\n{ran.stderr}")
    figures: Figures = json.loads(ran.stdout.splitlines()[-1])
    return figures


def medians(runs: Runs) -> dict[str, Figures]:
    """By variant: the median of each figure that is a number."""
    return {
        name: {
            key: statistics.median(run[key] for run in found)
            for key, value in found[0].items()
            if isinstance(value, int | float)
        }
        for name, found in runs.items()
    }
