"""Spark's own writers as a sink: any data source, catalogue table, or function of a DataFrame."""

import os
import re
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import pyarrow as pa

from sinks.errors import one_line, text_of
from sinks.names import (
    check_kind,
    checked_columns,
    checked_table,
    compared,
    lacks,
    local_uri,
    table_folder,
    table_path,
)
from sinks.run_folder import RunFolder
from sinks.shares import check_fences, is_to_commit
from sinks.spark import delta_transaction
from sinks.spark.frames import (
    SpoolStager,
    arrow_schema,
    existing_schema,
    open_spool,
    put,
    remove,
    sequence_of,
    spark_schema,
)
from sinks.spark.settings import check_installed, local_options
from sinks.storage import spark_jars
from sinks.tables.files import joined, sync
from sinks.tables.log import app_id, unpack, versions_of
from sinks.tables.partitioning import check_partitions
from sinks.tables.table import check_writable
from topology.errors import InvalidSchema, SinkBusy, SinkFailed
from topology.masking import mask, secrets_in
from topology.schema import ArrowSchema, Row, schema_of
from topology.sink import (
    BOTH_KINDS,
    Committed,
    Fence,
    Share,
    Sink,
    SinkContext,
    SparkJobs,
    Staged,
)

WriteFrame: TypeAlias = Callable[[Any, int], object]
Result = TypeVar("Result")

_TABLE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*){0,2}")
_FILES = ("avro", "csv", "delta", "json", "orc", "parquet", "text", "xml")  # they lie at a path
_WITH_SCHEMA = ("avro", "delta", "orc", "parquet")  # of these, those that Spark need not guess
_OWN_OPTIONS = ("path", "txnappid", "txnversion")
_NO_SOURCE = "[DATA_SOURCE_NOT_FOUND]"
_MOST_CONFLICTS = 20
_BUSY_SECONDS = 0.5
_CLOCK_SECONDS = 2.0  # how coarse a file system's times may be


