"""Single values as rows: what vectorised bolts and sinks make columns of."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from itertools import chain
from operator import itemgetter
from typing import Any, TypeAlias
from uuid import UUID

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from topology.record import Record

Row: TypeAlias = dict[str, Any]

_MOST_CELLS = 1_000_000  # of a batch of several rows
_KEPT_AS_THEY_ARE = (bytes, bytearray, datetime, date, time, timedelta, Decimal, UUID)


@dataclass(frozen=True, slots=True)
class Columns:
    """Values as columns: batches, the places of each one's values, and what gives none."""

    batches: list[tuple[pa.RecordBatch, npt.NDArray[np.int64]]]
    refused: dict[int, str]  # by place, with the reason


def as_row(value: Any) -> Row | None:
    """A mapping, dataclass or msgspec.Struct as a dictionary.

    None for anything else; for a Record too, whose value is yet to be read.
    """
    if type(value) is dict:
        return value
    if isinstance(value, Record):
        return None
    try:
        if isinstance(value, Mapping):
            return dict(value)
        built = msgspec.to_builtins(value, builtin_types=_KEPT_AS_THEY_ARE)
    except Exception:  # noqa: BLE001 - a user's value may raise anything
        return None
    return built if isinstance(built, dict) else None


def values_of(rows: Sequence[Row], name: str) -> list[Any]:
    """The values of one column; None where a row has none."""
    try:
        return list(map(itemgetter(name), rows))
    except KeyError:
        return [row.get(name) for row in rows]


def cause_of(error: Exception) -> str:
    """Return why a value fits no column; nothing of what pyarrow says only of itself."""
    if isinstance(error, OverflowError):
        return "a whole number is out of range"
    if isinstance(error, UnicodeError):
        return "half of a surrogate pair" if isinstance(error, UnicodeEncodeError) else "no UTF-8"
    return "" if isinstance(error, pa.ArrowException) else str(error) or type(error).__name__


def columns_of_values(values: Sequence[Any]) -> Columns:
    """Make values columns: every name that one of them has, null where another has none.

    Values that fit into no columns with others stand in a batch of their own; a batch has at most
    a million cells, unless one value alone has more.
    """
    columns = Columns([], {})
    rows, places = list(values), np.arange(len(values))
    if set(map(type, rows)) != {dict}:
        made = list(map(as_row, values))
        places = np.flatnonzero([row is not None for row in made])
        rows = [row for row in made if row is not None]
        for place, row in enumerate(made):
            if row is None:
                columns.refused[place] = "a mapping, a dataclass or a msgspec.Struct is allowed"
    if rows:
        _add(columns, rows, places)
    return columns


def _add(columns: Columns, rows: list[Row], places: npt.NDArray[np.int64]) -> None:
    try:
        columns.batches.append((_batch(rows), places))
    except Exception as error:  # noqa: BLE001 - Arrow raises what the value's own code raises
        if len(rows) == 1:
            columns.refused[int(places[0])] = str(error)
            return
        middle = len(rows) // 2
        _add(columns, rows[:middle], places[:middle])
        _add(columns, rows[middle:], places[middle:])


class _TooWide(Exception):
    """Rows that are better made columns in smaller batches."""


def _batch(rows: list[Row]) -> pa.RecordBatch:
    names = list(dict.fromkeys(chain.from_iterable(rows)))
    if not names:
        raise ValueError("it is empty")  # a batch without columns would have no rows either
    if len(rows) > 1 and len(rows) * len(names) > _MOST_CELLS:
        raise _TooWide  # one row with thousands of members must not give them to all the others
    arrays = [_array(name, values_of(rows, name)) for name in names]
    return pa.RecordBatch.from_arrays(arrays, names)


def _array(name: str, values: list[Any]) -> "pa.Array[Any]":
    array: pa.Array[Any]
    try:
        array = pa.array(values)
    except (OverflowError, UnicodeError) as error:
        if len(values) > 1 or type(values[0]) is not int or not 0 <= values[0] < 2**64:
            raise ValueError(f"`{name}`: {cause_of(error)}") from error
        array = pa.array(values, pa.uint64())  # alone, so that the others keep their type
    if pa.types.is_floating(array.type) and bool in set(map(type, values)):
        raise ValueError("a bool is no number")  # pyarrow makes 1.0 of True among floats
    return array
