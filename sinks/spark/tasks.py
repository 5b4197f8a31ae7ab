"""Python functions as tasks on Spark's executors."""

import gc
import sys
import zipimport
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from sinks.errors import LONGEST_LINE, TaskRaised, text_of
from topology.sink import SparkJobs


def run_tasks(
    driver: SparkJobs,
    tasks: Sequence[bytes],
    function: Callable[[bytes], bytes],
    *,
    group: str,
    deadline_seconds: float | None = None,
) -> list[bytes]:
    """Call a function with each of some tasks, on executors; the results in the tasks' order.

    From any thread. Each is a task of Spark's, so that one whose worker or executor is lost is
    tried again, and may then run twice at once. The function is one of a module, which workers
    import: they have the driver's path (`settings`). The bytes go through files and memory of
    Spark's; what they say is nowhere logged.

    Raises TaskRaised when the function has raised as often as Spark tries a task, and what
    `SparkJobs.run` raises. Then some of the tasks may have run, or still do for a moment.
    """
    if not tasks:
        return []

    def job(session: Any) -> list[bytes]:
        # As many parts as tasks: one is one task of Spark's. No DataFrame, whose plan costs more.
        given = session.sparkContext.parallelize(tasks, len(tasks))
        try:
            results: list[bytes] = given.map(partial(_called, function)).collect()
        except Exception as error:
            check_python(error, group)
            raise
        return results

    return driver.run(job, group=group, deadline_seconds=deadline_seconds)


def lighten() -> None:
    """Have this process, one of Spark's Python workers, begin its next task without delay.

    At the end of each task. Otherwise each costs 0.1 to 0.2 s of CPU beside its work:

    Before a task Spark has Python look again which modules there are. With a Python of 3.11 or
    3.12 that is to read what the archives on the path hold, Spark's own and a large jar, once for
    each package in them. What is kept of them here is a cache; they are found all the same.

    After a task Spark has Python look through all objects for garbage. Most belong to modules
    and stay for good; they are left out from the first task's end on.
    """
    for place, finder in list(sys.path_importer_cache.items()):
        if isinstance(finder, zipimport.zipimporter):
            sys.path_importer_cache.pop(place, None)
    if not gc.get_freeze_count():
        gc.collect()
        gc.freeze()


def _called(function: Callable[[bytes], bytes], task: bytes) -> bytes:
    try:
        return function(task)
    finally:
        lighten()


def check_python(error: Exception, group: str) -> None:
    """Raise TaskRaised if a job's error is one of Python's on an executor.

    To be called within the job: a Java exception's text is asked of the JVM.
    """
    said = from_python(error)
    if said is not None:
        raise TaskRaised(group, said) from error


def from_python(error: BaseException) -> str | None:
    """Return the class and text of what Python raised on an executor; None if it did not."""
    _, traceback, after = text_of(error).rpartition("Traceback (most recent call last):")
    if not traceback:
        return None
    # Frames are indented, and so is what Java says after it.
    lines = (line for line in after.splitlines() if line and not line[0].isspace())
    return next(lines, "an error without a text")[:LONGEST_LINE]
