"""`headrace check`: one verdict per dependency, all of them tried at once."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import asdict, dataclass
from typing import Any

from partition.errors import KafkaUnavailable, PartitionError, TopicMissing
from service.cli.common import ASK_SECONDS, describe, topics_of
from service.config.settings import Config
from service.wiring import Parts, wire
from sinks.probe import probe
from sinks.tables.iceberg import IcebergSink
from topology.errors import SinkFailed
from topology.sink import innermost
from topology.topology import Topology

SPARK_PATIENCE_SECONDS = 60.0  # a JVM starts, and finds its cluster
STORE_SECONDS = 20.0  # a store that does not answer is asked several times
_CLOSE_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Check:
    """One dependency's verdict."""

    name: str
    ok: bool
    detail: str

    def as_json(self) -> dict[str, Any]:
        """The verdict as JSON takes it."""
        return asdict(self)

    def as_line(self) -> str:
        """The verdict for a person."""
        return f"{'OK' if self.ok else 'FAIL':<5}{self.name:<13}{self.detail}"


def run_checks(topology: Topology, config: Config) -> Iterator[Check]:
    """Try every dependency, each for itself and in bounded time; verdicts in a fixed order.

    Sinks are opened as a run would open them, so they may create what is missing.
    """
    fine = Check("config", ok=True, detail="every key and value is allowed")
    try:
        parts = wire(topology, config)
    except SinkFailed as error:  # PySpark is not installed
        yield from (fine, Check("spark", ok=False, detail=describe(error)))
        return
    checks = _Checks(topology, parts)
    try:
        yield fine
        yield from checks.run()
    finally:
        _Task("close", checks.close).verdicts("close", "", _CLOSE_SECONDS)


class _Checks:
    """The groups of dependencies. Each group has a thread, since each may wait for long."""

    def __init__(self, topology: Topology, parts: Parts) -> None:
        self._sources = topology.sources
        self._parts = parts

    def run(self) -> Iterator[Check]:
        """The verdicts, in a fixed order."""
        config, letters = self._parts.config, self._parts.dead_letter_sink
        kafka = _Task("kafka", self._kafka)
        zookeeper = _Task("zookeeper", self._zookeeper)
        dead_letters = _Task("dead-letters", self._dead_letters)
        storage = _Task("storage", self._storage)
        tables = _Task("sinks", self._sinks)
        brokers = str(config.kafka["bootstrap.servers"])
        yield from kafka.verdicts("kafka", brokers, ASK_SECONDS)
        yield from zookeeper.verdicts("zookeeper", config.zookeeper.hosts, ASK_SECONDS)
        warehouse = config.storage.warehouse
        yield from storage.verdicts("storage", warehouse, STORE_SECONDS)
        master = str(config.spark.conf.get("spark.master", "local"))
        name, place = ("spark", master) if self._parts.spark is not None else ("sink", "")
        known = tables.verdicts(name, place, SPARK_PATIENCE_SECONDS)
        yield from known
        if not any(check.name == "sink" for check in known):
            for step in self._parts.sinks:
                detail = f"{step.name}: not known while Spark does not answer"
                yield Check("sink", ok=False, detail=detail)
        yield from dead_letters.verdicts("dead letters", letters.name, ASK_SECONDS)

    def close(self) -> list[Check]:
        """Let go of everything."""
        parts = self._parts
        parts.catalogue.close()
        parts.store.close()
        parts.dead_letter_sink.close()
        for step in parts.sinks:
            step.sink.close()
        if parts.spark is not None:
            parts.spark.close()
        return []

    def _kafka(self) -> list[Check]:
        catalogue = self._parts.catalogue
        brokers = str(self._parts.config.kafka["bootstrap.servers"])
        try:
            catalogue.open()
        except PartitionError as error:
            return [Check("kafka", ok=False, detail=f"{brokers}: {describe(error)}")]
        topics: list[Check] = []
        for source in self._sources:
            try:
                found = topics_of(source, catalogue)
            except TopicMissing as error:
                topics.append(Check("topic", ok=False, detail=describe(error)))
            except KafkaUnavailable as error:
                return [
                    Check("kafka", ok=False, detail=f"{brokers}: no answer: {error.reason}"),
                    *(
                        Check(
                            "topic", ok=False, detail=f"{each.label}: not known while Kafka is away"
                        )
                        for each in self._sources
                    ),
                ]
            except PartitionError as error:
                detail = f"{source.label}: {describe(error)}"
                topics.append(Check("topic", ok=False, detail=detail))
            else:
                topics += [
                    Check("topic", ok=True, detail=f"{t.name}: {len(t.partitions)} partitions")
                    for t in found
                ]
                if not found:
                    detail = f"{source.label}: no topic matches it yet"
                    topics.append(Check("topic", ok=True, detail=detail))
        return [Check("kafka", ok=True, detail=brokers), *topics]

    def _zookeeper(self) -> list[Check]:
        self._parts.store.open()
        return [Check("zookeeper", ok=True, detail=self._parts.config.zookeeper.hosts)]

    def _storage(self) -> list[Check]:
        if not self._parts.uses_warehouse:
            return []
        storage = self._parts.config.storage.storage()
        return [_try("storage", storage.warehouse, probe, storage)]

    def _sinks(self) -> list[Check]:
        """Spark first, since tables need it."""
        parts = self._parts
        verdicts = []
        if parts.spark is not None:
            master = str(parts.config.spark.conf.get("spark.master", "local"))
            verdicts.append(_try("spark", master, parts.spark.open))
            if not verdicts[0].ok:
                return verdicts
        for step in parts.sinks:
            context = parts.context(step.name)
            verdicts.append(_try("sink", step.name, step.sink.open, context))
            sink = innermost(step.sink)
            if verdicts[-1].ok and isinstance(sink, IcebergSink):
                verdicts.append(_try("catalogue", sink.catalog, sink.probe))
        return verdicts

    def _dead_letters(self) -> list[Check]:
        letters = self._parts.dead_letter_sink
        context = self._parts.context("dead-letters")
        return [_try("dead letters", letters.name, letters.open, context)]


class _Task:
    """Work on a daemon thread: what hangs does not keep the command from ending."""

    def __init__(self, name: str, work: Callable[[], list[Check]]) -> None:
        self._future: Future[list[Check]] = Future()
        self._work = work
        threading.Thread(target=self._run, name=f"check-{name}", daemon=True).start()

    def verdicts(self, name: str, place: str, seconds: float) -> list[Check]:
        """Wait at most so long for the work's verdicts; if it fails, say so as `name`."""
        try:
            return self._future.result(seconds)
        except TimeoutError:
            return [Check(name, ok=False, detail=f"{place}: no answer within {seconds:g} s")]
        except Exception as error:  # noqa: BLE001 - whatever is wrong is the verdict
            return [Check(name, ok=False, detail=f"{place}: {describe(error)}")]

    def _run(self) -> None:
        try:
            self._future.set_result(self._work())
        except Exception as error:  # noqa: BLE001 - `verdicts` tells of it
            self._future.set_exception(error)


def _try(name: str, place: str, attempt: Callable[..., object], *arguments: object) -> Check:
    """Attempt something, which may say what it did."""
    try:
        said = attempt(*arguments)
    except Exception as error:  # noqa: BLE001 - whatever is wrong is the verdict
        return Check(name, ok=False, detail=f"{place}: {describe(error)}")
    return Check(name, ok=True, detail=f"{place}: {said}" if isinstance(said, str) else place)
