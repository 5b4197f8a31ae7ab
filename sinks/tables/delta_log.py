"""The log of a Delta table, read and written by delta-rs, and its maintenance."""

import json
import re
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from importlib.metadata import version
from itertools import repeat
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import fs

from sinks.names import backticked, names_in
from sinks.probe import plain_message
from sinks.storage import Storage
from sinks.tables.delta_log_files import OURS, LogEntries
from sinks.tables.files import DataFile, FileStager
from sinks.tables.log import Conflict, StoredFile, TableLog, TableState, plain_field
from sinks.tables.partitioning import Layout
from topology.errors import InvalidSchema, SinkFailed, missing_extra
from topology.sink import Compaction, Removal

DELETED = "_deleted"  # a column of a merge's source, beside the table's
_VERSION = version("headrace")
_REFUSED = "Failed to commit transaction"  # how delta-rs says that the version is there already
_ESCAPED = re.compile("%[0-9A-Fa-f]{2}")
_CLEANED_EVERY = 100  # versions
_AT_ONCE = 8  # applications whose txids are read
# Features that ask nothing of a writer who adds files while they are not used, which columns and
# properties tell. delta-rs would write tables with some others, and break their promise.
_WRITABLE = frozenset(
    {
        "appendOnly",
        "changeDataFeed",
        "checkConstraints",
        "columnMapping",
        "deletionVectors",
        "generatedColumns",
        "invariants",
        "timestampNtz",
        "v2Checkpoint",
    }
)
_RETENTION = "delta.setTransactionRetentionDuration"
_MAPPING = "delta.columnMapping.mode"
_CONSTRAINT = "delta.constraints."
_UPSERTS_REFUSED = ("delta.appendOnly", "delta.enableChangeDataFeed")
_NOT_IN_NAMES = " ,;{}()\n\t="  # but where a table maps its columns' names
_COLUMN_FEATURES = ("CURRENT_DEFAULT", "__CHAR_VARCHAR_TYPE_STRING")
_FILE_RETENTION = "delta.deletedFileRetentionDuration"
_LOG_RETENTION, _LOG_KEPT = "delta.logRetentionDuration", "interval 30 days"
_INTERVAL = re.compile(r"interval (\d+) (second|minute|hour|day|week)s?")  # as delta-rs reads it
_SECONDS = {"second": 1, "minute": 60, "hour": 3600, "day": 86400, "week": 604800}
_LOG_FILE = re.compile(r"(\d{20})\.(json|checkpoint\..*parquet)")


def library() -> Any:
    """Import delta-rs when it is needed. Raises SinkFailed."""
    try:
        import deltalake  # noqa: PLC0415 - see sinks/__init__
    except ImportError as error:
        raise SinkFailed(missing_extra("a Delta table needs delta-rs", "delta")) from error
    return deltalake


