"""The template of every table format: rows become files, and files and txids one commit."""

import contextlib
import tempfile
import time
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeVar, cast

import pyarrow as pa
import structlog

from sinks.columns import Fitted
from sinks.names import (
    OnNewColumns,
    check_kind,
    checked_columns,
    checked_new_columns,
    checked_table,
    compared,
    lacks,
    table_folder,
)
from sinks.probe import check_clock
from sinks.shares import check_fences, is_to_commit
from sinks.storage import Storage
from sinks.tables.files import DataFile, DataFileWriter, FileStager, joined
from sinks.tables.log import Conflict, TableLog, TableState, app_id, pack, unpack
from sinks.tables.partitioning import Layout
from topology.errors import SinkBusy, SinkError, SinkFailed
from topology.schema import Row, schema_of
from topology.sink import (
    BOTH_KINDS,
    MIN_AGE_HOURS,
    Batch,
    Committed,
    Compaction,
    Fence,
    Maintenance,
    Piece,
    Removal,
    Share,
    Sink,
    SinkContext,
    Staged,
)

log = structlog.get_logger()

Result = TypeVar("Result")
_MOST_CONFLICTS = 50  # in a row: others commit faster than we can
_LONGEST_PAUSE_SECONDS = 0.25  # between tries, so that many writers come apart
_BUSY_SECONDS = 0.5
_OPEN_TRIES = 3  # a store's reply may be lost
_LOST = "see docs/how-to/when-a-replay-differs.md#sinkstatelost"


