"""`headrace check` and `headrace graph`: what a topology needs, and what it looks like."""

import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import typer

from partition.errors import KafkaUnavailable, PartitionError, TopicMissing
from service import wiring
from service.cli import common as cli
from service.config.settings import Config
from service.errors import EXIT_FAILED, BadConfig
from sinks.probe import probe
from sinks.references import needs_spark
from sinks.spark.driver import SparkDriver
from sinks.tables.iceberg import IcebergSink
from topology.errors import SinkFailed
from topology.reference import Reference
from topology.sink import innermost
from topology.state import State
from topology.topology import Topology, as_facts, as_mermaid, as_text

app = typer.Typer()

SPARK_PATIENCE_SECONDS = 60.0  # a JVM starts, and finds its cluster
LOAD_SECONDS = 60.0  # of a reference table
STORE_SECONDS = 20.0  # a store that does not answer is asked several times
_CLOSE_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Check:
    name: str
    ok: bool
    detail: str
    exit_code: int = EXIT_FAILED  # unless it is ok

    @property
    def facts(self) -> dict[str, Any]:
        return {"name": self.name, "ok": self.ok, "detail": self.detail}


@app.command()
def check(
    target: cli.Target,
    config: cli.ConfigPath = None,
    *,
    no_spark: Annotated[
        bool, typer.Option("--no-spark", help="Leave out Spark, and what needs it.")
    ] = False,
    as_json: cli.Json = False,
) -> None:
    """Check the configuration and every dependency: one OK or FAIL line each.

    Sinks are opened as a run would open them, so empty tables and topics may be created.
    """
    topology = cli.load_topology(target)
    try:
        settings = cli.configured(config)
    except BadConfig as error:
        if as_json:
            bad = [Check("config", ok=False, detail=str(e)).facts for e in (error, *error.others)]
            cli.print_json({"ok": False, "checks": bad})
        raise
    results: list[Check] = []
    for each in run_checks(topology, settings, no_spark=no_spark):
        results.append(each)
        if not as_json:
            word = "OK" if each.ok else "FAIL"
            sys.stdout.write(f"{word:<5}{each.name:<13}{each.detail}\n")
            sys.stdout.flush()
    ok = all(each.ok for each in results)
    if as_json:
        cli.print_json({"ok": ok, "checks": [each.facts for each in results]})
    if not ok:
        raise typer.Exit(max(each.exit_code for each in results if not each.ok))


@app.command()
def graph(
    target: cli.Target,
    *,
    mermaid: Annotated[bool, typer.Option("--mermaid", help="Print only the chart.")] = False,
    as_json: cli.Json = False,
) -> None:
    """Print the topology as text and as a Mermaid chart."""
    topology = cli.load_topology(target)
    if as_json:
        cli.print_json(as_facts(topology))
    elif mermaid:
        sys.stdout.write(as_mermaid(topology) + "\n")
    else:
        sys.stdout.write(f"{as_text(topology)}\n\n{as_mermaid(topology)}\n")


def run_checks(topology: Topology, config: Config, *, no_spark: bool = False) -> Iterator[Check]:
    """Try every dependency, each for itself and in bounded time; verdicts in a fixed order.

    Spark is tried when Kafka has answered. Sinks are opened as a run would open them, so they may
    create what is missing.
    """
    fine = Check("config", ok=True, detail="every key and value is allowed")
    try:
        parts = wiring.wire(topology, config)
    except SinkFailed as error:  # PySpark is not installed
        yield from (fine, Check("spark", ok=False, detail=cli.describe(error)))
        return

    def close() -> list[Check]:
        parts.close(wiring.Deadline(_CLOSE_SECONDS))
        return []

    try:
        yield fine
        kafka, *others = _begun(topology, parts)
        answers = kafka()
        yield from answers
        if parts.spark is not None and not no_spark:
            others.append(_begun_spark(parts, parts.spark, answers[0]))
        for verdicts in others:
            yield from verdicts()
    finally:
        _begin("close", "", _CLOSE_SECONDS, close)()


def _begun(topology: Topology, parts: wiring.Parts) -> list[Callable[[], list[Check]]]:
    """Begin to try at once all that Spark is not needed for; Kafka is the first."""
    config, dead_letters = parts.config, parts.dead_letter_sink
    brokers, hosts = str(config.kafka["bootstrap.servers"]), config.zookeeper.hosts
    warehouse, seconds = config.storage.warehouse, cli.ASK_SECONDS
    tables = [(each, partial(_references, parts, [each])) for each in _plain_references(parts)]
    return [
        _begin("kafka", brokers, seconds, lambda: _kafka(topology, parts, brokers)),
        _begin("zookeeper", hosts, seconds, lambda: [_try("zookeeper", hosts, parts.store.open)]),
        _begin("storage", warehouse, STORE_SECONDS, lambda: _storage(parts)),
        *(_begin("reference", each.name, LOAD_SECONDS, work) for each, work in tables),
        _begin("sink", "", SPARK_PATIENCE_SECONDS, lambda: _sinks(parts, on_spark=False)),
        _begin("dead letters", dead_letters.name, seconds, lambda: _dead_letters(parts)),
    ]


