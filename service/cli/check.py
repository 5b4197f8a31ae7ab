"""`headrace check` and `headrace graph`: what a topology needs, and what it looks like."""

import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from partition.errors import KafkaUnavailable, PartitionError, TopicMissing
from service.cli.common import (
    ASK_SECONDS,
    ConfigPath,
    Json,
    Target,
    configured,
    describe,
    load_topology,
    print_json,
    topics_of,
)
from service.errors import BadConfig

if TYPE_CHECKING:
    from service.config.settings import Config
    from service.wiring import Parts
    from topology.topology import Topology

check_app = typer.Typer()

SPARK_PATIENCE_SECONDS = 60.0  # a JVM starts, and finds its cluster
STORE_SECONDS = 20.0  # a store that does not answer is asked several times
_CLOSE_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Check:
    """One dependency's verdict."""

    name: str
    ok: bool
    detail: str


@check_app.command()
def check(target: Target, config: ConfigPath = None, *, as_json: Json = False) -> None:
    """Check the configuration and every dependency: one OK or FAIL line each.

    Sinks are opened as a run would open them, so empty tables and topics may be created.
    """
    topology = load_topology(target)
    try:
        settings = configured(config)
    except BadConfig as error:
        if as_json:
            bad = Check("config", ok=False, detail=str(error))
            print_json({"ok": False, "checks": [asdict(bad)]})
        raise
    results: list[Check] = []
    for each in run_checks(topology, settings):
        results.append(each)
        if not as_json:
            word = "OK" if each.ok else "FAIL"
            sys.stdout.write(f"{word:<5}{each.name:<13}{each.detail}\n")
            sys.stdout.flush()
    ok = all(each.ok for each in results)
    if as_json:
        print_json({"ok": ok, "checks": [asdict(each) for each in results]})
    if not ok:
        raise typer.Exit(1)


@check_app.command()
def graph(
    target: Target,
    *,
    mermaid: Annotated[bool, typer.Option("--mermaid", help="Print only the chart.")] = False,
    as_json: Json = False,
) -> None:
    """Print the topology as text and as a Mermaid chart."""
    from topology.topology import as_facts, as_mermaid, as_text

    topology = load_topology(target)
    if as_json:
        print_json(as_facts(topology))
    elif mermaid:
        sys.stdout.write(as_mermaid(topology) + "\n")
    else:
        sys.stdout.write(f"{as_text(topology)}\n\n{as_mermaid(topology)}\n")


def run_checks(topology: "Topology", config: "Config") -> Iterator[Check]:
    """Try every dependency, each for itself and in bounded time; verdicts in a fixed order.

    Sinks are opened as a run would open them, so they may create what is missing.
    """
    from service.wiring import wire
    from topology.errors import SinkFailed

    fine = Check("config", ok=True, detail="every key and value is allowed")
    try:
        parts = wire(topology, config)
    except SinkFailed as error:  # PySpark is not installed
        yield from (fine, Check("spark", ok=False, detail=describe(error)))
        return
    try:
        yield fine
        yield from verdicts(topology, parts)
    finally:
        _Task("close", lambda: _close(parts)).verdicts("close", "", _CLOSE_SECONDS)


def verdicts(topology: "Topology", parts: "Parts") -> Iterator[Check]:
    """Try all dependencies at once; yield what becomes of each in a fixed order."""
    config, dead_letters = parts.config, parts.dead_letter_sink
    brokers = str(config.kafka["bootstrap.servers"])
    kafka = _Task("kafka", lambda: _kafka(topology, parts, brokers))
    zookeeper = _Task("zookeeper", lambda: _zookeeper(parts))
    letters = _Task("dead-letters", lambda: _dead_letters(parts))
    storage = _Task("storage", lambda: _storage(parts))
    tables = _Task("sinks", lambda: _sinks(parts))
    yield from kafka.verdicts("kafka", brokers, ASK_SECONDS)
    yield from zookeeper.verdicts("zookeeper", config.zookeeper.hosts, ASK_SECONDS)
    yield from storage.verdicts("storage", config.storage.warehouse, STORE_SECONDS)
    name, place = ("spark", _master(parts)) if parts.spark is not None else ("sink", "")
    known = tables.verdicts(name, place, SPARK_PATIENCE_SECONDS)
    yield from known
    if not any(each.name == "sink" for each in known):
        for step in parts.sinks:
            detail = f"{step.name}: not known while Spark does not answer"
            yield Check("sink", ok=False, detail=detail)
    yield from letters.verdicts("dead letters", dead_letters.name, ASK_SECONDS)


