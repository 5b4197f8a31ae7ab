"""The template of every table format: rows become files, and files and txids one commit."""

import contextlib
import tempfile
import time
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import pyarrow as pa
import structlog

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
from sinks.shares import LOST, check_fences, is_to_commit
from sinks.tables.files import DataFile, FileStager, joined
from sinks.tables.log import (
    Conflict,
    StoredFile,
    TableLog,
    TableState,
    app_id,
    unpack,
    versions_of,
)
from topology.errors import SinkBusy, SinkError, SinkFailed
from topology.schema import ArrowSchema, Row, schema_of
from topology.sink import (
    BOTH_KINDS,
    MIN_AGE_HOURS,
    Committed,
    Compaction,
    Fence,
    Maintenance,
    Removal,
    Share,
    Sink,
    SinkContext,
    Staged,
)

log = structlog.get_logger()

Result = TypeVar("Result")
_MOST_CONFLICTS = 50  # in a row: others commit faster than we can
_LONGEST_PAUSE_SECONDS = 0.25  # between attempts, so that many writers come apart
_BUSY_SECONDS = 0.5
_OPEN_ATTEMPTS = 3  # a store's reply may be lost


class TableSink(Sink[Row]):
    """Writes a table of files; a format adds its log.

    A batch's rows become Parquet files in the table's folder, and one commit makes them visible
    together with the epoch and txid of every share. Without transactions a commit has no txids.
    The first fence makes a table that does not exist; each of its columns may be null.

    The commit thread owns the log and its last state; the staging thread only writes files.
    """

    kinds = BOTH_KINDS
    made_by: ClassVar[str]  # "DeltaSink"

    def __init__(
        self,
        table: str,
        *,
        schema: type[Any] | ArrowSchema,
        partition_by: Sequence[str] = (),
        on_new_columns: OnNewColumns = "reject",
    ) -> None:
        """Only stores; the schema's type is the type of the rows. Raises InvalidSchema."""
        self.name = self.table = checked_table(table)
        self.schema = self.row_schema = checked_columns(schema_of(schema), table)
        self.stored = self.schema  # the columns that the table has
        self.partition_by = [partition_by] if isinstance(partition_by, str) else [*partition_by]
        self.on_new_columns = checked_new_columns(on_new_columns, table)
        self._owner = ("", "")  # pipeline and sink, whose transactions the table keeps
        self._log: TableLog | None = None
        self.path: str | None = None
        """The table's path or URI; None before `open`."""
        self._wanted = pa.schema([])  # the schema of a table made for these rows
        self._state: TableState | None = None  # the log's last state; None: to be read
        self._stager: FileStager | None = None  # for the table as it is
        self._fenced_id: str | None = None  # of the table that was fenced
        self._epochs: dict[str, int] = {}  # that we have fenced
        self._uncertain: dict[str, int] = {}  # files that may be named, by the version tried on

    @abstractmethod
    def _make_log(self, context: SinkContext, uri: str) -> TableLog:
        """Make the log of the table at a path or URI. Raises SinkFailed."""

    def _locate(self, context: SinkContext) -> str:
        """Return the table's path or URI. Raises SinkFailed where it cannot be written."""
        folder = table_folder(context.storage.warehouse, self.table)
        if folder is not None:
            check_kind(self.table, folder, self.made_by)
            check_writable(self.table, folder)
        return context.storage.uri(self.table)

    def open(self, context: SinkContext) -> None:
        """Check that the store can be written, and look at the table.

        Raises SinkFailed: the store cannot be written, links lead out of the warehouse, there is
        a table of another format, or one that these rows cannot be added to.
        """
        self.close()
        lower = [name.lower() for name in self.stored.names]
        if twins := [name for name in self.stored.names if lower.count(name.lower()) > 1]:
            raise SinkFailed(
                f"table '{self.table}': columns {', '.join(twins)} differ in case only; Spark "
                "takes them for one"
            )
        self._owner = (context.pipeline, context.sink)
        self.path = self._locate(context)
        self._fenced_id, self._epochs = None, {}
        for left in reversed(range(_OPEN_ATTEMPTS)):
            try:
                self._log = self._make_log(context, self.path)
                self._wanted = self._log.stored(self.stored)
                self._run(lambda _: None)
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
            raised = check_fences(fences, found)
            new = [line for line in raised if line not in found]
            if new:
                self._land(state, (), versions_of(self._owner, new))
            self._fenced_id = state.table_id
            self._epochs |= {line.line: line.epoch for line in raised}
            return raised

        return self._run(raise_epochs, make=True) or []

    def committed(self, lines: Sequence[str]) -> list[Committed]:
        self._state = None
        nothing = [Committed(line, 0, 0) for line in lines]
        return self._run(lambda state: self._found(state, lines)) or nothing

    def stager(self) -> FileStager | None:
        return self._fenced_stager()

    def joined(self, shares: tuple[Share, ...], staged: Sequence[Staged]) -> Staged:
        whole = joined(shares, staged)
        self._fenced_stager().check(whole.parts)
        return whole

    def commit(self, staged: Staged) -> None:
        """Add the files and set the txids, all at once; see the contract.

        1. Decide by the last known state whether the batch is to be committed: by its shares, or
           without any by its files. A reason against it counts only in a state read anew.
        2. Commit. After a conflict, read and decide again.
        3. After an unknown outcome, read whether it is there.
        """

        def land(state: TableState) -> None:
            if any(tuple(file.partition) != state.partition_by for file in _files(staged.parts)):
                raise SinkFailed(f"table '{self.table}' was changed while rows were written to it")
            self._land(state, staged.parts, versions_of(self._owner, staged.shares))

        if staged.shares or staged.parts:
            self._commit_once(staged, land)
        for file in _files(staged.parts):
            self._uncertain.pop(file.path, None)

    def discard(self, staged: Staged) -> None:
        """Remove the files, except those that a commit may have added all the same."""
        if self._stager is not None:
            files = _files(staged.parts)
            self._stager.remove(file for file in files if file.path not in self._uncertain)

    def maintenance(self) -> Maintenance:
        return self

    def compact(self, target_bytes: int, *, dry_run: bool = False) -> Compaction:
        table = self._opened()
        if not dry_run:
            nothing = Compaction(0, 0, 0)
            return self._maintain(lambda state: table.compact(state, target_bytes), nothing)
        small: dict[object, list[int]] = {}
        for file in self._maintain(table.files, list[StoredFile]()):
            if file.num_bytes < target_bytes:
                small.setdefault(file.partition, []).append(file.num_bytes)
        several = [sizes for sizes in small.values() if len(sizes) > 1]
        return Compaction(
            sum(map(len, several)),
            sum(-(-sum(sizes) // target_bytes) for sizes in several),
            sum(map(sum, several)),
        )

    def vacuum(self, older_than_hours: int, *, dry_run: bool = False) -> Removal:
        if older_than_hours < MIN_AGE_HOURS:
            raise ValueError(f"found {older_than_hours} hours, expected at least {MIN_AGE_HOURS}")
        table = self._opened()

        def remove(state: TableState) -> Removal:
            stager = table.stager(state, self.schema)
            if not dry_run:
                check_clock(stager.storage, stager.uri)
            return table.vacuum(state, older_than_hours, dry_run=dry_run)

        return self._maintain(remove, Removal(0, 0))

    def expire(self, *, dry_run: bool = False) -> Removal:
        table = self._opened()
        return self._maintain(lambda state: table.expire(state, dry_run=dry_run), Removal(0, 0))

    def data_files(self) -> list[str]:
        return [file.path for file in self._maintain(self._opened().files, list[StoredFile]())]

    def close(self) -> None:
        if self._log is not None:
            self._log.close()
        self._log = self._state = self._stager = None

    def _land(
        self, state: TableState, parts: Sequence[Any], transactions: Mapping[str, int]
    ) -> None:
        files = _files(parts)
        self._check_age(files)
        for file in files:  # until the commit has answered
            self._uncertain.setdefault(file.path, state.version)
        after = self._opened().commit(state, files, transactions)
        if after is None or not after.is_like(state):
            self._state = None  # to be read, and examined
        else:
            self._adopt(after)

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
            self._run(commit, make=True)
        except SinkError:
            self._settle()
            raise
        except Exception:
            if not self._has_landed(staged):
                self._settle()
                raise

    def _check_age(self, files: Sequence[DataFile]) -> None:
        """Raise SinkFailed for files that a vacuum may have taken for those of a killed process."""
        age_hours = max((time.time() - file.modified_ms / 1000 for file in files), default=0) / 3600
        if age_hours > MIN_AGE_HOURS / 2:
            raise SinkFailed(
                f"table '{self.table}': found files staged {age_hours:.0f} hours ago, expected at "
                f"most {MIN_AGE_HOURS / 2:g}, because a vacuum may have removed them. Start the "
                "service again: it writes the rows anew"
            )

    def _run(self, step: Callable[[TableState], Result], *, make: bool = False) -> Result | None:
        """Run a step that decides and commits on the last known state, again after each conflict.

        Returns None where there is no table, unless it is to be made. Raises SinkBusy, and the
        step's own errors.
        """
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

    def _maintain(self, step: Callable[[TableState], Result], without_table: Result) -> Result:
        """Run a step on a state that is read anew, and read again thereafter."""
        self._state = None
        try:
            done = self._run(step)
            return without_table if done is None else done
        finally:
            self._state = None

    def _read(self, *, make: bool) -> TableState | None:
        """Read the log, and check that the rows can be added.

        Raises SinkFailed, and Conflict when the table is another one by now.
        """
        table = self._opened()
        state = table.read()
        if self._fenced_id is not None and (state is None or state.table_id != self._fenced_id):
            raise SinkFailed(
                f"table '{self.table}' was removed or changed while rows were written; {LOST}"
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
        """Remember the log's state, and prepare to write files for it."""
        self._state = state
        self._stager = self._opened().stager(state, self.schema)
        self.path = self._stager.uri

    def _check_fits(self, state: TableState) -> "list[pa.Field[Any]]":
        """Return the columns to add to the table. Raises SinkFailed when the rows do not fit."""
        wrong, missing = compared(self._wanted, state.schema)
        if self.on_new_columns != "add":
            wrong += [lacks(field.name, "on_new_columns='add'") for field in missing]
        if self.partition_by and tuple(self.partition_by) != state.partition_by:
            names = ", ".join(state.partition_by) or "nothing"
            wrong.append(
                f"partition_by is {self.partition_by}; the table is partitioned by {names}"
            )
        if wrong:
            raise SinkFailed(f"table '{self.table}' at {self.path}: {'; '.join(wrong)}")
        return [field.with_nullable(nullable=True) for field in missing]

    def _is_to_commit(self, state: TableState, staged: Staged) -> bool:
        """See `is_to_commit`; without shares, unless an attempt before has added the files."""
        if staged.shares:
            found = self._found(state, [share.line for share in staged.shares])
            return is_to_commit(staged.shares, found, self._epochs)
        tried = {file.path for file in _files(staged.parts)} & self._uncertain.keys()
        base = min((self._uncertain[path] for path in tried), default=0)
        return not (tried and self._opened().named(base, state, tried))

    def _has_landed(self, staged: Staged) -> bool:
        """Read back a commit whose outcome is unknown; False also where that fails."""
        try:
            return bool(self._run(lambda state: not self._is_to_commit(state, staged)))
        except SinkError:
            raise
        except Exception:  # noqa: BLE001 - the commit's own error says what is wrong
            return False

    def _settle(self) -> None:
        """Find the uncertain files that no version can name any more."""
        state = self._state
        if state is None:
            return
        is_over = self._opened().ends_at_once
        files = self._uncertain.items()
        tried = {path: base for path, base in files if is_over or base < state.version}
        if tried:
            with contextlib.suppress(Exception):  # then they stay uncertain
                named = self._opened().named(min(tried.values()), state, tried)
                for path in tried.keys() - named:
                    del self._uncertain[path]

    def _fenced_stager(self) -> FileStager:
        if self._stager is None:
            raise SinkFailed(f"table '{self.table}' takes no batch before a fence")
        return self._stager

    def _found(self, state: TableState, lines: Sequence[str]) -> list[Committed]:
        apps = [app_id(*self._owner, line) for line in lines]
        versions = self._opened().transactions(state, apps)
        return [
            Committed(line, *unpack(versions.get(app, 0)))
            for line, app in zip(lines, apps, strict=True)
        ]

    def _opened(self) -> TableLog:
        if self._log is None:
            raise SinkFailed(f"table '{self.table}' is not open")
        return self._log


def check_writable(table: str, folder: Path) -> None:
    """Make a folder, and check that it can be written. Raises SinkFailed."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise SinkFailed(
            f"table '{table}' in {folder}: {error}; a folder that can be written is needed"
        ) from error


def _files(parts: Iterable[Any]) -> list[DataFile]:
    return [part for part in parts if isinstance(part, DataFile)]
