"""Tasks on Spark's executors: who runs them, and the folder that they share with the driver."""

import contextlib
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import pyarrow as pa

from partition.records import Partition
from service.errors import TaskError
from service.spark_engine.task import Task, TaskDone, TaskFailed, TaskRange, decode, encode
from service.spark_engine.task_runner import run_task
from sinks.errors import TaskRaised
from sinks.run_folder import RunFolder
from sinks.spark.driver import SparkDriver
from sinks.spark.tasks import run_tasks
from topology.errors import SinkError, SinkFailed
from topology.loaded import Loaded
from topology.reference import Reference

_AGAIN_SECONDS = 0.5  # so long after its cancelling a try that goes on is cancelled once more
_LONGEST_AGAIN_SECONDS = 30.0


class Executors(Protocol):
    """Where tasks are run."""

    @property
    def slots(self) -> int:
        """How many tasks run at once, as far as is known; asks nobody."""
        ...

    def open(self) -> None:
        """Be ready to run tasks; may take a while. Raises SinkError."""
        ...

    def run(self, name: str, tasks: Sequence[Task]) -> list[TaskDone | TaskFailed]:
        """Run tasks and wait for them; the results are in their order. On any thread.

        Raises TaskError if trying again cannot help; anything else is taken as passing.
        """
        ...

    def cancel(self, name: str) -> None:
        """Stop what is run under that name, if anything; `run` raises then. Does not wait."""
        ...


@dataclass(frozen=True, slots=True)
class TasksEnded:
    """What became of a try of a group; with `error` it is not known what of it has run."""

    number: int  # of the group
    attempt: int
    results: tuple[TaskDone | TaskFailed, ...]
    error: Exception | None


@dataclass(slots=True, eq=False)
class _UnderWay:
    """A try whose end the owner has not heard of."""

    name: str
    tasks: tuple[Task, ...]
    thread: threading.Thread | None = None
    is_cancelled: bool = False
    ended: threading.Event = field(default_factory=threading.Event)


class Submissions:
    """Runs tries beside the owner thread, which calls everything.

    `on_ended` is called from their threads, once for each: give it a queue's put.
    """

    def __init__(self, executors: Executors, on_ended: Callable[[TasksEnded], object]) -> None:
        self._executors = executors
        self._on_ended = on_ended
        self._under_way: dict[tuple[int, int], _UnderWay] = {}

    def submit(self, number: int, attempt: int, tasks: Sequence[Task]) -> None:
        """Run a try; TasksEnded comes."""
        each = _UnderWay(f"ranges-{number}-{attempt}", tuple(tasks))
        each.thread = threading.Thread(
            target=self._run, args=(number, attempt, each), name=each.name, daemon=True
        )
        self._under_way[number, attempt] = each
        each.thread.start()

    def cancel(self, number: int, attempt: int) -> None:
        """Stop a try, as nobody wants its result; TasksEnded comes nevertheless."""
        each = self._under_way.get((number, attempt))
        if each is None:
            return
        was_cancelled, each.is_cancelled = each.is_cancelled, True
        self._executors.cancel(each.name)
        if was_cancelled:
            return
        # Before its job has begun, and between two of its jobs, the executors know nothing of it.
        threading.Thread(
            target=self._cancel_again, args=(each,), name=f"cancel-{each.name}", daemon=True
        ).start()

    def ended(self, number: int, attempt: int) -> None:
        """Learn that the owner has heard of a try's end."""
        self._under_way.pop((number, attempt), None)

    def stop(self, timeout_seconds: float) -> bool:
        """Cancel what is under way; False if a thread did not end in time."""
        deadline = time.monotonic() + timeout_seconds
        for number, attempt in self._under_way:
            self.cancel(number, attempt)
        threads = [each.thread for each in self._under_way.values() if each.thread is not None]
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        return not any(thread.is_alive() for thread in threads)

    def _run(self, number: int, attempt: int, each: _UnderWay) -> None:
        results: tuple[TaskDone | TaskFailed, ...] = ()
        failure: Exception | None = None
        try:
            if each.is_cancelled:
                raise RuntimeError(f"range group {number} was cancelled before it ran")  # noqa: TRY301 - the owner is told as of any other
            results = tuple(self._executors.run(each.name, each.tasks))
        except Exception as error:  # noqa: BLE001 - the owner judges it
            failure = error
        except BaseException as error:  # noqa: BLE001 - the owner would wait for ever
            failure = RuntimeError(f"the run of range group {number} raised {error!r}")
        each.ended.set()
        self._on_ended(TasksEnded(number, attempt, results, failure))

    def _cancel_again(self, each: _UnderWay) -> None:
        """Cancel a try until it has ended, on a thread of its own."""
        pause = _AGAIN_SECONDS
        while not each.ended.wait(pause):
            self._executors.cancel(each.name)
            pause = min(2 * pause, _LONGEST_AGAIN_SECONDS)


# An executor that cannot import what a task is made of will not find it the next time.
_NOT_THERE = ("ModuleNotFoundError", "ImportError", "_pickle.UnpicklingError")


