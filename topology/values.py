"""Strict conversion of values and columns: a column takes what it keeps as it is.

docs/reference/values.md has the table. Nothing is cut: neither digits, nor parts of a second, nor a
float to infinity. Times and dates are of the years 1 to 9999.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, datetime, time, timedelta
from functools import partial
from itertools import chain
from numbers import Number
from operator import attrgetter, itemgetter
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from pyarrow import types

from topology.vectorised import Row, values_of

Array: TypeAlias = "pa.Array[Any]"
Field: TypeAlias = "pa.Field[Any]"

NOT_WHOLE = 2**53  # from here on a float may stand for several whole numbers
_NONE = type(None)
_FIRST_DAY, _LAST_DAY = -719_162, 2_932_896  # 0001-01-01 and 9999-12-31, from 1970-01-01
_DAY_SECONDS = 86_400
_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_STEP = {"s": 10**6, "ms": 10**3}  # microseconds from one value to the next; else one or less
# What another process's Arrow has judged already: pyarrow takes only those of the column's type.
_SCALARS = (_NONE, pa.Scalar)
_TEXTS = (str, bytes, bytearray)  # sequences to pyarrow: "ab" would become ["a", "b"]
_OWN = {_NONE, str, int}  # the common values of dictionaries


def converted(values: Sequence[Any], field: Field) -> Array:
    """Convert a column's values to an array of its type. Raises what pyarrow raises, or ValueError.

    Stricter than pyarrow, which takes nulls anywhere, cuts 1.5 down to 1 in a column of whole
    numbers, and passes over the members of a struct that it does not know.
    """
    if has_part(field.type, types.is_dictionary) and not set(map(type, values)) <= _OWN:
        # A scalar of pyarrow's there would end the process (a segmentation fault, pyarrow 26).
        values = [_without_scalars(value) for value in values]
    try:
        return _converted(values, field)
    except (ValueError, OverflowError):
        if not has_part(field.type, types.is_floating):
            raise
        return _converted([_with_floats(value, field.type) for value in values], field)


def columns_of_rows(rows: Sequence[Row], schema: pa.Schema) -> pa.RecordBatch | None:
    """Convert dictionaries to columns of a schema; None when not every one of them fits."""
    try:
        arrays = [converted(values_of(rows, field.name), field) for field in schema]
        batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
    except MemoryError:
        raise
    except Exception:  # noqa: BLE001 - a user's value may raise anything
        return None
    # A row with an unknown column has more columns than the schema, or lacks one of its.
    complete = set(map(len, rows)) <= {len(schema)}
    if complete and not any(column.null_count for column in batch.columns):
        return batch
    return batch if all(map(frozenset(schema.names).issuperset, rows)) else None


def _converted(values: Sequence[Any], field: Field) -> Array:
    array: Array = pa.array(values, field.type)
    if not field.nullable or types.is_nested(field.type):
        without_misplaced_nulls(array, field)
    _check(lambda: values, array)
    return array


def has_part(kind: Any, is_one: Callable[[Any], bool]) -> bool:
    """Whether a type, or a type within it, is one of those."""
    if types.is_struct(kind):
        return any(has_part(field.type, is_one) for field in kind)
    if types.is_map(kind):
        return has_part(kind.key_type, is_one) or has_part(kind.item_type, is_one)
    if is_one(kind):
        return True
    return types.is_nested(kind) and has_part(getattr(kind, "value_type", pa.null()), is_one)


def _without_scalars(value: Any) -> Any:
    if isinstance(value, pa.Scalar):
        return value.as_py()
    if isinstance(value, dict):
        return {key: _without_scalars(part) for key, part in value.items()}
    if type(value) in {list, tuple}:
        return type(value)(map(_without_scalars, value))
    return value


def _with_floats(value: Any, kind: Any) -> Any:
    """Replace whole numbers by the nearest floats where floats are wanted."""
    if types.is_floating(kind):
        is_whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
        return float(value) if is_whole else value
    if isinstance(value, dict):
        kinds = {field.name: field.type for field in kind} if types.is_struct(kind) else {}
        other = kind.item_type if types.is_map(kind) else pa.null()
        return {name: _with_floats(part, kinds.get(name, other)) for name, part in value.items()}
    if types.is_struct(kind) and isinstance(value, tuple):
        return tuple(
            _with_floats(part, field.type) for part, field in zip(value, kind, strict=True)
        )
    if types.is_nested(kind) and isinstance(value, list | tuple):
        inner = getattr(kind, "value_type", pa.null())
        if types.is_map(kind):
            inner = pa.struct([("key", kind.key_type), ("value", kind.item_type)])
        return [_with_floats(part, inner) for part in value]
    return value


def check_years(array: Any) -> None:
    """Raise ValueError for a date or a time outside of the years 1 to 9999, at any depth.

    Costs next to nothing where there is none.
    """
    kind = array.type
    if kind.id in _DATED:
        import pyarrow.compute as pc  # noqa: PLC0415 - costs 0.05 s

        low, high = _years(kind)
        found: Any = pc.min_max(array.view(pa.int32() if types.is_date32(kind) else pa.int64()))
        first, last = found["min"].as_py(), found["max"].as_py()
        if first is not None and not low <= first <= last <= high:
            raise ValueError("a time outside of the years 1 to 9999")
    elif isinstance(kind, pa.DictionaryType):
        check_years(array.dictionary)
    elif types.is_nested(kind):
        for _, part, _ in parts_of(array, kind):
            check_years(part)


def infinities(array: Any) -> int:
    """Count the infinite floats, at any depth."""
    kind = array.type
    if types.is_floating(kind):
        import pyarrow.compute as pc  # noqa: PLC0415 - costs 0.05 s

        wide = array.cast(pa.float32()) if types.is_float16(kind) else array
        return pc.sum(pc.is_inf(wide)).as_py() or 0
    if types.is_nested(kind):
        return sum(infinities(part) for _, part, _ in parts_of(array, kind))
    return 0


def _years(kind: Any) -> tuple[int, int]:
    if types.is_date32(kind):
        return _FIRST_DAY, _LAST_DAY
    unit = _PER_SECOND["ms" if types.is_date64(kind) else kind.unit]
    return _FIRST_DAY * _DAY_SECONDS * unit, (_LAST_DAY + 1) * _DAY_SECONDS * unit - 1


# Each check asks for the values only where the array leaves a doubt, and begins with their types,
# which tell most: `set(map(type, ...))` takes a third of what a look at each value does.

_Values: TypeAlias = Callable[[], Iterable[Any]]
_Check: TypeAlias = Callable[[_Values, Any], None]


def _check(values: _Values, array: Any) -> None:
    """Raise ValueError for a value of which pyarrow made another."""
    if isinstance(array, pa.DictionaryArray):
        array = array.dictionary
    check = _CHECKS.get(array.type.id)
    if check is not None:
        check(values, array)


def _is_checked(kind: Any) -> bool:
    return (kind.value_type if isinstance(kind, pa.DictionaryType) else kind).id in _CHECKS


def _check_whole(values: _Values, array: Any) -> None:
    del array
    if set(map(type, values())) <= {int, _NONE}:
        return
    for value in values():
        if isinstance(value, np.bool_):
            raise ValueError("a bool is no number")  # noqa: TRY004 - as all that do not fit
        if isinstance(value, float | np.floating) and abs(float(value)) >= NOT_WHOLE:
            raise ValueError("a float of this size may stand for several whole numbers")
        number: Any = value
        if isinstance(value, Number) and number != int(number):
            raise ValueError(f"{value!r} would be cut down to {int(number)}")


def _check_floats(values: _Values, array: Any) -> None:
    numbers = array.to_numpy(zero_copy_only=False)
    # A bool can only have become 0 or 1, a number of 64 bits that has no room in 63 only one
    # below 0, so most columns need no look at their types.
    if ((numbers <= 1) & (numbers == np.rint(numbers))).any():
        kinds = set(map(type, values()))
        if bool in kinds:
            raise ValueError("a bool is no number")
        if np.uint64 in kinds and any(isinstance(v, np.uint64) and v >> 63 for v in values()):
            raise ValueError("a whole number is too large")
    if types.is_float64(array.type):
        return
    if (found := infinities(array)) and found > infinities(pa.array(values(), pa.float64())):
        raise ValueError("a float would become infinite")


def _check_timestamps(values: _Values, array: Any) -> None:
    kind = array.type
    is_plain = set(map(type, values())) <= {datetime, _NONE}
    if not is_plain:
        _check_classes(values, (datetime, np.datetime64))
        check_years(array)
        if kind.unit != "ns" and any(getattr(value, "nanosecond", 0) for value in values()):
            raise ValueError("a time would be cut down to microseconds")
    elif kind.tz is not None:
        check_years(array)  # an offset may lead out of them
    if kind.tz is None:
        _check_zones(values, is_plain=is_plain)
    _check_steps(values, kind.unit, "microsecond")


def _check_dates(values: _Values, array: Any) -> None:
    if set(map(type, values())) <= {date, _NONE}:
        return
    _check_classes(values, (date,))
    if any(isinstance(value, datetime) for value in values()):
        raise ValueError("a date would lose its time of day")
    check_years(array)


def _check_times(values: _Values, array: Any) -> None:
    is_plain = set(map(type, values())) <= {time, _NONE}
    if not is_plain:
        _check_classes(values, (time,))
    _check_zones(values, is_plain=is_plain)
    _check_steps(values, array.type.unit, "microsecond")


def _check_durations(values: _Values, array: Any) -> None:
    if not set(map(type, values())) <= {timedelta, _NONE}:
        _check_classes(values, (timedelta, np.timedelta64))
    _check_steps(values, array.type.unit, "microseconds")


def _check_structs(values: _Values, array: Any) -> None:
    names = [field.name for field in array.type]
    structs = _with_parts(values)
    if set(map(type, structs)) <= {dict}:
        _check_names(set(chain.from_iterable(structs)), names)
    else:
        structs = [_struct(value, names) for value in structs]
    if any(_is_checked(field.type) for field in array.type):
        for field, part, _ in parts_of(array, array.type):
            if _is_checked(field.type):
                _check(partial(values_of, structs, field.name), part)


def _struct(value: Any, names: Sequence[str]) -> Row:
    if isinstance(value, tuple):  # the members in their order
        return dict(zip(names, value, strict=True))
    struct = value if type(value) is dict else dict(value)  # others may grow when they are asked
    _check_names(struct, names)
    return struct


def _check_names(found: Iterable[str], names: Sequence[str]) -> None:
    unknown = [name for name in found if name not in names]
    if unknown:
        shown = ", ".join(map(repr, unknown[:5]))
        raise ValueError(f"unknown {shown}, expected {', '.join(names)}")


def _check_lists(values: _Values, array: Any) -> None:
    lists = _with_parts(values)
    if _is_checked(array.type.value_type):
        for _, part, _ in parts_of(array, array.type):
            _check(lambda: chain.from_iterable(lists), part)


def _check_maps(values: _Values, array: Any) -> None:
    kind = array.type
    checked = _is_checked(kind.key_type), _is_checked(kind.item_type)
    maps = _with_parts(values)
    if not any(checked):
        return
    if set(map(type, maps)) <= {dict}:
        keys: _Values = lambda: chain.from_iterable(maps)  # noqa: E731
        items: _Values = lambda: chain.from_iterable(map(dict.values, maps))  # noqa: E731
    else:
        pairs = list(chain.from_iterable(m.items() if isinstance(m, Mapping) else m for m in maps))
        # pyarrow takes a pair as a struct, too.
        pairs = [tuple(pair.values()) if isinstance(pair, dict) else pair for pair in pairs]
        keys = partial(map, itemgetter(0), pairs)
        items = partial(map, itemgetter(1), pairs)
    if checked[0]:
        _check(keys, array.keys)
    if checked[1]:
        for _, part, _ in parts_of(array, kind):
            _check(items, part)


def _with_parts(values: _Values) -> list[Any]:
    """Return the values but for nulls; those without any part may be left out, too."""
    found = list(values())
    if set(map(type, found)) <= {dict, list, tuple, _NONE}:
        return list(filter(None, found))
    if any(isinstance(value, _TEXTS) for value in found):
        raise ValueError("a text would be taken apart")
    return [value for value in found if not isinstance(value, _SCALARS)]


def _check_classes(values: _Values, allowed: tuple[type, ...]) -> None:
    for value in values():
        if not isinstance(value, (*allowed, *_SCALARS)):
            raise ValueError(f"{type(value).__name__} is not {allowed[0].__name__}")  # noqa: TRY004


def _check_zones(values: _Values, *, is_plain: bool) -> None:
    if is_plain:  # times, which are never false, and None
        has_zone = not set(map(type, map(_ZONE_OF, filter(None, values())))) <= {_NONE}
    else:
        has_zone = any(getattr(value, "tzinfo", None) is not None for value in values())
    if has_zone:
        raise ValueError("a time with a zone would lose it")


def _check_steps(values: _Values, unit: str, part: str) -> None:
    step = _STEP.get(unit)
    if step and any(getattr(value, part, 0) % step for value in values()):
        raise ValueError(f"a part of a second would be lost in {unit}")


_ZONE_OF = attrgetter("tzinfo")
_WHOLE = [pa.int8(), pa.int16(), pa.int32(), pa.int64()]
_WHOLE += [pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()]
_LISTS = [pa.list_(pa.null()), pa.large_list(pa.null()), pa.list_(pa.null(), 1)]
_DATED = frozenset(kind.id for kind in (pa.date32(), pa.date64(), pa.timestamp("s")))
_CHECKS: dict[int, _Check] = {
    **dict.fromkeys((kind.id for kind in _WHOLE), _check_whole),
    **dict.fromkeys(
        (kind.id for kind in (pa.float16(), pa.float32(), pa.float64())), _check_floats
    ),
    pa.timestamp("s").id: _check_timestamps,
    pa.date32().id: _check_dates,
    pa.date64().id: _check_dates,
    pa.time32("s").id: _check_times,
    pa.time64("us").id: _check_times,
    pa.duration("s").id: _check_durations,
    pa.struct([]).id: _check_structs,
    **dict.fromkeys((kind.id for kind in _LISTS), _check_lists),
    pa.map_(pa.string(), pa.null()).id: _check_maps,
}


def cast(column: Array, field: Field) -> Array:
    """Cast a column to the field's type. Raises what pyarrow raises, or ValueError."""
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
            import pyarrow.compute as pc  # noqa: PLC0415 - costs 0.05 s

            largest = pc.max(pc.abs(column)).as_py()
            if largest is not None and largest >= NOT_WHOLE:
                raise ValueError("a float of this size may stand for several whole numbers")
        if infinities(array) > infinities(column):
            raise ValueError("a float would become infinite")
    without_misplaced_nulls(array, field)
    check_years(array)
    return array


