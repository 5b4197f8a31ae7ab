"""Spark's own writers as a sink: any data source, catalogue table, or function of a DataFrame."""

import os
import re
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeAlias, TypeVar, overload

import pyarrow as pa

from sinks.names import (
    check_kind,
    checked_columns,
    checked_table,
    local_uri,
    table_folder,
    table_path,
)
from sinks.shares import check_fences, is_to_commit
from sinks.spark.existing import differences, existing_schema, spark_schema
from sinks.spark.reasons import one_line
from sinks.spark.settings import local_options
from sinks.spark.spool import Spool, SpoolStager, remove
from sinks.spark.writable import needing_to_write, try_out
from sinks.tables.files import joined, sync
from sinks.tables.log import app_id, pack, unpack
from topology.errors import InvalidSchema, RowsRejected, SinkBusy, SinkFailed, SinkFenced
from topology.masking import mask, secrets_in
from topology.schema import schema_of
from topology.sink import Batch, Row, SinkContext, SparkDriver
from topology.transactional import Committed, Fence, Group, Kind, Share, Staged, StagesApart

WriteFrame: TypeAlias = Callable[[Any, int], object]
Result = TypeVar("Result")

_TABLE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*){0,2}")
_FILES = ("avro", "csv", "delta", "json", "orc", "parquet", "text", "xml")  # they lie at a path
_WITH_SCHEMA = ("avro", "delta", "orc", "parquet")  # of these, those that Spark need not guess
_OWN_OPTIONS = ("path", "txnappid", "txnversion")
_RETENTION = "delta.setTransactionRetentionDuration"
_LOCK = ".headrace.jvm.lock"  # readers and cleaners pass over names that begin with a dot
_NO_SOURCE = "[DATA_SOURCE_NOT_FOUND]"
_MOST_CONFLICTS = 20
_BUSY_SECONDS = 0.5
_CLOCK_SECONDS = 2.0  # how coarse a file system's times may be
_ALONE = threading.Lock()


