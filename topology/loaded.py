"""What is loaded of a reference table: its keys and columns, a dictionary, an index."""

from collections.abc import Iterable, Sequence
from types import MappingProxyType
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from topology.errors import ReferenceLoadFailed
from topology.places import Column, Places, key_column
from topology.stored_rows import StoredRows

_SHOWN = 3  # examples of wrong keys in a message


class Loaded:
    """One load of a reference table. Never changed, so any thread may look into it.

    Its dictionary and its index are made when they are first asked for: bolts that join need
    no dictionary, which takes about half a kilobyte a row, and those that look up need no index.
    """

    def __init__(self, keys: list[Column], values: pa.RecordBatch, *, single: bool) -> None:
        self.keys = keys
        self.values = values
        self.places = Places(keys)
        self.stored: StoredRows | None = None
        """What a state that follows its own commits was loaded from."""
        self._single = single
        self._rows: dict[Any, Any] | None = None

    @property
    def num_rows(self) -> int:
        """How many rows it has."""
        return len(self.keys[0])

    @property
    def has_rows(self) -> bool:
        """Whether its dictionary has been made."""
        return self._rows is not None

    def with_rows(self, newer: "Loaded") -> "Loaded":
        """This load with the rows of another, which take the place of those of the same keys."""
        kept = pc.is_null(newer.places.of(self.keys))
        keys = [
            pa.concat_arrays([ours.filter(kept), theirs])
            for ours, theirs in zip(self.keys, newer.keys, strict=True)
        ]
        values = pa.RecordBatch.from_arrays(
            [
                pa.concat_arrays([ours.filter(kept), theirs])
                for ours, theirs in zip(self.values.columns, newer.values.columns, strict=True)
            ],
            schema=self.values.schema,
        )
        whole = Loaded(keys, values, single=self._single)
        whole.stored = self.stored
        if self._rows is not None:  # a new one: who looks into the old one sees one load
            whole._rows = {**self._rows, **newer.rows()}
        return whole

    def rows(self) -> dict[Any, Any]:
        """The rows by their keys: a read-only mapping of the columns, or one column's value."""
        if self._rows is None:
            lists = [key.to_pylist() for key in self.keys]
            keys: Iterable[Any] = lists[0] if len(lists) == 1 else zip(*lists, strict=True)
            columns = [column.to_pylist() for column in self.values.columns]
            values: Iterable[Any]
            if self._single:
                values = columns[0]
            elif columns:
                names = self.values.schema.names
                values = (
                    MappingProxyType(dict(zip(names, row, strict=True)))
                    for row in zip(*columns, strict=True)
                )
            else:
                values = [MappingProxyType({})] * self.num_rows
            self._rows = dict(zip(keys, values, strict=True))
        return self._rows


def loaded_from(
    table: pa.Table,
    *,
    reference: str,
    key: Sequence[str],
    value: str | None,
    columns: Sequence[str] | None,
    max_rows: int,
) -> Loaded:
    """Make a load of a table; columns that are not wanted are left out.

    Raises ReferenceLoadFailed: too many rows, a column that is missing, a key that is null, is
    there twice, or is of a type that cannot be looked up.
    """
    if table.num_rows > max_rows:
        reason = f"more than {max_rows} rows; raise max_rows= if they fit into memory"
        raise ReferenceLoadFailed(reference, reason)
    others = [value] if value is not None else columns
    if others is None:
        others = [name for name in table.column_names if name not in key]
    for name in (*key, *others):
        count = table.column_names.count(name)
        if count != 1:
            there = ", ".join(table.column_names)
            reason = f"{count} columns '{name}', where one is needed; there are {there}"
            raise ReferenceLoadFailed(reference, reason)
    keys = [_key(reference, name, _whole(table.column(name))) for name in key]
    _check_keys(reference, key, keys)
    arrays = [_whole(table.column(name)) for name in others]
    values = pa.RecordBatch.from_arrays(arrays, names=list(others))
    return Loaded(keys, values, single=value is not None)


def _key(reference: str, name: str, column: Column) -> Column:
    found = key_column(column)
    if found is None:
        raise ReferenceLoadFailed(
            reference,
            f"the key '{name}' is {column.type}; text, bytes, whole numbers, booleans, "
            "decimals, dates and timestamps are allowed",
        )
    return found


def _check_keys(reference: str, key: Sequence[str], keys: list[Column]) -> None:
    nulls = sum(column.null_count for column in keys)
    if nulls:
        reason = f"{nulls} keys {list(key)} are null; a key must not be"
        raise ReferenceLoadFailed(reference, reason)
    names = [str(place) for place in range(len(keys))]
    counts = pa.table(keys, names=names).group_by(names).aggregate([([], "count_all")])
    if counts.num_rows == len(keys[0]):
        return
    twice = [row for row in counts.to_pylist() if row["count_all"] > 1]
    shown = ", ".join(
        repr(row["0"] if len(names) == 1 else tuple(row[name] for name in names))
        for row in twice[:_SHOWN]
    )
    more = ", …" if len(twice) > _SHOWN else ""
    reason = f"{len(twice)} keys {list(key)} are there more than once: {shown}{more}"
    raise ReferenceLoadFailed(reference, reason)


def _whole(column: "pa.ChunkedArray[Any]") -> Column:
    """A table's column in one piece."""
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
