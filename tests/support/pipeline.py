"""A pipeline on fakes, driven turn by turn, with a clock that stands still until it is told."""

import asyncio
import json
import math
import random
import shutil
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Self, TypedDict

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog import load_catalog

from headrace import AdvancedBolt, Bolt, Record, Reject, Topology, bolt
from headrace.sinks import (
    DeltaSink,
    IcebergSink,
    MemoryDeadLetters,
    MemorySink,
    Sink,
    SinkContext,
    SparkSink,
)
from partition.assignment import AssignmentPolicy
from partition.consumer import Consumer, ConsumerPolicy, Time
from partition.interfaces import StoredOffset
from partition.ledger import LedgerStatistics, RetryPolicy
from partition.manager import InFlightLimits
from partition.memory.ports import MemoryCatalogue, MemoryFetcher
from partition.records import Partition
from partition.recovery import Ways
from service.observability.health import HealthCheck
from service.observability.snapshot import snapshot_of
from service.pipeline.build import PipelinePolicy, Ports, build_pipeline, delivery_of
from service.pipeline.context import Observer
from service.pipeline.loop import Pipeline
from sinks.spark.driver import SparkDriver
from sinks.storage import Storage
from sinks.writer import WriteRetries
from tests.acceptance import evidence, table_files
from tests.support.failpoints import At, nowhere, owner_with_places, port_with_places
from tests.support.faulty_kafka import FaultyLog
from tests.support.faulty_store import FaultyNodes, FaultyStore
from tests.support.patience import seconds, until
from topology.sink import DeadLetterSink, Delivered, Kind, Staged
from topology.topology import Reliability
from transactions.transaction import TransactionPolicy

PLACE = Partition("t", 0)
RETRY_SECONDS = 1.0
PATIENCE_SECONDS = seconds(10.0)


class HeldSink(MemorySink[Any]):
    """Keeps rows; while `gate` is closed a write waits, as one to a slow service does."""

    def __init__(self, name: str = "held") -> None:
        super().__init__(name)
        self.gate, self.asked = threading.Event(), threading.Event()
        self.gate.set()

    def commit(self, staged: Staged) -> None:
        self.asked.set()
        if not self.gate.wait(PATIENCE_SECONDS):
            raise TimeoutError
        super().commit(staged)


class HeldLetters(MemoryDeadLetters):
    def __init__(self) -> None:
        super().__init__()
        self.holding = False

    def poll(self) -> list[Delivered]:
        return [] if self.holding else super().poll()