class DeltaLog(TableLog):
    """A Delta log.

    A commit goes on top of the version that was read, without delta-rs's own retries, so a
    decision by that version holds. Each read checks that the entry that was read or put last is
    still there: a replaced entry would take its rows with it in silence.

    To a store a read costs three requests one after the other, and a commit five: delta-rs's own.
    """

    def __init__(
        self,
        name: str,
        storage: Storage,
        uri: str,
        *,
        remembers: bool = False,
        key: Sequence[str] = (),
    ) -> None:
        """Only stores. `remembers`: the table must not forget transactions."""
        self.name, self._storage, self._uri = name, storage, uri
        self._remembers, self._key = remembers, tuple(key)
        self._id = uuid.uuid4().hex  # in each entry that we put, and in no other's
        self._options: dict[str, str] = {}  # that delta-rs was given
        self.forget()
        self.ends_at_once = self._entries.is_local

    def forget(self) -> None:
        """Open the table anew when it is next read."""
        self._entries = LogEntries(self.name, self._storage, self._uri)
        self._table: Any = None
        self._state: TableState | None = None
        self._facts: Any = None  # of which `_state` was made
        self._newest = -1  # the version that was read or committed last
        self._mark = ""  # a text in its entry, and in no entry that replaces it
        self._versions: dict[str, int | None] = {}  # of applications, by then

    def stored(self, schema: pa.Schema) -> pa.Schema:
        for name in names_in(schema):
            if not set(_NOT_IN_NAMES).isdisjoint(name):
                raise InvalidSchema(
                    f"column {name!r}: Delta allows names without any of {_NOT_IN_NAMES!r}"
                )
        return pa.schema([_stored(field) for field in schema])

    def read(self) -> TableState | None:
        known, newest, mark = self._state, self._newest, self._mark
        options = self._storage.object_store_options(self._uri)
        if known is not None and options == self._options and self._caught_up():
            return self._read(known)
        if known is None:
            if found := _ESCAPED.search(self._uri):
                raise SinkFailed(
                    f"table '{self.name}' at {self._uri}: delta-rs takes '{found[0]}' for a "
                    "character that is escaped, expected a path without it, or use SparkSink"
                )
            self._entries.repair()
        self.forget()
        self._options = options
        try:
            self._table = library().DeltaTable(self._uri, storage_options=options)
        except library().exceptions.TableNotFoundError:
            return None
        now = self._read(None)
        if known is None or known.table_id != now.table_id:
            return now
        entry = self._entries.text(newest)
        if now.version >= newest and (mark in entry or not entry):  # or it has been cleaned up
            return now
        self.forget()
        raise SinkFailed(
            f"table '{self.name}': another writer has replaced the log entry of version "
            f"{newest}; rows may be gone with it"
        )

    def stager(self, state: TableState, schema: pa.Schema) -> FileStager:
        return FileStager(self._storage, self._uri, Layout(state.partition_by), schema)

    def create(self, schema: pa.Schema, partition_by: Sequence[str]) -> TableState:
        try:
            self._table = library().DeltaTable.create(
                self._uri,
                schema=schema,
                partition_by=[*partition_by],
                storage_options=self._storage.object_store_options(self._uri),
                commit_properties=self._properties({}),
            )
        except Exception as error:
            if self.read() is None:
                raise
            raise Conflict from error
        self._entries.sync_folders()
        return self._read(None)

    def add_columns(self, state: TableState, fields: "Sequence[pa.Field[Any]]") -> TableState:
        columns = library().Schema.from_arrow(pa.schema(fields)).fields
        with _refusing():
            state.native.alter.add_columns(columns, commit_properties=self._properties({}))
        return self.read_again()

    def transactions(self, state: TableState, apps: Sequence[str]) -> dict[str, int]:
        if new := [app for app in apps if app not in self._versions]:
            with ThreadPoolExecutor(_AT_ONCE) as pool:  # each reads entries, to the last checkpoint
                found = pool.map(state.native.transaction_version, new)
                self._versions |= zip(new, found, strict=True)
        known = {app: self._versions[app] for app in apps}
        return {app: version for app, version in known.items() if version is not None}

    def commit(
        self, state: TableState, files: Sequence[DataFile], transactions: Mapping[str, int]
    ) -> None:
        """See the contract. delta-rs does not tell its handle of a commit: it must be read."""
        from deltalake.transaction import AddAction  # noqa: PLC0415 - see sinks/__init__

        self._check_newest(state)
        adds = [
            AddAction(
                path=file.path,
                size=file.num_bytes,
                partition_values=file.partition,
                modification_time=file.modified_ms,
                data_change=True,
                stats=file.statistics.as_delta_json(),
            )
            for file in files
        ]
        with _refusing():
            state.native.create_write_transaction(
                adds,
                mode="append",
                schema=state.native.schema(),
                partition_by=[*state.partition_by],
                commit_properties=self._properties(transactions),
                post_commithook_properties=_hooks(state),
            )
        self._committed(state.version + 1, transactions)

    def merge(self, state: TableState, rows: pa.Table, transactions: Mapping[str, int]) -> None:
        """Replace, add and remove rows by their key, and set transactions, all at once.

        `rows` have the table's columns, and DELETED, which is true for rows that only remove.
        Raises as `commit`. The files are synced after the commit, before this answers.
        """
        self._check_newest(state)
        names = [name for name in rows.column_names if name != DELETED]
        columns = {backticked(name): f"s.{backticked(name)}" for name in names}
        with _refusing():
            state.native.merge(
                rows,
                " AND ".join(f"t.{backticked(name)} = s.{backticked(name)}" for name in self._key),
                source_alias="s",
                target_alias="t",
                streamed_exec=False,  # so that files which hold none of the keys are left alone
                writer_properties=_merged_files(state.schema),
                commit_properties=self._properties(transactions),
                post_commithook_properties=_hooks(state),
            ).when_matched_delete(f"s.{DELETED}").when_matched_update(
                columns
            ).when_not_matched_insert(columns, predicate=f"NOT s.{DELETED}").execute()
        if state.native.version() == state.version:  # no row of the table has any of the keys
            self.commit(state, (), transactions)
        else:
            self._committed(state.version + 1, transactions)

    def rows(
        self,
        state: TableState,
        keys: pa.Table | None = None,
        keep: Callable[[pa.Table], pa.Table] = lambda rows: rows,
    ) -> pa.Table:
        """Return the rows that `keep` leaves, of files that may have one of some keys."""
        filesystem, root = self._storage.filesystem(self._uri)
        found = [state.schema.empty_table()]
        for path in self._paths(state, keys):
            rows = pq.read_table(f"{root}/{path}", filesystem=filesystem)
            found.append(keep(rows.select(state.schema.names).cast(state.schema)))
        return pa.concat_tables(found)

    def _paths(self, state: TableState, keys: pa.Table | None = None) -> list[str]:
        adds = pa.table(state.native.get_add_actions(flatten=True))
        paths = [unquote(str(path)) for path in adds["path"]]
        first = keys.column_names[0] if keys is not None else ""
        if keys is None or f"min.{first}" not in adds.column_names:
            return paths
        wanted = keys[first].cast(state.schema.field(first).type)
        lows, highs = (adds[f"{bound}.{first}"].cast(wanted.type) for bound in ("min", "max"))
        return [
            path
            for path, low, high in zip(paths, lows, highs, strict=True)
            if not (low.is_valid and high.is_valid) or _any_between(wanted, low, high)
        ]

    def turn(self, pause_seconds: float) -> AbstractContextManager[None]:
        is_local = self._entries.is_local
        return self._entries.turn() if is_local else super().turn(pause_seconds)

    def sync(self) -> None:
        """See the contract. Commits of others are included."""
        self._entries.sync_to(self._newest)

    def named(self, base: int, state: TableState, paths: Collection[str]) -> set[str]:
        return self._entries.adding(base + 1, state.version, paths)

    def files(self, state: TableState) -> list[StoredFile]:
        added: Any = pa.table(state.native.get_add_actions())
        # As text, since Python has not every time that Arrow has; the bounds stay where they are.
        partition = added["partition"].combine_chunks().flatten() if state.partition_by else []
        values = zip(*(each.cast(pa.string()).to_pylist() for each in partition), strict=True)
        return [
            StoredFile(f"{self._uri}/{unquote(path)}", size, each)
            for path, size, each in zip(
                added["path"].to_pylist(),
                added["size_bytes"].to_pylist(),
                values if partition else repeat((), added.num_rows),
                strict=True,
            )
        ]

    def compact(self, state: TableState, target_bytes: int) -> Compaction:
        """See the contract. The replaced files stay until a vacuum."""
        self._check_newest(state)
        with _refusing():
            done = state.native.optimize.compact(
                target_size=target_bytes,
                writer_properties=_merged_files(state.schema),
                commit_properties=self._properties({}),
            )
        self.read_again()
        removed = json.loads(done["filesRemoved"])
        return Compaction(done["numFilesRemoved"], done["numFilesAdded"], removed["totalSize"])

    def vacuum(self, state: TableState, older_than_hours: int, *, dry_run: bool) -> Removal:
        """See the contract. A longer time that the table itself sets counts.

        delta-rs commits that it begins before it removes a file, so an earlier decision is no
        longer committed. It does not know the files of deletion vectors.
        """
        self._check_newest(state)
        table = state.native
        if "deletionVectors" in (table.protocol().writer_features or ()):
            raise SinkFailed(
                "found the feature deletionVectors, whose files delta-rs would remove; "
                "take VACUUM in Spark"
            )
        with _refusing():
            removed = table.vacuum(
                older_than_hours,
                dry_run=dry_run,
                enforce_retention_duration=_FILE_RETENTION in table.metadata().configuration,
                commit_properties=library().CommitProperties(custom_metadata={OURS: _VERSION}),
                full=True,  # also those that no entry has ever named
            )
        self.read_again()
        return Removal(0, sum(path != "" for path in removed))  # that is the marker of the folder

    def expire(self, state: TableState, *, dry_run: bool) -> Removal:
        """Remove entries of the log. The checkpoint that replaces them is synced before."""
        before = self._entries.files()
        if dry_run:
            return Removal(_expirable(state.native, before), 0)
        self.sync()
        state.native.create_checkpoint()
        self._entries.sync_checkpoint(state.version)
        state.native.cleanup_metadata()
        return Removal(len(_entries(before) - _entries(self._entries.files())), 0)

    def _properties(self, transactions: Mapping[str, int]) -> Any:
        return library().CommitProperties(
            custom_metadata={OURS: f"{_VERSION} {self._id}"},
            max_commit_retries=0,
            app_transactions=[
                library().Transaction(app, version) for app, version in transactions.items()
            ],
        )

    def _caught_up(self) -> bool:
        """Have the handle read new entries; False if the newest entry is not as it was."""
        with ThreadPoolExecutor(1) as pool:  # a store is asked for both at the same time
            entry = pool.submit(self._entries.text, self._newest)
            try:
                self._table.update_incremental()
            except Exception:
                if self._mark in entry.result():
                    raise
            return self._mark in entry.result()

    def _read(self, known: TableState | None) -> TableState:
        table = self._table
        metadata, protocol = table.metadata(), table.protocol()
        schema = table.schema().to_json()
        facts = (metadata.id, schema, metadata.partition_columns, metadata.configuration, protocol)
        if known is not None and facts == self._facts:
            arrow = known.schema
        else:
            reason = next(_obstacles(table, self._remembers, bool(self._key)), None)
            if reason is not None:
                self.forget()
                raise SinkFailed(f"table '{self.name}' at {self._uri}: {reason}; use SparkSink")
            arrow = pa.schema(table.schema())
        self._facts = facts
        version: int = table.version()
        if version != self._newest:
            if not (text := self._entries.text(version)):
                raise OSError(f"table '{self.name}': log entry {version} cannot be found any more")
            self._mark, self._newest, self._versions = text, version, {}
        self._state = TableState(
            metadata.id, self._newest, arrow, tuple(metadata.partition_columns), table
        )
        return self._state

    def _committed(self, version: int, transactions: Mapping[str, int]) -> None:
        self._newest, self._mark = version, self._id
        self._versions |= transactions

    def _check_newest(self, state: TableState) -> None:
        """Raise Conflict unless this was read last, and nothing was committed since."""
        if self._state is not state or self._newest != state.version:
            raise Conflict


