import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self
from unittest.mock import patch

from headrace import Topology
from headrace.sinks import MemoryDeadLetters, MemorySink
from partition.assignment import AssignmentPolicy
from partition.consumer import ConsumerPolicy
from partition.interfaces import Fetcher, StoredOffset
from partition.memory.ports import MemoryCatalogue, MemoryFetcher
from partition.records import Partition
from partition.recovery import StartPolicy, Ways
from partition.replicas.balance import Member
from partition.replicas.heartbeat import Heartbeats
from service.config.settings import load
from service.membership import GroupMembership, MembershipPolicy
from service.observability.snapshot import ExecutorCounters
from service.pipeline.build import delivery_of
from service.pipeline.committers import EpochFencer
from service.pipeline.context import ResultQueue
from service.pipeline.dead_letter_sender import DeadLetterSender
from service.pipeline.reference_tables import References
from service.spark_engine.cluster import SharedFolder, TaskCluster
from service.spark_engine.engine import EngineRuntime, SparkEngine
from service.spark_engine.planner import LogEndTracker, RangeOwner
from service.spark_engine.range_buffer import RangeBuffer
from service.spark_engine.range_reader import RangeReader
from service.spark_engine.task import Task, TaskDone, TaskFailed, decode, encode
from service.spark_engine.task_runner import process
from service.wiring import Parts
from sinks.writer import SinkWriter, WriteRetries
from tests.support.failpoints import At, groups_with_places, nowhere, port_with_places
from tests.support.faulty_kafka import FaultyLog
from tests.support.faulty_store import FaultyNodes, FaultyStore
from tests.support.patience import seconds, until
from tests.support.spark_tasks import SETTINGS, staged, text
from topology.sink import Batch, Share, Sink, Staged
from transactions.groups import RangePolicy, TransactionGroups
from transactions.transaction import TransactionPolicy

ME = Member("one", "process")


def parts_of(driven: Any, pipeline: Any) -> Parts:
    """Return the parts that a service runs, of `Works` or of `Driving`."""
    heartbeats, policy = Heartbeats("/headrace", "memory", ME), MembershipPolicy(ME.name)
    return Parts(
        topology=driven.topology,
        config=load(None, {"kafka": {"bootstrap.servers": "-"}, "zookeeper": {"hosts": "-"}}),
        references=References([], lambda reference: reference.unload()),
        fetcher=driven.fetcher,
        store=driven.store,
        catalogue=MemoryCatalogue(driven.log),
        membership=GroupMembership(driven.store, heartbeats, driven.reader.assignment, policy),
        pipeline=pipeline,
    )


PATIENCE_SECONDS = seconds(20.0)
ONE, TWO = Partition("t", 0), Partition("t", 1)


def values(letter: str, count: int) -> list[str]:
    return [f"{letter}{number}" for number in range(count)]


class ListStager:
    """Stages rows as a list. Those that begin with "unfit" do not fit."""

    def stage(self, group: Batch) -> Staged:
        return staged(group, lambda row: str(row).startswith("unfit"), "unfit")

    def discard(self, staged: Staged) -> None:
        """Nothing is left."""


class HereSink(MemorySink[Any]):
    """A sink in memory that stages in the driver, and rejects the rows it is told.

    Notes the shares of each commit, and fails as told.
    """

    def __init__(self, name: str = "here") -> None:
        super().__init__(name)
        self.shares: list[tuple[str, int, int]] = []
        self.errors: list[Exception] = []
        self.rejects: set[str] = set()

    def stage(self, group: Batch) -> Staged:
        return staged(group, self.rejects.__contains__, "unwanted")

    def commit(self, staged: Staged) -> None:
        if self.errors:
            raise self.errors.pop(0)
        self.shares += [(s.line, s.txid, s.num_rows) for s in staged.shares]
        super().commit(staged)


class ApartSink(HereSink):
    def __init__(self, name: str = "apart") -> None:
        super().__init__(name)

    def stager(self) -> ListStager:
        return ListStager()

    def joined(self, shares: tuple[Share, ...], staged: Sequence[Staged]) -> Staged:
        rows = [row for each in staged for part in each.parts for row in part]
        return Staged(shares, len(rows), (rows,))