class Door:
    """An async bolt whose first call waits until the door is opened."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.answered = 0
        self._opened = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    def open(self) -> None:
        self._loop.call_soon_threadsafe(self._opened.set)

    def as_bolt(self) -> Any:
        @bolt
        async def passes(record: Record) -> str:
            text = (record.value or b"").decode()
            self._loop = asyncio.get_running_loop()
            self.calls.append(text)
            if len(self.calls) == 1:
                await self._opened.wait()
            self.answered += 1
            return text

        return passes


def memory_pipeline(
    topology: Topology,
    log: FaultyLog,
    store: FaultyStore,
    policy: ConsumerPolicy,
    clock: Callable[[], float],
    *,
    seed: Any = 1,
    times: Time | None = None,
    tracked: PipelinePolicy | None = None,
    at: At = nowhere,
    observers: Sequence[Observer] = (),
) -> Pipeline:
    """A pipeline that reads a log in memory; failpoints call `at`."""
    letters: Any = topology.dead_letters.sink

    def make_reader(notify: Any, fences: Any) -> Consumer:
        ways = Ways(store, MemoryCatalogue(log), notify, fences)
        topics = [source.topic for source in topology.sources]
        rng = random.Random(seed)
        make = owner_with_places(Consumer, at)
        return make(MemoryFetcher(log), ways, topics, policy, rng, times or Time())

    ports = Ports(
        make_reader,
        port_with_places(letters, at),
        np.random.default_rng(1),
        clock,
        {step.name: port_with_places(step.sink, at) for step in topology.sink_steps()},
    )
    return build_pipeline(topology, ports, tracked or PipelinePolicy(), observers)


def stored_in(nodes: FaultyNodes, partition: Partition) -> StoredOffset | None:
    store = FaultyStore(nodes)
    store.open()
    return store.load(partition)


class Works:
    """A topology `t -> bolts -> every sink`, on one partition."""

    patience_seconds = PATIENCE_SECONDS

    def __init__(
        self,
        *bolts: Any,
        sinks: Sequence[Sink[Any]] = (),
        window: InFlightLimits | None = None,
        retries: RetryPolicy | None = None,
        timeout_seconds: float = 30.0,
        batch_rows: int = 1000,
        fetch_records: int = 1000,
        workers: int = 1,
        at_most_once: bool = False,
        exactly_once: Kind | None = None,
        nodes: FaultyNodes | None = None,
        log: FaultyLog | None = None,
        letters: DeadLetterSink | None = None,
        max_active: int = 3,
        transaction_records: int = 1000,
        batch_seconds: float = 5.0,
        partitions: int = 1,
        records_per_second: float | None = None,
        chunk_records: int = 4_000,
        write_retries: WriteRetries | None = None,
        at: At = nowhere,
        traces: Any = None,
        shared: bool = False,
        commit_interval_seconds: float = 0.0,
        clock: Callable[[], float] | None = None,
    ) -> None:
        """With `shared` nothing is read before `reader.assignment.want` was told of it."""
        self.now = 0.0
        self.log = log or FaultyLog({"t": partitions})
        self.nodes = nodes or FaultyNodes()
        self.sinks = list(sinks) or [HeldSink()]
        self.letters_sink: Any = letters or HeldLetters()
        reliability: Reliability = "at-most-once" if at_most_once else "at-least-once"
        topology = Topology(
            "works",
            reliability="exactly-once" if exactly_once else reliability,
            transactions=exactly_once or "transactional",
        )
        stream: Any = topology.source("t")
        for each in bolts:
            stream = stream.then(each, workers=workers)
        for sink in self.sinks:
            stream.into(sink, batch_rows=batch_rows, batch_seconds=batch_seconds)
        topology.dead_letters.into(self.letters_sink)
        topology.validate()
        self.topology = topology
        transactions = TransactionPolicy(
            exactly_once or "transactional",
            max_active=max_active,
            records=transaction_records,
            plan_records=transaction_records,
            plan_seconds=0.0,
        )
        self.store = FaultyStore(self.nodes)
        policy = ConsumerPolicy(
            AssignmentPolicy(
                limits=window or InFlightLimits(),
                retries=retries or RetryPolicy(limit=1, initial_seconds=RETRY_SECONDS, jitter=0),
                delivery=delivery_of(topology, transactions),
                shared=shared,
            ),
            commit_interval_seconds=commit_interval_seconds,
            fetch_records=fetch_records,
            chunk_records=chunk_records,
            records_per_second={"t": records_per_second} if records_per_second else {},
        )
        self.pipeline = memory_pipeline(
            topology,
            self.log,
            self.store,
            policy,
            clock or (lambda: self.now),
            tracked=PipelinePolicy(timeout_seconds, write_retries=write_retries or WriteRetries()),
            at=at,
            observers=[] if traces is None else [traces],
        )
        self.reader, self.letters = self.pipeline.consumer, self.pipeline.dead_letters
        self.fetcher = self.reader._client

    def __enter__(self) -> Self:
        self.reader.open()
        self.pipeline.open()
        if self.reader.assignment._policy.shared:  # nothing is opened before `want`
            self.turn(2)
            return self

        def opened() -> bool:
            is_settled = self.reader.assignment.is_settled
            return is_settled and bool(list(self.reader.statistics(self.now)))

        until("all is open", opened, PATIENCE_SECONDS, turn=self.pipeline.step)
        return self

    def __exit__(self, *_error: object) -> None:
        for sink in self.sinks:
            if isinstance(sink, HeldSink):
                sink.gate.set()
        self.pipeline.close(5.0)
        self.reader.close()

    @property
    def sink(self) -> Any:
        return self.sinks[0]

    def send(self, *payloads: bytes | None, partition: int = 0) -> None:
        for payload in payloads:
            self.log.append(Partition("t", partition), payload)

    def want(self, *numbers: int, leave_by: float = math.inf) -> None:
        """Share the partitions: let a plan of this moment give us those; turn until all is so."""
        partitions = [Partition("t", number) for number in numbers]
        known = self.reader.assignment
        known.want(partitions, planned_at=self.now, leave_by=leave_by)
        self.until(lambda: known.holds >= set(partitions) and known.is_settled)

    def turn(self, times: int = 1) -> None:
        for _ in range(times):
            self.pipeline.step(flush=True)

    def until(self, ask: Callable[[], bool]) -> None:
        until("the condition", ask, self.patience_seconds, lambda: self.ledger, self.turn)

    def advance(self, seconds: float, step: float = 0.5) -> None:
        """Let time pass, as a loop that turns now and then sees it."""
        end = self.now + seconds
        while self.now < end:
            self.now = min(end, self.now + step)
            self.turn()

    def finish(self) -> None:
        """Turn until everything that was sent is resolved and its offset stored."""
        self.until(lambda: self.stored == self.log.log_range(PLACE)[1])

    @property
    def ledger(self) -> LedgerStatistics:
        return next(self.reader.statistics(self.now)).ledger

    @property
    def stored(self) -> int:
        """The stored offset; -1 if there is none."""
        return self.stored_of(0)

    def stored_of(self, number: int) -> int:
        found = stored_in(self.nodes, Partition("t", number))
        return -1 if found is None else found.offset


QUICK = WriteRetries(first_seconds=0.05, longest_seconds=0.5)


class Row(TypedDict):
    number: int
    text: str


@bolt
def row_of(record: Record) -> Row:
    return Row(number=record.offset, text=(record.value or b"").decode())


SINKS: dict[str, tuple[Callable[..., Any], Callable[[Path], pa.Table]]] = {
    "delta": (DeltaSink, evidence.read_table),
    "iceberg": (IcebergSink, table_files.of_iceberg),
    "parquet": (partial(SparkSink, format="parquet"), pq.read_table),
}
KEEP_TRANSACTIONS = ["delta", "iceberg"]


class Plant(Works):
    patience_seconds = 120.0  # Spark takes longer than what others do in memory

    def __init__(self, kind: str, warehouse: Path, spark: SparkDriver, guarantee: str) -> None:
        make, self._read = SINKS[kind]
        self.folder = warehouse / "rows"
        # pyiceberg puts a table below its namespace.
        self.files = warehouse / "default" / "rows" if kind == "iceberg" else self.folder
        self.table = make("rows", schema=Row)
        exactly_once = guarantee == "exactly-once"
        super().__init__(
            row_of, sinks=[self.table], batch_rows=50, write_retries=QUICK,
            exactly_once="transactional" if exactly_once else None,
        )  # fmt: skip
        self.table.open(
            SinkContext(
                "faults", "rows", {}, Storage(str(warehouse)), spark, exactly_once=exactly_once
            )
        )

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        self.table.close()

    def drop(self) -> None:
        if isinstance(self.table, IcebergSink):
            uri = f"sqlite:///{self.folder.parent}/iceberg.db"
            catalog = load_catalog("default", type="sql", uri=uri)
            catalog.drop_table(("default", self.folder.name))
            catalog.close()
        else:
            shutil.rmtree(self.folder)

    def numbers(self) -> Counter[int]:
        return Counter(self._read(self.folder).column("number").to_pylist())

    def problems(self) -> tuple[str, ...]:
        taken = snapshot_of(self.pipeline, time.monotonic())
        return HealthCheck(lambda: taken, lambda: taken.taken_at).ready().problems

    def retried(self) -> int:
        return self.pipeline.outlets[0].writer.retries


CASES = [
    *((kind, "exactly-once") for kind in KEEP_TRANSACTIONS),
    *((kind, "at-least-once") for kind in SINKS),
]


@bolt
def parse(record):
    return json.loads(record.value)


@bolt
def text_of(record: Record) -> str:
    return (record.value or b"").decode()


@bolt
def text_unless_bad(record: Record) -> str:
    if record.value == b"bad":
        raise Reject("it is bad")
    return (record.value or b"").decode()


def payload(**fields_):
    return json.dumps(fields_).encode()


def drawn(draw, *, first=parse, topic="in", records_per_second=None, **topology):
    """A topology of one source whose stream, behind `first`, `draw` goes on with."""
    made = Topology("runtime", **topology)
    draw(made.source(topic, records_per_second=records_per_second).then(first))
    made.dead_letters.into(MemoryDeadLetters())
    return made


def piped(*bolts, first=text_of, sink=None, **options):
    """A topology of bolts in a line into one sink; the options are the last bolt's."""

    def draw(stream):
        for each in bolts[:-1]:
            stream = stream.then(each)
        if bolts:
            stream = stream.then(bolts[-1], **options)
        stream.into(sink or MemorySink("out"))

    return drawn(draw, first=first)


