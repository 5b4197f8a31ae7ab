"""The spark engine: this process plans ranges and commits them, executors process them.

One turn of the owner thread's loop:

1. partitions that are opened, mended or halted;
2. results of attempts, and reports of the sinks' threads;
3. new records of the logs are planned: a range of each partition, together a group;
4. groups whose plan is stored are run;
5. the lowest group, if it is read, sealed and staged, is committed in every sink;
6. what was planned, sealed and done is stored.

Nothing blocks, but for a moment when there is nothing else to do.
"""

import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, cast

from partition.assigned_partition import Assigned, Lost, PartitionChange, Revoked
from partition.consumer import ConsumerPolicy
from partition.interfaces import Catalogue, Fetcher
from partition.kafka.kafka_catalogue import KafkaCatalogue
from partition.offsets.offset_store import OffsetStore
from partition.recovery import Ways
from service.config.settings import Config
from service.observability.snapshot import EngineStatistics
from service.pipeline.build import PipelinePolicy
from service.pipeline.committers import EpochFencer
from service.pipeline.context import ResultQueue
from service.pipeline.dead_letter_sender import DeadLetterSender
from service.spark_engine.attempts import Attempts
from service.spark_engine.cluster import OnSpark, SharedFolder, Submissions, TaskCluster
from service.spark_engine.planner import LogEndTracker, RangeOwner, RangePlans
from service.spark_engine.range_buffer import RangeBuffer
from service.spark_engine.task import TaskSettings
from sinks.names import local_path
from sinks.spark.driver import SparkDriver
from sinks.writer import SinkWriter
from topology.errors import InvalidTopology
from topology.topology import Topology
from topology.workers.lifecycle import EventLoop, Lifecycle
from transactions.groups import GroupPhase, RangePolicy, TransactionGroups
from transactions.partition_transactions import PartitionTransactions

_IDLE_SECONDS = 0.02
_STORING_SECONDS = 0.003  # how soon it is noticed that something is stored
_SPOOL = ".headrace-spool"


class EngineRuntime(NamedTuple):
    clock: Callable[[], float] = time.monotonic
    rng: random.Random | None = None


class SparkEngine:
    """Plans, runs and commits groups of ranges: what `Pipeline` is to the local engine.

    The thread that calls `step` owns all of it. Attempts and sinks report through one queue.
    """

    def __init__(
        self,
        topology: Topology,
        owner: RangeOwner,
        letters: DeadLetterSender,
        buffers: Sequence[RangeBuffer],
        results: ResultQueue,
        cluster: TaskCluster,
        ranges: RangePolicy,
        runtime: EngineRuntime,
    ) -> None:
        self.consumer = owner
        self.dead_letters = letters
        self.outlets = buffers
        self._assignment = owner.assignment
        self._cluster = cluster
        self._clock = runtime.clock
        self._results = results  # of TasksEnded, and writers' reports
        self._submissions = Submissions(cluster.executors, results.put)
        groups = TransactionGroups(ranges.max_active, runtime.rng)
        by_name = {buffer.name: buffer for buffer in buffers}
        self._attempts = Attempts(groups, by_name, self._submissions, owner, cluster)
        self.counters = self._attempts.counters
        self._plans = RangePlans(groups, owner, ranges, topology.source_of)
        self._life = Lifecycle((), topology.listeners, EventLoop())  # bolts live on executors
        self._lines: dict[int, PartitionTransactions] = {}

    def open(self) -> None:
        """Start Spark and the threads; the sinks are open already. Raises SinkFailed."""
        self._cluster.folder.open()
        self._cluster.executors.open()
        self._life.open()
        for outlet in self.outlets:
            outlet.writer.start()

    def step(self, *, fetch: bool = True, flush: bool = False, drain: bool = False) -> bool:
        """Run one turn of the loop; True if anything moved.

        Without `fetch` nothing is planned or run; with `flush` nothing waits for more to come.
        Raises TaskError, SinkFailed, and other errors that cannot heal.
        """
        del drain  # bolts keep nothing from one task to the next
        now = self._clock()
        self.poll(now, opens=fetch)
        moved = False
        for result in self._results.take_all():
            self._attempts.handle(result, now)
            moved = True
        self.dead_letters.poll(now)
        lines = self._look()
        if fetch:
            for index in self._plans.poll_ends(now, lines):
                self._attempts.leave_out(index, at_once=False)
            self._attempts.leaders_away(self.consumer.ends.leaderless, now)
            if not self._assignment.is_paused:
                moved |= self._plans.plan(now, lines, flush=flush)
            moved |= self._attempts.run(now)
        moved |= self._attempts.commit_next(now)
        if not moved:
            self._wait()
        self.consumer.commit(now)
        return moved

    def statistics(self) -> EngineStatistics:
        sinks = (outlet.statistics() for outlet in self.outlets)
        failures = tuple(self._attempts.recent_failures)
        apart = self._attempts.apart
        return EngineStatistics.of(self.counters, sinks, apart, recent_failures=failures)

    @property
    def is_idle(self) -> bool:
        """Whether no group is run or committed; what is only planned is run after a restart."""
        return all(group.phase is GroupPhase.PLANNED for group in self._attempts.groups)

    def settle(self) -> None:
        """Do nothing: tasks have tables of their own."""

    def poll(self, now: float, *, opens: bool) -> None:
        for change in self._assignment.poll(now, opens=opens):
            self._partition_changed(change)

    def _partition_changed(self, change: PartitionChange) -> None:
        match change:
            case Assigned(partition):
                self._life.partition_assigned(partition.topic, partition.number)
            case Revoked(partition, index, error):
                if error is not None:
                    self._attempts.leave_out(index, at_once=True)
                self._life.partition_revoked(partition.topic, partition.number)
            case Lost(_, index):
                self._attempts.leave_out(index, at_once=True)
                self._lines.pop(index, None)

    def close(self, timeout_seconds: float) -> bool:
        """Stop what runs, the threads, and the hooks; False if a thread did not end in time."""
        deadline = time.monotonic() + timeout_seconds
        ended = [self._submissions.stop(timeout_seconds)]
        ended += [outlet.writer.stop(deadline - time.monotonic()) for outlet in self.outlets]
        for change in self._assignment.release():
            self._partition_changed(change)
        self._cluster.folder.close()
        self._life.close(max(0.0, deadline - time.monotonic()))
        return all(ended)

    def _look(self) -> dict[int, PartitionTransactions]:
        """Return the lines, by partition index, of partitions of which more may be read."""
        steady: dict[int, PartitionTransactions] = {}
        for index, manager in self._assignment.owned():
            line = cast("PartitionTransactions", manager.delivery)
            if self._assignment.at(index).is_steady:
                steady[index] = line
            if self._lines.get(index) is not line:
                if index in self._lines:  # its log goes on elsewhere
                    self._attempts.leave_out(index, at_once=True)
                self._lines[index] = line
            elif index not in steady:  # its log may: what is planned of it may be dropped any time
                self._attempts.leave_out(index, at_once=False)
        self._attempts.look()
        return {i: line for i, line in steady.items() if not self._attempts.is_leaving(i)}

    def _wait(self) -> None:
        is_storing = any(m.line.is_due for group in self._attempts.groups for m in group.members)
        self._results.wait(_STORING_SECONDS if is_storing else _IDLE_SECONDS)


