"""Rows that may have a key, and a column that says that the row of its key is removed. Pure."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sinks.columns import Fitted, fit
from topology.errors import InvalidSchema
from topology.sink import Piece

_INDEX = "index"  # of a row; key columns are called "0", "1", …


class KeyedRows:
    """The schema of rows, and the columns that are their key; without a key each row is its own."""

    def __init__(
        self,
        table: str,
        schema: pa.Schema,
        key: str | Sequence[str] = (),
        deleted: str | None = None,
    ) -> None:
        """Raises InvalidSchema: a column is missing, or of no type for this."""
        self.schema, self.deleted = schema, deleted
        self.key = (key,) if isinstance(key, str) else tuple(key)
        if reason := self._fault():
            raise InvalidSchema(f"table '{table}': {reason}")
        self.stored = pa.schema([field for field in schema if field.name != deleted])
        """All columns but the one for deletions."""
        loose = {field.name: field.nullable or deleted is not None for field in schema}
        loose |= dict.fromkeys(self.key, False)
        self.loose = pa.schema([field.with_nullable(loose[field.name]) for field in schema])
        """The schema of rows that may be deletions, which need only the key."""

    def fit(self, pieces: Sequence[Piece], not_null: Collection[str] = ()) -> Fitted:
        """As `columns.fit`, and: no key is null, nor a `not_null` column of a row that stays."""
        found = fit(pieces, self.loose)
        stays: Any = pa.scalar(value=True)
        if self.deleted is not None:
            stays = pc.invert(is_true(found.table[self.deleted]))
        wrong: dict[int, str] = {}
        for field in self.stored:
            if field.name in self.key or (field.nullable and field.name not in not_null):
                continue
            bad = pc.and_(stays, found.table[field.name].is_null())
            unless = "" if self.deleted is None else f", unless '{self.deleted}' is true"
            reason = f"column '{field.name}': found None, expected {field.type}, not null{unless}"
            wrong = dict.fromkeys(pc.indices_nonzero(bad).to_pylist(), reason) | wrong
        return found.without(wrong)

    def of_those_that_stay(self, table: pa.Table, wrong: Mapping[int, str]) -> dict[int, str]:
        """Return the faults of a table's rows, less those of rows that only delete."""
        if self.deleted is None or not wrong:
            return dict(wrong)
        flags = table[self.deleted]
        return {row: reason for row, reason in wrong.items() if not flags[row].as_py()}

    def last(self, table: pa.Table) -> pa.Table:
        kinds: list[Any] = [key_type(self.schema.field(name).type) for name in self.key]
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

    def _fault(self) -> str | None:
        names = [name for name in self.schema.names if name != self.deleted]
        is_missing = self.deleted is not None and not self.key
        if is_missing or len(set(self.key)) != len(self.key) or not set(self.key) <= set(names):
            allowed = ", ".join(names)
            return f"key is {[*self.key]}, expected one or more of {allowed}, each once"
        if self.deleted is None:
            return None
        if self.deleted not in self.schema.names:
            return f"deleted is '{self.deleted}', expected a column of bool"
        kind = self.schema.field(self.deleted).type
        if not pa.types.is_boolean(kind):
            return f"deleted column '{self.deleted}': found {kind}, expected bool"
        return None


def is_true(flags: "pa.ChunkedArray[Any]") -> "pa.ChunkedArray[Any]":
    return flags.fill_null(pa.scalar(value=False))


def key_type(kind: pa.DataType) -> pa.DataType | None:
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
