"""The variants of suite hot-path, each run in a process of its own.

`raw` is `Consumer.consume()` alone, `raw_json` parses every value as well. The others are
Headrace as it is deployed: real partitions, acker, offsets in ZooKeeper, and a sink that
only counts. All use the same consumer settings.
"""

import json
import os
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path

import orjson
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

from examples.flights.bolts import NameCarrier, keep_flown, parse
from examples.flights.columns import enrich_columns
from headrace import Record, Topology, bolt
from headrace.sinks import DiscardSink, MemoryDeadLetters
from partition.kafka.properties import DEFAULTS
from service import logs
from service.config import load
from service.parts import wire
from service.service import Service
from service.snapshot import Snapshot

CONSUMER = {**DEFAULTS, "queued.min.messages": 1_000_000, "queued.max.messages.kbytes": 1_000_000}
_PAGE_MB = os.sysconf("SC_PAGE_SIZE") / 1e6


@bolt
def pass_on(record: Record) -> Record:
    """Do nothing."""
    return record


class Memory:
    """Resident memory after a quarter of the records, and at the end."""

    def __init__(self, records: int) -> None:
        self._quarter = records // 4
        self.early_mb = 0.0

    def at(self, read: int) -> None:
        """Note the memory if the first quarter has just been read."""
        if not self.early_mb and read >= self._quarter:
            self.early_mb = resident_mb()


def resident_mb() -> float:
    """Resident memory of this process in MB."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * _PAGE_MB


def run_raw(kafka: str, topic: str, records: int, *, parse_values: bool) -> dict[str, float]:
    """The bare loop, as fast as it goes."""
    consumer = Consumer(
        {
            **CONSUMER,
            "bootstrap.servers": kafka,
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
        }
    )
    partitions = consumer.list_topics(topic, timeout=10).topics[topic].partitions
    memory = Memory(records)
    consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in partitions])
    started, cpu = time.monotonic(), time.process_time()
    read = 0
    while read < records:
        messages = consumer.consume(10_000, 0.1)
        for message in messages:
            if message.error() is not None:
                raise SystemExit(str(message.error()))
        if parse_values:
            for message in messages:
                orjson.loads(message.value() or b"")
        read += len(messages)
        memory.at(read)
    figures = _figures(read, started, cpu, memory)
    consumer.close()
    return figures


def run_headrace(
    topology: Topology, kafka: str, zookeeper: str, records: int, pipeline: str
) -> dict[str, float]:
    """Headrace, from the first fetch until every record is resolved and committed."""
    config = load(
        None,
        {
            "kafka": {**CONSUMER, "bootstrap.servers": kafka},
            "zookeeper": {"hosts": zookeeper},
            "pipeline": {"name": pipeline},
        },
    )
    logs.configure("error", "json")
    service = Service(wire(topology, config), drain_seconds=config.pipeline.drain_seconds)
    memory = Memory(records)
    cpu, read_then = 0.0, 0

    def on_snapshot(snapshot: Snapshot) -> None:
        nonlocal cpu, read_then
        if snapshot.settled and not cpu:  # the raw loop opens nothing while it is measured
            cpu, read_then = time.process_time(), snapshot.read
        memory.at(snapshot.read)

    service.on_snapshot = on_snapshot
    account = service.run(until_caught_up=True)
    if account.gaps():
        raise SystemExit("; ".join(account.gaps()))
    figures = _figures(account.read, time.monotonic() - account.seconds, cpu, memory)
    per_record = account.read / (account.read - read_then)
    return figures | {"cpu_us": figures["cpu_us"] * per_record}


def _figures(read: int, started: float, cpu: float, memory: Memory) -> dict[str, float]:
    seconds = time.monotonic() - started
    return {
        "records": float(read),
        "per_second": read / seconds,
        "cpu_us": (time.process_time() - cpu) / read * 1e6,
        "early_mb": memory.early_mb,
        "end_mb": resident_mb(),
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000,
    }


def noop(topic: str) -> Topology:
    """One bolt that does nothing."""
    topology = Topology("noop")
    topology.source(topic).then(pass_on).into(DiscardSink())
    return _with_letters(topology)


def functions(topic: str) -> Topology:
    """The flights bolts as functions: parse, keep those that flew, look the carrier up."""
    topology = Topology("functions")
    topology.source(topic).then(parse).then(keep_flown).then(NameCarrier).into(DiscardSink())
    return _with_letters(topology)


def vectorised(topic: str) -> Topology:
    """The same work as one vectorised bolt."""
    topology = Topology("vectorised")
    topology.source(topic).then(enrich_columns).into(DiscardSink())
    return _with_letters(topology)


def _with_letters(topology: Topology) -> Topology:
    topology.dead_letters.into(MemoryDeadLetters())
    return topology


TOPOLOGIES: dict[str, Callable[[str], Topology]] = {
    "noop": noop,
    "functions": functions,
    "vectorised": vectorised,
}
VARIANTS = ("raw", "raw_json", *TOPOLOGIES)


def main() -> None:
    """Run one variant and print its figures as JSON."""
    variant, kafka, zookeeper, topic, count, pipeline = sys.argv[1:]
    records = int(count)
    if variant in TOPOLOGIES:
        figures = run_headrace(TOPOLOGIES[variant](topic), kafka, zookeeper, records, pipeline)
    else:
        figures = run_raw(kafka, topic, records, parse_values=variant == "raw_json")
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
