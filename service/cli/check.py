"""`headrace check` and `headrace graph`: what a topology needs, and what it looks like."""

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
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
            each_bad = [Check("config", ok=False, detail=str(e)) for e in (error, *error.others)]
            print_json({"ok": False, "checks": list(map(asdict, each_bad))})
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
    from service.wiring import Deadline, wire
    from topology.errors import SinkFailed

    fine = Check("config", ok=True, detail="every key and value is allowed")
    try:
        parts = wire(topology, config)
    except SinkFailed as error:  # PySpark is not installed
        yield from (fine, Check("spark", ok=False, detail=describe(error)))
        return

    def close() -> list[Check]:
        parts.close(Deadline(_CLOSE_SECONDS))
        return []

    try:
        yield fine
        for verdicts in _begun(topology, parts):
            yield from verdicts()
    finally:
        _begin("close", "", _CLOSE_SECONDS, close)()


def _begun(topology: "Topology", parts: "Parts") -> list[Callable[[], list[Check]]]:
    """Begin to try all dependencies at once."""
    config, dead_letters = parts.config, parts.dead_letter_sink
    brokers, hosts = str(config.kafka["bootstrap.servers"]), config.zookeeper.hosts
    warehouse = config.storage.warehouse
    first, place = ("spark", _master(parts)) if parts.spark is not None else ("sink", "")
    unknown = [f"{step.name}: not known while Spark does not answer" for step in parts.sinks]
    return [
        _begin("kafka", brokers, ASK_SECONDS, lambda: _kafka(topology, parts, brokers)),
        _begin("zookeeper", hosts, ASK_SECONDS, lambda: _zookeeper(parts)),
        _begin("storage", warehouse, STORE_SECONDS, lambda: _storage(parts)),
        _begin(first, place, SPARK_PATIENCE_SECONDS, lambda: _sinks(parts), unknown),
        _begin("dead letters", dead_letters.name, ASK_SECONDS, lambda: _dead_letters(parts)),
    ]


def _master(parts: "Parts") -> str:
    return str(parts.config.spark.conf.get("spark.master", "local"))


def _kafka(topology: "Topology", parts: "Parts", brokers: str) -> list[Check]:
    try:
        parts.catalogue.open()
    except PartitionError as error:
        return [Check("kafka", ok=False, detail=f"{brokers}: {describe(error)}")]
    topics: list[Check] = []
    for source in topology.sources:
        try:
            found = topics_of([source], parts.catalogue)
        except KafkaUnavailable as error:
            unknown = [f"{each.label}: not known while Kafka is away" for each in topology.sources]
            return [
                Check("kafka", ok=False, detail=f"{brokers}: no answer: {error.reason}"),
                *(Check("topic", ok=False, detail=detail) for detail in unknown),
            ]
        except PartitionError as error:
            named = "" if isinstance(error, TopicMissing) else f"{source.label}: "
            topics.append(Check("topic", ok=False, detail=f"{named}{describe(error)}"))
        else:
            details = [f"{name}: {len(each.partitions)} partitions" for name, each in found.items()]
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


def _begin(
    name: str,
    place: str,
    seconds: float,
    work: Callable[[], list[Check]],
    unknown: Sequence[str] = (),
) -> Callable[[], list[Check]]:
    """Begin work; return what waits for its verdicts, of which a failure or delay is one.

    The thread is a daemon: work that hangs does not keep the command from ending. If there is no
    verdict on any sink, those `unknown` are told of.
    """
    future: Future[list[Check]] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except Exception as error:  # noqa: BLE001 - whatever is wrong is the verdict
            future.set_result([Check(name, ok=False, detail=f"{place}: {describe(error)}")])

    def verdicts() -> list[Check]:
        try:
            found = future.result(seconds)
        except TimeoutError:
            detail = f"{place}: no answer within {seconds:g} s"
            found = [Check(name, ok=False, detail=detail)]
        if not any(each.name == "sink" for each in found):
            found += [Check("sink", ok=False, detail=detail) for detail in unknown]
        return found

    threading.Thread(target=run, name=f"check-{name}", daemon=True).start()
    return verdicts


def _try(name: str, place: str, attempt: Callable[..., object], *arguments: object) -> Check:
    """Attempt something, which may return what it did."""
    try:
        said = attempt(*arguments)
    except Exception as error:  # noqa: BLE001 - whatever is wrong is the verdict
        return Check(name, ok=False, detail=f"{place}: {describe(error)}")
    return Check(name, ok=True, detail=f"{place}: {said}" if isinstance(said, str) else place)
