"""Measured runs: the bare loop's consumer, Headrace as it is deployed, and their figures."""

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from confluent_kafka import OFFSET_BEGINNING, Consumer, Message, TopicPartition

from benchmarks.child import Figures, Job
from headrace import Hooks, Topology
from headrace.sinks import MemoryDeadLetters
from partition.kafka.librdkafka import DEFAULTS
from service.app import Service
from service.config.settings import Config, load
from service.observability import logs
from service.observability.snapshot import Snapshot
from service.wiring import Parts, wire

CONSUMER = {**DEFAULTS, "queued.min.messages": 1_000_000, "queued.max.messages.kbytes": 1_000_000}
AT_ONCE = 10_000  # as the peers were measured
FEW_AT_ONCE = 2_000  # where the bare loop is fastest here, because its messages stay in the caches
_PAGE_MB = os.sysconf("SC_PAGE_SIZE") / 1e6

OnSnapshot = Callable[[Service, Snapshot], None]
Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Moment:
    """Where a run is: monotonic seconds, those of processor time, and records read.

    The processor time is our own process's, unless another clock is given.
    """

    at: float
    cpu: float
    read: int

    @classmethod
    def now(cls, read: int, cpu: Clock = time.process_time) -> Self:
        return cls(time.monotonic(), cpu(), read)


class Opening(Hooks):
    """Notes the moment at which the first partition was opened; `read` tells what was read."""

    def __init__(self, read: Callable[[], int], cpu: Clock = time.process_time) -> None:
        self._read = read
        self._cpu = cpu
        self.moment: Moment | None = None

    def partition_assigned(self, topic: str, partition: int) -> None:  # noqa: ARG002 - a hook
        if self.moment is None:
            self.moment = Moment.now(self._read(), self._cpu)


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

    def __init__(self, job: Job, at_once: int = AT_ONCE, *, store_offsets: bool = False) -> None:
        """With `store_offsets`, `consumer.commit()` commits what `consume` has returned."""
        self._records = job.records
        self._at_once = at_once
        self.consumer = Consumer(
            {
                **CONSUMER,
                "bootstrap.servers": job.kafka,
                "group.id": job.pipeline,
                "enable.auto.commit": False,
                "enable.auto.offset.store": store_offsets,
            }
        )
        numbers = self.consumer.list_topics(job.topic, timeout=60).topics[job.topic].partitions
        self._partitions = [TopicPartition(job.topic, n, OFFSET_BEGINNING) for n in numbers]

    def run(
        self, work: Callable[[list[Message]], None], at_end: Callable[[], object] = lambda: None
    ) -> Figures:
        """Pass every record through `work`, in lists, then do what is left; measure both."""
        consumer, records = self.consumer, self._records
        memory = Memory(records)
        consumer.assign(self._partitions)
        start = Moment.now(0)
        read = 0
        while read < records:
            messages = consumer.consume(min(self._at_once, records - read), 0.1)
            for message in messages:
                if message.error() is not None:
                    raise SystemExit(str(message.error()))
            work(messages)
            read += len(messages)
            memory.at(read)
        at_end()
        found = figures(start, Moment.now(read), memory)
        consumer.close()
        return found


