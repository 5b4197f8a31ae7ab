"""Aggregate rows by key and line, and merge the result into a state's stored rows. Pure.

The rules are Trident's. A value is stored with the txid of the last transaction that changed it,
in its line. Under "transactional", a repeated transaction has the same records: a value that has
its txid has them. Under "opaque" it may have others: they are merged into the value before it,
which is stored for that. A store that changes all rows and its lines' txids at once never sees a
txid again; the rules hold for what a store has lost or kept of its own.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from sinks.columns import fit, rows_of
from topology.aggregates import Aggregate, Combiner, Extreme, Reducer, Sum
from topology.errors import AggregateFailed
from topology.sink import Piece
from topology.state import LINE, TXID, Shape, before_of, grouped
from topology.vectorised import as_row

_NO_ROW = "a row is a mapping of columns, a dataclass or a msgspec.Struct"
Indexes = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class LineRows:
    """Number of rows of one line's transaction; txid 0: they are of none."""

    line: str
    txid: int
    num_rows: int


@dataclass(frozen=True, slots=True)
class Deltas:
    """Changes to merge into a state: one row for each key and line that has any."""

    keys: pa.Table  # of `Shape.row_schema`, each once
    txids: Indexes
    values: Mapping[str, "pa.Array[Any]"]  # by aggregate, but for reducers
    rows: Sequence[Sequence[Any]]  # the rows that reducers get; empty if there are none


