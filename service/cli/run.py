"""`headrace run` and `headrace dev up`: a pipeline, and Kafka and ZooKeeper brought along."""

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from service.app import run_pipeline
from service.cli import common as cli
from service.config.settings import load
from service.devservers.java import pyspark_jars
from service.devservers.servers import EmbeddedKafka, EmbeddedZooKeeper
from service.errors import ServiceError
from service.jars.resolver import Progress as JarProgress
from service.observability import logs
from service.observability.snapshot import RunSummary, Snapshot
from service.wiring import spark_of
from sinks.spark.driver import SparkDriver
from topology.masking import escaped
from topology.topology import Topology

app = typer.Typer()
dev_app = typer.Typer(
    help="Kafka, ZooKeeper for development; they need headrace\\[spark] and Java.",
    no_args_is_help=True,
)

TOPIC_PARTITIONS = 4
_POLL_SECONDS = 0.5
_STATE = Path(".headrace")
StateDir = Annotated[
    Path, typer.Option(metavar="DIR", help="The folder in which the embedded servers keep data.")
]


@app.command()
def run(
    target: cli.Target,
    config: cli.ConfigPath = None,
    *,
    until_caught_up: Annotated[
        bool, typer.Option("--until-caught-up", help="Stop at the log end observed at start-up.")
    ] = False,
    engine: Annotated[
        Literal["local", "spark"] | None,
        typer.Option(help="What processes the records, instead of the configuration's engine."),
    ] = None,
    with_servers: Annotated[
        bool,
        typer.Option(
            "--embedded",
            help="Bring Kafka and ZooKeeper along (headrace\\[spark], Java); all else is as in "
            "--config, which may be left out.",
        ),
    ] = False,
    state_dir: StateDir = _STATE,
    as_json: cli.Json = False,
) -> None:
    """Run a topology. Drains on SIGTERM or Ctrl-C, and prints a run summary."""
    topology = cli.load_topology(target)
    overrides = {} if engine is None else {"pipeline": {"engine": engine}}
    with RunProgress(Console(stderr=True)) as progress:
        run_with = partial(
            run_pipeline,
            topology,
            target=target,
            until_caught_up=until_caught_up,
            on_snapshot=progress.snapshot,
        )
        if with_servers:
            summary = _run_embedded(topology, config, overrides, state_dir, progress, run_with)
        else:
            summary = run_with(cli.configured(config, overrides))
    if as_json:
        cli.print_json(summary.as_json())
    else:
        show_summary(cli.answers(), summary)
    gaps = summary.problems() if summary.caught_up else summary.losses()
    if gaps:
        raise ServiceError(f"the run summary does not reconcile: {'; '.join(gaps)}")
    if (until_caught_up or with_servers) and summary.mostly_dead:
        raise ServiceError(
            f"{summary.dead_lettered:,} of {summary.read:,} records became dead letters in "
            f"'{summary.dead_letters}', more than half; the commonest causes are "
            f"{'; '.join(map(str, summary.dead_letter_causes))}"
        )


def _run_embedded(
    topology: Topology,
    config: Path | None,
    overrides: Mapping[str, Any],
    state_dir: Path,
    progress: "RunProgress",
    run_with: Callable[..., RunSummary],
) -> RunSummary:
    """Run on servers of our own. Raises ServiceError if stopped before the run begins."""
    # Read once before the servers start: a wrong key should not cost their start.
    spark = spark_of(topology, cli.configured(config, {**_addresses("-", "-"), **overrides}))
    if config is not None:
        logs.stderr.write(
            f"headrace: --embedded: this run's own Kafka and ZooKeeper are used, without security; "
            f"all else is from {config}\n"
        )
    progress.step("starting Kafka and ZooKeeper")
    started = False
    try:
        with embedded(state_dir, progress.jars, spark=spark) as servers:
            names = [source.topic for source in topology.sources]
            servers.ensure_topics(name for name in names if isinstance(name, str))
            settings = load(config, {**servers.overrides, **overrides})
            started = True
            return run_with(settings, spark=spark)
    except KeyboardInterrupt:
        if started:
            raise
        raise ServiceError("stopped before the run began; nothing was read") from None


