"""Run a task on an executor: the pipeline over ranges that end."""

import multiprocessing
import os

import numpy as np
import pyarrow as pa

from partition.errors import OffsetOutOfRange
from partition.kafka.kafka_fetcher import KafkaFetcher
from service.loading import load_topology
from service.observability import logs
from service.pipeline.build import Ports, build_pipeline
from service.pipeline.loop import rare_collections
from service.spark_engine.range_reader import RangeReader, RangesUnreachable, RangeUnreadable
from service.spark_engine.staging import StagingCommitter, TaskSink, sinks_of
from service.spark_engine.task import Task, TaskDone, TaskFailed, TaskSettings, decode, encode
from sinks.names import local_path
from topology.errors import SinkError, SinkFailed
from topology.masking import secrets_in
from topology.sink import DeadLetter, DeadLetterSink, Delivered, RangeNotice, SinkContext
from topology.topology import Topology

_CLOSE_SECONDS = 5.0


class DeadLettersUnavailable(SinkError):
    """The place for dead letters cannot be used now; it could when the run began."""


class TableUnavailable(OSError):
    """The file of a reference table cannot be read now: it was replaced, or its folder is away."""


class LazyDeadLetters(DeadLetterSink):
    """Opens a dead-letter sink with the first dead letter: most tasks have none.

    `send` waits for it that one time, and raises DeadLettersUnavailable if it cannot be opened.
    """

    def __init__(self, sink: DeadLetterSink, context: SinkContext) -> None:
        self.name = sink.name
        self._sink = sink
        self._context = context
        self._is_open = False

    def open(self, context: SinkContext) -> None:
        """Do nothing yet."""

    def send(self, letter: DeadLetter | RangeNotice, token: int) -> None:
        if not self._is_open:
            try:
                self._sink.open(self._context)
            except SinkFailed as error:
                raise DeadLettersUnavailable(str(error)) from error
            self._is_open = True
        self._sink.send(letter, token)

    def poll(self) -> list[Delivered]:
        return self._sink.poll() if self._is_open else []

    @property
    def pending(self) -> int:
        return self._sink.pending if self._is_open else 0

    def flush(self, timeout_seconds: float) -> None:
        if self._is_open:
            self._sink.flush(timeout_seconds)

    def close(self) -> None:
        """Close the sink, and forget letters on their way; `send` opens it again."""
        self._is_open = False
        self._sink.close()


class Worker:
    """Client and tables of a worker process, from one task to the next: one driver sends them all.

    A task that has failed closes the clients. One thread calls everything.
    """

    def __init__(self) -> None:
        self._reader: RangeReader | None = None
        self._letters: LazyDeadLetters | None = None
        self._references: dict[str, str] = {}

    def topology(self, settings: TaskSettings) -> Topology:
        """Load the topology and its reference tables.

        Raises NoTopology, InvalidTopology, ReferenceLoadFailed, TableUnavailable when a table
        cannot be read, and what importing the user's module raises.
        """
        topology = load_topology(settings.target, settings.paths)
        for reference in topology.references:
            path = settings.references[reference.name]
            if self._references.get(reference.name) != path:
                reference.use(reference.read(_read(path)))
                self._references[reference.name] = path
        return topology

    def clients(
        self, settings: TaskSettings, topology: Topology
    ) -> tuple[RangeReader, LazyDeadLetters]:
        if self._letters is None:
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
            self._letters = LazyDeadLetters(sink, context)
        if self._reader is None:
            self._reader = RangeReader(KafkaFetcher(settings.kafka))
        return self._reader, self._letters

    def close(self) -> None:
        """Close the clients; the next task opens them anew."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None
        if self._letters is not None:
            self._letters.close()


_workers: dict[int, Worker] = {}  # by process: a fork's clients have none of their threads


def this_worker(settings: TaskSettings) -> Worker:
    """Return this process's worker; the first call also sends its logs to stderr."""
    if os.getpid() not in _workers:
        secrets = [*secrets_in(settings.kafka), *settings.storage.secrets.values()]
        logs.configure(settings.log_level, "json", secrets)
        _workers[os.getpid()] = Worker()
    return _workers[os.getpid()]


def _read(place: str) -> pa.Table:
    path = local_path(place)
    if path is None:
        raise OSError(f"reference table at {place}: only a local path can be read here")
    try:
        with pa.OSFile(str(path), "rb") as file:
            return pa.ipc.open_file(file).read_all()
    except OSError as error:
        raise TableUnavailable(f"reference table at {place} cannot be read: {error}") from error


def run_task(data: bytes) -> bytes:
    """Process an encoded task, and return its TaskDone or TaskFailed, encoded.

    Raises only what may pass, so that Spark tries the task again: DeadLettersUnavailable and
    TableUnavailable.
    """
    task: Task = decode(data)
    worker = this_worker(task.settings)
    done: TaskDone | TaskFailed | None = None
    try:
        topology = worker.topology(task.settings)
        reader, letters = worker.clients(task.settings, topology)
        multiprocessing.set_start_method("spawn", force=True)  # as Service.run does
        with rare_collections():
            done = process(task, reader, topology, letters)
    except (DeadLettersUnavailable, TableUnavailable):
        raise
    except Exception as error:  # noqa: BLE001 - the driver ends the run with it
        done = _failed(error)
    finally:
        if not isinstance(done, TaskDone):
            worker.close()
    return encode(done)


def process(
    task: Task, reader: RangeReader, topology: Topology, letters: DeadLetterSink
) -> TaskDone | TaskFailed:
    """Process a task's ranges; `letters` is open, and so are the topology's references.

    Bolts are opened, and closed whatever happens. `reader` and `letters` stay open, and may be
    used again if it is done. Of a task that is not, all that was staged is discarded. Raises
    DeadLettersUnavailable; any other error is a TaskFailed.
    """
    sinks: dict[str, TaskSink] = {}
    try:
        sinks |= sinks_of(task, topology.sink_steps())
        reader.begin(task)
        ports = Ports(
            lambda _notify, _fences: reader,
            letters,
            np.random.Generator(np.random.SFC64(int.from_bytes(os.urandom(16)))),
            hooks=(),  # they are the driver's to call
            staging=lambda _reader, put: StagingCommitter(reader, sinks, task, put),
        )
        pipeline = build_pipeline(topology, ports, task.settings.policy)
        try:
            pipeline.open()
            while not reader.has_reached_goals:
                is_last = reader.has_emitted_goals
                pipeline.step(flush=is_last, drain=is_last)
        finally:
            pipeline.close(_CLOSE_SECONDS)
    except Exception as error:
        for sink in sinks.values():
            sink.discard()
        if isinstance(error, DeadLettersUnavailable):
            raise
        return _failed(error)
    return TaskDone(
        ranges=reader.read(),
        staged={name: tuple(sink.staged) for name, sink in sinks.items()},
        counters=pipeline.counters,
        retried=reader.retried,
        dead_letters_refused=pipeline.dead_letters.refused,
        recent_failures=pipeline.context.failure_log.recent(),
    )


def _failed(error: Exception) -> TaskFailed:
    if isinstance(error, RangeUnreadable):
        cause = error.cause
        diverged_at = cause.diverged_at if isinstance(cause, OffsetOutOfRange) else None
        return TaskFailed(str(cause), type(cause).__name__, error.partition, diverged_at)
    silent = error.partitions if isinstance(error, RangesUnreachable) else ()
    said = "; ".join([str(error) or type(error).__name__, *getattr(error, "__notes__", [])])
    return TaskFailed(said, type(error).__name__, silent=silent)
