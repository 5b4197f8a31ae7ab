"""Builds a pipeline bottom-up: of a run's servers, a test's memory, or the ranges of a Spark task.

Each part is given those that are above it here, so none knows who uses it.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from acker.acker import Acker
from partition.records import partition_indexes_of
from partition.recovery import Loss
from service.pipeline.backpressure import Backpressure
from service.pipeline.committers import BatchCommitter, TransactionCommitter
from service.pipeline.context import Observer, Observers, ResultQueue, RunContext
from service.pipeline.dead_letters import DeadLetterSender
from service.pipeline.failures import FailureHandler, ScreenPolicy
from service.pipeline.fences import EpochFencer
from service.pipeline.loop import Committer, Pipeline
from service.pipeline.router import Router, tree_seconds
from service.pipeline.sink_buffer import BatchBuffer, TransactionBuffer
from service.pipeline.trees import Tally, TreeTracker
from sinks.tries import WriteRetries
from topology.advanced import AdvancedRunner
from topology.bolt import Hooks, Kind
from topology.complaints import Complaints
from topology.executor import Executor
from topology.sink import DeadLetterSink, Sink
from topology.steps import SinkStep
from topology.topology import Topology
from topology.workers.lifecycle import Lifecycle
from topology.workers.pool import WorkerPool

if TYPE_CHECKING:  # tracing imports OpenTelemetry, which is not there unless it is wanted
    from service.spark_engine.staging import Staging

OpenSource: TypeAlias = Callable[[Callable[[Loss], Future[None]], EpochFencer | None], Any]
"""Makes what reads, given what tells of a range that is skipped, and the fences if any."""


@dataclass(frozen=True, slots=True)
class PipelinePolicy:
    """How records are tracked."""

    message_timeout_seconds: float = 30.0
    screen: ScreenPolicy = field(default_factory=ScreenPolicy)
    write_retries: WriteRetries = field(default_factory=WriteRetries)


@dataclass(frozen=True, slots=True)
class Ports:
    """What a pipeline is connected to.

    `source` makes a Consumer, in a task a RangeReader, and `staging` what stages the task's rows.
    `sinks` stand in for those of the topology, by their steps' names, and `hooks` for its own.
    """

    source: OpenSource
    dead_letter_sink: DeadLetterSink
    rng: np.random.Generator
    clock: Callable[[], float] = time.monotonic
    sinks: Mapping[str, Sink[Any]] = field(default_factory=dict)
    hooks: Sequence[Hooks] | None = None
    staging: "Callable[[Any, Callable[[object], object]], Staging] | None" = None


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
        Complaints(ports.clock),
        Observers(observers),
    )
    longest_seconds = max((tree_seconds(step) or 0 for step in bolts), default=None)
    acker = Acker(timeout_seconds=timeout_seconds, longest_seconds=longest_seconds)
    advanced_steps = [step for step in bolts if step.kind is Kind.ADVANCED]
    advanced = AdvancedRunner(advanced_steps, acker.owners, partition_indexes_of)
    trees = TreeTracker(acker, advanced.holders, timeout_seconds, ports.rng)
    dead_letters = DeadLetterSender(ports.dead_letter_sink, context.on)
    make_committer, fences = _guarantee_of(topology, ports, policy, context)
    consumer = ports.source(dead_letters.send_notice, fences)
    committer = make_committer(consumer, trees)
    retries = {step.name: step.retries for step in bolts if step.retries is not None}
    failures = FailureHandler(
        trees, consumer, dead_letters, committer, retries, policy.screen, context
    )
    schemas = {step.name: sink.row_schema for step, sink in _sinks_of(topology, ports)}
    executor = Executor(topology.sources, {k: v for k, v in schemas.items() if v is not None})
    router = Router(topology, executor, runners, advanced, trees, committer, failures, context)
    backpressure = Backpressure(
        topology, committer, runners, advanced, acker, dead_letters, consumer
    )
    return Pipeline(
        consumer, router, trees, committer, failures, dead_letters, backpressure, context
    )


def _sinks_of(topology: Topology, ports: Ports) -> list[tuple[SinkStep, Sink[Any]]]:
    steps = [step for step in topology.steps() if isinstance(step, SinkStep)]
    return [(step, ports.sinks.get(step.name, step.sink)) for step in steps]


def _guarantee_of(
    topology: Topology, ports: Ports, policy: PipelinePolicy, context: RunContext
) -> "tuple[Callable[[Any, TreeTracker], Committer], EpochFencer | None]":
    """Return what makes the committer of a consumer, and the fences that partitions open with."""
    staging, put = ports.staging, context.results.put
    if staging is not None:
        return (lambda consumer, _trees: staging(consumer, put)), None
    sinks = _sinks_of(topology, ports)
    options: Any = {
        "write_retries": policy.write_retries,
        "on": context.on,
    }
    if topology.reliability == "exactly-once":
        groups = [TransactionBuffer(step, sink, put, **options) for step, sink in sinks]
        fences = EpochFencer(topology.transactions, {each.name: each.writer for each in groups})
        return (
            lambda consumer, _trees: TransactionCommitter(consumer, groups, Tally(), context.on)
        ), fences
    options["at_most_once"] = topology.reliability == "at-most-once"
    buffers = [BatchBuffer(step, sink, put, **options) for step, sink in sinks]
    return (
        lambda consumer, trees: BatchCommitter(buffers, trees, consumer, Tally(), context.on)
    ), None