def run_headrace(
    topology: Topology,
    job: Job,
    *,
    kafka: Mapping[str, Any] = CONSUMER,
    pipeline: Mapping[str, Any] | None = None,
    spark: Mapping[str, Any] | None = None,
    storage: Mapping[str, Any] | None = None,
    tracing: Mapping[str, Any] | None = None,
    cpu: Clock = time.process_time,
    on_snapshot: OnSnapshot | None = None,
    until_caught_up: bool = True,
    wired: Callable[[Topology, Config], Parts] = wire,
) -> Figures:
    """Headrace, from when its partitions are open until every record is resolved and committed.

    So the bare loop is measured, from its `assign` on. `open_seconds` are what came before:
    clients, claims in ZooKeeper, metadata. Dead letters are kept in memory, unless the topology
    says otherwise. `kafka`, `pipeline`, `spark`, `storage` and `tracing` are properties over the
    defaults of those tables. `wired` makes the parts, and `cpu` tells the processor time. Without
    `until_caught_up`, `on_snapshot` must stop the service, and batches are written only when due.
    """
    if topology.dead_letters.sink is None:
        topology.dead_letters.into(MemoryDeadLetters())
    opening = Opening(
        lambda: sum(part.read for part in parts.pipeline.consumer.statistics(0.0)), cpu
    )
    topology.hooks(opening)
    config = load(
        None,
        {
            "kafka": {**kafka, "bootstrap.servers": job.kafka},
            "zookeeper": {"hosts": job.zookeeper},
            "pipeline": {**(pipeline or {}), "name": job.pipeline},
            "spark": spark or {},
            "storage": storage or {},
            "tracing": tracing or {},
        },
    )
    logs.configure("error", "json")
    parts = wired(topology, config)
    memory = Memory(job.records)
    began = end = Moment.now(0, cpu)
    batches = 0

    def taken(snapshot: Snapshot) -> None:
        nonlocal end, batches
        if snapshot.read >= job.records:  # before, to ask for a whole tree's time would cost some
            end = Moment.now(snapshot.read, cpu)  # the last one comes when all is committed
        batches = sum(sink.write_times.count for sink in snapshot.sinks)
        memory.at(snapshot.read)
        if on_snapshot is not None:
            on_snapshot(service, snapshot)

    service = Service(parts, config.pipeline.drain_seconds, taken)
    account = service.run(until_caught_up=until_caught_up)
    if account.problems():
        raise SystemExit("; ".join(account.problems()))
    if opening.moment is None:
        raise SystemExit("no partition was opened")
    return {
        **figures(opening.moment, end, memory),
        "open_seconds": opening.moment.at - began.at,
        "written": account.written,
        "filtered": account.filtered,
        "rows": account.rows,
        "batches": batches,
    }


def figures(start: Moment, end: Moment, memory: Memory) -> Figures:
    """The figures of a run that has just ended; its memory is that of now."""
    read = end.read - start.read
    return {
        "records": end.read,
        "began_at": start.at,
        "ended_at": end.at,
        "per_second": read / (end.at - start.at),
        "cpu_us": (end.cpu - start.cpu) / read * 1e6,
        "early_mb": memory.early_mb,
        "end_mb": resident_mb(),
        "peak_mb": peak_mb(),
    }


def resident_mb(process: int | str = "self") -> float:
    return int(Path(f"/proc/{process}/statm").read_text(encoding="ascii").split()[1]) * _PAGE_MB


def peak_mb(process: int | str = "self") -> float:
    """The most it has been; `getrusage` would begin with what our parent has been."""
    status = Path(f"/proc/{process}/status").read_text(encoding="ascii")
    kilobytes = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(kilobytes.split()[1]) * 1024 / 1e6


_PROC = "/proc"
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Process:
    """One process, with the time of the children that it has waited for."""

    pid: int
    parent: int
    session: int
    seconds: float


def parse(stat: str) -> Process:
    """Read a line of /proc/PID/stat. Fields are counted from the name's end: it may hold blanks."""
    pid, rest = stat.split(" ", 1)
    after = rest.rpartition(")")[2].split()
    ticks = sum(map(int, after[11:15]))  # user, system, and both of children that have ended
    return Process(int(pid), int(after[1]), int(after[3]), ticks / _TICKS)


def tree(processes: Iterable[Process], root: int) -> list[Process]:
    """The root, whatever descends from it, and all sessions that one of these leads.

    The sessions are what is left of a descendant whose parent has ended; Spark's JVM leads one.
    """
    known = {each.pid: each for each in processes}
    members: set[int] = set()
    new = {root} & known.keys()
    while new:
        members |= new
        new = {
            each.pid for each in known.values() if each.parent in members or each.session in members
        } - members
    return [known[pid] for pid in sorted(members)]


def tree_seconds() -> float:
    """Seconds of processor time, so far, of this process's tree.

    One that ends is still counted, by the parent that waits for it. Servers that were started
    elsewhere are in no part of it.
    """
    return sum(each.seconds for each in tree(running(), os.getpid()))


def running() -> Iterator[Process]:
    # Without pathlib, which takes longer: this is called several times a second.
    for name in os.listdir(_PROC):  # noqa: PTH208
        if name.isdigit():
            try:
                with open(f"{_PROC}/{name}/stat", "rb", buffering=0) as file:  # noqa: PTH123
                    yield parse(file.read().decode(errors="replace"))
            except OSError:  # it has just ended
                continue