class OnSpark:
    """Runs tasks by Spark: `Executors`. `open` is the owner's, the rest any thread's."""

    def __init__(self, driver: SparkDriver, *, job_deadline_seconds: float = 300.0) -> None:
        """A job may take `job_deadline_seconds`, or as many times that as its tasks say."""
        self._driver = driver
        self._deadline_seconds = job_deadline_seconds
        self._slots = 1

    @property
    def slots(self) -> int:
        """How many tasks Spark ran at once when it was asked last."""
        return self._slots

    def open(self) -> None:
        """Start Spark, if it is not started yet. Raises what SparkDriver raises."""
        self._slots = max(1, self._driver.parallelism)

    def run(self, name: str, tasks: Sequence[Task]) -> list[TaskDone | TaskFailed]:
        """Run tasks, each as a task of Spark's, and wait for them."""
        given = [_encoded(task) for task in tasks]
        patience = max((task.patience for task in tasks), default=1)
        try:
            results = run_tasks(
                self._driver,
                given,
                run_task,
                group=name,
                deadline_seconds=patience * self._deadline_seconds,
            )
        except TaskRaised as error:
            if error.said.startswith(_NOT_THERE):
                error_class, _, said = error.said.partition(": ")
                raise TaskError(error_class, said) from error
            raise
        with contextlib.suppress(SinkError):  # the results are there
            self._slots = max(1, self._driver.parallelism)  # executors come and go
        return [decode(result) for result in results]

    def cancel(self, name: str) -> None:
        """Stop what is run under that name."""
        self._driver.cancel(name)


def _encoded(task: Task) -> bytes:
    try:
        return encode(task)
    except Exception as error:
        raise TaskError(type(error).__name__, f"it cannot be sent: {error}") from error


_EXCESS = 1.25  # so much more than its part a slot may get for a partition it had before


def dealt(
    ranges: Sequence[TaskRange], slots: int, before: Mapping[Partition, int] | None = None
) -> list[list[TaskRange]]:
    """Deal ranges out to at most so many tasks, all about as large, as far as offsets tell.

    `before` says in which slot partitions were last time. A partition stays in its slot if that
    does not make the slot much larger than others: where Spark gives the task to the same worker
    again, that has its records prefetched. Slots that get nothing are left out by the caller.
    The largest come first, so that what is left over is small.
    """
    before = before or {}
    slots = max(1, min(slots, len(ranges)))
    tasks: list[list[TaskRange]] = [[] for _ in range(slots)]
    loads = [0] * slots
    fair = sum(_size(each) for each in ranges) / slots
    for each in sorted(ranges, key=lambda each: (-_size(each), each.partition)):
        slot = before.get(each.partition, slots)
        fits = slot < slots and (not tasks[slot] or loads[slot] + _size(each) <= _EXCESS * fair)
        if not fits:
            slot = loads.index(min(loads))
        tasks[slot].append(each)
        loads[slot] += _size(each)
    return tasks


def _size(each: TaskRange) -> int:
    return each.end - each.position.offset


_KEPT_FILES = 2  # of each reference: tries that were made before the newest one read the other


class SharedFolder:
    """A folder of this run, below the pipeline's in the warehouse.

    The owner thread calls everything.
    """

    def __init__(self, path: Path | None, references: Iterable[Reference]) -> None:
        """`path` is the pipeline's folder; None where the warehouse is none."""
        self._folder = None if path is None else RunFolder(path, "run")
        self._references = list(references)
        self._tables: dict[str, tuple[Loaded, Path]] = {}  # by reference: what was written
        self._files: dict[str, list[Path]] = {}  # by reference: those that are left, in order

    @property
    def place(self) -> str | None:
        """The folder, for rows; None: there is none."""
        return None if self._folder is None else str(self._folder.path)

    def open(self) -> None:
        """Make the folder, and remove those of killed processes. Raises SinkFailed."""
        if self._folder is None:
            if self._references:
                raise SinkFailed(
                    f"reference '{self._references[0].name}' comes to executors by a file in the "
                    "warehouse; on the spark engine that must be a folder that they share"
                )
            return
        try:
            self._folder.open()
        except OSError as error:
            raise SinkFailed(f"{self._folder.path} cannot be made: {error}") from error

    def tables(self) -> dict[str, str]:
        """Files with the rows of the reference tables as they are loaded now, by name.

        Those that have changed are written under a new name: tasks under way read the old ones.
        Of each only the newest two stay; a task that comes later for another fails, and its group
        is tried again with the newest. Raises OSError.
        """
        return {each.name: str(self._file_of(each)) for each in self._references}

    def _file_of(self, reference: Reference) -> Path:
        loaded = reference.loaded
        if self._folder is None or loaded is None:  # `open`, and References, have seen to that
            raise AssertionError
        known = self._tables.get(reference.name)
        if known is not None and known[0] is loaded and known[1].exists():
            return known[1]
        path = self._folder.open() / f"{uuid.uuid4().hex}.arrow"  # someone may have cleaned up
        table = _table_of(reference, loaded)
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table)
        self._tables[reference.name] = loaded, path
        self._replaced(self._files.setdefault(reference.name, []), path)
        return path

    def _replaced(self, files: list[Path], newest: Path) -> None:
        files.append(newest)
        while len(files) > _KEPT_FILES:
            with contextlib.suppress(OSError):  # then `close` removes it
                files.pop(0).unlink(missing_ok=True)

    def close(self) -> None:
        """Remove the folder and what is in it. Idempotent."""
        if self._folder is not None:
            self._folder.close()


def _table_of(reference: Reference, loaded: Loaded) -> pa.Table:
    """The columns of a load: reading them again gives the same."""
    columns = dict(zip(reference.key, loaded.keys, strict=True))
    for name, column in zip(loaded.values.schema.names, loaded.values.columns, strict=True):
        columns.setdefault(name, column)
    return pa.table(columns)
