"""Delta Lake tables, committed by delta-rs. No JVM."""

import json
import re
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from importlib.metadata import version
from typing import Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from sinks.columns import Fitted
from sinks.names import OnNewColumns, is_uri
from sinks.probe import plain_message, probe
from sinks.storage import Storage
from sinks.tables.delta_limits import library, obstacles, stored
from sinks.tables.delta_maintenance import entries_among, expirable, small_files, vacuum
from sinks.tables.entries import OURS, LogEntries
from sinks.tables.files import DataFile, FileStager, write_good_rows
from sinks.tables.keys import KeyedRows, is_true, matches, plain_keys
from sinks.tables.log import Conflict, TableLog, TableState
from sinks.tables.partitioning import can_partition, check_partitions
from sinks.tables.table import TableSink
from topology.errors import SinkFailed
from topology.schema import Row
from topology.sink import Compaction, Piece, Removal, SinkContext, Staged

_VERSION = version("headrace")
_REFUSED = "Failed to commit transaction"  # how delta-rs says that the version is there already
_ESCAPED = re.compile("%[0-9A-Fa-f]{2}")
_CLEANED_EVERY = 100  # versions
_AT_ONCE = 8  # applications whose txids are read
_DELETED = "_deleted"  # the source's column, beside the table's


class DeltaSink(TableSink[Row]):
    """Writes a Delta Lake table on a local disk or an object store.

    With a `key`, a row replaces all rows that have its key, and one in which the column
    `deleted` is true only removes them; that column itself is not stored. Of a key's rows in one
    micro-batch the last counts. Files that hold such keys are written anew.
    """

    made_by = "DeltaSink"

    def __init__(
        self,
        table: str,
        *,
        schema: type[Row] | pa.Schema,
        partition_by: Sequence[str] = (),
        key: Sequence[str] = (),
        deleted: str | None = None,
        on_new_columns: OnNewColumns = "reject",
    ) -> None:
        """Only stores; the schema's type is the type of the rows. Raises InvalidSchema.

        `on_new_columns` says what becomes of columns that the schema has and the table lacks:
        "add" adds them to the table, "reject" refuses to open it.
        """
        super().__init__(
            table, schema=schema, partition_by=partition_by, on_new_columns=on_new_columns
        )
        self._keyed: KeyedRows | None = None
        if key or deleted is not None:
            keys = [key] if isinstance(key, str) else [*key]
            self._keyed = KeyedRows(table, self.schema, keys, deleted)
            self.stored, self.row_schema = self._keyed.stored, self._keyed.loose
        check_partitions(table, self.stored, self.partition_by, can_partition, leaves_some=True)

    def stager(self) -> FileStager | None:
        """See the contract. None with a key: the last row of each counts."""
        return None if self._keyed is not None else super().stager()

    def _make_log(self, context: SinkContext, uri: str) -> "DeltaLog":
        if context.exactly_once and is_uri(uri):
            probe(replace(context.storage, warehouse=uri))
        self._delta = DeltaLog(
            self.table,
            context.storage,
            uri,
            remembers=context.exactly_once,
            key=self._keyed.key if self._keyed else (),
        )
        return self._delta

    def _put(self, pieces: Sequence[Piece], number: int) -> tuple[tuple[Any, ...], Fitted]:
        if self._keyed is None:
            return super()._put(pieces, number)
        fitted = self._keyed.fit(pieces)
        layout = self._fenced_writer().layout
        wrong = self._keyed.of_those_that_stay(
            fitted.table, layout.misfits(fitted.table, self.stored)
        )
        changes, fitted = write_good_rows(fitted.without(wrong), self._changes, lambda _: None)
        return ((changes,) if changes.num_rows else ()), fitted

    def _changes(self, rows: pa.Table) -> pa.Table:
        """What rows do to the table, as the source of a merge."""
        if self._keyed is None:
            raise AssertionError
        last, gone = self._keyed.last(rows), self._keyed.deleted
        flags = is_true(last[gone]) if gone else pa.array(np.zeros(last.num_rows, np.bool_))
        stored = last.select(self.stored.names).cast(self._wanted, safe=False)
        return stored.append_column(_DELETED, flags)

    def _commit_once(self, staged: Staged, land: Callable[[TableState], object]) -> None:
        self._state = None  # only a read sees that no entry was replaced
        super()._commit_once(staged, land)

    def _land(
        self, state: TableState, parts: Sequence[Any], transactions: Mapping[str, int]
    ) -> None:
        if self._keyed is None or not parts:
            super()._land(state, parts, transactions)
            return
        self._state = None
        self._delta.merge(state, parts[0], transactions)