class HereExecutors:
    """Runs tasks in this process, one after the other; fails and waits as told."""

    slots = 2

    def __init__(self, topology: Topology, log: FaultyLog, letters: MemoryDeadLetters) -> None:
        self._topology = topology
        self._log = log
        # As in a worker, what becomes of a letter is told to nobody else.
        self._letters = MemoryDeadLetters()
        self._letters.letters = letters.letters
        self._lock = threading.Lock()  # a topology's bolts and letters are one worker's
        self.gate = threading.Event()
        self.gate.set()
        self.tasks: list[Task] = []
        self.names: list[str] = []
        self.errors: dict[str, Exception] = {}  # by the name of a run
        self.answers: list[Callable[[Task], TaskDone | TaskFailed | None]] = []
        self.is_open = False

    def open(self) -> None:
        self.is_open = True

    def run(self, name: str, tasks: Sequence[Task]) -> list[TaskDone | TaskFailed]:
        self.names.append(name)
        self.tasks += tasks
        if not self.gate.wait(PATIENCE_SECONDS):
            raise TimeoutError
        if name in self.errors:
            raise self.errors[name]
        with self._lock:
            return [self._answer(decode(encode(task))) for task in tasks]

    def _answer(self, task: Task) -> TaskDone | TaskFailed:
        answer = self.answers.pop(0)(task) if self.answers else None
        if answer is not None:
            return answer
        reader = RangeReader(self.fetcher())
        ended: TaskDone | TaskFailed = decode(
            encode(process(task, reader, self._topology, self._letters))
        )
        reader.close()
        return ended

    def fetcher(self) -> Fetcher:
        return MemoryFetcher(self._log)

    def cancel(self, name: str) -> None: ...