class Keep(AdvancedBolt):
    """Keeps what it gets, and gives it on when it is drained."""

    def open(self):
        self.kept = []
        self.drained = 0

    def process(self, tuple_, collector, /):
        self.kept.append(tuple_)

    def drain(self, collector, /):
        self.drained += 1
        for each in collector.pending(self.kept):
            collector.emit(each.value, anchors=each)
            collector.ack(each)
        self.kept = []


class Pairs(AdvancedBolt):
    """Joins each two texts, in the order of their arrival; one alone leaves with a tick."""

    tick_seconds = 10.0

    def open(self):
        self.kept = []

    def process(self, tuple_, collector, /):
        self.kept = [*collector.pending(self.kept), tuple_]
        if len(self.kept) == 2:
            self.tick(collector)

    def tick(self, collector, /):
        if self.kept:
            collector.emit("+".join(each.value for each in self.kept), anchors=self.kept)
            for each in self.kept:
                collector.ack(each)
            self.kept = []


def as_bolt(kind, function):
    """A bolt of a kind that gives what a function of its value does."""

    class Function(Bolt):
        def process(self, value, /):
            return function(value)

    class Generator(Bolt):
        def process(self, value, /):
            yield function(value)

    class Async(Bolt):
        async def process(self, value, /):
            await asyncio.sleep(0)
            return function(value)

    class Blocking(Function):
        blocking = True

    class Advanced(AdvancedBolt):
        def process(self, tuple_, collector, /):
            collector.emit(function(tuple_.value), anchors=tuple_)
            collector.ack(tuple_)

    class Vectorised(Bolt):
        vectorised = True

        def process(self, batch, /):
            rows = [function(row) for row in batch.to_pylist()]
            return pa.RecordBatch.from_pylist(rows, batch.schema)

    kinds = {
        "function": Function, "generator": Generator, "async": Async, "blocking": Blocking,
        "advanced": Advanced, "vectorised": Vectorised,
    }  # fmt: skip
    return kinds[kind]()


def failing_once(error, kind="function"):
    """A bolt that raises an error for what comes first, and gives on what it gets."""
    left = [error]

    def check(value):
        if left:
            raise left.pop()
        return value

    return as_bolt(kind, check)


class Seen:
    """Notes what each instance of a bolt was called with, and fails where it is told to."""

    def __init__(self, failing=()):
        self.calls = defaultdict(list)
        self.failing = list(failing)  # (task, value), once each
        self.made = 0

    def check(self, task, value):
        self.calls[task].append(value["n"])
        if (task, value["n"]) in self.failing:
            self.failing.remove((task, value["n"]))
            raise ValueError("once")
        return {"task": task, "n": value["n"]}

    def make(self, kind="function"):
        self.made += 1
        return as_bolt(kind, partial(self.check, self.made - 1))


KINDS = ["function", "generator", "async", "blocking", "advanced"]
ORDERED_KINDS = KINDS[:-1]