def _begun_spark(
    parts: wiring.Parts, spark: SparkDriver, kafka: Check
) -> Callable[[], list[Check]]:
    """Begin to start Spark, which takes long, if Kafka has answered; then try what needs it."""
    why = "Spark does not answer" if kafka.ok else "Kafka does not answer"
    steps = [step.name for step in parts.topology.sink_steps() if step.sink.needs_spark]
    plain = _plain_references(parts)
    tables = [each for each in parts.topology.references if each not in plain]
    unknown = [Check("sink", ok=False, detail=f"{each}: not known while {why}") for each in steps]
    if not kafka.ok:
        detail = f"{_master(parts)}: not started while {why}"
        return lambda: [Check("spark", ok=False, detail=detail), *unknown]

    def work() -> list[Check]:
        started = _try("spark", _master(parts), spark.open)
        if not started.ok:
            return [started, *unknown]
        return [started, *_references(parts, tables), *_sinks(parts, on_spark=True)]

    return _begin("spark", _master(parts), SPARK_PATIENCE_SECONDS, work, unknown)


def _plain_references(parts: wiring.Parts) -> list[Reference]:
    storage = parts.config.storage.storage()
    every = parts.topology.references
    return [each for each in every if isinstance(each, State) or not needs_spark(each, storage)]


def _references(parts: wiring.Parts, references: Iterable[Reference]) -> list[Check]:
    """Load reference tables as a run would; tell their rows and the types of their keys."""

    def load(reference: Reference) -> str:
        table = wiring.read_table(parts.spark, parts.config, parts.name, reference)
        loaded = reference.read(table)
        pairs = zip(reference.key, loaded.keys, strict=True)
        keys = ", ".join(f"{name} ({column.type})" for name, column in pairs)
        return f"{loaded.num_rows:,} rows by {keys}"

    return [_try("reference", each.name, load, each) for each in references]


def _master(parts: wiring.Parts) -> str:
    return str(parts.config.spark.conf.get("spark.master", "local"))


def _kafka(topology: Topology, parts: wiring.Parts, brokers: str) -> list[Check]:
    try:
        parts.catalogue.open()
    except PartitionError as error:
        return [_failed("kafka", brokers, error)]
    topics: list[Check] = []
    for source in topology.sources:
        try:
            found = cli.topics_of([source], parts.catalogue)
        except KafkaUnavailable as error:
            unknown = [f"{each.label}: not known while Kafka is away" for each in topology.sources]
            return [
                Check("kafka", ok=False, detail=f"{brokers}: no answer: {error.reason}"),
                *(Check("topic", ok=False, detail=detail) for detail in unknown),
            ]
        except PartitionError as error:
            named = "" if isinstance(error, TopicMissing) else f"{source.label}: "
            topics.append(Check("topic", ok=False, detail=f"{named}{cli.describe(error)}"))
        else:
            details = [f"{name}: {len(each.partitions)} partitions" for name, each in found.items()]
            details = details or [f"{source.label}: no topic matches it yet"]
            topics += [Check("topic", ok=True, detail=detail) for detail in details]
    return [Check("kafka", ok=True, detail=brokers), *topics]


def _storage(parts: wiring.Parts) -> list[Check]:
    if not parts.uses_warehouse:
        return []
    storage = parts.config.storage.storage()
    return [_try("storage", storage.warehouse, probe, storage)]


def _sinks(parts: wiring.Parts, *, on_spark: bool) -> list[Check]:
    results = []
    for step in (each for each in parts.topology.sink_steps() if each.sink.needs_spark == on_spark):
        results.append(_try("sink", step.name, step.sink.open, parts.context(step.name)))
        sink = innermost(step.sink)
        if results[-1].ok and isinstance(sink, IcebergSink):
            results.append(_try("catalogue", sink.catalog, sink.probe))
    return results


def _dead_letters(parts: wiring.Parts) -> list[Check]:
    sink = parts.dead_letter_sink
    return [_try("dead letters", sink.name, sink.open, parts.context("dead-letters"))]


def _begin(
    name: str,
    place: str,
    seconds: float,
    work: Callable[[], list[Check]],
    unknown: Sequence[Check] = (),
) -> Callable[[], list[Check]]:
    """Begin work; return what waits for its verdicts, of which a failure or delay is one.

    The thread is a daemon: work that hangs does not keep the command from ending. Those `unknown`
    follow a delay.
    """
    future: Future[list[Check]] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except Exception as error:  # noqa: BLE001 - whatever is wrong is the verdict
            future.set_result([_failed(name, place, error)])

    def verdicts() -> list[Check]:
        try:
            return future.result(seconds)
        except TimeoutError:
            detail = f"{place}: no answer within {seconds:g} s"
            return [Check(name, ok=False, detail=detail), *unknown]

    threading.Thread(target=run, name=f"check-{name}", daemon=True).start()
    return verdicts


def _failed(name: str, place: str, error: Exception) -> Check:
    detail = f"{place}: {cli.describe(error)}"
    return Check(name, ok=False, detail=detail, exit_code=cli.exit_code_of(error))


def _try(name: str, place: str, attempt: Callable[..., object], *arguments: object) -> Check:
    """Attempt something, which may return what it did."""
    try:
        said = attempt(*arguments)
    except Exception as error:  # noqa: BLE001 - whatever is wrong is the verdict
        return _failed(name, place, error)
    return Check(name, ok=True, detail=f"{place}: {said}" if isinstance(said, str) else place)
