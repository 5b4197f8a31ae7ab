"""Runs a task on an executor: the local engine's own code, on ranges that end.

A task is the pipeline over ranges that end: it stages rows, and the driver gets what was staged.
Nothing is planned, stored, fenced or claimed here; the driver has done that, and commits.
"""

import multiprocessing
import os
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

import numpy as np

from partition.errors import OffsetOutOfRange
from service.garbage import rare_collections
from service.pipeline.trees import Tally
from service.spark_engine.kept import LettersAway, TableAway, kept_here
from service.spark_engine.range_fetcher import RangeFetcher, RangesSilent, RangeUnreadable
from service.spark_engine.range_reader import RangeReader
from service.spark_engine.staging import Staging, TaskSink, sinks_of
from service.spark_engine.task import Task, TaskDone, TaskFailed, decode, encode
from service.wiring import PipelinePolicy, Ports, build_pipeline
from topology.sink import DeadLetterSink
from topology.steps import SinkStep
from topology.topology import Topology

_CLOSE_SECONDS = 5.0


def run_task(data: bytes) -> bytes:
    """Process an encoded task; what comes of it, encoded: TaskDone, or TaskFailed.

    The topology is imported where the task says; clients are kept for the next task of this
    process, unless this one fails. Raises only what may pass, so that Spark tries the task
    again: LettersAway and TableAway.
    """
    task: Task = decode(data)
    kept = kept_here()
    done: TaskDone | TaskFailed | None = None
    try:
        topology = kept.topology(task.settings)
        fetcher = kept.fetcher(task.settings)
        multiprocessing.set_start_method("spawn", force=True)  # as Service.run does
        with rare_collections():
            done = process(task, fetcher, topology, kept.letters(task.settings, topology))
    except (LettersAway, TableAway):
        raise
    except Exception as error:  # noqa: BLE001 - the driver ends the run with it
        done = _failed(error)
    finally:
        if not isinstance(done, TaskDone):
            kept.let_go()
    return encode(done)


def process(
    task: Task, fetcher: RangeFetcher, topology: Topology, letters: DeadLetterSink
) -> TaskDone | TaskFailed:
    """Process a task's ranges; `letters` is open, and so are the topology's references.

    Bolts are opened, and closed whatever happens. `fetcher` and `letters` stay open, and may be
    used again if it is done. Of a task that is not, all that was staged is discarded. Raises
    LettersAway; any other error is a TaskFailed.
    """
    steps = [step for step in topology.steps() if isinstance(step, SinkStep)]
    sinks = sinks_of(task, steps)
    try:
        return _run(task, fetcher, topology, letters, sinks)
    except Exception as error:
        for sink in sinks.values():
            sink.discard()
        if isinstance(error, LettersAway):
            raise
        return _failed(error)


def _run(
    task: Task,
    fetcher: RangeFetcher,
    topology: Topology,
    letters: DeadLetterSink,
    sinks: Mapping[str, TaskSink],
) -> TaskDone:
    """Turn until every record of the ranges is done. Raises what cannot heal."""
    fetcher.begin(task.ranges)
    ports = Ports(
        lambda _notify, _fences: RangeReader(fetcher, task.ranges, task.settings),
        letters,
        np.random.Generator(np.random.SFC64(int.from_bytes(os.urandom(16)))),
        hooks=(),  # they are the driver's to call
        staging=lambda reader, put: Staging(reader, sinks, task, Tally(), put),
    )
    policy = PipelinePolicy(task.settings.message_timeout_seconds, task.settings.screen)
    pipeline = build_pipeline(topology, ports, policy)
    reader: Any = pipeline.consumer
    with ExitStack() as closing:  # last in, first out
        reader.open()
        closing.callback(pipeline.close, _CLOSE_SECONDS)
        pipeline.open()
        while not reader.has_reached_goals:
            is_last = reader.has_emitted_goals
            pipeline.step(flush=is_last, drain=is_last)
    return TaskDone(
        ranges=fetcher.read(),
        staged={name: tuple(sink.staged) for name, sink in sinks.items()},
        tally=pipeline.tally,
        retried=reader.retried,
        letters_refused=pipeline.dead_letters.refused,
    )


def _failed(error: Exception) -> TaskFailed:
    if isinstance(error, RangeUnreadable):
        cause = error.cause
        diverged_at = cause.diverged_at if isinstance(cause, OffsetOutOfRange) else None
        return TaskFailed(str(cause), type(cause).__name__, error.partition, diverged_at)
    silent = error.partitions if isinstance(error, RangesSilent) else ()
    return TaskFailed(_said(error), type(error).__name__, silent=silent)


def _said(error: Exception) -> str:
    notes = getattr(error, "__notes__", [])
    return "; ".join([str(error) or type(error).__name__, *notes])