@dev_app.command("up")
def dev_up(
    *,
    state_dir: StateDir = _STATE,
    topic: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Create this topic, too.")
    ] = None,
    as_json: cli.Json = False,
) -> None:
    """Start Kafka and ZooKeeper, say how to reach them, and keep them up until Ctrl-C."""
    logs.configure("warning", "console")
    try:
        with embedded(state_dir, usual_ports=True) as servers:
            servers.ensure_topics(topic or [])
            kafka, zookeeper = servers.kafka.address, servers.zookeeper.address
            if as_json:
                place = str(state_dir.absolute())
                cli.print_json({"kafka": kafka, "zookeeper": zookeeper, "state_dir": place})
            else:
                sys.stdout.write(
                    "Kafka and ZooKeeper are up. For service.toml:\n\n"
                    f'[kafka]\n"bootstrap.servers" = "{kafka}"\n\n'
                    f'[zookeeper]\nhosts = "{zookeeper}"\n\n'
                    f"Their data is in {state_dir}. Ctrl-C stops them. In another terminal:\n"
                    "headrace run MODULE:TOPOLOGY --config service.toml\n"
                )
            sys.stdout.flush()
            while True:
                for server in (servers.kafka, servers.zookeeper):
                    if not server.running:
                        raise ServiceError(f"{server.name} has ended; see {server.log_path}")
                time.sleep(_POLL_SECONDS)  # a signal ends it
    except KeyboardInterrupt:
        return


def _addresses(kafka: str, zookeeper: str) -> dict[str, Any]:
    """Return the configuration that reaches servers of our own, whatever others it was for."""
    secured = "username", "password", "tls_ca", "tls_cert", "tls_key", "acl"
    open_to_all = {"auth": "none", "tls": False, **dict.fromkeys(secured)}
    return {
        "kafka": {
            "bootstrap.servers": kafka,
            "metadata.broker.list": kafka,  # another name for the same
            "security.protocol": "plaintext",
        },
        "zookeeper": {"hosts": zookeeper, **open_to_all},
    }


@dataclass(frozen=True, slots=True)
class Servers:
    kafka: EmbeddedKafka
    zookeeper: EmbeddedZooKeeper

    @property
    def overrides(self) -> dict[str, Any]:
        return _addresses(self.kafka.address, self.zookeeper.address)

    def ensure_topics(self, topics: Iterable[str]) -> None:
        for topic in sorted(set(topics) - self.kafka.topics()):
            self.kafka.create_topic(topic, TOPIC_PARTITIONS)


@contextmanager
def embedded(
    state_dir: Path,
    progress: JarProgress | None = None,
    *,
    usual_ports: bool = False,
    spark: SparkDriver | None = None,
) -> Iterator[Servers]:
    """Start both servers in `state_dir`, which keeps their data, and stop them at the end.

    With `usual_ports` they listen on 9092 and 2181 where those are free. Meanwhile a Spark starts,
    which is closed with them; whoever uses it first waits for it, and is told if it cannot start.

    Meanwhile SIGTERM and SIGHUP raise KeyboardInterrupt as Ctrl-C does (on the main
    thread, where signals arrive): their usual effect would leave the servers behind.
    """
    pyspark_jars("zookeeper")  # without PySpark not even Kafka is started
    zookeeper = EmbeddedZooKeeper(state_dir / "zookeeper", usual_port=usual_ports)
    kafka = EmbeddedKafka(state_dir / "kafka", usual_port=usual_ports, progress=progress)
    with _interrupted_by(signal.SIGTERM, signal.SIGHUP), ExitStack() as closing:
        stopping = closing.enter_context(ThreadPoolExecutor(3))
        for server in (kafka, zookeeper):
            closing.callback(stopping.submit, server.close)
        if spark is not None:
            closing.callback(stopping.submit, spark.close)
            spark.open_beside()
        with ThreadPoolExecutor(1) as beside:
            opening = beside.submit(zookeeper.open)
            kafka.open()
        opening.result()
        yield Servers(kafka, zookeeper)


