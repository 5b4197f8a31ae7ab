"""Measured runs: the bare loop's consumer, Headrace as it is deployed, and their figures."""

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, Message, TopicPartition

from benchmarks.job import Figures, Job
from headrace import Topology
from headrace.sinks import MemoryDeadLetters
from partition.kafka.properties import DEFAULTS
from service import logs
from service.config import load
from service.parts import wire
from service.service import Service
from service.snapshot import Snapshot

CONSUMER = {**DEFAULTS, "queued.min.messages": 1_000_000, "queued.max.messages.kbytes": 1_000_000}
AT_ONCE = 10_000
_PAGE_MB = os.sysconf("SC_PAGE_SIZE") / 1e6

OnSnapshot = Callable[[Service, Snapshot], None]


class Memory:
    """Resident memory after a quarter of the records, and at the end."""

    def __init__(self, records: int) -> None:
        self._quarter = records // 4
        self.early_mb = 0.0

    def at(self, read: int) -> None:
        """Note the memory if the first quarter has just been read."""
        if not self.early_mb and read >= self._quarter:
            self.early_mb = resident_mb()


class BareLoop:
    """`Consumer.consume()` over all partitions of a topic, with the same consumer as Headrace."""

    def __init__(self, job: Job, *, store_offsets: bool = False) -> None:
        """With `store_offsets`, `consumer.commit()` commits what `consume` has returned."""
        self._records = job.records
        self.consumer = Consumer(
            {
                **CONSUMER,
                "bootstrap.servers": job.kafka,
                "group.id": job.pipeline,
                "enable.auto.commit": False,
                "enable.auto.offset.store": store_offsets,
            }
        )
        numbers = self.consumer.list_topics(job.topic, timeout=10).topics[job.topic].partitions
        self._partitions = [TopicPartition(job.topic, n, OFFSET_BEGINNING) for n in numbers]

    def run(
        self,
        work: Callable[[list[Message]], None],
        at_end: Callable[[], object] = lambda: None,
    ) -> Figures:
        """Pass every record through `work`, in lists, then do what is left; measure both."""
        consumer, records = self.consumer, self._records
        memory = Memory(records)
        consumer.assign(self._partitions)
        started, cpu = time.monotonic(), time.process_time()
        read = 0
        while read < records:
            messages = consumer.consume(AT_ONCE, 0.1)
            for message in messages:
                if message.error() is not None:
                    raise SystemExit(str(message.error()))
            work(messages)
            read += len(messages)
            memory.at(read)
        at_end()
        found = figures(read, started, cpu, memory)
        consumer.close()
        return found


def run_headrace(
    topology: Topology,
    job: Job,
    *,
    kafka: Mapping[str, Any] = CONSUMER,
    pipeline: Mapping[str, Any] | None = None,
    on_snapshot: OnSnapshot | None = None,
    until_caught_up: bool = True,
) -> Figures:
    """Headrace, from the first fetch until every record is resolved and committed.

    Its dead letters are kept in memory. `kafka` and `pipeline` are properties over the
    defaults of those tables. Without `until_caught_up`, `on_snapshot` must stop the service,
    and batches are written only when they are due. The processor time counts from when the
    partitions are open.
    """
    topology.dead_letters.into(MemoryDeadLetters())
    config = load(
        None,
        {
            "kafka": {**kafka, "bootstrap.servers": job.kafka},
            "zookeeper": {"hosts": job.zookeeper},
            "pipeline": {**(pipeline or {}), "name": job.pipeline},
        },
    )
    logs.configure("error", "json")
    service = Service(wire(topology, config), drain_seconds=config.pipeline.drain_seconds)
    memory = Memory(job.records)
    cpu, read_then, is_open = time.process_time(), 0, False

    def taken(snapshot: Snapshot) -> None:
        nonlocal cpu, read_then, is_open
        if snapshot.settled and not is_open:  # the bare loop opens nothing while it is measured
            is_open = True
            if snapshot.read < job.records:  # else the run is too short for its opening to be told
                cpu, read_then = time.process_time(), snapshot.read
        memory.at(snapshot.read)
        if on_snapshot is not None:
            on_snapshot(service, snapshot)

    service.on_snapshot = taken
    account = service.run(until_caught_up=until_caught_up)
    if account.gaps():
        raise SystemExit("; ".join(account.gaps()))
    found = figures(account.read, time.monotonic() - account.seconds, cpu, memory)
    per_record = account.read / (account.read - read_then)
    return {
        **found,
        "cpu_us": found["cpu_us"] * per_record,
        "sunk": account.sunk,
        "filtered": account.filtered,
        "rows": account.rows,
    }


def figures(read: int, started: float, cpu: float, memory: Memory) -> Figures:
    """The figures of a run that ends now; `started` in monotonic seconds, `cpu` in our own."""
    seconds = time.monotonic() - started
    return {
        "records": read,
        "per_second": read / seconds,
        "cpu_us": (time.process_time() - cpu) / read * 1e6,
        "early_mb": memory.early_mb,
        "end_mb": resident_mb(),
        "peak_mb": _peak_mb(),
    }


def resident_mb() -> float:
    """Resident memory of this process in MB."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * _PAGE_MB


def _peak_mb() -> float:
    """The most it has been; `getrusage` would begin with what our parent has been."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    kilobytes = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(kilobytes.split()[1]) * 1024 / 1e6
