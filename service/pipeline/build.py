"""Builds a pipeline bottom-up: of a run's servers, a test's memory, or the ranges of a Spark task.

Each part is given those that are above it here, so none knows who uses it.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from acker.acker import Acker
from partition.delivery import AtLeastOnce, CommitBeforeEmit, DeliveryFactory
from partition.interfaces import TopicName
from partition.ledger import CommitProgress, Ledger
from partition.records import Partition, Resumed, partition_index_of
from partition.recovery import Loss
from service.pipeline.backpressure import Backpressure
from service.pipeline.committers import (
    BatchCommitter,
    EpochFencer,
    SinkCommitter,
    TransactionCommitter,
)
from service.pipeline.context import Observer, ResultQueue, RunContext
from service.pipeline.dead_letter_sender import DeadLetterSender
from service.pipeline.failures import FailureHandler, ScreenPolicy
from service.pipeline.loop import Pipeline
from service.pipeline.router import Router, tree_seconds
from service.pipeline.sink_buffer import BatchBuffer, TransactionBuffer
from service.pipeline.trees import TreeTracker
from sinks.writer import SinkWriter, WriteRetries
from topology.advanced import AdvancedRunner
from topology.bolt import Hooks, Kind
from topology.executor import Executor
from topology.monitoring import FailureLog
from topology.sink import DeadLetterSink, Sink
from topology.topology import Topology
from topology.workers.lifecycle import Lifecycle
from topology.workers.pool import WorkerPool
from transactions.partition_transactions import PartitionTransactions
from transactions.transaction import TransactionPolicy

OpenSource: TypeAlias = Callable[[Callable[[Loss], Future[None]], EpochFencer | None], Any]
"""Makes what reads, given what tells of a range that is skipped, and the fences if any."""


@dataclass(frozen=True, slots=True)
class PipelinePolicy:
    message_timeout_seconds: float = 30.0
    screen: ScreenPolicy = field(default_factory=ScreenPolicy)
    write_retries: WriteRetries = field(default_factory=WriteRetries)


@dataclass(frozen=True, slots=True)
class Ports:
    """The connections of a pipeline.

    `source` makes a Consumer, in a task a RangeReader, and `staging` the committer of a task's
    rows. `sinks`, by their steps' names, and `hooks` stand in for those of the topology.
    """

    source: OpenSource
    dead_letter_sink: DeadLetterSink
    rng: np.random.Generator
    clock: Callable[[], float] = time.monotonic
    sinks: Mapping[str, Sink[Any]] = field(default_factory=dict)
    hooks: Sequence[Hooks] | None = None
    staging: Callable[[Any, Callable[[object], object]], SinkCommitter] | None = None


def build_pipeline(
    topology: Topology, ports: Ports, policy: PipelinePolicy, observers: Sequence[Observer] = ()
) -> Pipeline:
    """Make a pipeline; nothing is opened yet."""
    results, bolts = ResultQueue(), list(topology.bolts())
    timeout_seconds = policy.message_timeout_seconds
    runners = WorkerPool([step for step in bolts if step.has_runner], results.put, timeout_seconds)
    hooks = topology.listeners if ports.hooks is None else ports.hooks
    context = RunContext(
        ports.clock,
        results,
        Lifecycle(bolts, hooks, runners.loop),
        FailureLog(ports.clock),
        tuple(observers),
    )
    longest_seconds = max((tree_seconds(step) or 0 for step in bolts), default=None)
    acker = Acker(timeout_seconds=timeout_seconds, longest_seconds=longest_seconds)
    advanced_steps = [step for step in bolts if step.kind is Kind.ADVANCED]
    advanced = AdvancedRunner(advanced_steps, acker.owners, partition_index_of)
    trees = TreeTracker(acker, advanced.holders, timeout_seconds, ports.rng)
    dead_letters = DeadLetterSender(ports.dead_letter_sink, context.observers)
    sinks = [(step, ports.sinks.get(step.name, step.sink)) for step in topology.sink_steps()]
    at_most_once = topology.reliability == "at-most-once"
    writers = {
        step: SinkWriter(
            sink,
            results.put,
            step=step.name,
            at_most_once=at_most_once,
            retries=policy.write_retries,
        )
        for step, sink in (sinks if ports.staging is None else ())
    }
    in_groups = topology.reliability == "exactly-once" and ports.staging is None
    by_name = {step.name: writer for step, writer in writers.items()}
    fencer = EpochFencer(topology.transactions, by_name) if in_groups else None
    consumer = ports.source(dead_letters.send_notice, fencer)
    committer: SinkCommitter
    if ports.staging is not None:
        committer = ports.staging(consumer, results.put)
    elif in_groups:
        groups = [TransactionBuffer(*each, context.observers) for each in writers.items()]
        committer = TransactionCommitter(consumer, groups, context.observers)
    else:
        batches = [BatchBuffer(*each, trees, context.observers) for each in writers.items()]
        committer = BatchCommitter(consumer, batches, context.observers, trees)
    retries = {step.name: step.retries for step in bolts if step.retries is not None}
    failures = FailureHandler(
        trees, consumer, dead_letters, committer, retries, policy.screen, context
    )
    schemas = {step.name: sink.row_schema for step, sink in sinks}
    executor = Executor(topology.sources, {k: v for k, v in schemas.items() if v is not None})
    router = Router(topology, executor, runners, advanced, trees, committer, failures, context)
    backpressure = Backpressure(
        topology, committer, runners, advanced, acker, dead_letters, consumer
    )
    return Pipeline(
        consumer, router, trees, committer, failures, dead_letters, backpressure, context
    )


def delivery_of(topology: Topology, policy: TransactionPolicy) -> DeliveryFactory[Any]:
    """Return the factory of partitions' delivery modes.

    A plan has no more records than a batch, which is committed as a whole; a transaction no more
    than its source's rate allows while a batch fills: else its commit would wait for the last.
    """
    if topology.reliability == "at-most-once":
        return CommitBeforeEmit
    if topology.reliability == "at-least-once":
        return AtLeastOnce
    batches = [step.policy for step in topology.sink_steps()]
    seconds = min(each.batch_seconds for each in batches)
    plan_records = min(policy.plan_records, *(each.batch_rows for each in batches))

    def make(
        partition: Partition, ledger: Ledger, progress: CommitProgress, resumed: Resumed | None
    ) -> PartitionTransactions:
        rate = topology.source_of(partition.topic).records_per_second
        records = policy.records if rate is None else max(1, int(rate * seconds))
        cut = replace(policy, records=min(policy.records, records), plan_records=plan_records)
        return PartitionTransactions(partition, ledger, progress, resumed, cut)

    return make


def limits_of(topology: Topology) -> dict[TopicName, float]:
    return {
        source.topic: source.records_per_second
        for source in topology.sources
        if source.records_per_second is not None
    }


class Sizes(NamedTuple):
    """Records that are at most fetched at once, and at most emitted to the bolts at once."""

    fetch_records: int
    chunk_records: int


# Measured, see ADR 0027. A few thousand records and what functions make of them stay in the
# processor's caches until they are written; an event loop beside them waits while the owner has
# Python's lock; columns have no objects per record, and each call of
# Arrow has its price; at most once each fetch waits for a write to ZooKeeper.
_OBJECTS = Sizes(4_000, 2_000)
_WITH_A_LOOP = Sizes(2_000, 1_000)
_COLUMNS = Sizes(8_000, 8_000)
_STORED_FIRST = Sizes(10_000, 4_000)


def sizes_of(
    topology: Topology, fetch_records: int | None = None, chunk_records: int | None = None
) -> Sizes:
    """Return the sizes given, or else those measured to be best for a topology."""
    if topology.reliability == "at-most-once":
        best = _STORED_FIRST
    elif any(source.is_concurrent for source in topology.sources):
        best = _COLUMNS
    elif any(step.kind is Kind.ASYNC for step in topology.bolts()):
        best = _WITH_A_LOOP
    else:
        best = _OBJECTS
    return Sizes(fetch_records or best.fetch_records, chunk_records or best.chunk_records)
