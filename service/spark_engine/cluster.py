"""Tasks on Spark's executors: jobs, and the folder that executors and driver share."""

import contextlib
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from service.errors import TaskError
from service.spark_engine.task import (
    Task,
    TaskDone,
    TaskFailed,
    TaskRange,
    TaskSettings,
    decode,
    encode,
)
from service.spark_engine.task_runner import run_task
from sinks.errors import TaskRaised
from sinks.run_folder import RunFolder
from sinks.spark.driver import SparkDriver
from sinks.spark.executors import run_tasks
from topology.errors import SinkError, SinkFailed
from topology.reference import LoadedTable, Reference

_AGAIN_SECONDS = 0.5  # a cancelled attempt that goes on is cancelled again; the pause doubles
_LONGEST_PAUSE_SECONDS = 30.0
_KEPT_FILES = 2  # of each reference: attempts made before the newest file read the other
# An executor that cannot import what a task is made of will not find it the next time.
_NOT_THERE = ("ModuleNotFoundError", "ImportError", "_pickle.UnpicklingError")


class OnSpark:
    """The cluster that runs tasks: each is one of Spark's. `run` belongs to any thread."""

    def __init__(self, driver: SparkDriver, *, job_deadline_seconds: float = 300.0) -> None:
        """A job may take `job_deadline_seconds`, times the patience of its tasks."""
        self._driver = driver
        self._deadline_seconds = job_deadline_seconds
        self.slots = 1

    def open(self) -> None:
        """May take a while. Raises SinkError."""
        self.slots = max(1, self._driver.parallelism)

    def run(self, name: str, tasks: Sequence[Task]) -> list[TaskDone | TaskFailed]:
        """Run tasks and wait for them; the results are in their order.

        Raises TaskError if another attempt cannot help; any other error is taken as passing.
        """
        patience = max((task.patience for task in tasks), default=1)
        try:
            encoded = [encode(task) for task in tasks]
        except Exception as error:
            raise TaskError(type(error).__name__, f"it cannot be sent: {error}") from error
        try:
            results = run_tasks(
                self._driver,
                encoded,
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
            self.slots = max(1, self._driver.parallelism)  # executors come and go
        return [decode(result) for result in results]

    def cancel(self, name: str) -> None:
        """Stop what runs under that name, if anything; `run` raises then. Does not wait."""
        self._driver.cancel(name)


@dataclass(frozen=True, slots=True)
class TasksEnded:
    """The results of an attempt's tasks; with `error` it is not known which of them have run."""

    number: int  # of the group
    attempt: int
    results: tuple[TaskDone | TaskFailed, ...]
    error: Exception | None


@dataclass(slots=True, eq=False)
class _Job:
    thread: threading.Thread
    pause: float
    cancel_at: float = 0.0  # not to be cancelled again before


class Submissions:
    """Runs attempts beside the owner thread, which calls everything; each has its own thread.

    `put` is called from those threads, once for each: give it a queue's put.
    """

    def __init__(self, executors: OnSpark, put: Callable[[TasksEnded], object]) -> None:
        self._executors = executors
        self._put = put
        self._jobs: dict[str, _Job] = {}  # by name

    def submit(self, number: int, attempt: int, tasks: Sequence[Task]) -> None:
        name = _name(number, attempt)
        given = name, number, attempt, tuple(tasks)
        thread = threading.Thread(target=self._run, args=given, name=name, daemon=True)
        self._jobs[name] = _Job(thread, _AGAIN_SECONDS)
        thread.start()

    def cancel(self, number: int, attempt: int) -> None:
        """Stop an attempt whose result is of no use; TasksEnded follows all the same.

        Call it until it does: executors know of no job that has not begun.
        """
        name, now = _name(number, attempt), time.monotonic()
        if (job := self._jobs.get(name)) and now >= job.cancel_at:
            job.cancel_at = now + job.pause
            job.pause = min(2 * job.pause, _LONGEST_PAUSE_SECONDS)
            self._executors.cancel(name)

    def stop(self, timeout_seconds: float) -> bool:
        """Cancel what is under way; False if a thread did not end in time."""
        deadline = time.monotonic() + timeout_seconds
        jobs = self._jobs.copy()
        pause = _AGAIN_SECONDS
        while jobs:
            for name in jobs:
                self._executors.cancel(name)
            for job in jobs.values():
                job.thread.join(max(0.0, min(pause, deadline - time.monotonic())))
            pause *= 2
            jobs = {name: job for name, job in jobs.items() if job.thread.is_alive()}
            if time.monotonic() >= deadline:
                break
        return not jobs

    def _run(self, name: str, number: int, attempt: int, tasks: tuple[Task, ...]) -> None:
        results: tuple[TaskDone | TaskFailed, ...] = ()
        failure: Exception | None = None
        try:
            results = tuple(self._executors.run(name, tasks))
        except Exception as error:  # noqa: BLE001 - the owner judges it
            failure = error
        except BaseException as error:  # noqa: BLE001 - the owner would wait for ever
            failure = RuntimeError(f"the run of range group {number} raised {error!r}")
        self._jobs.pop(name, None)
        self._put(TasksEnded(number, attempt, results, failure))


def _name(number: int, attempt: int) -> str:
    return f"ranges-{number}-{attempt}"


def deal(ranges: Sequence[TaskRange], slots: int) -> list[list[TaskRange]]:
    """Deal ranges out to at most so many slots, of about equal size: the largest come first."""
    tasks: list[list[TaskRange]] = [[] for _ in range(max(1, min(slots, len(ranges))))]
    loads = [0] * len(tasks)
    sized = [(each.end - each.position.offset, each) for each in ranges]
    for size, each in sorted(sized, key=lambda pair: (-pair[0], pair[1].partition)):
        slot = loads.index(min(loads))
        tasks[slot].append(each)
        loads[slot] += size
    return tasks


class SharedFolder:
    """A folder of this run in the warehouse: reference tables, and rows on their way to the driver.

    The owner thread calls everything.
    """

    def __init__(self, path: Path | None, references: Iterable[Reference]) -> None:
        """`path` is the pipeline's folder; None if the warehouse is no folder."""
        self._folder = None if path is None else RunFolder(path, "run")
        self._references = list(references)
        self._files: dict[str, list[Path]] = {}  # by reference, newest last
        self._written: dict[str, LoadedTable] = {}  # what the newest file has

    @property
    def path(self) -> str | None:
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
        """Write the reference tables as they are loaded now; return the files by name.

        A table that has changed gets a new file, as tasks under way read the old one. The newest
        two stay; a task that comes later for another fails, and its group is run again. Raises
        OSError.
        """
        return {each.name: str(self._file_of(each)) for each in self._references}

    def _file_of(self, reference: Reference) -> Path:
        loaded = reference.loaded
        if self._folder is None or loaded is None:  # `open`, and References, have seen to that
            raise AssertionError
        files = self._files.setdefault(reference.name, [])
        if self._written.get(reference.name) is loaded and files[-1].exists():
            return files[-1]
        columns = dict(zip(reference.key, loaded.keys, strict=True))
        for name, column in zip(loaded.values.schema.names, loaded.values.columns, strict=True):
            columns.setdefault(name, column)
        table = pa.table(columns)
        path = self._folder.open() / f"{uuid.uuid4().hex}.arrow"  # someone may have cleaned up
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table)
        files.append(path)
        self._written[reference.name] = loaded
        while len(files) > _KEPT_FILES:
            with contextlib.suppress(OSError):  # then `close` removes it
                files.pop(0).unlink(missing_ok=True)
        return path

    def close(self) -> None:
        if self._folder is not None:
            self._folder.close()


class TaskCluster(NamedTuple):
    executors: OnSpark
    folder: SharedFolder
    settings: TaskSettings
