"""A bench: servers to measure on, and runs of variants, each in a process of its own."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Self

from rich.console import Console

from benchmarks.children import Together, run_alone
from benchmarks.job import Figures, Job
from benchmarks.options import Options
from benchmarks.publishing import publish
from service.cli.embedded import Servers, embedded
from service.cli.render import RunProgress

Runs = dict[str, list[Figures]]  # by variant


class Bench:
    """Servers, which start when the first suite asks for them, and runs of variants.

    Use it in a `with`; `close` ends the servers. `profiles` are those that were taken.
    """

    def __init__(self, console: Console, options: Options) -> None:
        self.options = options
        self.progress = RunProgress(console)
        self.profiles: dict[str, Figures] = {}
        self._servers: Servers | None = None
        self._together = Together() if options.together else None
        self._closing = ExitStack()
        self._count = 0

    def __enter__(self) -> Self:
        """Show the progress."""
        self._closing.enter_context(self.progress)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End the variants' process, if they have one together, and the servers."""
        if self._together is not None:
            self._closing.callback(self._together.close)
        self._closing.close()

    @property
    def servers(self) -> Servers:
        """Kafka and ZooKeeper, running."""
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

    def rounds(
        self,
        module: str,
        variants: Sequence[str],
        topic: str,
        records: int,
        *,
        rounds: int,
        profile: Sequence[str] = (),
        endpoints: Mapping[str, str] | None = None,
    ) -> Runs:
        """Every variant once a round, on one topic, with the order turned each time.

        `endpoints` are the object stores of those variants whose tables are in one.

        If profiles are wanted, those named in `profile` run once more under the sampler. Where
        all run together, and no figure counts, they are sampled in the first round.
        """
        runs: Runs = {name: [] for name in variants}
        wanted = profile if self.options.profiled else ()
        at_once = wanted if self.options.together else ()
        names = list(variants)
        for turn in range(rounds):
            for place, name in enumerate(names):
                done, total = turn * len(names) + place, rounds * len(names)
                self.progress.step(f"round {turn + 1}: {name}", done, total)
                profiled = turn == 0 and name in at_once
                endpoint = (endpoints or {}).get(name, "")
                figures = self.run(
                    module, name, topic, records, profiled=profiled, endpoint=endpoint
                )
                runs[name].append(figures)
                if profiled:
                    self.profiles[name] = figures["profile"]
            names = names[1:] + names[:1]
        for name in wanted if not at_once else ():
            self.progress.step(f"profiling {name}")
            figures = self.run(module, name, topic, records, profiled=True)
            self.profiles[name] = figures["profile"]
        return runs

    def run(
        self,
        module: str,
        variant: str,
        topic: str,
        records: int,
        *,
        options: Mapping[str, float] | None = None,
        profiled: bool = False,
        endpoint: str = "",
        meanwhile: Callable[[Job], None] | None = None,
    ) -> Figures:
        """One variant in a process and session of its own, unless all run together.

        `meanwhile` is called again and again while it runs. Raises SystemExit with what it
        wrote if it fails, does not end, or has not read every record.
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
            profiled=profiled,
            together=self._together is not None,
        )
        run = run_alone if self._together is None else self._together.run
        figures = run(job, meanwhile)
        if figures["records"] != records:
            raise SystemExit(f"variant {variant} read {figures['records']} of {records} records")
        return figures


def opened(figures: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """How many seconds each variant took to open its partitions, where it tells."""
    return {
        name: round(found["open_seconds"], 3)
        for name, found in figures.items()
        if "open_seconds" in found
    }


def medians(runs: Sequence[Figures]) -> dict[str, float]:
    """The median of each figure that is a number."""
    return {
        key: statistics.median(run[key] for run in runs)
        for key, value in runs[0].items()
        if isinstance(value, int | float)
    }
