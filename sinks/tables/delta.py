"""DeltaSink: Delta Lake tables, committed by delta-rs. No JVM."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sinks.columns import Fitted, fit
from sinks.names import OnNewColumns, is_uri
from sinks.probe import probe
from sinks.tables.delta_log import DELETED, DeltaLog
from sinks.tables.files import FileStager, write_good_rows
from sinks.tables.log import TableState
from sinks.tables.partitioning import can_partition, check_partitions
from sinks.tables.table import TableSink
from topology.errors import InvalidSchema
from topology.schema import Row
from topology.sink import Batch, Piece, SinkContext, Staged

_KEYS = "whole numbers, text, bytes, dates, timestamps, decimals and bool"
_INDEX = "index"  # of a row; key columns are called "0", "1", …


class DeltaSink(TableSink[Row]):
    """Writes a Delta Lake table on a local disk or an object store.

    With a `key`, a row replaces all rows that have its key, and one in which the column
    `deleted` is true only removes them; that column itself is not stored. Of a key's rows in one
    micro-batch the last counts. Files that hold such keys are rewritten.
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

        `on_new_columns` decides on columns that the schema has and the table lacks:
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

    def stage(self, batch: Batch) -> Staged:
        """See the contract. With a key the part is the source of a merge."""
        if self._keyed is None:
            return super().stage(batch)
        fitted = self._keyed.fit(batch.pieces)
        misfits = self._fenced_stager().layout.misfits(fitted.table, self.stored)
        fitted = fitted.without(self._keyed.of_those_that_stay(fitted.table, misfits))
        changes, fitted = write_good_rows(fitted, self._changes, lambda _: None)
        parts = (changes,) if changes.num_rows else ()
        return Staged(batch.shares, fitted.table.num_rows, parts, fitted.rejected)

    def _make_log(self, context: SinkContext, uri: str) -> DeltaLog:
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

    def _changes(self, rows: pa.Table) -> pa.Table:
        """Make the source of a merge of rows."""
        if self._keyed is None:
            raise AssertionError
        last, gone = self._keyed.last(rows), self._keyed.deleted
        flags = _is_true(last[gone]) if gone else pa.array(np.zeros(last.num_rows, np.bool_))
        stored = last.select(self.stored.names).cast(self._wanted, safe=False)
        return stored.append_column(DELETED, flags)

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


class KeyedRows:
    """Rows with a key, and perhaps a column that says that the key's rows are removed. Pure."""

    def __init__(
        self, table: str, schema: pa.Schema, key: Sequence[str], deleted: str | None
    ) -> None:
        """Raises InvalidSchema: a column is missing, or of no type for this."""
        self.schema = schema
        self.key = tuple(key)
        self.deleted = deleted
        reason = self._key_reason() or self._deleted_reason()
        if reason:
            raise InvalidSchema(f"table '{table}': {reason}")
        self.stored = pa.schema([field for field in schema if field.name != deleted])
        """All columns but the one for deletions."""
        self.loose = pa.schema([self._loosened(field) for field in schema])
        self._required = [
            field for field in self.stored if not field.nullable and field.name not in self.key
        ]

    def fit(self, pieces: Sequence[Piece]) -> Fitted:
        """As `columns.fit`, and: no key is null; of rows that delete only the key matters."""
        found = fit(pieces, self.loose)
        return found.without(self._wrongly_null(found.table)) if self.deleted else found

    def of_those_that_stay(self, table: pa.Table, wrong: Mapping[int, str]) -> dict[int, str]:
        """Return the faults of a table's rows, less those of rows that only delete."""
        if self.deleted is None or not wrong:
            return dict(wrong)
        flags = table[self.deleted]
        return {row: reason for row, reason in wrong.items() if not flags[row].as_py()}

    def last(self, table: pa.Table) -> pa.Table:
        """Return the last row of each key, of rows that fit."""
        kinds: list[Any] = [_key_type(self.schema.field(name).type) for name in self.key]
        keys = pa.table(
            {  # times are cut to microseconds, as in the files
                str(place): table[name].cast(kinds[place], safe=False)
                for place, name in enumerate(self.key)
            }
        )
        indexes = keys.append_column(_INDEX, pa.array(np.arange(table.num_rows)))
        # With threads, the order of keys would differ from run to run.
        groups = indexes.group_by(keys.column_names, use_threads=False)
        found = groups.aggregate([(_INDEX, "max")])[f"{_INDEX}_max"]
        return table.take(pa.array(np.sort(found.to_numpy())))

    def _key_reason(self) -> str | None:
        names = ", ".join(self.schema.names)
        if not self.key or len(set(self.key)) != len(self.key):
            return f"key is {list(self.key)}; allowed are one or more of {names}, each once"
        for name in self.key:
            if name not in self.schema.names or name == self.deleted:
                return f"key is {list(self.key)}; allowed are one or more of {names}"
            kind = self.schema.field(name).type
            if _key_type(kind) is None:
                return f"key column '{name}': found {kind}; allowed are {_KEYS}"
        return None

    def _deleted_reason(self) -> str | None:
        if self.deleted is None:
            return None
        names = ", ".join(self.schema.names)
        if self.deleted not in self.schema.names:
            return f"deleted is '{self.deleted}'; allowed is a column of bool, one of {names}"
        kind = self.schema.field(self.deleted).type
        if not pa.types.is_boolean(kind):
            return f"deleted column '{self.deleted}': found {kind}; allowed is bool"
        return None

    def _loosened(self, field: "pa.Field[Any]") -> "pa.Field[Any]":
        if field.name in self.key:
            return field.with_nullable(nullable=False)
        return field if self.deleted is None else field.with_nullable(nullable=True)

    def _wrongly_null(self, table: pa.Table) -> dict[int, str]:
        """Return rows that stay and have a null where none is allowed, each with the reason."""
        stays = pc.invert(_is_true(table[str(self.deleted)]))
        wrong: dict[int, str] = {}
        for field in self._required:
            bad = pc.and_(stays, table[field.name].is_null())
            reason = (
                f"column '{field.name}': found None; "
                f"allowed is {field.type}, not null, unless '{self.deleted}' is true"
            )
            wrong = dict.fromkeys(pc.indices_nonzero(bad).to_pylist(), reason) | wrong
        return wrong


def _is_true(flags: "pa.ChunkedArray[Any]") -> "pa.ChunkedArray[Any]":
    return flags.fill_null(pa.scalar(value=False))


def _key_type(kind: pa.DataType) -> pa.DataType | None:
    """Return the type in which values of a type are compared; None if they cannot be."""
    if isinstance(kind, pa.DictionaryType):
        kind = kind.value_type
    types = pa.types
    if isinstance(kind, pa.TimestampType):
        return pa.timestamp("us", None if kind.tz is None else "UTC")
    if types.is_integer(kind):
        return pa.int64()
    if types.is_string(kind) or types.is_large_string(kind):
        return pa.string()
    if types.is_binary(kind) or types.is_large_binary(kind):
        return pa.binary()
    is_plain = types.is_date32(kind) or types.is_boolean(kind) or types.is_decimal128(kind)
    return kind if is_plain else None
