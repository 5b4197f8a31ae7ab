"""A Delta table's log, read and written by Delta Kernel in Spark's JVM.

No Spark job runs: a commit is one file that the JVM writes. Measured warm at 50 to 70 ms.
"""

import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import structlog

from sinks.files.data_file import DataFile
from sinks.paths import local_uri
from sinks.spark.delta.actions import ActiveFile, actions, active_of_file, active_of_scan
from sinks.spark.delta.facts import Facts
from sinks.spark.local_table import Conflict
from sinks.spark.reasons import one_line

log = structlog.get_logger()

_ENGINE = "Headrace"
_EXCEPTIONS = "io.delta.kernel.exceptions."
_ABSENT = frozenset({f"{_EXCEPTIONS}TableNotFoundException"})
_CONFLICTS = frozenset(
    {
        f"{_EXCEPTIONS}MaxCommitRetryLimitReachedException",
        f"{_EXCEPTIONS}ConcurrentWriteException",
    }
)
_CHECKPOINT = "CHECKPOINT"
_WITH_STATISTICS = _OVERWRITE = True


class DeltaLog:
    """The log of the table at `path`, in one JVM; used within jobs of the SparkDriver.

    Remembers the last version of the table that it read or wrote, and what stands in it. A
    commit is built on that one and raises Conflict if it is not the newest any more, so
    whatever was decided by what is remembered held when it was committed.
    """

    def __init__(self, session: Any, path: str, folder: Path) -> None:
        self.session = session
        self._path = path
        self._entries = folder / "_delta_log"
        self._jvm = session._jvm  # noqa: SLF001 - PySpark has no public way to Java
        configuration = session.sparkContext._jsc.hadoopConfiguration()  # noqa: SLF001
        self._engine = self._jvm.io.delta.kernel.defaults.engine.DefaultEngine.create(configuration)
        self._snapshot: Any = None
        self._versions: dict[str, int | None] = {}
        self._files: dict[str, ActiveFile] | None = None  # by path; None: not read
        self._seen = ""
        self._facts: Facts | None = None

    def forget(self) -> None:
        """Read the table anew when it is next asked for."""
        self._snapshot = None
        self._versions.clear()
        self._files = None

    def read(self) -> Facts | None:
        """What the table is like; None if there is none. The same object until it changes."""
        if self._snapshot is not None and not self._entry().exists():
            self.forget()  # someone has removed the table, or made another one
        if self._snapshot is None:
            self.forget()
            try:
                loader = self._jvm.io.delta.kernel.TableManager.loadSnapshot(self._path)
                self._snapshot = loader.build(self._engine)
            except Exception as error:
                if _java_class(error) in _ABSENT:
                    return None
                raise
            self._read_facts()
        return self._facts

    def refusal(self) -> str | None:
        """Why Kernel itself will not write this table; None if it will."""
        try:
            self._transaction()
        except Exception as error:
            if not _is_javas(error):
                raise
            return one_line(error)
        return None

    def versions(self, apps: Sequence[str]) -> dict[str, int]:
        """The version of each of these applications that has one; the table must be there."""
        for app in apps:
            if app not in self._versions:
                found = self._snapshot.getLatestTransactionVersion(self._engine, app)
                self._versions[app] = int(found.get()) if found.isPresent() else None
        found_of = {app: self._versions[app] for app in apps}
        return {app: version for app, version in found_of.items() if version is not None}

    def files(self) -> Mapping[str, ActiveFile]:
        """The files that make up the table, by their paths; the table must be there.

        Read once, in a few calls to the JVM for each thousand; then our commits are kept track of.
        """
        if self._files is None:
            self._files = {file.path: file for file in self._scan()}
        return self._files

    def commit(
        self,
        files: Sequence[DataFile],
        versions: Mapping[str, int],
        removed: Sequence[ActiveFile] = (),
        *,
        data_change: bool = True,
    ) -> None:
        """Add and remove files and set versions, all at once.

        Without `data_change` the files added have the rows of those removed. Raises Conflict;
        after anything else the outcome is unknown.

        Then, if the table's interval says so, writes a checkpoint; a failure of that is only
        logged, because the next one does as well.
        """
        now_ms = time.time_ns() // 1_000_000
        rows = self._rows(actions(files, removed, versions, now_ms, data_change=data_change))
        try:
            done = self._transaction().commit(self._engine, rows)
        except Exception as error:
            self.forget()
            if _java_class(error) in _CONFLICTS:
                raise Conflict from error
            raise
        after = done.getPostCommitSnapshot()
        if after.isPresent():
            self._snapshot = after.get()
            self._versions.update(versions)
            self._keep_track(files, removed)
        else:
            self.forget()
        self._checkpoint(done)

    def _transaction(self) -> Any:
        operation = self._jvm.io.delta.kernel.Operation.WRITE
        builder = self._snapshot.buildUpdateTableTransaction(_ENGINE, operation)
        # Kernel would put a lost race right by itself, without looking at our versions.
        return builder.withMaxRetries(0).build(self._engine)

    def _keep_track(self, added: Sequence[DataFile], removed: Sequence[ActiveFile]) -> None:
        if self._files is None:
            return
        for gone in removed:
            self._files.pop(gone.path, None)
        for file in map(active_of_file, added):
            self._files[file.path] = file

    def _scan(self) -> Iterator[ActiveFile]:
        """Ask Kernel for the files: through a file of JSON, so that their number costs no calls."""
        scan = self._snapshot.getScanBuilder().build()
        batches = scan.getScanFiles(self._engine, _WITH_STATISTICS)
        handler = self._engine.getJsonHandler()
        try:
            with tempfile.TemporaryDirectory(prefix="headrace-") as folder:
                path = Path(folder) / "files.json"
                while batches.hasNext():
                    rows = batches.next().getRows()
                    handler.writeJsonFileAtomically(local_uri(path), rows, _OVERWRITE)
                    with path.open(encoding="utf-8") as lines:
                        yield from map(active_of_scan, lines)
        finally:
            batches.close()

    def _rows(self, actions: str) -> Any:
        """The log's actions as Kernel's rows: by way of JSON, for the same reason."""
        java = self._jvm.java.util
        kernel = self._jvm.io.delta.kernel
        split = java.regex.Pattern.compile("\n").splitAsStream(actions).toList()
        texts = kernel.internal.util.VectorUtils.buildColumnVector(
            split, kernel.types.StringType.STRING
        )
        rows = self._engine.getJsonHandler().parseJson(
            texts, kernel.internal.actions.SingleAction.FULL_SCHEMA, java.Optional.empty()
        )
        return kernel.utils.CloseableIterable.inMemoryIterable(rows.getRows())

    def _checkpoint(self, done: Any) -> None:
        # Checksums, the other hooks, cost as much as the commit, and readers do without.
        try:
            for hook in done.getPostCommitHooks():
                if str(hook.getType()) == _CHECKPOINT:
                    hook.threadSafeInvoke(self._engine)
        except Exception as error:  # noqa: BLE001 - the commit itself is done
            log.warning("delta_checkpoint_failed", table=self._path, error=one_line(error))

    def _entry(self) -> Path:
        return self._entries / f"{self._snapshot.getVersion():020d}.json"

    def _read_facts(self) -> None:
        protocol, metadata = self._snapshot.getProtocol(), self._snapshot.getMetadata()
        schema = metadata.getSchemaString()
        properties = metadata.getConfiguration()
        columns = self._snapshot.getPartitionColumnNames()
        table_id = metadata.getId()
        seen = "\n".join(map(str, (table_id, schema, properties, columns, protocol.toString())))
        if seen == self._seen:
            return
        self._facts = Facts(
            schema=schema,
            partition_by=tuple(columns),
            features=frozenset(protocol.getReaderAndWriterFeatures()),
            properties=dict(properties),
            table_id=table_id,
        )
        self._seen = seen


def _is_javas(error: Exception) -> bool:
    """Whether Java raised it; False: the way to the JVM is broken."""
    from py4j.protocol import Py4JJavaError  # noqa: PLC0415 - see sinks/__init__
    from pyspark.errors.exceptions.captured import CapturedException  # noqa: PLC0415

    return isinstance(error, Py4JJavaError | CapturedException)


def _java_class(error: Exception) -> str | None:
    """The name of the Java exception behind an error; None if there is none."""
    from py4j.protocol import Py4JJavaError  # noqa: PLC0415 - see sinks/__init__

    if not isinstance(error, Py4JJavaError):
        return None
    return str(error.java_exception.getClass().getName())
