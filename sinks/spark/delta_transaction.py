"""Delta's own transactions, in Spark's JVM: rows and any number of txids in one commit."""

import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sinks.errors import text_of
from sinks.spark.settings import LOG_STORE
from topology.errors import SinkBusy, SinkFailed

RETENTION = "delta.setTransactionRetentionDuration"
_LOCK = ".headrace.jvm.lock"  # readers and cleaners pass over names that begin with a dot
_ALONE = threading.Lock()
_BUSY_SECONDS = 0.5
# What Delta raises when another commit came first and this one holds no more.
_CONFLICTS = (
    "ConcurrentTransactionException",
    "MetadataChangedException",
    "ProtocolChangedException",
)


class DeltaTransaction:
    """A transaction on a table's newest version. It commits once, or `is_conflict` of its error.

    The public `txnAppId` option sets one application's number in a commit, and skips a number that
    has passed in silence. Here a commit sets several, and conflicts if one that was read has moved.
    """

    def __init__(self, session: Any, path: str, options: Mapping[str, str]) -> None:
        """Read the newest version. Delta caches a log by the file system's options."""
        self._jvm, self._spark = session._jvm, session._jsparkSession  # noqa: SLF001
        self._delta = self._jvm.org.apache.spark.sql.delta
        self._options = self._jvm.PythonUtils.toScalaMap(dict(options))
        place = self._jvm.org.apache.hadoop.fs.Path(path)
        self._log = self._delta.DeltaLog.forTable(self._spark, place, self._options)
        self._transaction = self._log.startTransaction()
        self._metadata = self._transaction.metadata()

    @property
    def table_id(self) -> str | None:
        """The id that tells the table from one made anew in its place; None: there is no table."""
        return str(self._metadata.id()) if self._transaction.readVersion() >= 0 else None

    @property
    def forgets(self) -> bool:
        """Whether the table drops txids after a while."""
        return bool(self._metadata.configuration().contains(RETENTION))

    def version(self, app: str) -> int:
        return max(0, int(self._transaction.txnVersion(app)))

    def commit(
        self, numbers: Mapping[str, int], rows: Any = None, partition_by: Sequence[str] = ()
    ) -> str:
        """Append a DataFrame's rows, if any, and set applications' numbers. Returns the table's id.

        A table that is not there is made with the columns of `rows`.
        """
        now_ms = self._jvm.scala.Option.apply(int(time.time() * 1000))
        made = self._delta.actions.SetTransaction
        to_seq = self._jvm.PythonUtils.toSeq
        actions = to_seq([made.apply(app, n, now_ms) for app, n in numbers.items()])
        operations = "DeltaOperations$"
        if rows is None:
            operation = getattr(getattr(self._delta, f"{operations}ManualUpdate$"), "MODULE$")
        else:
            mode = self._jvm.org.apache.spark.sql.SaveMode.Append
            none = self._jvm.scala.Option.empty()
            options = self._delta.DeltaOptions(self._options, self._spark.sessionState().conf())
            columns = to_seq([*partition_by])
            nothing = self._jvm.PythonUtils.toScalaMap({})
            written = self._delta.commands.WriteIntoDelta(
                self._log,
                mode,
                options,
                columns,
                nothing,
                rows._jdf,  # noqa: SLF001
                none,
                none,
                False,  # noqa: FBT003
            ).write(self._transaction, self._spark, none, False)  # noqa: FBT003
            actions = written.appendedAll(actions)
            partitions = self._jvm.scala.Option.apply(columns)
            write = getattr(self._delta, f"{operations}Write")
            operation = write(mode, partitions, none, options.userMetadata(), *[none] * 5)
        self._transaction.commit(actions, operation)
        return str(self._transaction.metadata().id())


def is_conflict(error: Exception) -> bool:
    """Whether a commit has lost to another one: nothing was done."""
    said = text_of(error)
    return any(name in said for name in _CONFLICTS)


@contextmanager
def alone(session: Any, folder: Path) -> Iterator[None]:
    """Hold other JVMs off a Delta table on a local disk. Raises SinkBusy.

    There Delta puts an entry of its log into place by a rename, which replaces what another
    process has put there. The JVM holds the lock, as it ends a commit that it has begun also
    when this process is killed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    place = str(folder / _LOCK)
    with _ALONE:  # one file at a time: to close another one would let go of the lock, too
        file = session._jvm.java.io.RandomAccessFile(place, "rw")  # noqa: SLF001
        try:
            if file.getChannel().tryLock() is None:
                raise SinkBusy(_BUSY_SECONDS, f"another process holds {place}")
            yield
        finally:
            file.close()


def check_conditional_writes(session: Any, path: str) -> None:
    """Raise SinkFailed unless an entry of a log on S3 is put only if it is absent.

    Otherwise two commits of one version overwrite each other in silence.
    """
    used = session.conf.get(f"spark.delta.logStore.{path.partition(':')[0]}.impl", "Delta's own")
    if used != LOG_STORE:
        raise SinkFailed(
            f"{path}: found the log store {used}, expected {LOG_STORE}, which puts an entry only "
            "if it is absent; leave Delta's and Hadoop's jars to Headrace, or take DeltaSink"
        )
    jvm, conf = session._jvm, session._jsc.hadoopConfiguration()  # noqa: SLF001
    place = jvm.org.apache.hadoop.fs.Path(f"{path}/.headrace-check-{uuid.uuid4().hex}")
    store = jvm.headrace.ConditionalLogStore(conf)
    try:
        for _ in range(2):
            store.write(place, jvm.java.util.ArrayList().iterator(), False, conf)  # noqa: FBT003
    except Exception as error:
        if "FileAlreadyExistsException" not in text_of(error):
            raise
    else:
        raise SinkFailed(
            f"{path}: the store has no conditional writes (If-None-Match): of two commits of one "
            "version both were accepted, so rows would be lost; take a store that has them"
        )
    finally:
        place.getFileSystem(conf).delete(place, False)  # noqa: FBT003
