"""`headrace check`: one verdict per dependency."""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from service.config import Config
from service.parts import Parts, wire
from topology.topology import SinkStep, Topology


@dataclass(frozen=True, slots=True)
class Check:
    """One dependency's verdict."""

    name: str
    ok: bool
    detail: str

    def as_json(self) -> dict[str, Any]:
        """The verdict as JSON takes it."""
        return asdict(self)


def run_checks(topology: Topology, config: Config) -> list[Check]:
    """Try every dependency, each for itself. It may create empty tables and topics.

    A sink is opened as a run would open it, so it may create what is missing.
    """
    parts = wire(topology, config)
    try:
        return list(_checks(topology, parts))
    finally:
        parts.fetcher.close()
        parts.store.close()
        parts.dead_letter_sink.close()
        for step in parts.sinks:
            step.sink.close()
        if parts.spark is not None:
            parts.spark.close()


def _checks(topology: Topology, parts: Parts) -> Iterator[Check]:
    config = parts.config
    yield Check("config", ok=True, detail="every key is known and has an allowed value")
    brokers = str(config.kafka["bootstrap.servers"])
    kafka = _try("kafka", parts.fetcher.open, brokers)
    yield kafka
    for source in topology.sources:
        yield _try("topic", partial(_partitions, parts, source.topic), source.topic)
    yield _try("zookeeper", parts.store.open, config.zookeeper.hosts)
    if parts.spark is not None:
        yield _try("spark", parts.spark.open, str(config.spark.conf.get("spark.master", "local")))
    for step in parts.sinks:
        yield _try("sink", partial(_open_sink, parts, step), step.name)
    letters = parts.dead_letter_sink
    yield _try("sink", lambda: letters.open(parts.context("dead-letters")), letters.name)


def _partitions(parts: Parts, topic: str) -> str:
    return f"{len(parts.fetcher.partitions(topic))} partitions"


def _open_sink(parts: Parts, step: SinkStep) -> None:
    step.sink.open(parts.context(step.name))


def _try(name: str, attempt: Callable[[], object], place: str) -> Check:
    try:
        found = attempt()
    except Exception as error:  # noqa: BLE001  # whatever is wrong is the verdict
        return Check(name, ok=False, detail=f"{place}: {str(error) or type(error).__name__}")
    return Check(name, ok=True, detail=f"{place}: {found}" if isinstance(found, str) else place)
