"""Tries of groups on their way: each has a thread that waits for Spark."""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from service.spark_engine.task import Task, TaskDone, TaskFailed

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
