"""Iceberg tables as a sink: rows and txids in one commit."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, overload

import pyarrow as pa
import structlog

from sinks.files.data_file import DataFile
from sinks.files.doubtful import Doubtful
from sinks.files.partitions import check_partitions
from sinks.files.stager import check_shared, joined
from sinks.names import checked_columns
from sinks.new_columns import OnNewColumns, checked_new_columns
from sinks.paths import local_path, local_uri, table_path
from sinks.shares import check_fences, is_to_commit
from sinks.spark.iceberg.compaction import Compactor
from sinks.spark.iceberg.facts import Facts, can_partition_by
from sinks.spark.iceberg.lines import committed_of, property_of, value_of
from sinks.spark.iceberg.log import IcebergLog
from sinks.spark.iceberg.place import checked_name, writable_folder
from sinks.spark.iceberg.schema import table_schema
from sinks.spark.iceberg.way import ColumnsMissing, Way, Written, way_to
from sinks.spark.local_table import Conflict, LocalTable
from sinks.spark.reasons import one_line
from topology.compaction import Compaction
from topology.errors import RowsRejected, SinkBusy, SinkFailed, SinkFenced
from topology.schema import schema_of
from topology.sink import Batch, Row, SinkContext
from topology.transactional import Committed, Fence, Group, Share, Staged, StagesApart

log = structlog.get_logger()


class IcebergSink(StagesApart[Row]):
    """Appends to an Iceberg table at a path. Needs Iceberg's jar in the Spark driver.

    The rows of a micro-batch become Parquet files in the table's own place, and one commit of
    Iceberg's library makes them visible, under exactly-once together with the epoch and txid
    of every share, which are properties of the table. A table that does not exist is created
    with the first rows or fence; every column may be null in it. The table lies on a local file
    system and is one of Iceberg's "Hadoop tables", without a catalogue.

    A lock file in the table's folder holds our commits apart. Whoever else writes the table
    (another engine) makes a commit be decided and tried anew.

    `on_new_columns` says what becomes of columns that the table has not: "reject" refuses to
    open it, "add" adds them when it is opened.
    """

    needs_spark = True
    needs_jars = ("iceberg",)

    @overload
    def __init__(
        self: "IcebergSink[Any]",
        table: str,
        *,
        schema: pa.Schema,
        partition_by: Sequence[str] = (),
        on_new_columns: OnNewColumns = "reject",
    ) -> None: ...

    @overload
    def __init__(
        self,
        table: str,
        *,
        schema: type[Row],
        partition_by: Sequence[str] = (),
        on_new_columns: OnNewColumns = "reject",
    ) -> None: ...

    def __init__(
        self,
        table: str,
        *,
        schema: type[Any] | pa.Schema,
        partition_by: Sequence[str] = (),
        on_new_columns: OnNewColumns = "reject",
    ) -> None:
        """Only stores; the schema's type is the type of the rows. Raises InvalidSchema."""
        self.name = self.table = checked_name(table)
        self.schema = checked_columns(schema_of(schema), table)
        self.partition_by = [partition_by] if isinstance(partition_by, str) else [*partition_by]
        check_partitions(table, self.schema, self.partition_by, can_partition_by, leaves_some=False)
        self.on_new_columns = checked_new_columns(on_new_columns, table)
        self._context: SinkContext | None = None
        self._path: str | None = None
        self._table: LocalTable[IcebergLog] | None = None
        self._way: Way | None = None
        self._fenced: str | None = None  # the id of the table that was fenced
        self._doubtful = Doubtful()

    @property
    def path(self) -> str | None:
        """Where the table lies; None before `open`."""
        return self._path

    def open(self, context: SinkContext) -> None:
        """Check that the place can be written, start Spark, and look at the table.

        Raises SinkFailed: the place is not local or cannot be written, Spark does not start, a
        column's type is none of Iceberg's, or the table there cannot take the rows.
        """
        if context.spark is None:
            raise SinkFailed(f"table '{self.table}' needs Spark; none was configured")
        self._context = context
        self._path = table_path(context.warehouse, self.table)
        self._table = self._way = self._fenced = None
        folder = writable_folder(self.table, self._path, context.warehouse)
        self._table = LocalTable(folder, context.spark, self.name, partial(_log_of, folder))
        try:
            table_schema(self.schema)
            self._examine("open")
        except SinkFailed:
            raise
        except Exception as error:
            raise SinkFailed(f"table '{self.table}': {one_line(error)}") from error

    def write(self, batch: Batch) -> None:
        """Append the batch's rows. Raises RowsRejected, SinkFailed, or a passing error.

        1. Convert the rows, setting those that do not fit apart.
        2. Write the others to files in the table's place.
        3. Commit the files.
        4. Name the rows that did not fit.
        """
        way = self._ready()
        files, fitted = way.put(batch.pieces, batch.sequence)
        if files:

            def append(table: IcebergLog) -> None:
                now = self._examined(table)
                if now is None or not now.is_as(way):
                    raise SinkBusy(0)  # the next try writes the rows anew
                self._add(table, files, {})

            try:
                self._opened().settle(append, "append")
            except SinkBusy:
                way.files.remove(self._doubtful.without(files))
                raise
        if fitted.rejected:
            raise RowsRejected(fitted.rejected)

    def fence(self, fences: Sequence[Fence]) -> list[Committed]:
        """Commit the epochs that are new, with no rows; see the contract."""
        self._ready()
        lines = [fence.line for fence in fences]

        def raise_epochs(table: IcebergLog) -> list[Committed]:
            way = self._examined(table)
            if way is None:
                raise SinkBusy(0, "the table was removed while it was fenced")
            found = self._found(table, lines)
            check_fences(fences, found)
            raised = [
                line._replace(epoch=fence.epoch) for fence, line in zip(fences, found, strict=True)
            ]
            new = [line for line in raised if line not in found]
            if new:
                table.commit([], self._properties(new))
            self._fenced = way.facts.table_id
            return raised

        return self._opened().settle(raise_epochs, "fence")

    def committed(self, lines: Sequence[str]) -> list[Committed]:
        """Read what the table says; see the contract."""

        def read(table: IcebergLog) -> list[Committed]:
            table.read()
            return self._found(table, lines)

        return self._opened().run(read, "committed")

    def stage(self, group: Group) -> Staged:
        """Write files that no reader sees; see the contract."""
        return self.stager().stage(group)

    def stager(self) -> Way:
        """What writes such files; see the contract. Raises SinkFailed before a fence."""
        if self._way is None:
            raise SinkFailed(f"table '{self.table}' takes no group before a fence")
        return self._way

    def joined(self, shares: tuple[Share, ...], staged: Sequence[Staged]) -> Staged:
        """See the contract."""
        whole = joined(shares, staged)
        for written in whole.parts:
            check_shared(written.way.files.root, written.files)
        return whole

    def commit(self, staged: Staged) -> None:
        """Add the files and set the txids, all at once; see the contract."""
        parts: tuple[Written, ...] = staged.parts
        files = [file for written in parts for file in written.files]
        lines = [share.line for share in staged.shares]

        def commit(table: IcebergLog) -> None:
            facts = table.read()
            if self._fenced is not None and (facts is None or facts.table_id != self._fenced):
                raise SinkFailed(f"table '{self.table}' was removed while rows were written to it")
            try:
                if not is_to_commit(staged.shares, self._found(table, lines)):
                    return
            except SinkFenced:
                # An earlier try may have landed; after a later owner's commit none can any more.
                named = {local_path(file.path) for file in table.files()}
                for written in parts:
                    root = written.way.files.root
                    paths = {file.path for file in written.files if root / file.path in named}
                    self._doubtful.settle(written.files, paths)
                raise
            now = self._way_of(table, facts)
            if now is None or not all(now.is_as(written.way) for written in parts):
                raise SinkFailed(f"table '{self.table}' was changed while rows were written to it")
            note = " ".join(f"{share.line}={share.txid}" for share in staged.shares)
            self._add(table, files, self._properties(staged.shares), note)

        self._opened().settle(commit, "commit")

    def discard(self, staged: Staged) -> None:
        """Remove the files, except those of which a commit may have landed all the same."""
        for written in staged.parts:
            written.way.files.remove(self._doubtful.without(written.files))

    def compact(self, target_bytes: int) -> Compaction:
        """Join small files; see topology.compaction.

        Files that others wrote are left alone. Snapshots that are older than the table keeps them
        (a day, where we made it) go, with the files that only they have.
        """
        return Compactor(self._apart(), self.table).compact(target_bytes)

    def data_files(self) -> list[str]:
        """The files that make up the table now; see topology.compaction."""

        def read(table: IcebergLog) -> list[str]:
            return [file.path for file in table.files()] if table.read() else []

        found = self._apart().run(read, "files")
        return [str(local_path(path) or path) for path in found]

    def close(self) -> None:
        """Let go of the table. Spark itself belongs to the service."""
        self._table = self._way = None

    def _add(
        self,
        table: IcebergLog,
        files: Sequence[DataFile],
        properties: Mapping[str, str],
        note: str = "",
    ) -> None:
        # In doubt also after a Conflict: Iceberg calls so what failed after the metadata was there.
        with self._doubtful.committing(files):
            table.commit([*files], properties, note)

    def _found(self, table: IcebergLog, lines: Sequence[str]) -> list[Committed]:
        """What the table, as it was read last, has of lines."""
        return committed_of(lines, [self._property(line) for line in lines], table.properties)

    def _properties(self, lines: Sequence[Share | Committed]) -> dict[str, str]:
        """What the table is to remember of each line."""
        return {self._property(line.line): value_of(line.epoch, line.txid) for line in lines}

    def _property(self, line: str) -> str:
        if self._context is None:
            raise SinkFailed(f"table '{self.table}' is not open")
        return property_of(self._context.pipeline, self._context.sink, line)

    def _ready(self) -> Way:
        """How to write the table, which is created if there is none."""
        if self._way is not None:
            return self._way

        def create(table: IcebergLog) -> None:
            if table.read() is None:
                table.create(table_schema(self.schema), self.partition_by)

        self._opened().settle(create, "create")
        way = self._examine("examine")
        if way is None:
            raise SinkBusy(0, "the table was removed while it was made")
        return way

    def _examine(self, what: str) -> Way | None:
        """Look at the table, in a job of its own. Columns are only added under the lock."""
        table = self._opened()
        adds = self.on_new_columns == "add"
        return table.settle(self._examined, what) if adds else table.run(self._examined, what)

    def _examined(self, table: IcebergLog) -> Way | None:
        """Read the table and say how to write it; None if there is none. See `_way_of`."""
        return self._way_of(table, table.read())

    def _way_of(self, table: IcebergLog, facts: Facts | None) -> Way | None:
        """How to write the table that was just read.

        Raises SinkFailed when it cannot take the rows, and Conflict when it was given the
        columns that it lacked, so that it is another table now.
        """
        if facts is None:
            self._way = None
        elif self._way is None or self._way.facts is not facts:
            try:
                self._way = way_to(
                    facts, self.schema, self.partition_by, adds=self.on_new_columns == "add"
                )
            except SinkFailed as error:
                raise SinkFailed(f"table '{self.table}' at {self._path}: {error}") from error
            except ColumnsMissing as missing:
                table.add_columns(table_schema(missing.columns))
                names = missing.columns.names
                log.info("iceberg_columns_added", table=self.table, columns=names)
                raise Conflict from missing
        return self._way

    def _opened(self) -> LocalTable[IcebergLog]:
        if self._table is None:
            raise SinkFailed(f"table '{self.table}' is not open")
        return self._table

    def _apart(self) -> LocalTable[IcebergLog]:
        """The table for another thread than the one that commits: what is read is not shared."""
        folder, context = self._opened().folder, self._context
        if context is None or context.spark is None:
            raise SinkFailed(f"table '{self.table}' is not open")
        return LocalTable(folder, context.spark, self.name, partial(_log_of, folder))


def _log_of(folder: Path, session: Any) -> IcebergLog:
    return IcebergLog(session, local_uri(folder))
