"""Runs a task on an executor: the local engine's own code, on ranges that end.

A task is a whole run in small: its partitions begin where their ranges do, in a store in memory,
and it ends when every record of them is done. What its sinks commit is what the driver gets.
"""

import copy
import multiprocessing
import os
import random
from collections import defaultdict
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

import numpy as np

from partition.assignment import AssignmentPolicy
from partition.errors import OffsetOutOfRange, PartitionError
from partition.manager import Window
from partition.memory.store import MemoryStore
from service.garbage import rare_collections
from service.gates import gates_of, policy_of
from service.letters import Letters
from service.pipeline import Pipeline, PipelinePolicy
from service.reader import Reader, ReaderPolicy
from service.spark_engine.kept import LettersAway, TableAway, kept_here
from service.spark_engine.range_catalogue import RangeCatalogue
from service.spark_engine.range_fetcher import RangeFetcher, RangesSilent, RangeUnreadable
from service.spark_engine.refusals import Reasons
from service.spark_engine.taking import TakingSink, TaskFences
from service.spark_engine.task import Task, TaskDone, TaskFailed, decode, encode
from topology.sink import DeadLetterSink
from topology.steps import SinkStep
from topology.topology import Topology
from transactions.partition_transactions import TransactionPolicy

_CLOSE_SECONDS = 5.0
_PLAN_SECONDS = 0.002  # to store what is planned costs nothing here


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
    refused = _refused(task)
    sinks = {
        step.name: TakingSink(step.name, task.stagers.get(step.name), refused[step.name])
        for step in topology.steps()
        if isinstance(step, SinkStep)
    }
    try:
        return _run(task, fetcher, topology, letters, sinks)
    except Exception as error:
        for sink in sinks.values():
            sink.discard_all()
        if isinstance(error, LettersAway):
            raise
        return _failed(error)


def _run(
    task: Task,
    fetcher: RangeFetcher,
    topology: Topology,
    letters: DeadLetterSink,
    sinks: Mapping[str, TakingSink],
) -> TaskDone:
    """Turn until every record of the ranges is done. Raises what cannot heal."""
    fetcher.begin(task.ranges)
    sent = Letters(letters)
    fences = TaskFences(topology.transactions, task.ranges)
    # The pipeline is made after the reader, so it is looked up when it is told.
    reader = _reader(
        task,
        fetcher,
        topology,
        letters=sent,
        fencing=fences,
        on_assigned=lambda partition: pipeline.partition_assigned(partition),  # noqa: PLW0108
        on_revoked=lambda partition: pipeline.partition_revoked(partition),  # noqa: PLW0108
        on_lost=lambda place: pipeline.partition_lost(place),  # noqa: PLW0108
        holds=lambda place: pipeline.holds(place),  # noqa: PLW0108
    )
    pipeline: Pipeline = Pipeline(
        _without_hooks(topology),
        reader,
        sent,
        PipelinePolicy(task.settings.message_timeout_seconds, task.settings.screen),
        np.random.Generator(np.random.SFC64(int.from_bytes(os.urandom(16)))),
        sinks=sinks,
        fences=fences,
    )
    with ExitStack() as closing:  # last in, first out
        closing.callback(reader.close)
        reader.open()
        closing.callback(pipeline.close, _CLOSE_SECONDS)
        pipeline.open()
        while not reader.has_reached_goals:
            is_last = reader.has_emitted_goals
            pipeline.step(flush=is_last, drain=is_last)
        halted = reader.halted()
        if halted:  # with none left to read, `step` has raised; here others were read to their ends
            raise PartitionError("; ".join(halted.values()))
    return TaskDone(
        ranges=fetcher.read(),
        staged={name: tuple(sink.taken) for name, sink in sinks.items()},
        tally=pipeline.tally,
        retried=sum(each.retried for each in reader.statistics(0.0)),
        letters_refused=sent.refused,
    )


def _reader(
    task: Task, fetcher: RangeFetcher, topology: Topology, *, letters: Letters, **told: Any
) -> Reader:
    """A reader of the ranges, and of nothing else; rates are the driver's to keep."""
    settings = task.settings
    planning = TransactionPolicy(topology.transactions, plan_seconds=_PLAN_SECONDS)
    cut = policy_of(topology, planning)
    window = Window(
        settings.max_pending, settings.max_pending_bytes, settings.screen.max_record_bytes
    )
    return Reader(
        fetcher,
        MemoryStore(pipeline=settings.pipeline),
        RangeCatalogue(task.ranges),
        letters.notify,
        sorted({each.partition.topic for each in task.ranges}),
        ReaderPolicy(
            assignment=AssignmentPolicy(
                window=window, retries=settings.retries, make_gate=gates_of(topology, cut)
            ),
            fetch_records=settings.fetch_records,
            chunk_records=settings.chunk_records,
            plan_records=cut.plan_records,
        ),
        random.SystemRandom(),
        **told,
    )


def _without_hooks(topology: Topology) -> Topology:
    """The same topology; its hooks are the driver's to call."""
    alone = copy.copy(topology)
    alone.listeners = []
    return alone


def _refused(task: Task) -> defaultdict[str, dict[str, dict[int, Reasons]]]:
    """By sink, line and offset: which rows of a record are not to be staged."""
    refused: defaultdict[str, dict[str, dict[int, Reasons]]] = defaultdict(dict)
    for each in task.ranges:
        for offset, by_sink in each.refused.items():
            for sink, reasons in by_sink.items():
                refused[sink].setdefault(str(each.partition), {})[offset] = reasons
    return refused


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