class DeltaLog(TableLog):
    """A Delta log, read and written by delta-rs.

    A commit goes on top of the version that was read, without delta-rs's own retries, so what was
    decided by that version holds. Each read sees that the entry that was read or put last is still
    there: one that somebody has replaced would take rows with it in silence.

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
        self._name, self._storage, self._uri = name, storage, uri
        self._remembers, self._key = remembers, tuple(key)
        self._id = uuid.uuid4().hex  # in each entry that we put, and in no other's
        self._options: dict[str, str] = {}  # what delta-rs was given
        self.forget()
        self.ends_at_once = self._entries.is_local

    def forget(self) -> None:
        """Open the table anew when it is next read."""
        self._entries = LogEntries(self._name, self._storage, self._uri)
        self._table: Any = None
        self._state: TableState | None = None
        self._facts: Any = None  # what `_state` was made of
        self._newest = -1  # the version that was read or committed last
        self._mark = ""  # what its entry has in it, and one in its place has not
        self._versions: dict[str, int | None] = {}  # of applications, by then

    def stored(self, schema: pa.Schema) -> pa.Schema:
        """See the contract."""
        return stored(schema)

    def read(self) -> TableState | None:
        """See the contract."""
        known = self._state
        options = self._storage.object_store_options(self._uri)
        newest, mark = self._newest, self._mark
        if known is not None and options == self._options and self._caught_up():
            return self._read(known)
        if known is None:
            if found := _ESCAPED.search(self._uri):
                raise SinkFailed(
                    f"table '{self._name}' at {self._uri}: delta-rs takes '{found[0]}' for a "
                    "character that is escaped; a path without it is allowed, or use SparkSink"
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
            f"table '{self._name}': another writer has replaced the log entry of version "
            f"{newest}; rows may be gone with it"
        )

    def create(self, schema: pa.Schema, partition_by: Sequence[str]) -> TableState:
        """See the contract."""
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
        """See the contract."""
        columns = library().Schema.from_arrow(pa.schema(fields)).fields
        with _refusing():
            state.native.alter.add_columns(columns, commit_properties=self._properties({}))
        return self._again()

    def transactions(self, state: TableState, apps: Sequence[str]) -> dict[str, int]:
        """See the contract."""
        if new := [app for app in apps if app not in self._versions]:
            with ThreadPoolExecutor(_AT_ONCE) as pool:  # each reads entries, to the last checkpoint
                found = pool.map(state.native.transaction_version, new)
                self._versions |= zip(new, found, strict=True)
        known = {app: self._versions[app] for app in apps}
        return {app: version for app, version in known.items() if version is not None}

    def commit(
        self, state: TableState, files: Sequence[DataFile], transactions: Mapping[str, int]
    ) -> None:
        """See the contract. delta-rs does not tell its handle of a commit: it reads it, too."""
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

        `rows` have the table's columns, and one more that says which only remove. Raises as
        `commit`. The files are synced after the commit, before this answers.
        """
        self._check_newest(state)
        names = [name for name in rows.column_names if name != _DELETED]
        columns = {_quoted(name): f"s.{_quoted(name)}" for name in names}
        with _refusing():
            state.native.merge(
                rows,
                " AND ".join(f"t.{_quoted(name)} = s.{_quoted(name)}" for name in self._key),
                source_alias="s",
                target_alias="t",
                streamed_exec=False,  # so that files which hold none of the keys are left alone
                writer_properties=_merged_files(state.schema),
                commit_properties=self._properties(transactions),
                post_commithook_properties=_hooks(state),
            ).when_matched_delete(f"s.{_DELETED}").when_matched_update(
                columns
            ).when_not_matched_insert(columns, predicate=f"NOT s.{_DELETED}").execute()
        if state.native.version() == state.version:  # no row of the table has any of the keys
            self.commit(state, (), transactions)
        else:
            self._committed(state.version + 1, transactions)

    def rows(self, state: TableState, keys: pa.Table | None = None) -> pa.Table:
        """The rows of the table, or those that have one of some keys (of the columns they have)."""
        filesystem, root = self._storage.filesystem(self._uri)
        found = [state.schema.empty_table()]
        for path in self._paths(state, keys):
            rows = pq.read_table(f"{root}/{path}", filesystem=filesystem)
            rows = rows.select(state.schema.names).cast(state.schema)
            if keys is not None:
                names = keys.column_names
                wanted = plain_keys(keys, keys.schema, names)
                rows = rows.filter(matches(plain_keys(rows, state.schema, names), wanted))
            found.append(rows)
        return pa.concat_tables(found)

    def _paths(self, state: TableState, keys: pa.Table | None = None) -> list[str]:
        """The table's files, without those whose bounds say that they have none of the keys."""
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
        """See the contract."""
        is_local = self._entries.is_local
        return self._entries.turn() if is_local else super().turn(pause_seconds)

    def sync(self) -> None:
        """See the contract. What others have committed is part of it."""
        self._entries.sync_to(self._newest)

    def named(self, base: int, state: TableState, paths: Collection[str]) -> set[str]:
        """See the contract."""
        return self._entries.adding(base + 1, state.version, paths)

    def files(self, state: TableState) -> list[str]:
        """See the contract."""
        return [f"{self._uri}/{path}" for path in self._paths(state)]

    def compact(self, state: TableState, target_bytes: int) -> Compaction:
        """See the contract. What the files were stays until a vacuum."""
        self._check_newest(state)
        with _refusing():
            done = state.native.optimize.compact(
                target_size=target_bytes,
                writer_properties=_merged_files(state.schema),
                commit_properties=self._properties({}),
            )
        self._again()
        removed = json.loads(done["filesRemoved"])
        return Compaction(done["numFilesRemoved"], done["numFilesAdded"], removed["totalSize"])

    def small_files(self, state: TableState, target_bytes: int) -> dict[Any, list[int]]:
        """See the contract."""
        return small_files(state.native, target_bytes)

    def vacuum(self, state: TableState, older_than_hours: int, *, dry_run: bool) -> Removal:
        """See the contract."""
        self._check_newest(state)
        mark = library().CommitProperties(custom_metadata={OURS: _VERSION})
        with _refusing():
            removed = vacuum(state.native, older_than_hours, mark, dry_run=dry_run)
        self._again()
        return removed

    def expire(self, state: TableState, *, dry_run: bool) -> Removal:
        """Remove entries of the log. The checkpoint that holds their content is synced before."""
        before = self._entries.files()
        if dry_run:
            return Removal(expirable(state.native, before), 0)
        self.sync()
        state.native.create_checkpoint()
        self._entries.sync_checkpoint(state.version)
        state.native.cleanup_metadata()
        return Removal(len(entries_among(before) - entries_among(self._entries.files())), 0)

    def _properties(self, transactions: Mapping[str, int]) -> Any:
        return library().CommitProperties(
            custom_metadata={OURS: f"{_VERSION} {self._id}"},
            max_commit_retries=0,
            app_transactions=[
                library().Transaction(app, version) for app, version in transactions.items()
            ],
        )

    def _again(self) -> TableState:
        state = self.read()
        if state is None:
            raise SinkFailed(f"table '{self._name}' was removed while it was written")
        return state

    def _caught_up(self) -> bool:
        """Have the handle read what is new; False if the newest entry is not as it was."""
        with ThreadPoolExecutor(1) as pool:  # a store is asked for both at the same time
            entry = pool.submit(self._entries.text, self._newest)
            try:
                self._table.update_incremental()
            except Exception:
                if self._mark in entry.result():
                    raise
            return self._mark in entry.result()

    def _read(self, known: TableState | None) -> TableState:
        """What the handle has come to."""
        table = self._table
        metadata, protocol = table.metadata(), table.protocol()
        schema = table.schema().to_json()
        facts = (metadata.id, schema, metadata.partition_columns, metadata.configuration, protocol)
        if known is not None and facts == self._facts:
            arrow = known.schema
        else:
            reason = next(
                obstacles(table, remembers=self._remembers, has_key=bool(self._key)), None
            )
            if reason is not None:
                self.forget()
                raise SinkFailed(f"table '{self._name}' at {self._uri}: {reason}; use SparkSink")
            arrow = pa.schema(table.schema())
        self._facts = facts
        if table.version() != self._newest:
            self._mark, self._newest = self._entries.text_of_read(table.version()), table.version()
            self._versions = {}
        self._state = TableState(
            metadata.id, self._newest, arrow, tuple(metadata.partition_columns), table
        )
        return self._state

    def _committed(self, version: int, transactions: Mapping[str, int]) -> None:
        self._newest, self._mark = version, self._id
        self._versions |= transactions

    def _check_newest(self, state: TableState) -> None:
        """Raise Conflict unless this is what was read last, and nothing was committed since."""
        if self._state is not state or self._newest != state.version:
            raise Conflict


@contextmanager
def _refusing() -> Iterator[None]:
    """Raise Conflict for what delta-rs says when the next version is there already."""
    try:
        yield
    except library().exceptions.CommitFailedError as error:
        if str(error).startswith(_REFUSED):
            raise Conflict from error
        raise
    except OSError as error:
        raise OSError(plain_message(error)) from error


def _hooks(state: TableState) -> Any:
    """What delta-rs does after a commit: to look for old entries takes one more listing."""
    cleans = None if state.version % _CLEANED_EVERY == 0 else False
    return library().PostCommitHookProperties(cleanup_expired_logs=cleans)


def _merged_files(schema: pa.Schema) -> Any:
    """How delta-rs writes files: no bounds of columns that may have a NaN (see files.py)."""
    floats = [field.name for field in schema if pa.types.is_floating(field.type)]
    none = library().ColumnProperties(statistics_enabled="NONE")
    return library().WriterProperties(column_properties=dict.fromkeys(floats, none))


def _any_between(values: Any, low: Any, high: Any) -> bool:
    return bool(pc.any(pc.and_(pc.greater_equal(values, low), pc.less_equal(values, high))).as_py())


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
