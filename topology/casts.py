"""Columns as columns of another type, by the same rules as values: nothing is cut or guessed."""

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from topology.nulls import without_misplaced_nulls
from topology.values import NOT_WHOLE, Array, Field, check_years, converted, has_part, infinities


def cast(column: Array, field: Field) -> Array:
    """A column as one of the field's type. Raises what pyarrow raises, or ValueError."""
    array = column
    if column.null_count == len(column):
        array = pa.nulls(len(column), field.type)
    # Asked to change nothing, pyarrow still refuses nulls above a child that has none.
    elif not column.type.equals(field.type):
        _check_types(column.type, field.type)
        if types.is_decimal(field.type) and types.is_integer(column.type):
            column = column.cast(pa.decimal128(20, 0))  # else each might have 20 digits
        try:
            array = column.cast(field.type)
        except pa.ArrowInvalid:
            if not has_part(field.type, types.is_floating):
                raise
            array = converted(column.to_pylist(), field)  # a float may only come near an integer
        if types.is_float64(column.type) and types.is_integer(field.type):
            largest = pc.max(pc.abs(column)).as_py()
            if largest is not None and largest >= NOT_WHOLE:
                raise ValueError("a float of this size may stand for several whole numbers")
        if infinities(array) > infinities(column):
            raise ValueError("a float would become infinite")
    without_misplaced_nulls(array, field)
    check_years(array)
    return array


def _check_types(found: Any, wanted: Any) -> None:
    """Raise ValueError unless a column of the one type may be cast to the other."""
    found, wanted = _plain(found), _plain(wanted)
    if types.is_null(found) or found.equals(wanted):
        return
    if types.is_struct(found) and types.is_struct(wanted):
        members = {field.name: field.type for field in wanted}
        for field in found:
            if field.name not in members:
                raise ValueError(f"unknown '{field.name}'; allowed are {', '.join(members)}")
            _check_types(field.type, members[field.name])
    elif types.is_map(found) and types.is_map(wanted):
        _check_types(found.key_type, wanted.key_type)
        _check_types(found.item_type, wanted.item_type)
    elif _is_list(found) and _is_list(wanted):
        _check_types(found.value_type, wanted.value_type)
    else:
        takes = _TAKES.get(_family(wanted))
        if takes is not None and _family(found) not in takes:
            raise ValueError(f"{found} is not {wanted}")


def _plain(kind: Any) -> Any:
    return kind.value_type if isinstance(kind, pa.DictionaryType) else kind


def _is_list(kind: Any) -> bool:
    return types.is_nested(kind) and hasattr(kind, "value_type")


def _family(kind: Any) -> str:
    if isinstance(kind, pa.TimestampType):
        return "time" if kind.tz is None else "zoned"
    return next((name for name, is_one in _FAMILIES.items() if is_one(kind)), str(kind))


def _is_any(*kinds: Callable[[pa.DataType], bool]) -> Callable[[pa.DataType], bool]:
    return lambda kind: any(is_one(kind) for is_one in kinds)


_FAMILIES: dict[str, Callable[[pa.DataType], bool]] = {
    "bool": types.is_boolean,
    "whole": types.is_integer,
    "float": types.is_floating,
    "decimal": types.is_decimal,
    "text": _is_any(types.is_string, types.is_large_string, types.is_string_view),
    "bytes": _is_any(
        types.is_binary, types.is_large_binary, types.is_binary_view, types.is_fixed_size_binary
    ),
    "date": types.is_date,
    "time of day": types.is_time,
    "duration": types.is_duration,
}
_TAKES = {
    "bool": {"bool"},
    "whole": {"whole", "float", "decimal"},
    "float": {"float", "whole"},
    "decimal": {"decimal", "whole"},
    "text": {"text", "bytes"},
    "bytes": {"bytes", "text"},
    "date": {"date"},
    "zoned": {"zoned", "time"},
    "time": {"time"},
    "time of day": {"time of day"},
    "duration": {"duration"},
}
