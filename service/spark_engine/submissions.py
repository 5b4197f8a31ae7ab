"""Tries of groups on their way: each has a thread that waits for Spark."""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from service.spark_engine.task import Task, TaskDone, TaskFailed


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


class Submissions:
    """Runs tries beside the owner thread, which calls everything.

    `on_ended` is called from their threads, once for each: give it a queue's put.
    """

    def __init__(self, executors: Executors, on_ended: Callable[[TasksEnded], object]) -> None:
        self._executors = executors
        self._on_ended = on_ended
        self._threads: dict[tuple[int, int], threading.Thread] = {}
        self._cancelled: set[tuple[int, int]] = set()  # their threads look into it

    def submit(self, number: int, attempt: int, tasks: Sequence[Task]) -> None:
        """Run a try; TasksEnded comes."""
        thread = threading.Thread(
            target=self._run,
            args=(number, attempt, tuple(tasks)),
            name=_name(number, attempt),
            daemon=True,
        )
        self._threads[number, attempt] = thread
        thread.start()

    def cancel(self, number: int, attempt: int) -> None:
        """Stop a try, as nobody wants its result; TasksEnded comes nevertheless."""
        if (number, attempt) in self._threads:
            # Before its job has begun the executors know nothing of it, and would forget it.
            self._cancelled.add((number, attempt))
            self._executors.cancel(_name(number, attempt))

    def ended(self, number: int, attempt: int) -> None:
        """Learn that the owner has heard of a try's end."""
        self._threads.pop((number, attempt), None)
        self._cancelled.discard((number, attempt))

    def stop(self, timeout_seconds: float) -> bool:
        """Cancel what is under way; False if a thread did not end in time."""
        deadline = time.monotonic() + timeout_seconds
        for number, attempt in self._threads:
            self.cancel(number, attempt)
        for thread in self._threads.values():
            thread.join(max(0.0, deadline - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads.values())

    def _run(self, number: int, attempt: int, tasks: tuple[Task, ...]) -> None:
        results: tuple[TaskDone | TaskFailed, ...] = ()
        failure: Exception | None = None
        try:
            results = self._results(number, attempt, tasks)
        except Exception as error:  # noqa: BLE001 - the owner judges it
            failure = error
        except BaseException as error:  # noqa: BLE001 - the owner would wait for ever
            failure = RuntimeError(f"the run of range group {number} raised {error!r}")
        self._on_ended(TasksEnded(number, attempt, results, failure))

    def _results(
        self, number: int, attempt: int, tasks: tuple[Task, ...]
    ) -> tuple[TaskDone | TaskFailed, ...]:
        if (number, attempt) in self._cancelled:
            raise RuntimeError(f"range group {number} was cancelled before it ran")
        return tuple(self._executors.run(_name(number, attempt), tasks))


def _name(number: int, attempt: int) -> str:
    return f"ranges-{number}-{attempt}"
