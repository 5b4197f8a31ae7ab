"""One table on a local file system: steps on its log, one process at a time."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from sinks.lock import table_lock
from topology.errors import SinkBusy
from topology.sink import SparkDriver

Result = TypeVar("Result")
_LOCK_SECONDS = 30.0
_MOST_CONFLICTS = 20  # in a row: someone else commits faster than we can
_BUSY_SECONDS = 0.5
_JVM_LOCK = ".headrace.jvm.lock"  # readers and cleaners pass over names that begin with a dot


class Conflict(Exception):
    """Someone else has changed the table since its log was read; nothing was done."""


class Log(Protocol):
    """What says which files make up a table, in one JVM."""

    session: Any


AnyLog = TypeVar("AnyLog", bound=Log)


class LocalTable(Generic[AnyLog]):
    """The table in a folder, through the JVM of a SparkDriver. Called by one thread at a time.

    The log is made anew whenever Spark's session is another one.
    """

    def __init__(
        self, folder: Path, spark: SparkDriver, name: str, make_log: Callable[[Any], AnyLog]
    ) -> None:
        """`make_log` is given a session."""
        self.folder = folder
        self._spark = spark
        self._name = name
        self._make_log = make_log
        self._log: AnyLog | None = None

    def run(self, step: Callable[[AnyLog], Result], what: str) -> Result:
        """Run a step on the log, in a job of its own. It must not commit, unless locked."""

        def job(session: Any) -> Result:
            if self._log is None or self._log.session is not session:
                self._log = self._make_log(session)
            return step(self._log)

        return self._spark.run(job, group=f"{self._name}-{what}")

    def settle(self, step: Callable[[AnyLog], Result], what: str) -> Result:
        """Run a step that decides and commits, alone with the table.

        Again after each conflict, with others that do not know our lock. Raises SinkBusy, and
        what the step raises.
        """

        def settled(log: AnyLog) -> Result:
            with _held_by_jvm(log.session, self.folder):
                for _ in range(_MOST_CONFLICTS):
                    try:
                        return step(log)
                    except Conflict:
                        continue
            raise SinkBusy(_BUSY_SECONDS, "others keep changing the table")

        with self.locked():
            return self.run(settled, what)

    def locked(self) -> AbstractContextManager[None]:
        """The lock on the table; it is not reentrant. Raises SinkBusy.

        On a local file system a log's next version is put into place by a rename, which replaces
        what is there, and only the threads of one JVM are held apart.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        return table_lock(self.folder, _LOCK_SECONDS)

    def forget(self) -> None:
        """Read the table anew with the next step."""
        self._log = None


@contextmanager
def _held_by_jvm(session: Any, folder: Path) -> Iterator[None]:
    """Hold a second lock, the JVM's own, while it may commit. Raises SinkBusy.

    A JVM outlives a process that is killed for a moment, or for as long as it is frozen, and ends
    a commit that it has begun; the process's own lock is gone by then.
    """
    file = session._jvm.java.io.RandomAccessFile(str(folder / _JVM_LOCK), "rw")  # noqa: SLF001
    try:
        if file.getChannel().tryLock() is None:
            reason = f"the JVM of a process that has ended still holds {folder / _JVM_LOCK}"
            raise SinkBusy(_BUSY_SECONDS, reason)
        yield
    finally:
        file.close()
