"""Ranges that Spark reads by itself: topologies whose topics lead to nothing but Spark steps."""

import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from typing import Any

import numpy as np

from partition.chunk import Partition
from service.account import Tally
from service.screen import ScreenPolicy
from service.spark_engine.native_logs import NativeLogs
from service.spark_engine.native_reads import LENGTHS, lost_partition, range_reads
from service.spark_engine.spool import SpoolStager
from service.spark_engine.task import (
    Task,
    TaskDone,
    TaskFailed,
    TaskRange,
    decode,
    encode,
)
from sinks.spark.apart import bring, refused, stage_apart
from sinks.spark.kafka_source import KafkaRange, read_ranges
from sinks.spark.through import called
from topology.errors import InvalidTopology, SinkFailed
from topology.sink import Piece, Sink, SparkDriver
from topology.steps import SinkStep
from topology.through_spark import ThroughSpark
from topology.topology import Topology
from topology.transactional import Group, Share, Staged, Stager


def native_sinks(topology: Topology) -> dict[str, Sink[Any]]:
    """The sinks behind its Spark steps, by step, if Spark can read all of its topics; else none.

    Raises InvalidTopology where a Spark step shares its topic with other steps: an executor's
    Python worker and Spark's own source would read it twice, and differ.
    """
    steps = [step for source in topology.sources for step in source.children]
    native = [step for step in steps if is_native(step)]
    others = [step.name for step in steps if not is_native(step)]
    if native and others:
        raise InvalidTopology(
            f"topology '{topology.name}': Spark step '{native[0].name}' stands directly behind a "
            f"topic, and so does '{others[0]}', which is none; engine = \"spark\" allows Spark "
            'steps behind all topics or behind bolts, engine = "local" both'
        )
    return {
        step.name: step.sink.sink
        for step in native
        if isinstance(step, SinkStep) and isinstance(step.sink, ThroughSpark)
    }


def check_screen(topology: Topology, screen: ScreenPolicy) -> None:
    """Raise InvalidTopology if records were to be kept from the Spark steps that read topics."""
    if screen != ScreenPolicy():
        raise InvalidTopology(
            f"topology '{topology.name}': Spark reads its topics, and looks at neither null_values "
            "nor max_record_bytes; leave them out and filter in the Spark step, or choose "
            'engine = "local"'
        )


def is_native(step: object) -> bool:
    """Whether it is a Spark step that reads a topic."""
    return (
        isinstance(step, SinkStep)
        and isinstance(step.sink, ThroughSpark)
        and step.sink.step.reads_source
    )


def native_run(
    driver: SparkDriver, topology: Topology, logs: NativeLogs
) -> Callable[[str, list[bytes], float], list[bytes]]:
    """What runs the tasks of a range group, encoded, as `run_tasks` would: all in one go.

    The first result is that of them all, the others say that there was nothing to do. What was
    read of a log that has changed is not used.
    """

    def run(group: str, tasks: list[bytes], deadline_seconds: float) -> list[bytes]:
        decoded: list[Task] = [decode(task) for task in tasks]
        first = decoded[0]
        ranges = tuple(each for task in decoded for each in task.ranges)
        whole = Task(first.settings, first.number, ranges, first.stagers)
        before = logs.before(ranges)
        done = run_native(driver, whole, topology, group=group, deadline_seconds=deadline_seconds)
        results = [_checked(done, whole, lambda: logs.after(ranges, before))]
        results += [TaskDone((), {}, Tally(), 0) for _ in decoded[1:]]
        return [encode(each) for each in results]

    return run


def _checked(
    done: TaskDone | TaskFailed,
    task: Task,
    after: Callable[[], TaskFailed | Mapping[Partition, int]],
) -> TaskDone | TaskFailed:
    """What was done, unless the logs have changed: then nothing of it is left.

    Where a later leader may have written records of a range, that is told with what was read.
    """
    if isinstance(done, TaskFailed):
        return done
    is_good = False
    try:
        found = after()
        is_good = not isinstance(found, TaskFailed)
    finally:
        if not is_good:
            for name, parts in done.staged.items():
                for part in parts:
                    task.stagers[name].discard(part)
    if isinstance(found, TaskFailed):
        return found
    reads = tuple(replace(e, leader_epoch=found.get(e.partition)) for e in done.ranges)
    return replace(done, ranges=reads)


