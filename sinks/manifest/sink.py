"""Parquet files and a log of them as a sink: rows and txids in one entry. No Spark."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, overload

import pyarrow as pa

from sinks.files.data_file import DataFile, DataFileWriter
from sinks.files.doubtful import Doubtful
from sinks.files.layout import Layout, can_partition
from sinks.files.partitions import check_partitions
from sinks.files.stager import FileStager, check_shared, joined
from sinks.manifest.columns import columns_of, merged
from sinks.manifest.compactor import Compactor
from sinks.manifest.durable import sync_below
from sinks.manifest.entry import Change, Line, Listed, line_key
from sinks.manifest.log import ManifestLog
from sinks.manifest.place import try_out
from sinks.manifest.reading import manifest_files
from sinks.manifest.state import State
from sinks.names import checked_columns, checked_table
from sinks.new_columns import OnNewColumns, checked_new_columns
from sinks.paths import check_kind, table_folder, table_path
from sinks.shares import check_fences, is_to_commit
from topology.compaction import Compaction
from topology.errors import InvalidSchema, RowsRejected, SinkBusy, SinkFailed, SinkFenced
from topology.schema import schema_of
from topology.sink import Batch, Row, SinkContext
from topology.transactional import Committed, Fence, Group, Share, Staged, StagesApart

_WEEK_SECONDS = 7 * 24 * 3600.0


class ManifestSink(StagesApart[Row]):
    """Writes a folder of Parquet files, and a log in it that says which of them are the table.

    Arrow writes the files in their place, and one entry of the log makes them visible, under
    exactly-once together with the txid of every share. No Spark is needed to write; readers ask
    `manifest_files`. The table lies on a local file system that has hard links. Any number of
    processes may write and compact it at once: of two that make the same version one wins,
    and the other decides anew. A table that does not exist is made with the first rows or fence.

    `on_new_columns` says what becomes of columns that the table has not: "reject" refuses them
    when the sink is opened, "add" adds them with the first rows. `keep_seconds` is how long a
    file stays that is no part of the table any more: longer than anyone reads a list of files.
    """

    @overload
    def __init__(
        self: "ManifestSink[Any]",
        table: str,
        *,
        schema: pa.Schema,
        partition_by: Sequence[str] = (),
        on_new_columns: OnNewColumns = "reject",
        keep_seconds: float = _WEEK_SECONDS,
    ) -> None: ...

    @overload
    def __init__(
        self,
        table: str,
        *,
        schema: type[Row],
        partition_by: Sequence[str] = (),
        on_new_columns: OnNewColumns = "reject",
        keep_seconds: float = _WEEK_SECONDS,
    ) -> None: ...

    def __init__(
        self,
        table: str,
        *,
        schema: type[Any] | pa.Schema,
        partition_by: Sequence[str] = (),
        on_new_columns: OnNewColumns = "reject",
        keep_seconds: float = _WEEK_SECONDS,
    ) -> None:
        """Only stores; the schema's type is the type of the rows. Raises InvalidSchema."""
        self.name = self.table = checked_table(table)
        self.schema = checked_columns(schema_of(schema), table)
        self.partition_by = [partition_by] if isinstance(partition_by, str) else [*partition_by]
        self.on_new_columns = checked_new_columns(on_new_columns, table)
        if not keep_seconds >= 0:
            raise InvalidSchema(f"table '{table}': keep_seconds is {keep_seconds}; allowed is >= 0")
        self.keep_seconds = keep_seconds
        self._columns = columns_of(self.schema)
        self._check_partitions(self.partition_by)
        self._context: SinkContext | None = None
        self._folder: Path | None = None
        self._log: ManifestLog | None = None
        self._stager: FileStager | None = None  # None: there is no table yet
        self._id: str | None = None  # of the table that was opened or made
        self._doubtful = Doubtful()

    @property
    def path(self) -> str | None:
        """Where the table lies; None before `open`."""
        return None if self._folder is None else str(self._folder)

    def open(self, context: SinkContext) -> None:
        """Check that the place can be written, and whether the table there takes these rows.

        Raises SinkFailed: the place is not local, cannot be written or has no hard links; links
        lead out of the warehouse; there is a table of another kind, or a plain folder of Parquet;
        the table has other columns.
        """
        folder = table_folder(context.warehouse, self.table)
        if folder is None:
            place = table_path(context.warehouse, self.table)
            raise SinkFailed(
                f"table '{self.table}' at {place} is not on a local file system, which a "
                "ManifestSink needs; allowed there is DeltaSink, at least once"
            )
        self._context, self._folder = context, folder
        self._stager = self._id = None
        self._log = ManifestLog(folder, by=f"{context.pipeline}/{context.sink}")
        check_kind(self.table, folder, "ManifestSink")
        try:
            try_out(folder)
            state = self._log.refresh()
            stranger = None if state is not None else next(folder.rglob("*.parquet"), None)
            if stranger is not None and (state := self._log.refresh()) is not None:
                stranger = None  # it is of a table that was made just now
        except OSError as error:
            raise SinkFailed(
                f"table '{self.table}' in warehouse {context.warehouse}: {error}; "
                "a folder that can be written, and has hard links, is needed"
            ) from error
        if stranger is not None:
            raise SinkFailed(
                f"table '{self.table}' at {folder}: found {stranger.relative_to(folder)}, which no "
                "manifest names; a folder of its own is needed, or ParquetSink"
            )
        if state is not None:
            self._examine(state)

    def write(self, batch: Batch) -> None:
        """Append the batch's rows. Raises RowsRejected, SinkFailed, SinkBusy, or a passing error.

        1. Convert the rows, setting those that do not fit apart.
        2. Write the others to files in the table's folder, and through to the disk.
        3. Add an entry to the log that names the files.
        4. Name the rows that did not fit.
        """
        stager = self._ready()
        files, fitted = stager.put(batch.pieces, batch.sequence)
        if files:

            def decide(state: State) -> Change | None:
                self._check_same(state)
                return None if files[0].path in state.files else self._added(state, files, {})

            try:
                self._open_log().change(decide)
            except SinkBusy:  # after anything else an entry may have landed
                stager.files.remove(files)
                raise
        if fitted.rejected:
            raise RowsRejected(fitted.rejected)

    def fence(self, fences: Sequence[Fence]) -> list[Committed]:
        """Add an entry with the epochs that are new, and no rows; see the contract."""
        self._ready()
        lines = [fence.line for fence in fences]
        raised: list[Committed] = []

        def decide(state: State) -> Change | None:
            self._check_same(state)
            found = self._found(state, lines)
            check_fences(fences, found)
            raised[:] = [
                line._replace(epoch=fence.epoch) for fence, line in zip(fences, found, strict=True)
            ]
            new = [line for line in raised if line not in found]
            if not new:
                return None
            return Change(lines=dict(self._raised(state, line) for line in new))

        self._open_log().change(decide)
        return raised

    def committed(self, lines: Sequence[str]) -> list[Committed]:
        """Read what the log says; see the contract."""
        manifest = self._open_log()
        state = manifest.refresh()
        if state is None:
            return [Committed(line, 0, 0) for line in lines]
        manifest.sync()
        return self._found(state, lines)

    def stage(self, group: Group) -> Staged:
        """Write files that no entry names, through to the disk; see the contract."""
        return self.stager().stage(group)

    def stager(self) -> FileStager:
        """What writes such files; see the contract. Raises SinkFailed before a fence."""
        if self._stager is None:
            raise SinkFailed(f"table '{self.table}' takes no group before a fence")
        return self._stager

    def joined(self, shares: tuple[Share, ...], staged: Sequence[Staged]) -> Staged:
        """See the contract."""
        whole = joined(shares, staged)
        check_shared(self.stager().files.root, whole.parts)
        return whole

    def commit(self, staged: Staged) -> None:
        """Add an entry with the files and the txids; see the contract."""
        files: tuple[DataFile, ...] = staged.parts
        lines = [share.line for share in staged.shares]
        told = {
            self._key(share.line): Line(
                share.epoch, share.txid, share.first, share.end, share.digest
            )
            for share in staged.shares
        }

        named: set[str] = set()

        def decide(state: State) -> Change | None:
            self._check_same(state)
            named.clear()
            paths = (file.path for file in files)
            named.update(path for path in paths if path in state.files or path in state.removed)
            if not is_to_commit(staged.shares, self._found(state, lines)):
                return None
            return self._added(state, files, told)

        with self._doubtful.committing(files):
            try:
                self._open_log().change(decide)
            except SinkFenced:
                # An earlier try may have landed; after a later owner's entry none can any more.
                self._doubtful.settle(files, named)
                raise

    def discard(self, staged: Staged) -> None:
        """Remove the files, except those of which an entry may have landed all the same."""
        if self._stager is not None:
            self._stager.files.remove(self._doubtful.without(staged.parts))

    def compact(self, target_bytes: int) -> Compaction:
        """Join small files, and delete those that were removed `keep_seconds` ago.

        See topology.compaction. From any thread; an entry for each file that is made.
        """
        context, folder = self._opened()
        manifest = ManifestLog(folder, by=f"{context.pipeline}/{context.sink}")
        if manifest.refresh() is None:
            return Compaction(0, 0, 0)
        return Compactor(manifest, self.keep_seconds).run(target_bytes)

    def data_files(self) -> list[str]:
        """The files that make up the table now, as absolute paths; from any thread."""
        _, folder = self._opened()
        return [] if ManifestLog(folder).refresh() is None else manifest_files(folder)

    def close(self) -> None:
        """Let go of the log."""
        self._log = self._stager = None

    def _ready(self) -> FileStager:
        """What writes the table's files; the table is made if there is none."""
        if self._stager is None:
            manifest = self._open_log()
            if manifest.refresh() is None:
                manifest.create(self._columns, self.partition_by)
            return self._examine(manifest.newest())
        return self._stager

    def _examine(self, state: State) -> FileStager:
        """Remember the table. Raises SinkFailed when it does not take these rows."""
        _, folder = self._opened()
        _, wrong = merged(state.columns, self._columns, self.on_new_columns)
        if self.partition_by and tuple(self.partition_by) != state.partition_by:
            names = ", ".join(state.partition_by) or "nothing"
            wrong.append(
                f"partition_by is {self.partition_by}; the table is partitioned by {names}"
            )
        if wrong:
            raise SinkFailed(f"table '{self.table}' at {folder}: {'; '.join(wrong)}")
        try:
            self._check_partitions([n for n in state.partition_by if n in self.schema.names])
        except InvalidSchema as error:
            raise SinkFailed(str(error)) from error
        self._id = state.table
        writer = DataFileWriter(folder, Layout(state.partition_by))
        # An entry may name the files from now on, so they are to outlast a machine's end.
        self._stager = FileStager(writer, self.schema, through=sync_below)
        return self._stager

    def _added(self, state: State, files: Sequence[DataFile], lines: Mapping[str, Line]) -> Change:
        """An entry that adds files to the table as it is now."""
        self._open_log().check_files(state, [file.path for file in files])
        columns, wrong = merged(state.columns, self._columns, self.on_new_columns)
        if wrong:  # someone else has added one of these names meanwhile
            raise SinkFailed(f"table '{self.table}': {'; '.join(wrong)}")
        added = [Listed(file.path, file.num_rows, file.num_bytes, file.partition) for file in files]
        new = columns if files and columns != state.columns else None
        return Change(add=tuple(added), lines=dict(lines), columns=new)

    def _check_same(self, state: State) -> None:
        if state.table != self._id:
            raise SinkFailed(f"table '{self.table}' was removed while rows were written to it")

    def _check_partitions(self, names: Sequence[str]) -> None:
        check_partitions(self.table, self.schema, names, can_partition, leaves_some=True)

    def _found(self, state: State, lines: Sequence[str]) -> list[Committed]:
        known = [(line, state.lines.get(self._key(line), Line(0))) for line in lines]
        return [Committed(line, there.epoch, there.txid) for line, there in known]

    def _raised(self, state: State, line: Committed) -> tuple[str, Line]:
        key = self._key(line.line)
        there = state.lines.get(key, Line(0))
        return key, Line(line.epoch, there.txid, there.first, there.end, there.digest)

    def _key(self, line: str) -> str:
        context, _ = self._opened()
        return line_key(context.pipeline, context.sink, line)

    def _open_log(self) -> ManifestLog:
        self._opened()
        if self._log is None:
            raise SinkFailed(f"table '{self.table}' is not open")
        return self._log

    def _opened(self) -> tuple[SinkContext, Path]:
        if self._context is None or self._folder is None:
            raise SinkFailed(f"table '{self.table}' is not open")
        return self._context, self._folder