@contextmanager
def _refusing() -> Iterator[None]:
    """Raise Conflict for delta-rs's error when the next version is there already."""
    try:
        yield
    except library().exceptions.CommitFailedError as error:
        if str(error).startswith(_REFUSED):
            raise Conflict from error
        raise
    except OSError as error:
        raise OSError(plain_message(error)) from error


def _hooks(state: TableState) -> Any:
    """Choose delta-rs's work after a commit: to look for old entries takes one more listing."""
    cleans = None if state.version % _CLEANED_EVERY == 0 else False
    return library().PostCommitHookProperties(cleanup_expired_logs=cleans)


def _merged_files(schema: pa.Schema) -> Any:
    """Have delta-rs write no bounds of columns that may have a NaN (see files.py)."""
    floats = [field.name for field in schema if pa.types.is_floating(field.type)]
    none = library().ColumnProperties(statistics_enabled="NONE")
    return library().WriterProperties(column_properties=dict.fromkeys(floats, none))


def _any_between(values: Any, low: Any, high: Any) -> bool:
    return bool(pc.any(pc.and_(pc.greater_equal(values, low), pc.less_equal(values, high))).as_py())


def _obstacles(table: Any, remembers: bool, has_key: bool) -> Iterator[str]:
    """Yield why a table can have no files, or transactions (`remembers`), or rows by key."""
    metadata, protocol = table.metadata(), table.protocol()
    features = {*(protocol.writer_features or ()), *(protocol.reader_features or ())}
    properties = metadata.configuration
    for feature in sorted(features - _WRITABLE):
        yield f"it has the feature {feature}"
    if properties.get(_MAPPING, "none") != "none":
        yield f"it has {_MAPPING} = {properties[_MAPPING]}"
    for name in (name for name in properties if name.startswith(_CONSTRAINT)):
        yield f"it has the constraint {name.removeprefix(_CONSTRAINT)}"
    yield from (
        f"column '{column['name']}' has {name}"
        for column in json.loads(table.schema().to_json())["fields"]
        for name in column["metadata"]  # invariants, generated and identity columns, defaults
        if name.startswith("delta.") or name in _COLUMN_FEATURES
    )
    if remembers and _RETENTION in properties:
        yield f"it forgets transactions: {_RETENTION} = {properties[_RETENTION]}"
    for name in _UPSERTS_REFUSED if has_key else ():
        if properties.get(name, "false").lower() == "true":
            yield f"rows have a key, and it has {name} = true"
    if has_key and "deletionVectors" in features:
        yield "rows have a key, and it has the feature deletionVectors"