class Aggregation:
    """Aggregates rows before they are merged into a state. Stateless; any thread may call.

    `refused` returns the rows that the store cannot hold (`StateStore.refused`).
    """

    def __init__(self, shape: Shape, refused: Callable[[pa.Table], Mapping[int, str]]) -> None:
        self._shape = shape
        self._refused = refused
        self._sources = {name: name for name in shape.key.names}  # by column, a row's field
        self._ones: dict[str, Callable[[Any], Any]] = {}
        fields = list(shape.key)
        for name, each in shape.aggregates.items():
            if isinstance(each, Sum | Extreme) and each.field is not None:
                self._sources[name] = each.field
                fields.append(pa.field(name, each.type))
            elif isinstance(each, Combiner):
                self._ones[name] = each.one
                fields.append(pa.field(name, each.type, nullable=False))
        self._schema = pa.schema(fields)

    def of(
        self, pieces: Sequence[Piece], lines: Sequence[LineRows]
    ) -> tuple[Deltas, int, dict[int, str]]:
        """Aggregate rows, those of one line after the other's.

        Returns also how many rows fit, and by index why the others do not. Raises
        AggregateFailed.
        """
        table, indexes, rejected = self._fitted(pieces)
        numbers = np.repeat(np.arange(len(lines)), [each.num_rows for each in lines])[indexes]
        columns: list[Any] = [table[name] for name in self._shape.key.names]
        firsts, groups = grouped([*columns, pa.array(numbers)])
        values = {}
        rows: list[list[Any]] = []
        for name, each in self._shape.aggregates.items():
            if isinstance(each, Reducer):
                rows = rows or _by_group(pieces, indexes, groups, len(firsts))
            elif name in table.column_names:
                values[name] = each.merged(table[name].combine_chunks(), groups)
            else:
                values[name] = each.merged(pa.array(np.ones(len(indexes), np.int64)), groups)
        its = [lines[number] for number in numbers[firsts.to_numpy()]]
        keys = [
            *(column.take(firsts) for column in columns),
            pa.array([each.line for each in its], pa.string()),
        ]
        txids = np.array([each.txid for each in its], np.int64)
        deltas = Deltas(pa.table(keys, schema=self._shape.row_schema), txids, values, rows)
        return deltas, len(indexes), rejected

    def _fitted(self, pieces: Sequence[Piece]) -> tuple[pa.Table, Indexes, dict[int, str]]:
        faults: dict[int, str] = {}
        picked: list[Piece] = []
        num_rows = 0
        for piece in pieces:
            if isinstance(piece, pa.RecordBatch) and not self._ones:
                picked.append(self._columns(piece))
            else:
                rows = enumerate(rows_of([piece]), start=num_rows)
                picked.append([self._row(row, index, faults) for index, row in rows])
            num_rows += len(piece)
        fitted = fit(picked, self._schema)
        fitted = fitted.without(self._refused(fitted.table))
        rejected = fitted.rejected | faults
        return fitted.table, np.delete(np.arange(num_rows), list(rejected)), rejected

    def _row(self, value: Any, index: int, faults: dict[int, str]) -> dict[str, Any]:
        """Return a row's columns; for a row with a fault none, so that it does not fit."""
        row = as_row(value)
        if row is None:
            faults[index] = _NO_ROW
            return {}
        picked = {name: row.get(field) for name, field in self._sources.items()}
        for name, one in self._ones.items():
            try:
                picked[name] = one(value)
            except Exception as error:  # noqa: BLE001 - a user's function may raise anything
                faults[index] = f"'{name}': {type(error).__name__}: {error}"
                return {}
        return picked

    def _columns(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return a batch's columns; a column that it lacks, or has twice, is null."""
        columns = []
        for name, field in self._sources.items():
            index = batch.schema.get_field_index(field)
            absent = pa.nulls(batch.num_rows, self._schema.field(name).type)
            columns.append(absent if index < 0 else batch.column(index))
        return pa.RecordBatch.from_arrays(columns, names=list(self._sources))


def _by_group(
    pieces: Sequence[Piece], indexes: Indexes, groups: Indexes, count: int
) -> list[list[Any]]:
    every = list(rows_of(pieces))
    rows: list[list[Any]] = [[] for _ in range(count)]
    for index, group in zip(indexes.tolist(), groups.tolist(), strict=True):
        rows[group].append(every[index])
    return rows


def merge(shape: Shape, deltas: Deltas, stored: pa.Table) -> pa.Table:
    """Return the new rows of the deltas' keys, made of the `stored` ones.

    Raises AggregateFailed: values cannot be merged, or a row has a later txid.
    """
    if shape.has_one_line:
        _check_lines(shape, deltas.keys, stored)
    found = row_indexes(deltas.keys, stored, shape.row_key)
    stored_txids: Any = stored[TXID].combine_chunks().take(found)
    txids = stored_txids.fill_null(-1).to_numpy()
    later = np.flatnonzero((deltas.txids > 0) & (txids > deltas.txids))
    if len(later):
        index = int(later[0])
        row = deltas.keys.slice(index, 1).to_pylist()[0]
        raise AggregateFailed(
            f"state '{shape.state}': {row} is of txid {txids[index]}, after {deltas.txids[index]}"
        )
    again = (deltas.txids > 0) & (txids == deltas.txids)
    columns: dict[str, Any] = {name: deltas.keys[name] for name in shape.row_key}
    for name, aggregate in shape.aggregates.items():
        now = stored[name].combine_chunks().take(found)
        base = now
        if shape.layout == "opaque":
            before = stored[before_of(name)].combine_chunks().take(found)
            columns[before_of(name)] = base = _chosen(again, before, now)
        try:
            merged = _merged(name, aggregate, base, deltas)
        except AggregateFailed as error:
            raise AggregateFailed(f"state '{shape.state}', '{name}': {error}") from error
        is_kept = shape.layout == "transactional"
        columns[name] = _chosen(again, now, merged) if is_kept else merged
    columns[TXID] = pa.array(deltas.txids)
    return pa.table([columns[name] for name in shape.schema.names], schema=shape.schema)


def _check_lines(shape: Shape, keys: pa.Table, stored: pa.Table) -> None:
    rows = pa.concat_tables([keys, stored.select(shape.row_key)])
    counted = rows.group_by(shape.key.names, use_threads=False)
    lines = counted.aggregate([(LINE, "min"), (LINE, "max")])
    for row in lines.filter(pc.not_equal(lines[f"{LINE}_min"], lines[f"{LINE}_max"])).to_pylist():
        found = {name: row[name] for name in shape.key.names}
        raise AggregateFailed(
            f"state '{shape.state}': {found} has rows of {row[f'{LINE}_min']} and of "
            f"{row[f'{LINE}_max']}, whose values a reducer cannot merge; give it merge=, or have "
            "each key in one partition"
        )


def row_indexes(keys: pa.Table, rows: pa.Table, names: Sequence[str]) -> "pa.Array[Any]":
    """Return the index of each key's row; null: there is none. Both have each key once."""
    both = [
        pa.chunked_array([*keys[name].chunks, *rows[name].chunks], keys.schema.field(name).type)
        for name in names
    ]
    _, groups = grouped(both)
    indexes = np.full(len(groups), -1, np.int64)
    indexes[groups[keys.num_rows :]] = np.arange(rows.num_rows)
    found = indexes[groups[: keys.num_rows]]
    column: pa.Array[Any] = pa.array(found, mask=found < 0)
    return column


def _merged(
    name: str, aggregate: Aggregate, base: "pa.Array[Any]", deltas: Deltas
) -> "pa.Array[Any]":
    if isinstance(aggregate, Reducer):
        return aggregate.reduced(base, deltas.rows)
    numbers = np.arange(len(base))
    both = pa.concat_arrays([base, deltas.values[name]])
    return aggregate.merged(both, np.concatenate([numbers, numbers]))


def _chosen(mask: Any, yes: "pa.Array[Any]", no: "pa.Array[Any]") -> "pa.Array[Any]":
    column: pa.Array[Any] = pc.if_else(pa.array(mask), yes, no) if mask.any() else no
    return column