class Driving:
    """A topology `t -> bolts -> every sink` on the spark engine; its clock is real.

    `directly`, no bolt stands between the topic and the sinks.
    """

    def __init__(
        self,
        folder: Path,
        *bolts: Any,
        sinks: Sequence[Sink[Any]] = (),
        partitions: int = 2,
        log: FaultyLog | None = None,
        nodes: FaultyNodes | None = None,
        letters: MemoryDeadLetters | None = None,
        ranges: RangePolicy | None = None,
        start: StartPolicy | None = None,
        opaque: bool = False,
        records_per_second: float | None = None,
        topology: Topology | None = None,
        directly: bool = False,
        mirror: bool = False,
        at: At = nowhere,
    ) -> None:
        self.log = log or FaultyLog({"t": partitions})
        self.nodes = nodes or FaultyNodes()
        self.sinks = list(sinks) or [ApartSink()]
        self.letters_sink = letters or MemoryDeadLetters()
        self.folder = folder
        kind: Any = "opaque" if opaque else "transactional"
        topology = topology or Topology("drives", reliability="exactly-once", transactions=kind)
        stream: Any = topology.source("t", records_per_second=records_per_second)
        for each in () if directly else bolts or (text,):
            stream = stream.then(each)
        for sink in self.sinks:
            stream.into(sink, name=sink.name)
        topology.dead_letters.into(self.letters_sink)
        topology.validate()
        self.topology = topology
        policy = ranges or RangePolicy(records=10, seconds=0.01)
        by_executors = TransactionPolicy(kind, max_active=policy.max_active, by_executors=True)
        retries = WriteRetries(first_seconds=0, longest_seconds=0)
        results = ResultQueue()
        steps = [port_with_places(step, at) for step in topology.sink_steps()]
        buffers = [
            RangeBuffer(step, SinkWriter(step.sink, results.put, step=step.name, retries=retries))
            for step in steps
        ]
        fencer = EpochFencer(kind, {each.name: each.writer for each in buffers})
        self.catalogue = MemoryCatalogue(self.log)
        self.ends = LogEndTracker(self.catalogue, 0.0)
        self.letters_out = DeadLetterSender(self.letters_sink)
        self.fetcher = MemoryFetcher(self.log)
        self.store = FaultyStore(self.nodes)
        self.reader = RangeOwner(
            self.fetcher,
            Ways(self.store, self.catalogue, self.letters_out.send_notice, fencer),
            self.ends,
            ["t"],
            ConsumerPolicy(
                AssignmentPolicy(
                    start=start or StartPolicy(), delivery=delivery_of(topology, by_executors)
                ),
                commit_interval_seconds=0,
                mirror=mirror,
            ),
            random.Random(1),
        )
        self.executors: Any = HereExecutors(topology, self.log, self.letters_sink)
        groups = groups_with_places(TransactionGroups, at)
        with patch("service.spark_engine.engine.TransactionGroups", groups):
            self.engine = SparkEngine(
                topology,
                self.reader,
                self.letters_out,
                buffers,
                results,
                TaskCluster(self.executors, SharedFolder(folder, topology.references), SETTINGS),
                policy,
                EngineRuntime(rng=random.Random(1)),
            )

    def __enter__(self) -> Self:
        self.reader.open()
        self.engine.open()
        self.until(
            lambda: (
                self.reader.assignment.is_settled and len(list(self.reader.statistics(0.0))) > 0
            ),
            fetch=False,
            opens=True,
        )
        return self

    def __exit__(self, *_error: object) -> None:
        """Close everything, in the middle of whatever is under way: a crash that says goodbye."""
        self.executors.gate.set()
        self.engine.close(5.0)
        self.reader.close()

    def another(self, **changes: Any) -> "Driving":
        """The next life of the process: the same servers and sinks."""
        same: Mapping[str, Any] = {
            "sinks": self.sinks,
            "log": self.log,
            "nodes": self.nodes,
            "letters": self.letters_sink,
        }
        return Driving(self.folder, **{**same, **changes})

    def send(self, *values: str, partition: int = 0) -> None:
        for value in values:
            self.log.append(Partition("t", partition), value.encode())

    def until(self, ask: Callable[[], bool], *, fetch: bool = True, opens: bool = False) -> None:
        def turn() -> None:
            if opens:
                self.engine.poll(time.monotonic(), opens=True)
            self.engine.step(fetch=fetch)

        until("the condition", ask, PATIENCE_SECONDS, lambda: self.stored, turn)

    def fill(self, a: int = 0, b: int = 0) -> None:
        self.send(*values("a", a))
        self.send(*values("b", b), partition=1)

    def hold(self, a: int = 0, b: int = 0, *, runs: int = 1) -> None:
        """Send records whose runs have begun, and wait for `go`."""
        self.executors.gate.clear()
        self.fill(a, b)
        self.until(lambda: len(self.executors.names) == runs)

    def go(self, until: Callable[[], bool] | None = None) -> None:
        """Let runs go on, until something is so, or everything is committed."""
        self.executors.gate.set()
        self.until(until) if until else self.finish()

    def fail(self, name: str = "ranges-1-1", error: str = "the executor is gone") -> None:
        self.executors.errors[name] = OSError(error)

    def claim(self, partition: Partition) -> None:
        """Claim a partition as another process does."""
        other = FaultyStore(self.nodes)
        other.open()
        other.claim(partition).result(1)

    @property
    def apart(self) -> ApartSink:
        return next(sink for sink in self.sinks if isinstance(sink, ApartSink))

    @property
    def figures(self) -> ExecutorCounters:
        return self.engine.statistics().apart

    def turn(self, times: int = 1) -> None:
        for _ in range(times):
            self.engine.step()

    def finish(self) -> None:
        self.until(lambda: all(self.stored_at(p) == end for p, end in self.log_ends.items()))

    @property
    def log_ends(self) -> dict[Partition, int]:
        numbers = self.log.topic("t").partitions
        return {
            Partition("t", number): self.log.log_range(Partition("t", number))[1]
            for number in numbers
        }

    @property
    def stored(self) -> dict[Partition, StoredOffset | None]:
        store = FaultyStore(self.nodes)
        store.open()
        try:
            return {partition: store.load(partition) for partition in self.log_ends}
        finally:
            store.close()

    def stored_at(self, partition: Partition) -> int:
        found = self.stored[partition]
        return -1 if found is None else found.offset

    def open_of(self, number: int = 0) -> list[tuple[int, int, bool]]:
        """The open transactions of a partition: where each begins and ends, and if it is sealed."""
        found = self.stored[Partition("t", number)]
        transactions = None if found is None else found.transactions
        return [
            (each.range.first, each.range.end, each.range.is_sealed)
            for each in (() if transactions is None else transactions.open)
        ]
