"""From rows to columns of one schema, setting the rows that do not fit apart.

A row fits when each value is one that its column takes (topology/values.py), no column that
must not be null is, and there is no column the schema does not name, whether it came as a
mapping or in columns. One row that does not fit never harms its neighbours.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from itertools import chain
from math import isfinite
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from topology.calls import hint_for
from topology.schema import ArrowSchema, schema_of
from topology.sink import Piece
from topology.values import cast, check_years, columns_of_rows, converted, without_misplaced_nulls
from topology.vectorised import Row, as_row, cause_of

_SHOWN = 80  # characters of a value shown in a reason
_WITHOUT_FLOATS = frozenset({type(None), bool, int, str, bytes, datetime, date, time, timedelta})


@dataclass(frozen=True, slots=True)
class Fitted:
    """The rows that fit, as columns in the order they came, and why the others do not."""

    table: pa.Table
    rejected: dict[int, str]

    def without(self, wrong: Mapping[int, str]) -> "Fitted":
        """Without some rows of the table, named by their place in it, each with the reason."""
        if not wrong:
            return self
        num_rows = self.table.num_rows
        rows = np.fromiter(wrong, np.int64, len(wrong))
        places = np.delete(np.arange(num_rows + len(self.rejected)), list(self.rejected))
        reasons = zip(places[rows].tolist(), wrong.values(), strict=True)
        keep = np.ones(num_rows, np.bool_)
        keep[rows] = False
        return Fitted(self.table.filter(pa.array(keep)), self.rejected | dict(reasons))


def fit(pieces: Sequence[Piece], schema: pa.Schema) -> Fitted:
    """Convert pieces of rows or columns into one table of the schema.

    `rejected` names rows by their place in the concatenation of the pieces. Costs about
    0.5 µs a row of nine columns when all fit; a row that does not costs tens of µs. Pieces that
    have the schema are checked together: one by one, each check would cost a hundred times as much.
    """
    batches: list[pa.RecordBatch] = []
    rejected: dict[int, str] = {}
    start = 0
    are_good = _are_good([piece for piece in pieces if _has_schema(piece, schema)], schema)
    for piece in pieces:
        if isinstance(piece, pa.RecordBatch):
            is_good = are_good and _has_schema(piece, schema)
            batch, reasons = (piece, {}) if is_good else _fit_columns(piece, schema)
            length = piece.num_rows
        else:
            batch, reasons = _fit_rows(piece, schema)
            length = len(piece)
        if batch.num_rows:
            batches.append(batch)
        rejected.update((start + index, reason) for index, reason in reasons.items())
        start += length
    return Fitted(pa.Table.from_batches(batches, schema=schema), rejected)


def failing(
    work: Callable[[int, int], object], count: int, is_its_own: Callable[[Exception], bool]
) -> Iterator[tuple[int, Exception]]:
    """Bisect `count` things and yield the index and error of each that fails alone.

    `work` takes a span of indexes. An error that is not `is_its_own`, one thing's own, is raised.
    """
    spans = [(0, count)] if count else []
    while spans:
        start, stop = spans.pop()
        try:
            work(start, stop)
        except Exception as error:
            if not is_its_own(error):
                raise
            if stop - start == 1:
                yield start, error
                continue
            middle = (start + stop) // 2
            spans += [(middle, stop), (start, middle)]


def _fit_rows(rows: list[Any], schema: pa.Schema) -> tuple[pa.RecordBatch, dict[int, str]]:
    if set(map(type, rows)) <= {dict}:
        batch = columns_of_rows(rows, schema)
        if batch is not None:
            return batch, {}
    reasons: dict[int, str] = {}
    mappings = [_as_row(row, index, reasons) for index, row in enumerate(rows)]
    names = frozenset(schema.names)
    for index, mapping in enumerate(mappings):
        if not names.issuperset(mapping):
            reasons[index] = _unknown_columns(mapping, schema)
    for field in schema:
        values = [mapping.get(field.name) for mapping in mappings]
        reasons = _refused_values(values, field) | reasons
    good = [mapping for index, mapping in enumerate(mappings) if index not in reasons]
    arrays = [converted([each.get(field.name) for each in good], field) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema), reasons


def _as_row(value: Any, index: int, reasons: dict[int, str]) -> Row:
    row = as_row(value)
    if row is not None:
        return row
    reasons[index] = (
        f"found {_shown(value)}; a row is a mapping of columns, a dataclass or a msgspec.Struct"
        f"{hint_for(value)}"
    )
    return {}


def _refused_values(values: list[Any], field: "pa.Field[Any]") -> dict[int, str]:
    def convert(start: int, stop: int) -> None:
        converted(values[start:stop], field)

    return {
        index: f"column '{field.name}': found {_shown(values[index])}, "
        f"expected {_allowed(field)}{_cause(error)}"
        for index, error in failing(convert, len(values), _is_of_values)
    }


def _is_of_values(error: Exception) -> bool:
    return not isinstance(error, MemoryError)  # a user's value may raise anything else


def _has_schema(piece: Piece, schema: pa.Schema) -> bool:
    return isinstance(piece, pa.RecordBatch) and piece.schema.equals(schema)


def _are_good(pieces: Sequence[Any], schema: pa.Schema) -> bool:
    """Whether batches of the schema have no null and no year that it does not allow."""
    columns: list[Any] = pa.Table.from_batches(pieces, schema=schema).columns
    try:
        for field, column in zip(schema, columns, strict=True):
            is_flat = not (pa.types.is_nested(field.type) or pa.types.is_temporal(field.type))
            is_flat = is_flat and not pa.types.is_dictionary(field.type)
            for array in [column] if is_flat else column.chunks:
                without_misplaced_nulls(array, field)
                check_years(array)
    except ValueError:
        return False
    return True


def _fit_columns(piece: pa.RecordBatch, schema: pa.Schema) -> tuple[pa.RecordBatch, dict[int, str]]:
    found = piece.schema.names
    if not set(schema.names).issuperset(found) or len(set(found)) != len(found):
        reason = _unknown_columns(found, schema)
        empty = pa.RecordBatch.from_pylist([], schema=schema)
        return empty, dict.fromkeys(range(piece.num_rows), reason)
    columns = [
        piece.column(field.name) if field.name in found else pa.nulls(piece.num_rows, field.type)
        for field in schema
    ]
    reasons: dict[int, str] = {}
    for field, column in zip(schema, columns, strict=True):
        reasons = _refused_cells(column, field) | reasons
    if reasons:
        keep = pa.array([index not in reasons for index in range(piece.num_rows)], pa.bool_())
        columns = [column.filter(keep) for column in columns]
    arrays = [cast(column, field) for field, column in zip(schema, columns, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema), reasons


def _refused_cells(column: "pa.Array[Any]", field: "pa.Field[Any]") -> dict[int, str]:
    def convert(start: int, stop: int) -> None:
        cast(column.slice(start, stop - start), field)

    return {
        index: f"column '{field.name}': found {_shown_cell(column[index])} ({column.type}), "
        f"expected {_allowed(field)}{_cause(error)}"
        for index, error in failing(convert, len(column), _is_of_values)
    }


def _unknown_columns(found: Any, schema: pa.Schema) -> str:
    names = set(schema.names)
    unknown = [name for name in found if name not in names] or list(found)
    return (
        f"column {', '.join(_shown(name) for name in unknown[:5])} is not in the schema, "
        f"expected {_clipped(', '.join(schema.names), 4 * _SHOWN)}"
    )


def _allowed(field: "pa.Field[Any]") -> str:
    return _clipped(f"{field.type}{'' if field.nullable else ', not null'}", 2 * _SHOWN)


def _cause(error: Exception) -> str:
    lines = cause_of(error).splitlines()
    return f" ({_clipped(lines[0], 2 * _SHOWN)})" if lines else ""


def _shown(value: Any) -> str:
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 - a user's __repr__ may raise anything
        text = f"a {type(value).__name__}"
    return _clipped(text, _SHOWN)


def _shown_cell(cell: Any) -> str:
    try:
        return _shown(cell.as_py())
    except (ValueError, OverflowError):  # a time that Python's datetime has not
        return _shown(getattr(cell, "value", None) or f"a {cell.type}")


def _clipped(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def with_leaves(kind: Any, leaf: Callable[[Any], Any], *, with_nulls: bool = False) -> Any:
    """Return a type with its innermost types replaced by `leaf`, and lists of one kind.

    `with_nulls`: every part may be null.
    """

    def part(name: str, field: "pa.Field[Any]") -> "pa.Field[Any]":
        inner = with_leaves(field.type, leaf, with_nulls=with_nulls)
        return pa.field(name, inner, with_nulls or field.nullable)

    if isinstance(kind, pa.StructType) and kind.num_fields:
        return pa.struct([part(each.name, each) for each in kind])
    if isinstance(kind, pa.MapType):
        key = with_leaves(kind.key_type, leaf, with_nulls=with_nulls)
        return pa.map_(key, part("value", kind.item_field))
    if is_list(kind):
        return pa.list_(part("element", kind.value_field))
    return leaf(kind)


def is_list(kind: Any) -> bool:
    types = pa.types
    return types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)


def rows_of(pieces: Sequence[Piece]) -> Iterator[Any]:
    """Every row in its order; those of a RecordBatch are dictionaries."""
    for piece in pieces:
        yield from piece.to_pylist() if isinstance(piece, pa.RecordBatch) else piece


def fitting_rows(
    pieces: Sequence[Piece], schema: type[Any] | ArrowSchema | None
) -> tuple[list[Any], dict[int, str]]:
    """The rows that fit the schema, as they came, and by place why the others do not.

    A row's type says its schema, too. Without any all fit.
    """
    rejected = {} if schema is None else fit(pieces, schema_of(schema)).rejected
    if not rejected:
        return list(rows_of(pieces)), rejected
    rows: list[Any] = []
    start = 0
    for piece in pieces:
        kept = [place for place in range(len(piece)) if start + place not in rejected]
        # Of columns only these are made values: a time that does not fit may not even be one.
        if isinstance(piece, pa.RecordBatch):
            rows += piece.take(pa.array(kept, pa.int64())).to_pylist()
        else:
            rows += [piece[place] for place in kept]
        start += len(piece)
    return rows, rejected


def has_no_number(value: Any) -> bool:
    """Whether NaN or an infinity is in a value; msgspec would encode them as null."""
    if type(value) not in (dict, list, tuple):
        # Dataclasses, enumerations, sets. What has no builtin, such as msgspec.Raw, is no float.
        value = msgspec.to_builtins(value, enc_hook=lambda _: None)
        if not isinstance(value, dict | list | tuple):
            return isinstance(value, float) and not isfinite(value)
    for part in chain(value, value.values()) if isinstance(value, dict) else value:
        kind = type(part)
        if kind is float:
            if not isfinite(part):
                return True
        elif kind not in _WITHOUT_FLOATS and has_no_number(part):
            return True
    return False