class TableSink(Sink[Row]):
    """Writes a table of files; a format adds its log.

    A batch's rows become Parquet files in the table's folder, and one commit makes them visible
    together with the epoch and txid of every share. Without transactions a commit has no txids.
    A table that does not exist is made by the first fence; each of its columns may be
    null.

    The commit thread owns the log and what it said last; the staging thread only writes files.
    """

    kinds = BOTH_KINDS
    made_by: ClassVar[str]  # "DeltaSink"

    def __init__(
        self,
        table: str,
        *,
        schema: type[Any] | pa.Schema,
        partition_by: Sequence[str] = (),
        on_new_columns: OnNewColumns = "reject",
    ) -> None:
        """Only stores; the schema's type is the type of the rows. Raises InvalidSchema."""
        self.name = self.table = checked_table(table)
        self.schema = self.row_schema = checked_columns(schema_of(schema), table)
        self.stored = self.schema  # what the table has of it
        self.partition_by = [partition_by] if isinstance(partition_by, str) else [*partition_by]
        self.on_new_columns = checked_new_columns(on_new_columns, table)
        self._context: SinkContext | None = None
        self._log: TableLog | None = None
        self._uri: str | None = None
        self._wanted = pa.schema([])  # the schema of a table made for these rows
        self._state: TableState | None = None  # what the log said last; None: to be read
        self._writer: DataFileWriter | None = None  # for the table as it is
        self._fenced_id: str | None = None  # of the table that was fenced
        self._epochs: dict[str, int] = {}  # that we have fenced
        self._doubtful: dict[str, int] = {}  # files that may be named, by the version tried on

    @abstractmethod
    def _make_log(self, context: SinkContext, uri: str) -> TableLog:
        """The log of the table at a path or URI. Raises SinkFailed."""

    def _locate(self, context: SinkContext) -> str:
        """The table's path or URI. Raises SinkFailed where it cannot be written."""
        folder = table_folder(context.storage.warehouse, self.table)
        if folder is not None:
            check_kind(self.table, folder, self.made_by)
            check_writable(self.table, folder)
        return context.storage.uri(self.table)

    def _files_of(self, state: TableState) -> tuple[Storage, str, Layout]:
        """Where files go, the folder that their paths are below, and how rows are split."""
        return self._storage, str(self._uri), Layout(state.partition_by)

    @property
    def path(self) -> str | None:
        """The table's path or URI; None before `open`."""
        return self._uri

    def open(self, context: SinkContext) -> None:
        """Check that the store can be written, and look at the table.

        Raises SinkFailed: the store cannot be written, links lead out of the warehouse, there is
        a table of another format, or one that these rows cannot be added to.
        """
        self.close()
        self._context = context
        self._uri = self._locate(context)
        self._fenced_id, self._epochs = None, {}
        for left in reversed(range(_OPEN_TRIES)):
            try:
                self._log = self._make_log(context, self._uri)
                self._wanted = self._log.stored(self.stored)
                self._look(lambda _: None, None)
            except SinkError:
                raise
            except Exception as error:
                if not left:
                    raise SinkFailed(f"table '{self.table}': {error}") from error
                time.sleep(_BUSY_SECONDS)
            else:
                return

    def fence(self, fences: Sequence[Fence]) -> list[Committed]:
        """Commit the epochs that are new, with no rows; see the contract. Makes the table."""
        self._state = None
        self._fenced_id = None

        def raise_epochs(state: TableState) -> list[Committed]:
            found = self._found(state, [fence.line for fence in fences])
            check_fences(fences, found)
            raised = [
                line._replace(epoch=fence.epoch) for fence, line in zip(fences, found, strict=True)
            ]
            new = [line for line in raised if line not in found]
            if new:
                self._commit(state, (), self._versions(new))
            self._fenced_id = state.table_id
            self._epochs |= {line.line: line.epoch for line in raised}
            return raised

        return self._settle(raise_epochs)

    def committed(self, lines: Sequence[str]) -> list[Committed]:
        """Read what the table says; see the contract."""
        self._state = None
        nothing = [Committed(line, 0, 0) for line in lines]
        return self._look(lambda state: self._found(state, lines), nothing)

    def stage(self, batch: Batch) -> Staged:
        """Write files that no reader sees; see the contract."""
        parts, fitted = self._put(batch.pieces, batch.sequence)
        return Staged(batch.shares, fitted.table.num_rows, parts, fitted.rejected)

    def stager(self) -> FileStager | None:
        """What writes such files in another process; see the contract."""
        return FileStager(self._fenced_writer(), self.schema)

    def joined(self, shares: tuple[Share, ...], staged: Sequence[Staged]) -> Staged:
        """See the contract."""
        whole = joined(shares, staged)
        self._fenced_writer().check(whole.parts)
        return whole

    def commit(self, staged: Staged) -> None:
        """Add the files and set the txids, all at once; see the contract.

        1. See by what was read last whether the batch is to be committed: its shares, or without
           any its files. What speaks against it counts only if it has been read anew.
        2. Commit. After a conflict, read and decide again.
        3. After an outcome that is not known, read whether it is there.
        """

        def land(state: TableState) -> None:
            if not self._suits(state, staged.parts):
                raise SinkFailed(f"table '{self.table}' was changed while rows were written to it")
            self._land(state, staged.parts, self._versions(staged.shares))

        if staged.shares or staged.parts:
            self._commit_once(staged, land)
        self._sure(staged.parts)

    def discard(self, staged: Staged) -> None:
        """Remove the files, except those of which a commit may have landed all the same."""
        self._discard(staged.parts)

    def maintenance(self) -> Maintenance:
        """See topology.sink."""
        return self

    def compact(self, target_bytes: int, *, dry_run: bool = False) -> Compaction:
        """Join small files; see topology.sink."""
        table = self._opened()
        if not dry_run:
            nothing = Compaction(0, 0, 0)
            return self._maintain(lambda state: table.compact(state, target_bytes), nothing)
        none: dict[Any, list[int]] = {}
        small = self._maintain(lambda state: table.small_files(state, target_bytes), none)
        several = [sizes for sizes in small.values() if len(sizes) > 1]
        return Compaction(
            sum(map(len, several)),
            sum(-(-sum(sizes) // target_bytes) for sizes in several),
            sum(map(sum, several)),
        )

    def vacuum(self, older_than_hours: int, *, dry_run: bool = False) -> Removal:
        """Remove files that the table does not name; see topology.sink."""
        if older_than_hours < MIN_AGE_HOURS:
            raise ValueError(f"found {older_than_hours} hours, expected at least {MIN_AGE_HOURS}")
        table = self._opened()

        def remove(state: TableState) -> Removal:
            storage, root, _ = self._files_of(state)
            if not dry_run:
                check_clock(storage, root)
            return table.vacuum(state, older_than_hours, dry_run=dry_run)

        return self._maintain(remove, Removal(0, 0))

    def expire(self, *, dry_run: bool = False) -> Removal:
        """Remove old versions; see topology.sink."""
        table = self._opened()
        return self._maintain(lambda state: table.expire(state, dry_run=dry_run), Removal(0, 0))

    def data_files(self) -> list[str]:
        """The files that make up the table now; see topology.sink."""
        return self._maintain(self._opened().files, [])

    def close(self) -> None:
        """Let go of the table."""
        self._log = self._state = self._writer = None

    def _put(self, pieces: Sequence[Piece], number: int) -> tuple[tuple[Any, ...], Fitted]:
        """Make the parts of a batch: files of the rows that fit. Says which those are."""
        files, fitted = FileStager(self._fenced_writer(), self.schema).put(pieces, number)
        return tuple(files), fitted

    def _land(
        self, state: TableState, parts: Sequence[Any], transactions: Mapping[str, int]
    ) -> None:
        """Commit the parts of a batch."""
        self._commit(state, _files(parts), transactions)

    def _commit_once(self, staged: Staged, land: Callable[[TableState], object]) -> None:
        """Have `land` commit, unless it is committed already; see `commit`."""
        remembered = self._state

        def commit(state: TableState) -> None:
            try:
                is_to_land = self._is_to_commit(state, staged)
            except Exception as error:
                if state is remembered:
                    raise Conflict from error
                raise
            if is_to_land:
                land(state)
            elif state is remembered:
                raise Conflict

        try:
            self._settle(commit)
        except SinkError:
            self._settle_doubts()
            raise
        except Exception:
            if not self._has_landed(lambda state: not self._is_to_commit(state, staged)):
                self._settle_doubts()
                raise

    def _commit(
        self, state: TableState, files: Sequence[DataFile], transactions: Mapping[str, int]
    ) -> None:
        self._check_age(files)
        for file in files:  # until the commit has answered
            self._doubtful.setdefault(file.path, state.version)
        after = self._opened().commit(state, files, transactions)
        if after is None or not after.is_like(state):
            self._state = None  # to be read, and examined
        else:
            self._adopt(after)

    def _check_age(self, files: Sequence[DataFile]) -> None:
        """Raise SinkFailed for files that a vacuum may have taken for those of a killed process."""
        age_hours = max((time.time() - file.modified_ms / 1000 for file in files), default=0) / 3600
        if age_hours > MIN_AGE_HOURS / 2:
            raise SinkFailed(
                f"table '{self.table}': found files staged {age_hours:.0f} hours ago, expected at "
                f"most {MIN_AGE_HOURS / 2:g}, because a vacuum may have removed them. Start the "
                "service again: it writes the rows anew"
            )

    def _settle(self, step: Callable[[TableState], Result]) -> Result:
        """Run a step that decides and commits on what the log said last; the table is made.

        Again, on what it says by then, after each conflict. Raises SinkBusy, and what the step
        raises.
        """
        return cast("Result", self._tried(step, make=True))

    def _look(self, step: Callable[[TableState], Result], without: Result) -> Result:
        """The same, but where there is no table the answer is `without`."""
        found = self._tried(step, make=False)
        return without if found is None else found

    def _maintain(self, step: Callable[[TableState], Result], without: Result) -> Result:
        """The same, on what the log says now; it is read again thereafter."""
        self._state = None
        try:
            return self._look(step, without)
        finally:
            self._state = None

    def _tried(self, step: Callable[[TableState], Result], *, make: bool) -> Result | None:
        pause = 0.0
        for conflicts in range(_MOST_CONFLICTS):
            began = time.monotonic()
            try:
                with self._opened().turn(pause) if make else contextlib.nullcontext():
                    state = self._state or self._read(make=make)
                    found = None if state is None else step(state)
                self._opened().sync()
            except Conflict:
                self._state = None
                pause = min(_LONGEST_PAUSE_SECONDS, (time.monotonic() - began) * 2**conflicts)
            except SinkError:
                raise
            except BaseException:
                self._state = None
                raise
            else:
                return found
        raise SinkBusy(_BUSY_SECONDS, "others keep changing the table")

    def _read(self, *, make: bool) -> TableState | None:
        """Read the log, and see that the rows can be added.

        Raises SinkFailed, and Conflict when the table is another one by now.
        """
        table = self._opened()
        state = table.read()
        if self._fenced_id is not None and (state is None or state.table_id != self._fenced_id):
            raise SinkFailed(
                f"table '{self.table}' was removed or changed while rows were written; {_LOST}"
            )
        if state is None:
            if not make:
                return None
            fields = [field.with_nullable(nullable=True) for field in self._wanted]
            state = table.create(pa.schema(fields), self.partition_by)
        missing = self._check_fits(state)
        if missing:
            state = table.add_columns(state, missing)
            names = [field.name for field in missing]
            log.info("table_columns_added", table=self.table, columns=names)
        self._adopt(state)
        return state

    def _adopt(self, state: TableState) -> None:
        """Take what the log says now, and get ready to write files for it."""
        self._state = state
        self._writer = DataFileWriter(*self._files_of(state))

    def _check_fits(self, state: TableState) -> "list[pa.Field[Any]]":
        """The columns to add to the table. Raises SinkFailed when it cannot have the rows."""
        wrong, missing = compared(self._wanted, state.schema)
        if self.on_new_columns != "add":
            wrong += [lacks(field.name, "on_new_columns='add'") for field in missing]
        if self.partition_by and tuple(self.partition_by) != state.partition_by:
            names = ", ".join(state.partition_by) or "nothing"
            wrong.append(
                f"partition_by is {self.partition_by}; the table is partitioned by {names}"
            )
        if wrong:
            raise SinkFailed(f"table '{self.table}' at {self._uri}: {'; '.join(wrong)}")
        return [field.with_nullable(nullable=True) for field in missing]

    def _suits(self, state: TableState, parts: Sequence[Any]) -> bool:
        """Whether files can be added to the table as it is now."""
        return all(tuple(file.partition) == state.partition_by for file in _files(parts))

    def _is_to_commit(self, state: TableState, staged: Staged) -> bool:
        """See `is_to_commit`; without shares, unless the files are there from a try before."""
        if not staged.shares:
            return not self._named(state, staged.parts)
        found = self._found(state, [share.line for share in staged.shares])
        return is_to_commit(staged.shares, found, self._epochs)

    def _has_landed(self, is_there: Callable[[TableState], bool]) -> bool:
        """Read back a commit whose outcome is not known; False also where that fails."""
        try:
            return self._look(is_there, without=False)
        except SinkError:
            raise
        except Exception:  # noqa: BLE001 - the commit's own error says what is wrong
            return False

    def _named(self, state: TableState, parts: Sequence[Any]) -> bool:
        """Whether a commit of these files, tried before, has landed."""
        tried = {file.path for file in _files(parts)} & self._doubtful.keys()
        if not tried:
            return False
        base = min(self._doubtful[path] for path in tried)
        return bool(self._opened().named(base, state, tried))

    def _settle_doubts(self) -> None:
        """Learn which files can be part of no version any more."""
        state = self._state
        if state is None:
            return
        is_over = self._opened().ends_at_once
        doubts = self._doubtful.items()
        tried = {path: base for path, base in doubts if is_over or base < state.version}
        if tried:
            with contextlib.suppress(Exception):  # then they stay in doubt
                named = self._opened().named(min(tried.values()), state, tried)
                for path in tried.keys() - named:
                    del self._doubtful[path]

    def _sure(self, parts: Sequence[Any]) -> None:
        for file in _files(parts):
            self._doubtful.pop(file.path, None)

    def _discard(self, parts: Sequence[Any]) -> None:
        if self._writer is not None:
            self._writer.remove(f for f in _files(parts) if f.path not in self._doubtful)

    def _fenced_writer(self) -> DataFileWriter:
        if self._writer is None:
            raise SinkFailed(f"table '{self.table}' takes no batch before a fence")
        return self._writer

    def _found(self, state: TableState, lines: Sequence[str]) -> list[Committed]:
        """What the table has of each line."""
        apps = [self._app(line) for line in lines]
        versions = self._opened().transactions(state, apps)
        return [
            Committed(line, *unpack(versions.get(app, 0)))
            for line, app in zip(lines, apps, strict=True)
        ]

    def _versions(self, lines: Sequence[Share | Committed]) -> dict[str, int]:
        """What the table is to remember of each line."""
        return {self._app(line.line): pack(line.epoch, line.txid) for line in lines}

    def _app(self, line: str) -> str:
        if self._context is None:
            raise SinkFailed(f"table '{self.table}' is not open")
        return app_id(self._context.pipeline, self._context.sink, line)

    @property
    def _storage(self) -> Storage:
        if self._context is None:
            raise SinkFailed(f"table '{self.table}' is not open")
        return self._context.storage

    def _opened(self) -> TableLog:
        if self._log is None:
            raise SinkFailed(f"table '{self.table}' is not open")
        return self._log


def check_writable(table: str, folder: Path) -> None:
    """Make a folder, and see that it can be written. Raises SinkFailed."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise SinkFailed(
            f"table '{table}' in {folder}: {error}; a folder that can be written is needed"
        ) from error


def _files(parts: Iterable[Any]) -> list[DataFile]:
    return [part for part in parts if isinstance(part, DataFile)]