class SparkSink(Sink[Row]):
    """Hands micro-batches to Spark, which writes them, each in a job of its own.

    With a `format` that is files, `name` is a path below the warehouse, or an absolute one; with
    "table" it is that of a table in Spark's catalogue, which must be there. Any other data source
    is told by `options` where the rows go. `write` gets each micro-batch as a DataFrame instead,
    and its number, as Structured Streaming's `foreachBatch` does: a batch that is tried again
    keeps its number, and numbers begin at 1 in each process.

    Only format "delta" is exactly once: a group is one job and one commit of Delta's, which sets
    the txids of its partitions as `txnAppId` and `txnVersion` would set one.
    """

    needs_spark = True
    batch_rows = 500_000  # a job costs a second and more, however few its rows are

    def __init__(
        self,
        name: str,
        *,
        schema: type[Row] | ArrowSchema,
        format: str | None = None,  # noqa: A002 - the name that Spark's writer has for it
        options: Mapping[str, str] | None = None,
        partition_by: Sequence[str] = (),
        write: WriteFrame | None = None,
        jars: Sequence[str] = (),
    ) -> None:
        """Only stores; the schema's type is the type of the rows. Raises InvalidSchema.

        `jars` are sets of Headrace's that Spark needs besides ("delta", "iceberg", "s3a").
        """
        self.format, self.options = format, dict(options or {})
        self.name = checked_table(name) if format in _FILES else name
        self.schema = self.row_schema = checked_columns(schema_of(schema), name)
        self.partition_by = [partition_by] if isinstance(partition_by, str) else [*partition_by]
        self.obstacle = "only format='delta' keeps the numbers of transactions in its commits"
        self.given = "(write=…)" if format is None else f"(format='{format}')"
        self.kinds = BOTH_KINDS if format == "delta" else frozenset()
        own = {"delta": ("delta",), "table": ("delta",), "iceberg": ("iceberg",)}
        place = spark_jars(name) if format in _FILES else ()
        self.needs_jars = tuple(dict.fromkeys((*own.get(format or "", ()), *place, *jars)))
        self._write = write
        self._check_given()
        self._owner = ("", "")  # pipeline and sink, whose transactions the table keeps
        self._spark: SparkJobs | None = None
        self.path: str | None = None
        """The folder or URI of the files; None before `open`, and if only Spark knows."""
        self._folder: Path | None = None
        self._spool: RunFolder | None = None
        self._spark_schema: Any = None
        self._fenced: str | None = None  # the id of the Delta table that was fenced
        self._epochs: dict[str, int] = {}  # that we have fenced
        self._synced = 0.0  # what is older than this survives a power cut
        self._clock_lead = 0.0  # of the file system's clock over the monotonic one, by then

    def _check_given(self) -> None:
        own = _OWN_OPTIONS if self.format in _FILES else ()
        wrong = [name for name in self.options if name.lower() in own]
        if (self.format is None) == (self._write is None):
            what = "expected either format= or write="
        elif self._write is not None and (self.options or self.partition_by):
            what = "options and partition_by belong to a format; write= has the DataFrame's writer"
        elif self.format == "table" and not _TABLE.fullmatch(self.name):
            what = "expected a table's name: table, database.table or catalogue.database.table"
        elif self.format == "table" and (self.options or self.partition_by):
            what = "a catalogue table has its own options and partitions; leave them out"
        elif wrong:
            what = f"option '{wrong[0]}' is set by SparkSink itself; leave it out"
        else:
            names = self.partition_by
            check_partitions(self.name, self.schema, names, lambda _: True, leaves_some=True)
            return
        raise InvalidSchema(f"sink '{self.name}': {what}")

    def open(self, context: SinkContext) -> None:
        """Make the spool, start Spark, and compare the table that is there.

        Raises SinkFailed: there is no PySpark, the place cannot be written, links lead out of the
        warehouse, there is a table of another kind, Spark does not start, a column's type is none
        of Spark's, or the table has other columns.
        """
        check_installed(f"sink '{self.name}'")
        self._owner, self._spark = (context.pipeline, context.sink), context.spark
        self._fenced, self._epochs, self._synced = None, {}, 0.0
        mask.add(secrets_in(self.options))
        self._spool = open_spool(context.storage.warehouse, ".".join(self._owner))
        if self.format in _FILES:
            self._folder = table_folder(context.storage.warehouse, self.name)
            self.path = table_path(context.storage.warehouse, self.name)
        if self._folder is not None:
            own = "DeltaSink" if self.format == "delta" else "SparkSink"
            check_kind(self.name, self._folder, own)
            check_writable(self.name, self._folder)
        try:
            self._spark_schema = spark_schema(self.schema)
            wrong = self._run(self._differences, "open")
        except SinkFailed:
            raise
        except Exception as error:
            raise SinkFailed(f"sink '{self.name}': {one_line(error)}") from error
        if wrong:
            raise SinkFailed(f"table '{self.name}' at {self.path}: {'; '.join(wrong)}")
        if context.exactly_once:
            self._run(self._look, "look")

    def close(self) -> None:
        if self._spool is not None:
            self._spool.close()
        self._spool = self._spark = None

    def _differences(self, session: Any) -> list[str]:
        if self.format == "table":
            found: pa.Schema | None = arrow_schema(session.table(self.name).schema)
        elif self.format in _WITH_SCHEMA:
            found = existing_schema(session, self.format, str(self.path))
        else:
            return []
        if found is None:
            return []
        asked = arrow_schema(self._spark_schema)
        columns = [field.with_nullable(self.schema.field(field.name).nullable) for field in asked]
        if self.format not in ("delta", "table"):  # the values are in the folders' names
            columns = [field for field in columns if field.name not in self.partition_by]
        wrong, missing = compared(pa.schema(columns), found)
        merges = {key.lower(): value for key, value in self.options.items()}.get("mergeschema")
        if self.format == "table" or (self.format == "delta" and str(merges).lower() != "true"):
            adding = "ALTER TABLE" if self.format == "table" else "the option mergeSchema"
            wrong += [lacks(field.name, adding) for field in missing]
        return wrong

    def _append(self, session: Any, files: Sequence[Path], number: int) -> None:
        with self._refused():
            rows = self._spooled(session, files)
            if self._write is not None:
                self._write(rows, number)
            elif self.format == "table":
                # The name was checked when the topology was made.
                insert = f"INSERT INTO {self.name} BY NAME SELECT * FROM {{rows}}"  # noqa: S608
                session.sql(insert, rows=rows)
            else:
                writer = rows.write.format(self.format).mode("append")
                if self.partition_by:
                    writer = writer.partitionBy(*self.partition_by)
                writer.options(**self._options()).save(self.path)

    @contextmanager
    def _refused(self) -> Iterator[None]:
        """Raise SinkFailed for what Spark refuses to do, as trying again cannot help."""
        from pyspark.errors import AnalysisException  # noqa: PLC0415 - see sinks/__init__

        try:
            yield
        except Exception as error:
            refuses = isinstance(error, AnalysisException) or _NO_SOURCE in text_of(error)
            if not refuses:
                raise
            raise SinkFailed(f"sink '{self.name}': Spark refuses: {one_line(error)}") from error

    def _spooled(self, session: Any, files: Sequence[Path]) -> Any:
        return session.read.schema(self._spark_schema).parquet(*map(local_uri, files))

    def fence(self, fences: Sequence[Fence]) -> list[Committed]:
        if not fences:
            return []
        self._fenced = None
        empty = put(self._spool_path, self.schema.empty_table(), "empty")

        def raise_epochs(session: Any) -> list[Committed]:
            transaction, found = self._read(session, [fence.line for fence in fences])
            raised = check_fences(fences, found)
            table_id, new = transaction.table_id, [line for line in raised if line not in found]
            if table_id is None:
                rows = self._spooled(session, empty)
                table_id = transaction.commit(
                    versions_of(self._owner, new), rows, self.partition_by
                )
            elif new:
                transaction.commit(versions_of(self._owner, new))
            self._fenced = table_id
            self._epochs |= {line.line: line.epoch for line in raised}
            return raised

        try:
            return self._run_alone(raise_epochs, "fence")
        finally:
            remove(empty)

    def committed(self, lines: Sequence[str]) -> list[Committed]:
        _, found = self._run(lambda session: self._read(session, lines), "committed")
        self._sync()
        return found

    def stager(self) -> SpoolStager:
        return SpoolStager(self._spool_path, self.schema, tuple(self.partition_by))

    def joined(self, shares: tuple[Share, ...], staged: Sequence[Staged]) -> Staged:
        whole = joined(shares, staged)
        for path in whole.parts:
            if not path.exists():
                raise SinkFailed(
                    f"file {path}, which an executor wrote, is not there: executors and driver "
                    "must share the folder of the table's warehouse"
                )
        return whole

    def commit(self, staged: Staged) -> None:
        """Have Spark write the rows and set every share's txid in one commit; see the contract.

        That holds for the version by which it was decided, or conflicts and is decided anew.
        """

        def commit(session: Any) -> None:
            if not staged.shares:
                self._append(session, staged.parts, sequence_of(staged.parts[0]))
                return
            transaction, found = self._read(session, [share.line for share in staged.shares])
            if not is_to_commit(staged.shares, found, self._epochs):
                return
            with self._refused():
                rows = self._spooled(session, staged.parts) if staged.parts else None
                versions = versions_of(self._owner, staged.shares)
                transaction.commit(versions, rows, self.partition_by)

        if staged.shares or staged.parts:
            self._run_alone(commit, "commit")
        self.discard(staged)

    def discard(self, staged: Staged) -> None:
        remove(staged.parts)

    def _look(self, session: Any) -> None:
        """See that the table and its store keep txids. Raises SinkFailed."""
        self._read(session, [])
        if spark_jars(str(self.path)):
            delta_transaction.check_conditional_writes(session, str(self.path))

    def _read(
        self, session: Any, lines: Sequence[str]
    ) -> tuple[delta_transaction.DeltaTransaction, list[Committed]]:
        """Return a transaction on the table's newest version, and the commits that it knows.

        Raises SinkFailed when the table is not the one that was fenced, or forgets transactions.
        """
        transaction = delta_transaction.DeltaTransaction(session, str(self.path), self._options())
        if self._fenced not in (None, transaction.table_id):
            raise SinkFailed(f"table '{self.name}' was removed while rows were written to it")
        if transaction.forgets:
            raise SinkFailed(
                f"table '{self.name}' cannot be written exactly once: it forgets transactions by "
                f"{delta_transaction.RETENTION}"
            )
        return transaction, [
            Committed(line, *unpack(transaction.version(app_id(*self._owner, line))))
            for line in lines
        ]

    def _options(self) -> dict[str, str]:
        """Options of every write, and of the log: Delta caches a log by its file system's."""
        return {**local_options(self.path), **self.options}

    @property
    def _spool_path(self) -> Path:
        if self._spool is None:
            raise SinkFailed(f"sink '{self.name}' is not open")
        return self._spool.open()

    def _run(self, job: Callable[[Any], Result], what: str) -> Result:
        if self._spark is None:
            raise SinkFailed(
                f"sink '{self.name}' needs Spark; none was configured, or it is closed"
            )
        return self._spark.run(job, group=f"{self.name}-{what}")

    def _run_alone(self, job: Callable[[Any], Result], what: str) -> Result:
        """Run a job that commits to a table, again after conflicts. Raises SinkBusy."""
        is_delta = self.format == "delta"

        def settled(session: Any) -> Result:
            folder = self._folder if is_delta else None
            with delta_transaction.alone(session, folder) if folder else nullcontext():
                for _ in range(_MOST_CONFLICTS):
                    try:
                        done = job(session)
                    except Exception as error:
                        if not (is_delta and delta_transaction.is_conflict(error)):
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
        with tempfile.TemporaryFile(dir=self._folder.parent) as file:  # dated as Spark's are
            now = os.fstat(file.fileno()).st_mtime
        lead = now - time.monotonic()
        if lead < self._clock_lead - _CLOCK_SECONDS / 2:  # the clock was set back
            self._synced = 0.0
        for root, _, names in os.walk(self._folder):
            for path in (*(os.path.join(root, name) for name in names), root):  # noqa: PTH118
                with suppress(FileNotFoundError):  # a temporary one
                    if os.stat(path).st_mtime >= self._synced:  # noqa: PTH116
                        sync(path)
        sync(str(self._folder.parent))
        self._synced, self._clock_lead = now - _CLOCK_SECONDS, lead