def _close(parts: "Parts") -> list[Check]:
    parts.catalogue.close()
    parts.store.close()
    parts.dead_letter_sink.close()
    for step in parts.sinks:
        step.sink.close()
    if parts.spark is not None:
        parts.spark.close()
    return []


def _master(parts: "Parts") -> str:
    return str(parts.config.spark.conf.get("spark.master", "local"))


def _kafka(topology: "Topology", parts: "Parts", brokers: str) -> list[Check]:
    catalogue = parts.catalogue
    try:
        catalogue.open()
    except PartitionError as error:
        return [Check("kafka", ok=False, detail=f"{brokers}: {describe(error)}")]
    topics: list[Check] = []
    for source in topology.sources:
        try:
            found = topics_of(source, catalogue)
        except TopicMissing as error:
            topics.append(Check("topic", ok=False, detail=describe(error)))
        except KafkaUnavailable as error:
            unknown = [f"{each.label}: not known while Kafka is away" for each in topology.sources]
            return [
                Check("kafka", ok=False, detail=f"{brokers}: no answer: {error.reason}"),
                *(Check("topic", ok=False, detail=detail) for detail in unknown),
            ]
        except PartitionError as error:
            detail = f"{source.label}: {describe(error)}"
            topics.append(Check("topic", ok=False, detail=detail))
        else:
            details = [f"{each.name}: {len(each.partitions)} partitions" for each in found]
            details = details or [f"{source.label}: no topic matches it yet"]
            topics += [Check("topic", ok=True, detail=detail) for detail in details]
    return [Check("kafka", ok=True, detail=brokers), *topics]


def _zookeeper(parts: "Parts") -> list[Check]:
    parts.store.open()
    return [Check("zookeeper", ok=True, detail=parts.config.zookeeper.hosts)]


def _storage(parts: "Parts") -> list[Check]:
    from sinks.probe import probe

    if not parts.uses_warehouse:
        return []
    storage = parts.config.storage.storage()
    return [_try("storage", storage.warehouse, probe, storage)]


def _sinks(parts: "Parts") -> list[Check]:
    """Open Spark, then the sinks, since tables need it."""
    from sinks.tables.iceberg import IcebergSink
    from topology.sink import innermost

    results = []
    if parts.spark is not None:
        results.append(_try("spark", _master(parts), parts.spark.open))
        if not results[0].ok:
            return results
    for step in parts.sinks:
        results.append(_try("sink", step.name, step.sink.open, parts.context(step.name)))
        sink = innermost(step.sink)
        if results[-1].ok and isinstance(sink, IcebergSink):
            results.append(_try("catalogue", sink.catalog, sink.probe))
    return results


def _dead_letters(parts: "Parts") -> list[Check]:
    sink = parts.dead_letter_sink
    return [_try("dead letters", sink.name, sink.open, parts.context("dead-letters"))]


class _Task:
    """Work on a daemon thread: work that hangs does not keep the command from ending."""

    def __init__(self, name: str, work: Callable[[], list[Check]]) -> None:
        self._future: Future[list[Check]] = Future()
        self._work = work
        threading.Thread(target=self._run, name=f"check-{name}", daemon=True).start()

    def verdicts(self, name: str, place: str, seconds: float) -> list[Check]:
        """Wait at most `seconds` for the work's verdicts; if it fails, say so as `name`."""
        try:
            return self._future.result(seconds)
        except TimeoutError:
            return [Check(name, ok=False, detail=f"{place}: no answer within {seconds:g} s")]
        except Exception as error:  # noqa: BLE001 - whatever is wrong is the verdict
            return [Check(name, ok=False, detail=f"{place}: {describe(error)}")]

    def _run(self) -> None:
        try:
            self._future.set_result(self._work())
        except Exception as error:  # noqa: BLE001 - `verdicts` reports it
            self._future.set_exception(error)


def _try(name: str, place: str, attempt: Callable[..., object], *arguments: object) -> Check:
    """Attempt something, which may return what it did."""
    try:
        said = attempt(*arguments)
    except Exception as error:  # noqa: BLE001 - whatever is wrong is the verdict
        return Check(name, ok=False, detail=f"{place}: {describe(error)}")
    return Check(name, ok=True, detail=f"{place}: {said}" if isinstance(said, str) else place)
