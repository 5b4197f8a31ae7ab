"""Errors of sinks, beside `topology.errors`."""

import shutil
from pathlib import Path

from sinks.names import local_path
from topology.errors import SinkError

LONGEST_LINE = 500  # of what others said of an error
_FULL = "No space left on device"  # so say Python, Arrow, delta-rs and Java


class WriterStopped(SinkError):
    """The writer was stopped before its work was done."""


class SparkStartFailed(SinkError):
    """Spark did not start."""


class SparkDied(SinkError):
    """Spark died under a job; the next job starts it anew."""


class SparkTimeout(SinkError):
    """A Spark job passed its deadline and was cancelled."""


class TaskRaised(SinkError):
    """A Python function raised on an executor, as often as Spark has tried it.

    `said` is the last line of its traceback: the error's class and text.
    """

    def __init__(self, group: str, said: str) -> None:
        super().__init__(f"a task of Spark job '{group}' raised {said}")
        self.said = said


def text_of(error: BaseException) -> str:
    """Return an error's text. A Java exception's is asked of its JVM; "" if that is gone."""
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - whatever py4j raises then
        return ""


def described(error: BaseException) -> str:
    """Return the error's class and text on one line; of a Java error, Java's class and text."""
    kind, said = type(error).__name__, one_line(error)
    return kind if said == kind else f"{kind}: {said}"[:LONGEST_LINE]


def with_free_space(said: str, place: object) -> str:
    """Add to the words of a full disk the local place that is written to, and its free space.

    Only if that can be told: `place` may be anything that a user's sink has as its `path`.
    """
    is_place = place and isinstance(place, str | Path)
    path = local_path(str(place)) if is_place and _FULL in said else None
    if path is None:
        return said
    try:
        there = next(each for each in (path, *path.parents) if each.exists())
        usage = shutil.disk_usage(there)
    except OSError:
        return said
    free, total = (f"{size / 2**20:,.1f} MiB" for size in (usage.free, usage.total))
    return f"{said}; {path}: {free} free of {total}"


def one_line(error: BaseException) -> str:
    """Return the first line that says something: py4j puts the Java exception on the second."""
    lines = [line.strip(" :") for line in text_of(error).splitlines() if line.strip(" :")]
    if not lines:
        return type(error).__name__
    java = len(lines) > 1 and lines[0].startswith("An error occurred while calling")
    return lines[1 if java else 0][:LONGEST_LINE]
