"""Writing rows to a Delta Lake table, at least once: what DeltaSink builds on."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import pyarrow as pa
import structlog

from sinks.columns import Fitted, fit
from sinks.files.bad_rows import write_good_rows
from sinks.files.data_file import DataFile
from sinks.files.doubtful import Doubtful
from sinks.names import is_absolute, names_in
from sinks.new_columns import OnNewColumns, checked_new_columns
from sinks.paths import local_path, local_uri, table_path
from sinks.spark.delta.actions import ActiveFile
from sinks.spark.delta.compaction import Compactor
from sinks.spark.delta.kernel import DeltaLog
from sinks.spark.delta.keyed import KeyedRows
from sinks.spark.delta.merge import Rewritten
from sinks.spark.delta.way import ColumnsMissing, Way, Wish, way_to
from sinks.spark.local_table import Conflict, LocalTable
from sinks.spark.reasons import one_line
from sinks.spark.table import SparkTableSink
from topology.compaction import Compaction
from topology.errors import RowsRejected, SinkBusy, SinkFailed
from topology.sink import Batch, Piece, Row, SinkContext

log = structlog.get_logger()

Result = TypeVar("Result")
_MOST_ADDITIONS = 3  # in a row: someone else takes the columns away
_BUSY_SECONDS = 0.5
_NOT_IN_NAMES = " ,;{}()\n\t="  # but where an existing table maps its columns' names
_NOT_LOCAL = "it is not on a local file system"


class Written(NamedTuple):
    """Rows in files that no reader sees yet, and the keys whose rows they replace."""

    files: list[DataFile]
    keys: pa.Table | None  # None: the rows have no key
    number: int

    @property
    def is_empty(self) -> bool:
        """Whether a commit of it would change nothing."""
        return not self.files and not (self.keys is not None and self.keys.num_rows)


class DeltaTableSink(SparkTableSink[Row]):
    """Examines a table, and writes, commits and compacts its files. See DeltaSink."""

    needs_jars = ("delta",)
    format = "delta"
    made_by = "DeltaSink"
    guessed_partitions = False

    def __init__(
        self,
        table: str,
        *,
        schema: type[Any] | pa.Schema,
        partition_by: Sequence[str] = (),
        key: Sequence[str] = (),
        deleted: str | None = None,
        on_new_columns: OnNewColumns = "reject",
    ) -> None:
        """Only stores; the schema's type is the type of the rows. Raises InvalidSchema.

        `on_new_columns` says what becomes of columns that the schema has and the table lacks:
        "add" adds them to the table, "reject" refuses to open it.
        """
        super().__init__(table, schema=schema, partition_by=partition_by)
        adds = checked_new_columns(on_new_columns, table) == "add"
        self.added_columns = self.merges_columns = adds
        self._keyed: KeyedRows | None = None
        if key or deleted is not None:
            keys = [key] if isinstance(key, str) else [*key]
            self._keyed = KeyedRows(table, self.schema, keys, deleted)
            self.stored = self._keyed.stored
            self._check_partitions()
        self._table: LocalTable[DeltaLog] | None = None  # None: not on a local file system
        self._way: Way | None = None
        self._doubtful = Doubtful()

    def open(self, context: SinkContext) -> None:
        """Check as every table does, and how the table that is there can be written.

        Raises SinkFailed as every table does, and with a key when Kernel cannot write the table.
        """
        super().open(context)
        self._table = self._way = None
        folder = local_path(table_path(context.warehouse, self.table))
        if folder is not None and context.spark is not None:
            self._table = LocalTable(folder, context.spark, self.name, partial(_log_of, folder))
            try:
                self._run(self._examined, "open")
            except SinkFailed:
                raise
            except Exception as error:
                raise SinkFailed(f"table '{self.table}': {one_line(error)}") from error
        self._check_upserts()
        if self._obstacle is not None and not context.exactly_once:
            self._tell_obstacle()

    def write(self, batch: Batch) -> None:
        """Write the batch's rows. Raises RowsRejected, SinkFailed, or a passing error.

        1. Convert the rows, setting those that do not fit apart.
        2. Write the others to files in the table's folder.
        3. Commit the files.
        4. Name the rows that did not fit.
        """
        way = self._ready()
        if way is None or way.obstacle is not None:
            self._check_upserts()
            super().write(batch)
            return
        written, fitted = self._put(way, batch.pieces, batch.sequence)
        if not written.is_empty:
            try:
                self._settle(lambda table: self._write(table, written), "append")
            except SinkBusy:  # anything else may have landed
                way.files.remove(written.files)
                raise
        if fitted.rejected:
            raise RowsRejected(fitted.rejected)

    def compact(self, target_bytes: int) -> Compaction:
        """Join small files; see the protocol. What they were stays until VACUUM removes it."""
        if self._table is None:
            reason = f"{_NOT_LOCAL}; OPTIMIZE in Spark can do it"
            raise SinkFailed(f"table '{self.table}' cannot be compacted: {reason}")
        return self._with_columns(
            lambda table: Compactor(table, self._examined, self.table).compact(target_bytes)
        )

    def data_files(self) -> list[str]:
        """The files that make up the table now; see the protocol."""
        if self._table is None:
            return self._files_by_spark()
        folder = self._table.folder

        def read(table: DeltaLog) -> list[str]:
            table.forget()
            places = [file.place for file in table.files().values()] if table.read() else []
            return [place if is_absolute(place) else str(folder / place) for place in places]

        return self._run(read, "files")

    def close(self) -> None:
        """Let go of the table. Spark itself belongs to the service."""
        super().close()
        self._table = self._way = None

    def _unmakable(self) -> list[str]:
        return [
            f"column {name!r}: Delta allows names without any of {_NOT_IN_NAMES!r} in a new table"
            for name in names_in(self.stored)
            if not set(_NOT_IN_NAMES).isdisjoint(name)
        ]

    def _put(self, way: Way, pieces: Sequence[Piece], number: int) -> tuple[Written, Fitted]:
        """Write the rows that fit to files, and say which."""

        def write(rows: pa.Table) -> Written:
            if self._keyed is None:
                return Written(way.files.write(rows, number), None, number)
            changes = self._keyed.changes(rows)
            return Written(way.files.write(changes.rows, number), changes.keys, number)

        return write_good_rows(
            self._fit(pieces, way), write, lambda written: way.files.remove(written.files)
        )

    def _fit(self, pieces: Sequence[Piece], way: Way) -> Fitted:
        layout = way.files.layout
        if self._keyed is None:
            fitted = fit(pieces, self.schema)
            return fitted.without(layout.misfits(fitted.table, self.schema))
        fitted = self._keyed.fit(pieces)
        wrong = layout.misfits(fitted.table, self.stored)
        return fitted.without(self._keyed.of_those_that_stay(fitted.table, wrong))

    def _write(self, table: DeltaLog, written: Written) -> None:
        """Make rows visible with no txid."""
        if not self._suits(table, written.files):
            raise SinkBusy(0)  # the next try looks at the table anew
        self._land(table, written, {})

    def _land(self, table: DeltaLog, written: Written, versions: Mapping[str, int]) -> None:
        """Commit rows, and take away those whose keys they have."""
        merged = self._merged(table, written)
        try:
            self._add(table, [*written.files, *merged.files], versions, merged.removed)
        except Conflict:
            if self._way is not None:
                self._way.files.remove(merged.files)
            raise

    def _merged(self, table: DeltaLog, written: Written) -> Rewritten:
        way = self._way
        if way is None or way.merge is None or written.keys is None or not written.keys.num_rows:
            return Rewritten()
        try:
            return way.merge.without(table.files().values(), written.keys, written.number)
        except SinkFailed as error:
            raise SinkFailed(f"table '{self.table}': {error}") from error

    def _add(
        self,
        table: DeltaLog,
        files: Sequence[DataFile],
        versions: Mapping[str, int],
        removed: Sequence[ActiveFile] = (),
    ) -> None:
        with self._doubtful.committing(files, refusals=Conflict):
            table.commit(files, versions, removed)

    def _ready(self) -> Way | None:
        """How to write the table, which is created if there is none; None: by Spark only."""
        if self._table is None:
            return None
        if self._way is None and self._run(self._examined, "examine") is None:
            with self._table.locked():
                self._append_nothing()
            self._run(self._examined, "examine")
            if self._obstacle is not None:
                self._tell_obstacle()
        return self._way

    def _examined(self, table: DeltaLog) -> Way | None:
        """Look at the table and say how to write it; None if there is none.

        Raises SinkFailed when it has other columns than the rows, and ColumnsMissing.
        """
        facts = table.read()
        if facts is None or self._table is None:
            self._way = None
        elif self._way is None or self._way.facts is not facts:
            wish = Wish(
                self.stored,
                self._spark_schema,
                tuple(self.partition_by),
                self._keyed,
                self.added_columns,
            )
            try:
                self._way = way_to(facts, wish, self._table.folder, table.refusal)
            except SinkFailed as error:
                raise SinkFailed(f"table '{self.table}' at {self.path}: {error}") from error
        return self._way

    def _suits(self, table: DeltaLog, files: Sequence[DataFile]) -> bool:
        """Whether files can be added to the table as it is now."""
        way = self._examined(table)
        if way is None or way.obstacle is not None:
            return False
        return all(tuple(file.partition) == way.facts.partition_by for file in files)

    def _check_upserts(self) -> None:
        """Raise SinkFailed when rows have a key and the table is one that only Spark can write."""
        if self._keyed is not None and self._obstacle is not None:
            raise SinkFailed(
                f"table '{self.table}' cannot have rows replaced by key: {self._obstacle}"
            )

    @property
    def _obstacle(self) -> str | None:
        """Why only Spark can append to the table, as far as is known."""
        if self._table is None:
            return _NOT_LOCAL
        return None if self._way is None else self._way.obstacle

    def _tell_obstacle(self) -> None:
        log.info("delta_written_by_spark", table=self.table, reason=self._obstacle)

    def _run(self, step: Callable[[DeltaLog], Result], what: str) -> Result:
        """Run a step that commits nothing."""
        return self._with_columns(lambda table: table.run(step, what))

    def _settle(self, step: Callable[[DeltaLog], Result], what: str) -> Result:
        """Run a step that commits."""
        return self._with_columns(lambda table: table.settle(step, what))

    def _with_columns(self, work: Callable[[LocalTable[DeltaLog]], Result]) -> Result:
        """Do some work on the table, and again if it had to get columns first."""
        if self._table is None:
            raise SinkFailed(f"table '{self.table}' is not open")
        for _ in range(_MOST_ADDITIONS):
            try:
                return work(self._table)
            except ColumnsMissing as missing:
                with self._table.locked():
                    self._append_nothing()  # Spark adds the columns that it brings
                self._table.forget()
                log.info("delta_columns_added", table=self.table, columns=missing.names)
        raise SinkBusy(_BUSY_SECONDS, "columns that are added to the table do not stay")


def _log_of(folder: Path, session: Any) -> DeltaLog:
    return DeltaLog(session, local_uri(folder), folder)