@contextmanager
def _interrupted_by(*signals: signal.Signals) -> Iterator[None]:
    on_main = threading.current_thread() is threading.main_thread()
    before = {number: signal.getsignal(number) for number in signals if on_main}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:  # nohup's
            signal.signal(number, signal.default_int_handler)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class RunProgress(Progress):
    """A live line with what is resolved of what is known, on a terminal.

    Elsewhere nothing is shown, for standard error has the log, or with `lines` one for each step.
    """

    def __init__(self, console: Console, *, lines: bool = False) -> None:
        super().__init__(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.completed:,.0f}/{task.total:,.0f}"),
            TextColumn("{task.fields[facts]}"),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._lines = lines and not console.is_terminal
        self._began = time.monotonic()
        self._step = ""
        self._before: tuple[float, int] | None = None  # when, and how many were resolved

    def jars(self, coordinate: str, done: int, total: int) -> None:
        self.step("fetching jars", done, total, coordinate)

    def snapshot(self, snapshot: Snapshot) -> None:
        parts = snapshot.partitions
        resolved = snapshot.written + snapshot.filtered + snapshot.dead_lettered
        waiting = sum(part.ledger.waiting for part in parts)
        then, count = self._before or (snapshot.taken_at, resolved)
        rate = (resolved - count) / max(snapshot.taken_at - then, 1e-3)
        self._before = snapshot.taken_at, resolved
        oldest = max((part.oldest_pending_seconds for part in parts), default=0.0)
        facts = (
            f"{rate:,.0f}/s  lag {sum(part.lag for part in parts):,}  "
            f"dead letters {snapshot.dead_lettered:,}  retries {snapshot.retried:,}  "
            f"in flight {snapshot.unresolved:,}, the oldest for {oldest:.1f} s"
        )
        self._show("running", resolved, snapshot.read + waiting, facts)

    def step(self, text: str, done: int = 0, total: int = 0, facts: str = "") -> None:
        if self._lines and text != self._step:
            seconds = time.monotonic() - self._began
            self.console.print(f"{seconds:4.0f} s  {text}", markup=False, highlight=False)
        self._step = text
        self._show(text, done, total, facts)

    def _show(self, text: str, done: int, total: int, facts: str) -> None:
        task = self.task_ids[0] if self.task_ids else self.add_task(text, total=total, facts=facts)
        self.update(task, description=text, completed=done, total=total, facts=facts)


def show_summary(console: Console, summary: RunSummary) -> None:
    totals = (
        ("records read", summary.read),
        ("  in the sinks", summary.written),
        ("  filtered", summary.filtered),
        ("  dead-lettered", summary.dead_lettered),
        ("  unresolved", summary.unresolved),
        ("rows written", summary.rows),
        ("retries", summary.retried),
        ("records/s", round(summary.records_per_second)),
    )
    table = cli.table_of(("", ">"), totals, "Where every record is")
    table.show_header = False
    console.print(table)
    partitions = sorted(summary.partitions.items())
    rows = ((name, part.committed, part.log_end, part.lag) for name, part in partitions)
    columns = ("partition", ">committed", ">log end", ">lag")
    console.print(cli.table_of(columns, rows, "Partitions"))
    lines = [f"dead letters: {summary.dead_letters}"]
    if summary.table is not None:
        lines.insert(0, f"table:        {summary.table}")
    lines += [f"  {escaped(str(cause))}" for cause in summary.dead_letter_causes]
    cli.print_lines(lines, console)
    for gap in summary.problems():
        console.print(f"[bold red]open:[/] {escape(gap)}", soft_wrap=True)