def _check_types(found: Any, wanted: Any) -> None:
    found, wanted = _plain(found), _plain(wanted)
    if types.is_null(found) or found.equals(wanted):
        return
    if types.is_struct(found) and types.is_struct(wanted):
        members = {field.name: field.type for field in wanted}
        for field in found:
            if field.name not in members:
                raise ValueError(f"unknown '{field.name}', expected {', '.join(members)}")
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


def without_misplaced_nulls(array: Any, field: Field, place: str = "") -> None:
    """Raise ValueError for a null where the schema allows none, at any depth."""
    place = place or field.name
    if not field.nullable and array.null_count:
        raise ValueError(f"{place} is null")
    for child, values, name in parts_of(array, field.type):
        without_misplaced_nulls(values, child, f"{place}{name}")


def parts_of(array: Any, kind: pa.DataType) -> list[tuple["pa.Field[Any]", Any, str]]:
    """Return the arrays one level below an array (not the keys of maps), without what is null."""
    if not pa.types.is_nested(kind):
        return []
    array = array.drop_null()
    if isinstance(kind, pa.StructType):
        fields = [kind.field(index) for index in range(kind.num_fields)]
        return [(field, array.field(i), f".{field.name}") for i, field in enumerate(fields)]
    if isinstance(kind, pa.MapType):
        first, last = array.offsets[0].as_py(), array.offsets[-1].as_py()
        return [(kind.item_field, array.items.slice(first, last - first), "[]")]
    if isinstance(kind, pa.ListType | pa.LargeListType | pa.FixedSizeListType):
        return [(kind.value_field, array.flatten(), "[]")]
    return []
