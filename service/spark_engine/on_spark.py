"""Tasks on Spark's executors."""

import contextlib
from collections.abc import Sequence

from service.errors import TaskError
from service.spark_engine.running import run_task
from service.spark_engine.task import Task, TaskDone, TaskFailed, decode, encode
from sinks.errors import TaskRaised
from sinks.spark.driver import SparkDriver
from sinks.spark.tasks import run_tasks
from topology.errors import SinkError

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
