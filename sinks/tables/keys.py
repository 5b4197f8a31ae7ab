"""Rows that say what becomes of the rows of their key: replaced, or gone. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sinks.columns import Fitted, fit
from topology.errors import InvalidSchema
from topology.sink import Piece

_KEYS = "whole numbers, text, bytes, dates, timestamps, decimals and bool"
_PLACE = "place"  # of a row; key columns are called "0", "1", …


class KeyedRows:
    """Rows with a key, and perhaps with a column that says that the key's rows are to go."""

    def __init__(
        self, table: str, schema: pa.Schema, key: Sequence[str], deleted: str | None
    ) -> None:
        """Raises InvalidSchema: a column is not there, or of no type for this."""
        self.schema = schema
        self.key = tuple(key)
        self.deleted = deleted
        reason = self._key_reason() or self._deleted_reason()
        if reason:
            raise InvalidSchema(f"table '{table}': {reason}")
        self.stored = pa.schema([field for field in schema if field.name != deleted])
        """What the table has: all columns but the one that says what is to go."""
        self.loose = pa.schema([self._loosened(field) for field in schema])
        self._required = [
            field for field in self.stored if not field.nullable and field.name not in self.key
        ]

    def fit(self, pieces: Sequence[Piece]) -> Fitted:
        """As `columns.fit`, and: no key is null; of rows that delete only the key matters."""
        found = fit(pieces, self.loose)
        return found.without(self._wrongly_null(found.table)) if self.deleted else found

    def of_those_that_stay(self, table: pa.Table, wrong: Mapping[int, str]) -> dict[int, str]:
        """What is wrong with rows of a table, less those that only delete."""
        if self.deleted is None or not wrong:
            return dict(wrong)
        flags = table[self.deleted]
        return {row: reason for row, reason in wrong.items() if not flags[row].as_py()}

    def last(self, table: pa.Table) -> pa.Table:
        """Of rows that fit, the last one of each key."""
        keys = plain_keys(table, self.schema, self.key)
        names = keys.column_names
        places = keys.append_column(_PLACE, pa.array(np.arange(table.num_rows)))
        # With threads, the order of keys would differ from run to run.
        found = places.group_by(names, use_threads=False).aggregate([(_PLACE, "max")])
        return table.take(pa.array(np.sort(found[f"{_PLACE}_max"].to_numpy())))

    def _key_reason(self) -> str | None:
        names = ", ".join(self.schema.names)
        if not self.key or len(set(self.key)) != len(self.key):
            return f"key is {list(self.key)}; allowed are one or more of {names}, each once"
        for name in self.key:
            if name not in self.schema.names or name == self.deleted:
                return f"key is {list(self.key)}; allowed are one or more of {names}"
            kind = self.schema.field(name).type
            if plain_key_type(kind) is None:
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
        """Rows that stay and have a null where the schema wants none, each with the reason."""
        stays = pc.invert(is_true(table[str(self.deleted)]))
        wrong: dict[int, str] = {}
        for field in self._required:
            bad = pc.and_(stays, table[field.name].is_null())
            reason = (
                f"column '{field.name}': found None; "
                f"allowed is {field.type}, not null, unless '{self.deleted}' is true"
            )
            wrong = dict.fromkeys(pc.indices_nonzero(bad).to_pylist(), reason) | wrong
        return wrong


def plain_keys(table: pa.Table, schema: pa.Schema, key: Sequence[str]) -> pa.Table:
    """Those of the key's columns that are there, in types by which values can be compared.

    They are called "0", "1", …, by their place in the key. Two values are equal in these types
    if the table has them as equal.
    """
    return pa.table(
        {
            str(place): _plain(table[name], schema.field(name).type)
            for place, name in enumerate(key)
            if name in table.column_names
        }
    )


def plain_key_type(kind: pa.DataType) -> pa.DataType | None:
    """The type in which values of a type are compared; None if they cannot be."""
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


def matches(table: pa.Table, keys: pa.Table) -> "pa.Array[Any]":
    """Which rows of `plain_keys` are among others; null is equal to nothing."""
    names = keys.column_names
    places = table.append_column(_PLACE, pa.array(np.arange(table.num_rows)))
    found = places.join(keys, keys=names, join_type="left semi")[_PLACE].to_numpy()
    mask = np.zeros(table.num_rows, np.bool_)
    mask[found] = True
    return pa.array(mask)


def _plain(column: "pa.ChunkedArray[Any]", kind: pa.DataType) -> "pa.ChunkedArray[Any]":
    wanted = plain_key_type(kind)
    # Times are cut to microseconds, as in the files.
    return column if column.type.equals(wanted) else column.cast(wanted, safe=False)


def is_true(flags: "pa.ChunkedArray[Any]") -> "pa.ChunkedArray[Any]":
    """Flags, of which none is null any more."""
    return flags.fill_null(pa.scalar(value=False))
