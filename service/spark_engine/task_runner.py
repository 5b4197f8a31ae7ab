"""Run a task on an executor: the pipeline over ranges that end."""

import multiprocessing
import os
from collections.abc import Hashable, Mapping
from contextlib import ExitStack
from typing import Any

import numpy as np
import pyarrow as pa

from partition.errors import OffsetOutOfRange
from partition.kafka.kafka_fetcher import KafkaFetcher
from service import logs
from service.garbage import rare_collections
from service.loading import load_topology
from service.pipeline.trees import Tally
from service.spark_engine.range_fetcher import RangeFetcher, RangesSilent, RangeUnreadable
from service.spark_engine.range_reader import RangeReader
from service.spark_engine.staging import Staging, TaskSink, sinks_of
from service.spark_engine.task import Task, TaskDone, TaskFailed, TaskSettings, decode, encode
from service.wiring import PipelinePolicy, Ports, build_pipeline
from sinks.names import local_path
from topology.errors import SinkError, SinkFailed
from topology.masking import secrets_in
from topology.sink import DeadLetter, DeadLetterSink, Delivered, RangeNotice, SinkContext
from topology.steps import SinkStep
from topology.topology import Topology


class LettersAway(SinkError):
    """The place for dead letters cannot be used now; it could when the run began."""


class TableAway(OSError):
    """The file of a reference table cannot be read now: it was replaced, or its folder is away."""


class LateLetters(DeadLetterSink):
    """Opens a dead-letter sink when the first letter comes: most tasks have none.

    As in the contract; `send` waits for it that one time, and raises LettersAway if the place
    cannot be used. What is said of letters from before a `close` is not told: their task has
    failed, and the next one counts its tokens from the start again.
    """

    def __init__(self, sink: DeadLetterSink, context: SinkContext) -> None:
        self.name = sink.name
        self._sink = sink
        self._context = context
        self._is_open = False
        self._sent = 0
        self._tokens: dict[int, int] = {}  # by the number that the sink knows a letter by

    def open(self, context: SinkContext) -> None:
        """Do nothing yet."""

    def send(self, letter: DeadLetter | RangeNotice, token: int) -> None:
        """Take a letter."""
        if not self._is_open:
            try:
                self._sink.open(self._context)
            except SinkFailed as error:
                raise LettersAway(str(error)) from error
            self._is_open = True
        self._sent += 1
        self._tokens[self._sent] = token
        self._sink.send(letter, self._sent)

    def poll(self) -> list[Delivered]:
        """What became of the letters sent."""
        if not self._tokens:
            return []
        known = [each for each in self._sink.poll() if each.token in self._tokens]
        return [Delivered(self._tokens.pop(each.token), each.error) for each in known]

    @property
    def pending(self) -> int:
        """Letters sent of which `poll` has not told yet."""
        return len(self._tokens)

    def flush(self, timeout_seconds: float) -> None:
        """Wait for the letters on their way."""
        if self._tokens:
            self._sink.flush(timeout_seconds)

    def close(self) -> None:
        """Let go of what the first letter opened, and of letters on their way; `send` opens it."""
        self._is_open = False
        self._tokens.clear()
        self._sink.close()


class Kept:
    """Clients and tables that the next task of the same settings finds as they were left.

    A task that has failed lets go of the clients, whatever state they are in. One thread, which
    runs the tasks of this process, calls everything.
    """

    def __init__(self) -> None:
        self._fetchers: dict[Hashable, RangeFetcher] = {}
        self._letters: dict[Hashable, LateLetters] = {}
        self._references: dict[tuple[str, str], str] = {}
        self._logs: str | None = None

    def topology(self, settings: TaskSettings) -> Topology:
        """The topology, with its reference tables loaded, and logs on their way to stderr.

        Raises NoTopology, InvalidTopology, ReferenceLoadFailed, TableAway when a table cannot be
        read, and what importing the user's module raises.
        """
        if self._logs != settings.log_level:
            logs.configure(
                settings.log_level,
                "json",
                [*secrets_in(settings.kafka), *settings.storage.secrets.values()],
            )
            self._logs = settings.log_level
        topology = load_topology(settings.target, settings.paths)
        for reference in topology.references:
            key = settings.target, reference.name
            place = settings.references[reference.name]
            if self._references.get(key) != place:
                reference.use(reference.read(_read(place)))
                self._references[key] = place
        return topology

    def fetcher(self, settings: TaskSettings) -> RangeFetcher:
        """A fetcher with these properties, where the last task left it."""
        key = _properties(settings)
        if key not in self._fetchers:
            self._fetchers[key] = RangeFetcher(KafkaFetcher(settings.kafka))
        return self._fetchers[key]

    def letters(self, settings: TaskSettings, topology: Topology) -> LateLetters:
        """The topology's dead-letter sink."""
        key = settings.target, settings.pipeline, settings.storage.warehouse, _properties(settings)
        if key not in self._letters:
            sink = topology.dead_letters.sink
            if sink is None:  # Topology.validate has seen to that
                raise AssertionError
            context = SinkContext(
                pipeline=settings.pipeline,
                sink="dead-letters",
                kafka=settings.kafka,
                storage=settings.storage,
                spark=None,
                exactly_once=True,
            )
            self._letters[key] = LateLetters(sink, context)
        return self._letters[key]

    def let_go(self) -> None:
        """Close all clients; the next task opens them anew."""
        fetchers, self._fetchers = self._fetchers, {}
        for fetcher in fetchers.values():
            fetcher.close()
        for letters in self._letters.values():
            letters.close()


_kept: dict[int, Kept] = {}  # by process: a fork's clients have none of their threads


def kept_here() -> Kept:
    """What this process keeps."""
    return _kept.setdefault(os.getpid(), Kept())


def _properties(settings: TaskSettings) -> Hashable:
    return tuple(sorted((name, str(value)) for name, value in settings.kafka.items()))


def _read(place: str) -> pa.Table:
    path = local_path(place)
    if path is None:
        raise OSError(f"reference table at {place}: only a local path can be read here")
    try:
        with pa.OSFile(str(path), "rb") as file:
            return pa.ipc.open_file(file).read_all()
    except OSError as error:
        raise TableAway(f"reference table at {place} cannot be read: {error}") from error


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
