"""Delta Lake tables as a sink: rows and txids in one commit."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, overload

import pyarrow as pa
import structlog

from sinks.columns import fit
from sinks.files.data_file import DataFile, DataFileWriter
from sinks.files.layout import Layout
from sinks.lock import table_lock
from sinks.shares import check_fences, is_to_commit
from sinks.spark.delta.facts import Facts, append_obstacle, transaction_obstacle
from sinks.spark.delta.kernel import Conflict, DeltaLog
from sinks.spark.delta.versions import app_id, committed_of, pack
from sinks.spark.existing import differences
from sinks.spark.reasons import one_line
from sinks.spark.spool import local_path
from sinks.spark.table import SparkTableSink, table_path
from topology.errors import RowsRejected, SinkBusy, SinkFailed
from topology.sink import Batch, Row, SinkContext
from topology.transactional import Committed, Fence, Group, Share, Staged, TransactionalSink

log = structlog.get_logger()

Result = TypeVar("Result")
_LOCK_SECONDS = 30.0
_MOST_CONFLICTS = 20  # in a row: someone else commits faster than we can
_BUSY_SECONDS = 0.5
_NOT_LOCAL = "it is not on a local file system"


class _Way(NamedTuple):
    """How the table, as it was examined last, is written."""

    facts: Facts
    obstacle: str | None  # why only Spark can append to it
    files: DataFileWriter


class DeltaSink(SparkTableSink[Row], TransactionalSink[Row]):
    """Appends to a Delta Lake table. Needs Delta's jars in the Spark driver.

    The rows of a micro-batch become Parquet files in the table's own folder, and one commit
    of Delta Kernel makes them visible, under exactly-once together with the txid of every
    share. A table that does not exist is created as Spark creates it. One that Kernel cannot
    write is appended to by Spark, at several times the cost, and takes no transactions.

    A lock file in the table's folder holds our commits apart. Whoever else writes the table
    (another engine, OPTIMIZE) makes a commit be decided and tried anew.
    """

    needs_jars = ("delta",)
    format = "delta"
    added_columns = False
    guessed_partitions = False

    @overload
    def __init__(
        self: "DeltaSink[Any]", table: str, *, schema: pa.Schema, partition_by: Sequence[str] = ()
    ) -> None: ...

    @overload
    def __init__(
        self, table: str, *, schema: type[Row], partition_by: Sequence[str] = ()
    ) -> None: ...

    def __init__(
        self, table: str, *, schema: type[Any] | pa.Schema, partition_by: Sequence[str] = ()
    ) -> None:
        """Only stores; the schema's type is the type of the rows. Raises InvalidSchema."""
        super().__init__(table, schema=schema, partition_by=partition_by)
        self._context: SinkContext | None = None
        self._folder: Path | None = None  # None: not on a local file system
        self._log: DeltaLog | None = None
        self._way: _Way | None = None
        self._fenced: str | None = None  # the id of the table that was fenced
        self._doubtful: set[str] = set()  # files of which a commit may have landed

    def open(self, context: SinkContext) -> None:
        """Check as every table does, and how the table that is there can be written.

        Raises SinkFailed as every table does, and under exactly-once when Kernel cannot write
        the table, or it would forget txids.
        """
        super().open(context)
        self._context = context
        self._folder = local_path(table_path(context.warehouse, self.table))
        self._log = self._way = self._fenced = None
        if self._folder is not None:
            try:
                self._run(self._examined, "open", locked=False)
            except SinkFailed:
                raise
            except Exception as error:
                raise SinkFailed(f"table '{self.table}': {one_line(error)}") from error
        if context.exactly_once:
            self._check_transactions()
        elif self._obstacle is not None:
            self._tell_obstacle()

    def write(self, batch: Batch) -> None:
        """Append the batch's rows. Raises RowsRejected, SinkFailed, or a passing error.

        1. Convert the rows, setting those that do not fit apart.
        2. Write the others to files in the table's folder.
        3. Commit the files.
        4. Name the rows that did not fit.
        """
        way = self._ready()
        if way is None or way.obstacle is not None:
            super().write(batch)
            return
        fitted = fit(batch.pieces, self.schema)
        if fitted.table.num_rows:
            files = way.files.write(fitted.table, batch.sequence)
            try:
                self._run(lambda table: self._append_files(table, files), "append")
            except SinkBusy:  # anything else may have landed
                way.files.remove(files)
                raise
        if fitted.rejected:
            raise RowsRejected(fitted.rejected)

    def fence(self, fences: Sequence[Fence]) -> list[Committed]:
        """Commit the epochs that are new, with no rows; see the contract."""
        self._ready()
        self._check_transactions()
        lines = [fence.line for fence in fences]

        def raise_epochs(table: DeltaLog) -> list[Committed]:
            found = self._found(table, lines)
            check_fences(fences, found)
            raised = [
                line._replace(epoch=fence.epoch) for fence, line in zip(fences, found, strict=True)
            ]
            new = [line for line in raised if line not in found]
            if new:
                table.commit([], self._versions(new))
            facts = table.read()
            self._fenced = facts.table_id if facts else None
            return raised

        return self._run(lambda table: self._settled(table, raise_epochs, anew=True), "fence")

    def committed(self, lines: Sequence[str]) -> list[Committed]:
        """Read what the table says; see the contract."""

        def read(table: DeltaLog) -> list[Committed]:
            table.forget()
            return self._found(table, lines)

        return self._run(read, "committed", locked=False)

    def stage(self, group: Group) -> Staged:
        """Write files that no reader sees; see the contract."""
        if self._way is None:
            raise SinkFailed(f"table '{self.table}' takes no group before a fence")
        fitted = fit(group.pieces, self.schema)
        rows = fitted.table
        files = self._way.files.write(rows, group.number) if rows.num_rows else []
        return Staged(group.shares, rows.num_rows, tuple(files), fitted.rejected)

    def commit(self, staged: Staged) -> None:
        """Add the files and set the txids, all at once; see the contract."""
        files: tuple[DataFile, ...] = staged.parts
        lines = [share.line for share in staged.shares]

        def commit(table: DeltaLog) -> None:
            facts = table.read()
            if self._fenced is not None and (facts is None or facts.table_id != self._fenced):
                raise SinkFailed(f"table '{self.table}' was removed while rows were written to it")
            if not is_to_commit(staged.shares, self._found(table, lines)):
                table.forget()  # no commit will show that what is remembered still holds
                if not is_to_commit(staged.shares, self._found(table, lines)):
                    return
            if not self._suits(table, files):
                raise SinkFailed(f"table '{self.table}' was changed while rows were written to it")
            self._add(table, files, self._versions(staged.shares))

        self._run(lambda table: self._settled(table, commit), "commit")

    def discard(self, staged: Staged) -> None:
        """Remove the files, except those of which a commit may have landed all the same."""
        files: tuple[DataFile, ...] = staged.parts
        if self._way is not None:
            self._way.files.remove([file for file in files if file.path not in self._doubtful])

    def close(self) -> None:
        """Let go of the table. Spark itself belongs to the service."""
        super().close()
        self._log = self._way = None

    def _append_files(self, table: DeltaLog, files: Sequence[DataFile]) -> None:
        """Add files with no txid."""

        def append(table: DeltaLog) -> None:
            if not self._suits(table, files):
                raise SinkBusy(0)  # the next try looks at the table anew
            self._add(table, files, {})

        self._settled(table, append)

    def _add(self, table: DeltaLog, files: Sequence[DataFile], versions: Mapping[str, int]) -> None:
        paths = {file.path for file in files}
        self._doubtful |= paths
        try:
            table.commit(files, versions)
        except Conflict:
            self._doubtful -= paths
            raise
        self._doubtful -= paths

    def _settled(
        self, table: DeltaLog, step: Callable[[DeltaLog], Result], *, anew: bool = False
    ) -> Result:
        """Run a step that decides and commits, again after each conflict. Raises SinkBusy."""
        if anew:
            table.forget()
        for _ in range(_MOST_CONFLICTS):
            try:
                return step(table)
            except Conflict:
                continue
        raise SinkBusy(_BUSY_SECONDS)

    def _found(self, table: DeltaLog, lines: Sequence[str]) -> list[Committed]:
        apps = [self._app(line) for line in lines]
        return committed_of(lines, apps, table.versions(apps) if table.read() else {})

    def _versions(self, lines: Sequence[Share | Committed]) -> dict[str, int]:
        """What the table is to remember of each line."""
        return {self._app(line.line): pack(line.epoch, line.txid) for line in lines}

    def _app(self, line: str) -> str:
        if self._context is None:
            raise SinkFailed(f"table '{self.table}' is not open")
        return app_id(self._context.pipeline, self._context.sink, line)

    def _ready(self) -> _Way | None:
        """How to write the table, which is created if there is none; None: by Spark only."""
        if self._folder is None:
            return None
        if self._way is None and self._run(self._examined, "examine") is None:
            with table_lock(self._folder, _LOCK_SECONDS):
                self._create()
            self._run(self._examined, "examine")
            if self._obstacle is not None:
                self._tell_obstacle()
        return self._way

    def _create(self) -> None:
        """Create the table as Spark does, by appending no rows."""
        if self._spool is None:
            raise SinkFailed(f"table '{self.table}' is not open")
        files = self._spool.put(self.schema.empty_table(), 0)
        try:
            self._append([path.as_uri() for path in files])
        finally:
            self._spool.remove(files)

    def _examined(self, table: DeltaLog) -> _Way | None:
        """Look at the table and say how to write it; None if there is none.

        Raises SinkFailed when it has other columns than the rows.
        """
        facts = table.read()
        if facts is None or self._folder is None:
            self._way = None
        elif self._way is None or self._way.facts is not facts:
            self._check_columns(facts)
            obstacle = append_obstacle(facts, self.schema) or table.refusal()
            files = DataFileWriter(self._folder, Layout(facts.partition_by))
            self._way = _Way(facts, obstacle, files)
        return self._way

    def _suits(self, table: DeltaLog, files: Sequence[DataFile]) -> bool:
        """Whether files can be added to the table as it is now."""
        way = self._examined(table)
        if way is None or way.obstacle is not None:
            return False
        return all(tuple(file.partition) == way.facts.partition_by for file in files)

    def _check_columns(self, facts: Facts) -> None:
        from pyspark.sql.types import StructType  # noqa: PLC0415 - see sinks/__init__

        found = StructType.fromJson(json.loads(facts.schema))
        wrong = differences(found, self._spark_schema, ignored=(), added_columns=False)
        if self.partition_by and tuple(self.partition_by) != facts.partition_by:
            names = ", ".join(facts.partition_by) or "nothing"
            wrong.append(
                f"partition_by is {self.partition_by}; the table is partitioned by {names}"
            )
        if wrong:
            raise SinkFailed(f"table '{self.table}' at {self.path}: {'; '.join(wrong)}")

    def _check_transactions(self) -> None:
        """Raise SinkFailed when the table cannot take transactions; one that is not there can."""
        obstacle = self._obstacle
        if obstacle is None and self._way is not None:
            obstacle = transaction_obstacle(self._way.facts)
        if obstacle is not None:
            raise SinkFailed(f"table '{self.table}' cannot be written exactly once: {obstacle}")

    @property
    def _obstacle(self) -> str | None:
        """Why only Spark can append to the table, as far as is known."""
        if self._folder is None:
            return _NOT_LOCAL
        return None if self._way is None else self._way.obstacle

    def _tell_obstacle(self) -> None:
        log.info("delta_written_by_spark", table=self.table, reason=self._obstacle)

    def _run(self, step: Callable[[DeltaLog], Result], what: str, *, locked: bool = True) -> Result:
        """Run a step on the table's log in the JVM, alone with the table if `locked`."""
        spark, folder = self._spark, self._folder
        if spark is None or folder is None:
            raise SinkFailed(f"table '{self.table}' is not open")

        def job(session: Any) -> Result:
            if self._log is None or self._log.session is not session:
                self._log = DeltaLog(session, folder.as_uri(), folder)
            return step(self._log)

        if not locked:
            return spark.run(job, group=f"{self.name}-{what}")
        folder.mkdir(parents=True, exist_ok=True)
        with table_lock(folder, _LOCK_SECONDS):
            return spark.run(job, group=f"{self.name}-{what}")