def check_runs_on_spark(topology: Topology) -> None:
    """Raises InvalidTopology."""
    if topology.reliability != "exactly-once":
        raise InvalidTopology(
            f"topology '{topology.name}' is {topology.reliability}; the engine \"spark\" runs "
            'topologies that are exactly-once, the engine "local" runs all'
        )


def spark_engine(
    topology: Topology,
    config: Config,
    *,
    name: str,
    target: str | None,
    spark: SparkDriver,
    client: Fetcher,
    catalogue: Catalogue,
    store: OffsetStore,
    policy: ConsumerPolicy,
) -> SparkEngine:
    """Make the engine; `target` is where executors find the topology, "module:topology"."""
    results = ResultQueue()
    buffers = [
        RangeBuffer(step, SinkWriter(step.sink, results.put, step=step.name))
        for step in topology.sink_steps()
    ]
    fencer = EpochFencer(topology.transactions, {each.name: each.writer for each in buffers})
    sink = topology.dead_letters.sink
    if sink is None:  # Topology.validate has seen to that
        raise AssertionError
    letters = DeadLetterSender(sink)
    spare = dict(config.kafka)
    ends = LogEndTracker(catalogue, config.spark.poll_seconds, lambda: KafkaCatalogue(spare))
    topics = [source.topic for source in topology.sources]
    ways = Ways(store, catalogue, letters.send_notice, fencer)
    storage = config.storage.storage()
    settings = TaskSettings(
        pipeline=name,
        target=target or "",
        paths=(str(Path.cwd()),),
        kafka=config.kafka,
        storage=storage,
        policy=PipelinePolicy(config.pipeline.message_timeout_seconds, config.screen()),
        limits=policy.assignment.limits,
        retries=policy.assignment.retries,
        fetch_records=policy.fetch_records,
        chunk_records=policy.chunk_records,
        log_level=config.logs.level,
    )
    folder = local_path(f"{storage.warehouse}/{_SPOOL}/{name.replace('/', '_')}")
    return SparkEngine(
        topology,
        RangeOwner(client, ways, ends, topics, policy, random.SystemRandom()),
        letters,
        buffers,
        results,
        TaskCluster(
            OnSpark(spark, job_deadline_seconds=config.spark.job_deadline_seconds),
            SharedFolder(folder, topology.references),
            settings,
        ),
        config.range_policy(),
        EngineRuntime(),
    )