class SparkSink(StagesApart[Row]):
    """Hands micro-batches to Spark, which writes them, each in a job of its own.

    With a `format` that is files, `name` is a path below the warehouse, or an absolute one; with
    "table" it is that of a table in Spark's catalogue, which must be there. Any other data source
    is told by `options` where the rows go. `write` gets each micro-batch as a DataFrame instead,
    and its number, as Structured Streaming's `foreachBatch` does: a batch that is tried again
    keeps its number, and numbers begin at 1 in each process.

    Only format "delta" is exactly once. Each partition's transaction is one job, whose commit has
    its number (`txnAppId`, `txnVersion`). Delta skips a number that it has passed, in silence,
    so the log is read after each write.
    """

    needs_spark = True
    commits_by_share = True
    batch_rows = 500_000  # a job costs a second and more, however few its rows are

    @overload
    def __init__(
        self: "SparkSink[Any]",
        name: str,
        *,
        schema: pa.Schema,
        format: str | None = None,
        options: Mapping[str, str] | None = None,
        partition_by: Sequence[str] = (),
        write: WriteFrame | None = None,
        jars: Sequence[str] = (),
    ) -> None: ...

    @overload
    def __init__(
        self,
        name: str,
        *,
        schema: type[Row],
        format: str | None = None,
        options: Mapping[str, str] | None = None,
        partition_by: Sequence[str] = (),
        write: WriteFrame | None = None,
        jars: Sequence[str] = (),
    ) -> None: ...

    def __init__(
        self,
        name: str,
        *,
        schema: type[Any] | pa.Schema,
        format: str | None = None,  # noqa: A002 - the name that Spark's writer has for it
        options: Mapping[str, str] | None = None,
        partition_by: Sequence[str] = (),
        write: WriteFrame | None = None,
        jars: Sequence[str] = (),
    ) -> None:
        """Only stores; the schema's type is the type of the rows. Raises InvalidSchema.

        `jars` are sets of Headrace's that Spark needs besides ("delta", "iceberg").
        """
        self.format, self.options = format, dict(options or {})
        self.name = checked_table(name) if format in _FILES else name
        self.schema = checked_columns(schema_of(schema), name)
        self.partition_by = [partition_by] if isinstance(partition_by, str) else [*partition_by]
        self.obstacle = "of a Spark step's rows nobody knows whose transaction they are in"
        self.given = "(write=…)" if format is None else f"(format='{format}')"
        self.kinds: frozenset[Kind] = frozenset()
        if format == "delta":
            self.kinds = frozenset({"transactional", "opaque"})
        else:
            self.obstacle = "only format='delta' keeps the numbers of transactions in its commits"
        own = {"delta": ("delta",), "table": ("delta",), "iceberg": ("iceberg",)}
        self.needs_jars = tuple(dict.fromkeys((*own.get(format or "", ()), *jars)))
        self._write = write
        self._check_given()
        self._context: SinkContext | None = None
        self._path: str | None = None
        self._folder: Path | None = None
        self._spool: Spool | None = None
        self._spark_schema: Any = None
        self._fenced: str | None = None  # the id of the Delta table that was fenced
        self._synced = 0.0  # what is older than this survives a power cut

    def _check_given(self) -> None:
        """Raise InvalidSchema for arguments that contradict each other."""
        own = _OWN_OPTIONS if self.format in _FILES else ()
        wrong = [name for name in self.options if name.lower() in own]
        if (self.format is None) == (self._write is None):
            what = "allowed is either format= or write="
        elif self._write is not None and (self.options or self.partition_by):
            what = "options and partition_by belong to a format; write= has the DataFrame's writer"
        elif self.format == "table" and not _TABLE.fullmatch(self.name):
            what = "allowed is a table's name: table, database.table or catalogue.database.table"
        elif self.format == "table" and (self.options or self.partition_by):
            what = "a catalogue table has its own options and partitions; leave them out"
        elif wrong:
            what = f"option '{wrong[0]}' is set by SparkSink itself; leave it out"
        elif unknown := [each for each in self.partition_by if each not in self.schema.names]:
            what = f"partition_by has '{unknown[0]}'; allowed are {', '.join(self.schema.names)}"
        elif self.partition_by and len(self.partition_by) == len(self.schema.names):
            what = "partition_by has all columns; allowed are some of them"
        else:
            return
        raise InvalidSchema(f"sink '{self.name}': {what}")

    @property
    def path(self) -> str | None:
        """Where the files lie; None before `open`, and where Spark alone knows."""
        return self._path

    def open(self, context: SinkContext) -> None:
        """Make the spool, start Spark, and compare the table that is there.

        Raises SinkFailed: the place cannot be written, links lead out of the warehouse, there is a
        table of another kind, Spark does not start, a column's type is none of Spark's, or the
        table has other columns.
        """
        self._context, self._fenced, self._synced = context, None, 0.0
        mask.add(secrets_in(self.options))
        self._spool = Spool(context.storage.warehouse, f"{context.pipeline}.{context.sink}")
        with needing_to_write(self.name, context.storage.warehouse):
            self._spool.open()
            if self.format in _FILES:
                self._folder = table_folder(context.storage.warehouse, self.name)
                self._path = table_path(context.storage.warehouse, self.name)
            if self._folder is not None:
                own = "DeltaSink" if self.format == "delta" else "SparkSink"
                check_kind(self.name, self._folder, own)
                try_out(self._folder)
        try:
            self._spark_schema = spark_schema(self.schema)
            wrong = self._run(self._differences, "open")
        except SinkFailed:
            raise
        except Exception as error:
            raise SinkFailed(f"sink '{self.name}': {one_line(error)}") from error
        if wrong:
            raise SinkFailed(f"table '{self.name}' at {self._path}: {'; '.join(wrong)}")
        if context.exactly_once:
            self._run(lambda session: self._read(session, []), "look")

    def close(self) -> None:
        """Remove the spool. Spark itself belongs to the service."""
        if self._spool is not None:
            self._spool.close()
        self._spool = self._context = None

    def _differences(self, session: Any) -> list[str]:
        """What keeps rows of this schema out of the table that is there, if one is."""
        if self.format == "table":
            found = session.table(self.name).schema
        elif self.format in _WITH_SCHEMA:
            found = existing_schema(session, self.format, str(self._path))
        else:
            return []
        merges = {key.lower(): value for key, value in self.options.items()}.get("mergeschema")
        keeps_columns = self.format in ("delta", "table") and str(merges).lower() != "true"
        if found is None:
            return []
        return differences(
            found,
            self._spark_schema,
            ignored=() if self.format in ("delta", "table") else self.partition_by,
            added_columns=not keeps_columns,
        )

    # At least, or at most, once

    def write(self, batch: Batch) -> None:
        """Have Spark write the rows. Raises RowsRejected, SinkFailed, SinkBusy or a passing error.

        1. Convert the rows, setting those that do not fit apart, and write the others to the spool.
        2. Have Spark read the spool and write it, in one job.
        3. Remove the spool's files, and name the rows that did not fit.
        """
        files, fitted = self.stager().put(batch.pieces, str(batch.sequence))
        if files:
            try:
                self._run_alone(
                    lambda session: self._append(session, files, batch.sequence), "write"
                )
            finally:
                remove(files)
        if fitted.rejected:
            raise RowsRejected(fitted.rejected)

    def _append(
        self,
        session: Any,
        files: Sequence[Path],
        number: int,
        numbers: Mapping[str, Any] | None = None,
    ) -> None:
        """Write what is in the spool. Raises SinkFailed when Spark refuses."""
        from pyspark.errors import AnalysisException  # noqa: PLC0415 - see sinks/__init__

        uris = [local_uri(path) for path in files]
        try:
            rows = session.read.schema(self._spark_schema).parquet(*uris)
            if self._write is not None:
                self._write(rows, number)
            elif self.format == "table":
                insert = f"INSERT INTO {self.name} BY NAME SELECT * FROM {{rows}}"  # noqa: S608 - checked
                session.sql(insert, rows=rows)
            else:
                writer = rows.write.format(self.format).mode("append")
                if self.partition_by:
                    writer = writer.partitionBy(*self.partition_by)
                writer.options(**self._options(), **(numbers or {})).save(self._path)
        except Exception as error:
            refuses = isinstance(error, AnalysisException) or _NO_SOURCE in _text(error)
            if not refuses or (numbers is None and "[PATH_NOT_FOUND]" in _text(error)):
                raise  # perhaps the spool was cleaned up under us: the next try writes it again
            raise SinkFailed(f"sink '{self.name}': Spark refuses: {one_line(error)}") from error

    # Exactly once

    def fence(self, fences: Sequence[Fence]) -> list[Committed]:
        """Commit the epochs that are new, with no rows; see the contract.

        By Delta's transaction, not by an append: that would read the log anew, and a commit of
        the former owner's between our look at the log and its own would be forgotten.
        """

        def raise_epochs(session: Any) -> list[Committed]:
            self._fenced = None
            lines = [fence.line for fence in fences]
            transaction, found = self._read(session, lines)
            if transaction.readVersion() < 0:
                empty = self._opened().put(self.schema.empty_table(), "empty")
                self._append(session, empty, 0)
                transaction, found = self._read(session, lines)
            check_fences(fences, found)
            raised = [
                line._replace(epoch=fence.epoch) for fence, line in zip(fences, found, strict=True)
            ]
            self._set(session, transaction, [line for line in raised if line not in found])
            self._fenced = str(transaction.metadata().id())
            return raised

        return self._run_alone(raise_epochs, "fence")

    def committed(self, lines: Sequence[str]) -> list[Committed]:
        """Read what the table's log says; see the contract."""
        _, found = self._run(lambda session: self._read(session, lines), "committed")
        self._sync()
        return found

    def stage(self, group: Group) -> Staged:
        """Write each share's rows to the spool; see the contract."""
        return self.stager().stage(group)

    def stager(self) -> SpoolStager:
        """What writes them there, on executors too; see the contract."""
        return self._opened().stager(self.schema, self.partition_by)

    def joined(self, shares: tuple[Share, ...], staged: Sequence[Staged]) -> Staged:
        """See the contract."""
        whole = joined(shares, staged)
        for path in (path for part in whole.parts for path in part.files):
            if not path.exists():
                raise SinkFailed(
                    f"file {path}, which an executor wrote, is not there: executors and driver "
                    "must share the folder of the table's warehouse"
                )
        return whole

    def commit(self, staged: Staged) -> None:
        """Have Spark write each share that the log has not; see the contract.

        Each share is a commit of its own. What was written before another's failure is found in
        the log by the next try, or by the partition's next owner.
        """
        lines = [share.line for share in staged.shares]
        files: defaultdict[str, list[Path]] = defaultdict(list)
        for part in staged.parts:
            files[part.line] += part.files

        def commit(session: Any) -> None:
            transaction, found = self._read(session, lines)
            todo = [
                share
                for share, line in zip(staged.shares, found, strict=True)
                if is_to_commit([share], [line])
            ]
            self._set(session, transaction, [share for share in todo if not files[share.line]])
            for share in todo:
                if its := files[share.line]:
                    version = pack(share.epoch, share.txid)
                    numbers = {"txnAppId": self._app(share.line), "txnVersion": version}
                    self._append(session, its, share.txid, numbers)
            if todo:
                self._check_written(todo, self._read(session, [share.line for share in todo])[1])

        self._run_alone(commit, "commit")
        self.discard(staged)

    def _check_written(self, shares: Sequence[Share], found: Sequence[Committed]) -> None:
        """Raise SinkFenced if Delta has skipped one for a later owner's number, or may have."""
        for share, line in zip(shares, found, strict=True):
            if line.epoch > share.epoch:
                raise SinkFenced(share.line, share.epoch, line.epoch)
            if (line.epoch, line.txid) != (share.epoch, share.txid):
                raise SinkFailed(
                    f"table '{self.name}': Spark has written {share.line} {share.txid}, but the "
                    f"table's log has {line.txid} as its last"
                )

    def discard(self, staged: Staged) -> None:
        """Remove the spool's files."""
        for part in staged.parts:
            remove(part.files)

    def _read(self, session: Any, lines: Sequence[str]) -> tuple[Any, list[Committed]]:
        """A transaction of Delta's on the newest version, and what that says of each line.

        Raises SinkFailed when the table is not the one that was fenced, or forgets transactions.
        """
        jvm, spark = session._jvm, session._jsparkSession  # noqa: SLF001
        path = jvm.org.apache.hadoop.fs.Path(self._path)
        options = jvm.PythonUtils.toScalaMap(self._options())
        log = jvm.org.apache.spark.sql.delta.DeltaLog.forTable(spark, path, options)
        transaction = log.startTransaction()
        metadata = transaction.metadata()
        if self._fenced not in (None, metadata.id()):
            raise SinkFailed(f"table '{self.name}' was removed while rows were written to it")
        if metadata.configuration().contains(_RETENTION):
            raise SinkFailed(
                f"table '{self.name}' cannot be written exactly once: it forgets transactions by "
                f"{_RETENTION}"
            )
        versions = [max(0, transaction.txnVersion(self._app(line))) for line in lines]
        found = [Committed(line, *unpack(v)) for line, v in zip(lines, versions, strict=True)]
        return transaction, found

    def _set(self, session: Any, transaction: Any, lines: Sequence[Share | Committed]) -> None:
        """Commit numbers without rows, if none of these lines has moved since they were read."""
        if not lines:
            return
        jvm = session._jvm  # noqa: SLF001
        delta = jvm.org.apache.spark.sql.delta
        now_ms = jvm.scala.Option.apply(int(time.time() * 1000))
        actions = jvm.java.util.ArrayList()
        for line in lines:
            version = pack(line.epoch, line.txid)
            actions.add(delta.actions.SetTransaction.apply(self._app(line.line), version, now_ms))
        operation = getattr(getattr(delta, "DeltaOperations$ManualUpdate$"), "MODULE$")
        transaction.commit(
            jvm.scala.jdk.javaapi.CollectionConverters.asScala(actions).toSeq(), operation
        )

    def _options(self) -> dict[str, str]:
        """Options of every write, and of the log: Delta caches a log by its file system's."""
        return {**local_options(self._path), **self.options}

    def _app(self, line: str) -> str:
        context = self._context
        if context is None:
            raise SinkFailed(f"sink '{self.name}' is not open")
        return app_id(context.pipeline, context.sink, line)

    # Spark

    def _opened(self) -> Spool:
        if self._spool is None:
            raise SinkFailed(f"sink '{self.name}' is not open")
        return self._spool

    def _run(self, job: Callable[[Any], Result], what: str) -> Result:
        spark: SparkDriver | None = None if self._context is None else self._context.spark
        if spark is None:
            raise SinkFailed(
                f"sink '{self.name}' needs Spark; none was configured, or it is closed"
            )
        return spark.run(job, group=f"{self.name}-{what}")

    def _run_alone(self, job: Callable[[Any], Result], what: str) -> Result:
        """Run a job that commits to a table, again after conflicts. Raises SinkBusy."""

        def settled(session: Any) -> Result:
            with self._alone(session):
                for _ in range(_MOST_CONFLICTS):
                    try:
                        done = job(session)
                    except Exception as error:
                        if "ConcurrentTransactionException" not in _text(error):
                            raise
                    else:
                        self._sync()
                        return done
            raise SinkBusy(_BUSY_SECONDS, "others keep changing the table")

        return self._run(settled, what)

    def _sync(self) -> None:
        """Have what lies on a local disk survive a power cut: all that is newer than the last time.

        Spark syncs nothing. The first time it is all that is there, such as a commit whose end a
        killed process did not see.
        """
        if self._folder is None:
            return
        began = time.time() - _CLOCK_SECONDS
        for root, _, names in os.walk(self._folder):
            for path in (*(os.path.join(root, name) for name in names), root):  # noqa: PTH118
                with suppress(FileNotFoundError):  # a temporary one
                    if os.stat(path).st_mtime >= self._synced:  # noqa: PTH116
                        sync(path)
        sync(str(self._folder.parent))
        self._synced = began

    @contextmanager
    def _alone(self, session: Any) -> Iterator[None]:
        """Hold other JVMs off a Delta table on a local disk. Raises SinkBusy.

        There Delta puts an entry of its log into place by a rename, which replaces what another
        process has put there. The JVM holds the lock, as it ends a commit that it has begun also
        when this process is killed.
        """
        if self._folder is None or self.format != "delta":
            yield
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        place = str(self._folder / _LOCK)
        with _ALONE:  # one file at a time: to close another one would let go of the lock, too
            file = session._jvm.java.io.RandomAccessFile(place, "rw")  # noqa: SLF001
            try:
                if file.getChannel().tryLock() is None:
                    raise SinkBusy(_BUSY_SECONDS, f"another process holds {place}")
                yield
            finally:
                file.close()


def _text(error: Exception) -> str:
    """What Java said; asked of its JVM, which may be gone."""
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - whatever py4j raises then
        return ""