def _stored(field: "pa.Field[Any]") -> "pa.Field[Any]":
    wanted = plain_field(field.name, field, _signed)
    try:
        return pa.schema(library().Schema.from_arrow(pa.schema([wanted]))).field(0)
    except SinkFailed:
        raise
    except Exception as error:
        raise InvalidSchema(
            f"column '{field.name}': found {field.type}; Delta has no such type"
        ) from error


def _signed(kind: pa.DataType) -> pa.DataType:
    """Replace types that delta-rs would take for others by one that it refuses."""
    is_other = pa.types.is_unsigned_integer(kind) or pa.types.is_null(kind)
    return pa.float16() if is_other else kind


def _expirable(table: Any, log_files: Sequence[fs.FileInfo]) -> int:
    """Count the entries that would go once the newest version has a checkpoint.

    Those before the last checkpoint that is no newer than the first version to keep.
    """
    found = _INTERVAL.fullmatch(table.metadata().configuration.get(_LOG_RETENTION, _LOG_KEPT))
    age = int(found[1]) * _SECONDS[found[2]] if found else 30 * _SECONDS["day"]
    newest: int = table.version()
    keep, checkpoints = newest, {newest}
    for file in log_files:
        if name := _LOG_FILE.fullmatch(file.base_name):
            if name[2] != "json":
                checkpoints.add(int(name[1]))
            if (file.mtime_ns or 0) >= (time.time() - age) * 1e9:
                keep = min(keep, int(name[1]))
    last = max((each for each in checkpoints if each <= keep), default=0)
    return sum(version < last for version in _entries(log_files))


def _entries(log_files: Sequence[fs.FileInfo]) -> set[int]:
    names = [_LOG_FILE.fullmatch(file.base_name) for file in log_files]
    return {int(name[1]) for name in names if name is not None and name[2] == "json"}
