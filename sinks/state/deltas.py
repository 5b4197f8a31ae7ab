"""What the rows of a group add to a state, by key and line."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sinks.columns import fit
from sinks.rows import rows_of
from topology.aggregates import Combiner, Extreme, Reducer, Sum
from topology.sink import Piece
from topology.state import Shape, grouped
from topology.vectorised import as_row

_NO_ROW = "a row is a mapping of columns, a dataclass or a msgspec.Struct"


@dataclass(frozen=True, slots=True)
class Part:
    """The rows of one line's transaction; txid 0: they are of none."""

    line: str
    txid: int
    num_rows: int


@dataclass(frozen=True, slots=True)
class Deltas:
    """What is to be merged into a state: one row for each key and line that has any."""

    keys: pa.Table  # of `Shape.row_schema`, each once
    txids: npt.NDArray[np.int64]
    values: Mapping[str, "pa.Array[Any]"]  # by aggregate, but for those that are reduced
    rows: Sequence[Sequence[Any]]  # what those are reduced by; empty if there are none


class Aggregation:
    """Aggregates rows before they are merged into a state. Keeps nothing; any thread may call."""

    def __init__(self, shape: Shape, refused: Callable[[pa.Table], Mapping[int, str]]) -> None:
        """`refused` tells which rows the place cannot hold (`StateStore.refused`)."""
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
        self._reduces = any(isinstance(each, Reducer) for each in shape.aggregates.values())

    def of(
        self, pieces: Sequence[Piece], parts: Sequence[Part]
    ) -> tuple[Deltas, int, dict[int, str]]:
        """Aggregate rows, those of one part after the other's.

        Returns also how many rows fit, and by place why the others do not. Raises
        AggregateFailed.
        """
        table, places, rejected = self._fitted(pieces)
        owners = np.repeat(np.arange(len(parts)), [part.num_rows for part in parts])[places]
        columns: list[Any] = [table[name] for name in self._shape.key.names]
        firsts, groups = grouped([*columns, pa.array(owners)])
        values = {}
        for name, each in self._shape.aggregates.items():
            if not isinstance(each, Reducer):
                column = table[name].combine_chunks() if name in table.column_names else None
                ones = pa.array(np.ones(len(places), np.int64)) if column is None else column
                values[name] = each.merged(ones, groups)
        owner = owners[firsts.to_numpy()]
        lines = pa.array([parts[place].line for place in owner], pa.string())
        deltas = Deltas(
            pa.table(
                [*(column.take(firsts) for column in columns), lines], schema=self._shape.row_schema
            ),
            np.array([parts[place].txid for place in owner], np.int64),
            values,
            self._rows(pieces, places, groups, len(firsts)) if self._reduces else [],
        )
        return deltas, len(places), rejected

    def _fitted(
        self, pieces: Sequence[Piece]
    ) -> tuple[pa.Table, npt.NDArray[np.int64], dict[int, str]]:
        """The rows' columns that matter, the places of those that fit, and the others' faults."""
        faults: dict[int, str] = {}
        picked: list[Piece] = []
        num_rows = 0
        for piece in pieces:
            if isinstance(piece, pa.RecordBatch) and not self._ones:
                picked.append(self._columns(piece))
            else:
                values = piece.to_pylist() if isinstance(piece, pa.RecordBatch) else piece
                picked.append([self._row(v, num_rows + n, faults) for n, v in enumerate(values)])
            num_rows += len(piece)
        fitted = fit(picked, self._schema)
        rejected = fitted.rejected | faults
        keep = np.ones(num_rows, np.bool_)
        keep[list(rejected)] = False
        places = np.flatnonzero(keep)
        refused = self._refused(fitted.table)
        if not refused:
            return fitted.table, places, rejected
        rejected |= {int(places[row]): reason for row, reason in refused.items()}
        stays = np.ones(len(places), np.bool_)
        stays[list(refused)] = False
        return fitted.table.filter(pa.array(stays)), places[stays], rejected

    def _row(self, value: Any, place: int, faults: dict[int, str]) -> dict[str, Any]:
        """A row's columns; a fault, and what does not fit, if it has none."""
        row = as_row(value)
        if row is None:
            faults[place] = _NO_ROW
            return {}
        picked = {name: row.get(field) for name, field in self._sources.items()}
        for name, one in self._ones.items():
            try:
                picked[name] = one(value)
            except Exception as error:  # noqa: BLE001 - a user's function may raise anything
                faults[place] = f"'{name}': {type(error).__name__}: {error}"
                return {}
        return picked

    def _columns(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """A batch's columns; one that it lacks, or has twice, is null."""
        columns = []
        for name, field in self._sources.items():
            place = batch.schema.get_field_index(field)
            absent = pa.nulls(batch.num_rows, self._schema.field(name).type)
            columns.append(absent if place < 0 else batch.column(place))
        return pa.RecordBatch.from_arrays(columns, names=list(self._sources))

    @staticmethod
    def _rows(
        pieces: Sequence[Piece],
        places: npt.NDArray[np.int64],
        groups: npt.NDArray[np.int64],
        count: int,
    ) -> list[list[Any]]:
        every = list(rows_of(pieces))
        rows: list[list[Any]] = [[] for _ in range(count)]
        for place, group in zip(places.tolist(), groups.tolist(), strict=True):
            rows[group].append(every[place])
        return rows