def run_native(
    driver: SparkDriver,
    task: Task,
    topology: Topology,
    *,
    group: str,
    deadline_seconds: float | None = None,
) -> TaskDone | TaskFailed:
    """Process a task's ranges by Spark alone, from Kafka to files that no reader sees.

    1. Executors read the records and keep them, so that all that follows sees the same ones.
    2. Offsets and payload lengths come here: they give each range's count and digest, the same as
       the local engine's.
    3. For each Spark step that gets records, executors stage what its function makes of them.
       Where only this process can stage, the rows come here and go to the spool.

    From any thread; `group` names the job, which has Spark's deadline unless another is given.
    Raises what the job raises: it may be tried again.
    """
    for each in task.ranges:
        for by_sink in each.refused.values():
            for sink, reasons in by_sink.items():
                return _failed(refused(sink, sink, list(reasons.values())))

    def job(session: Any) -> TaskDone:
        ranges = [each for each in task.ranges if each.position.offset < each.end]
        if not ranges:
            return TaskDone(range_reads(task.ranges, []), {}, Tally(), 0)
        frame = read_ranges(
            session,
            task.settings.kafka,
            [KafkaRange(*each.partition, each.position.offset, each.end) for each in ranges],
            tasks=session.sparkContext.defaultParallelism,
        ).persist()
        try:
            reads = range_reads(task.ranges, bring(frame.selectExpr(*LENGTHS), group))
            held = frozenset(read.partition for read in reads if read.count)
            staged = _stage_all(frame, task, topology, group, held)
        finally:
            frame.unpersist()
        return TaskDone(reads, staged, Tally(sunk=sum(read.count for read in reads)), 0)

    try:
        return driver.run(job, group=group, deadline_seconds=deadline_seconds)
    except SinkFailed as error:
        return _failed(error)
    except Exception as error:
        lost = lost_partition(str(error), [each.partition for each in task.ranges])
        if lost is None:
            raise
        return TaskFailed(f"{lost}: Spark could not read all of it", "OffsetOutOfRange", lost)


def _stage_all(
    frame: Any, task: Task, topology: Topology, group: str, held: Collection[Partition]
) -> dict[str, tuple[Staged, ...]]:
    """By step, what was staged; nothing for a step that gets no record of those in `held`."""
    staged: dict[str, list[Staged]] = {}
    try:
        for step, front in _steps(topology):
            ranges = [
                each
                for each in task.ranges
                if step.name not in each.skips
                and step in topology.source_of(each.partition.topic).children
            ]
            if any(each.partition in held for each in ranges):
                rows = called(front.step, _only(frame, task.ranges, ranges))
                staged[step.name] = []
                found = _stage(rows, task.stagers[step.name], task.number, ranges[0], group)
                staged[step.name] += found
                _check(step.name, front, found)
    except BaseException:
        for name, parts in staged.items():
            for part in parts:
                task.stagers[name].discard(part)
        raise
    return {name: tuple(parts) for name, parts in staged.items()}


def _stage(rows: Any, stager: Stager, number: int, first: TaskRange, group: str) -> list[Staged]:
    if not isinstance(stager, SpoolStager):
        return stage_apart(rows, stager, number, group)
    pieces: list[Piece] = [*bring(rows, group)]
    count = sum(map(len, pieces))
    # Nobody can tell whose rows they are, so all are of one partition, and of its first record.
    offset = first.position.offset
    share = Share(str(first.partition), 0, 0, 0, offset, first.end, "", count)
    offsets = np.full(count, offset, np.int64)
    return [stager.stage(Group(number, (share,), pieces, count, offsets))]


def _check(step: str, front: ThroughSpark, staged: Sequence[Staged]) -> None:
    reasons = [reason for each in staged for reason in each.rejected.values()]
    if reasons:
        raise refused(step, front.step.name, reasons)


def _steps(topology: Topology) -> list[tuple[SinkStep, ThroughSpark]]:
    return [
        (step, step.sink)
        for step in topology.steps()
        if isinstance(step, SinkStep) and isinstance(step.sink, ThroughSpark)
    ]


def _only(frame: Any, held: Sequence[TaskRange], wanted: Sequence[TaskRange]) -> Any:
    """The records of some of the ranges that a DataFrame holds."""
    if len(wanted) == len(held):
        return frame
    return frame.where(
        reduce(
            operator.or_,
            [
                (frame["topic"] == each.partition.topic)
                & (frame["partition"] == each.partition.number)
                for each in wanted
            ],
        )
    )


def _failed(error: Exception) -> TaskFailed:
    return TaskFailed(str(error), type(error).__name__)
