"""Tasks of the spark engine on logs in memory: no Kafka, no Spark, nothing pickled."""

from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import numpy as np

from headrace import Record, bolt
from partition.interfaces import Fetched, LogEnd
from partition.ledger import RetryPolicy
from partition.manager import InFlightLimits
from partition.memory.ports import MemoryCatalogue, MemoryFetcher
from partition.records import Partition, Position
from service.pipeline.build import PipelinePolicy
from service.spark_engine.range_reader import RangeReader
from service.spark_engine.task import Task, TaskDone, TaskFailed, TaskRange, TaskSettings
from service.spark_engine.task_runner import process
from sinks.columns import rows_of
from sinks.memory import MemoryDeadLetters, MemorySink
from sinks.storage import Storage
from tests.support.faulty_kafka import FaultyLog
from tests.support.kafka import numbers
from topology.sink import Batch, DeadLetterSink, SinkContext, Staged, Stager
from topology.topology import Topology
from transactions.transaction import RangeDigest

SETTINGS = TaskSettings(
    pipeline="tasks",
    target="nowhere:topology",
    paths=(),
    kafka={},
    storage=Storage(""),
    policy=PipelinePolicy(),
    limits=InFlightLimits(10_000, 1_000_000),
    retries=RetryPolicy(initial_seconds=0.001, max_seconds=0.002, jitter=0, limit=3),
    fetch_records=50,
    chunk_records=20,
)


def staged(group: Batch, rejects: Callable[[Any], object], reason: str) -> Staged:
    rows = list(rows_of(group.pieces))
    assert len(rows) == group.num_rows == sum(share.num_rows for share in group.shares)
    rejected = {i: reason for i, row in enumerate(rows) if rejects(row)}
    kept = [row for i, row in enumerate(rows) if i not in rejected]
    return Staged(group.shares, len(kept), (kept,), rejected)


class KeepingStager:
    """Keeps the groups that it staged, and the rows of those that were not discarded."""

    def __init__(self, unfit: Iterable[Any] = ()) -> None:
        self.unfit = list(unfit)
        self.groups: list[Batch] = []
        self.discarded: list[Staged] = []

    def stage(self, group: Batch) -> Staged:
        self.groups.append(group)
        assert len(group.offsets) == group.num_rows
        return staged(group, self.unfit.__contains__, "unfit")

    def discard(self, staged: Staged) -> None:
        self.discarded.append(staged)


class CountingFetcher(MemoryFetcher):
    """Notes the partitions that were added, and paused."""

    def __init__(self, log: FaultyLog) -> None:
        super().__init__(log)
        self.added: list[Partition] = []
        self.pauses: list[Partition] = []
        self.delivered = 0

    def add(self, positions: Mapping[Partition, Position]) -> None:
        self.added += positions
        super().add(positions)

    def pause(self, partition: Partition) -> None:
        self.pauses.append(partition)
        super().pause(partition)

    def fetch(self, max_records: int, timeout_seconds: float) -> Fetched:
        fetched = super().fetch(max_records, timeout_seconds)
        self.delivered += sum(map(len, fetched.chunks))
        return fetched


class Tasks:
    """Runs tasks one after the other in one process, as a worker does."""

    def __init__(self, topics: Mapping[str, int] | None = None) -> None:
        self.log = FaultyLog(topics or {"t": 1})
        self.inner = CountingFetcher(self.log)
        self.reader = RangeReader(self.inner)

    def send(self, *values: bytes | None, partition: int = 0, topic: str = "t") -> None:
        for value in values:
            self.log.append(Partition(topic, partition), value)

    def task(
        self, ranges: Iterable[TaskRange], stagers: Mapping[str, Stager], **settings: Any
    ) -> Task:
        return Task(replace(SETTINGS, **settings), tuple(ranges), stagers)


def ranged(first: int, end: int, number: int = 0, topic: str = "t", **more: Any) -> TaskRange:
    return TaskRange(Partition(topic, number), Position(first), end, **more)


def opened(sink: DeadLetterSink) -> DeadLetterSink:
    sink.open(
        SinkContext(pipeline="tasks", sink="letters", kafka={}, storage=Storage(""), spark=None)
    )
    return sink


def rows_in(staged: Iterable[Staged]) -> list[Any]:
    return [row for each in staged for part in each.parts for row in part]


def digest_of(log: FaultyLog, partition: Partition, first: int, end: int) -> tuple[int, str]:
    found = [m for m in log.read(partition, Position(first), end - first) if m.offset() < end]
    digest = RangeDigest()
    digest.add(
        np.array([m.offset() for m in found], np.int64), np.array([len(m) for m in found], np.int64)
    )
    return digest.count, digest.hex()


def flow(
    *bolts: Any, letters: DeadLetterSink, sinks: Iterable[str] = ("rows",), **batch: Any
) -> Topology:
    """`t -> bolts -> every sink`, exactly once."""
    topology = Topology("tasks", reliability="exactly-once")
    stream: Any = topology.source("t")
    for each in bolts:
        stream = stream.then(each)
    for name in sinks:
        stream.into(MemorySink(name), name=name, **batch)
    topology.dead_letters.into(letters)
    topology.validate()
    return topology


@bolt
def text(record: Record) -> str:
    return (record.value or b"").decode()


class TaskWorld:
    """A topology on a log, run task by task."""

    def __init__(self, *bolts: Any, partitions: int = 1, **of_flow: Any) -> None:
        self.letters = MemoryDeadLetters()
        self.topology = flow(*bolts, letters=self.letters, **of_flow)
        self.tasks = Tasks({"t": partitions})
        names = of_flow.get("sinks", ("rows",))
        self.stagers = {name: KeepingStager() for name in names}

    def run(self, *ranges: TaskRange, **settings: Any) -> TaskDone | TaskFailed:
        task = self.tasks.task(ranges, self.stagers, **settings)
        return process(task, self.tasks.reader, self.topology, opened(self.letters))

    def done(self, *ranges: TaskRange, **settings: Any) -> TaskDone:
        ended = self.run(*ranges, **settings)
        assert isinstance(ended, TaskDone), ended
        return ended

    def failed(self, *ranges: TaskRange, **settings: Any) -> TaskFailed:
        ended = self.run(*ranges, **settings)
        assert isinstance(ended, TaskFailed), ended
        return ended

    def rows(self, *ranges: TaskRange, **settings: Any) -> list[Any]:
        return rows_in(self.done(*ranges, **settings).staged["rows"])

    def send(self, *counts: int) -> None:
        for partition, count in enumerate(counts):
            self.tasks.send(*numbers(count), partition=partition)


def texts(count: int, start: int = 0) -> list[str]:
    return [str(number) for number in range(start, start + count)]


class SilentFetcher(CountingFetcher):
    """Tells nothing of some partitions."""

    def __init__(self, log: FaultyLog, silent: Collection[Partition] = ()) -> None:
        super().__init__(log)
        self.silent = silent

    def fetch(self, max_records: int, timeout_seconds: float) -> Fetched:
        paused = self._paused.copy()
        self._paused.update(self.silent)
        try:
            return super().fetch(max_records, timeout_seconds)
        finally:
            self._paused.clear()
            self._paused.update(paused)


class SilentCatalogue(MemoryCatalogue):
    """Cannot tell where the logs of some partitions end."""

    def __init__(self, log: FaultyLog) -> None:
        super().__init__(log)
        self.silent: Collection[Partition] = ()

    def ends(self, partitions: Collection[Partition]) -> Future[Mapping[Partition, LogEnd]]:
        return super().ends({each for each in partitions if each not in self.silent})
