"""Which types of PostgreSQL's hold a column's values, and in what they differ. Pure."""

from dataclasses import dataclass
from enum import Enum

import pyarrow as pa
import pyarrow.types as kinds

_DIGITS = {"smallint": 5, "integer": 10, "bigint": 19}
_INTEGERS = tuple(_DIGITS)  # each has room for those before it
_MOST_DIGITS = 1000
_FRACTION = 6  # digits of a second
_TEXTS_OF_A_FORM = frozenset({"uuid", "json", "jsonb", "xml"})


class Room(Enum):
    """Whether a table's column has room for the values of one of ours."""

    ALL = "all"
    SOME = "some"  # the database must be asked about each value
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table that is there, as `information_schema.columns` tells it."""

    name: str
    type: str  # of a domain: the one beneath it
    udt: str = ""
    cast: str = ""  # its type in SQL, without a length; of a domain: the one beneath it
    is_enum: bool = False
    is_domain: bool = False
    length: int | None = None
    precision: int | None = None
    scale: int | None = None
    fraction: int | None = None
    nullable: bool = True
    filled: bool = False  # with something else than null, if a row does not say
    generated: bool = False  # rows may not say

    @property
    def shown(self) -> str:
        """Its type, as one would write it."""
        if self.type in ("USER-DEFINED", "ARRAY"):
            return self.udt
        if self.type == "numeric" and self.precision is not None:
            return f"numeric({self.precision},{self.scale})"
        if self.type.startswith("character") and self.length is not None:
            return f"{self.type}({self.length})"
        if self.type.startswith("time") and self.fraction not in (None, _FRACTION):
            return f"{self.type} with {self.fraction} digits of a second"
        return self.type


def is_text(kind: pa.DataType) -> bool:
    """Whether values are strings."""
    return kinds.is_string(kind) or kinds.is_large_string(kind) or kinds.is_string_view(kind)


def is_bytes(kind: pa.DataType) -> bool:
    """Whether values are bytes."""
    return (
        kinds.is_binary(kind)
        or kinds.is_large_binary(kind)
        or kinds.is_fixed_size_binary(kind)
        or kinds.is_binary_view(kind)
    )


def is_nested(kind: pa.DataType) -> bool:
    """Whether values become JSON."""
    return bool(kinds.is_nested(kind))


_SCALARS = (
    ("boolean", kinds.is_boolean),
    ("smallint", lambda k: kinds.is_int8(k) or kinds.is_int16(k) or kinds.is_uint8(k)),
    ("integer", lambda k: kinds.is_int32(k) or kinds.is_uint16(k)),
    ("bigint", lambda k: kinds.is_int64(k) or kinds.is_uint32(k)),
    ("numeric(20)", kinds.is_uint64),
    ("real", lambda k: kinds.is_float16(k) or kinds.is_float32(k)),
    ("double precision", kinds.is_float64),
    ("text", is_text),
    ("bytea", is_bytes),
    ("date", kinds.is_date),
    ("time without time zone", kinds.is_time),
)


def sql_type(kind: pa.DataType) -> str | None:
    """The type of a column that is made for these values; None: PostgreSQL has none for them.

    | pyarrow | PostgreSQL |
    | --- | --- |
    | bool | boolean |
    | int8, int16, uint8 | smallint |
    | int32, uint16 | integer |
    | int64, uint32 | bigint |
    | uint64 | numeric(20) |
    | float16, float32 | real |
    | float64 | double precision |
    | string | text |
    | binary | bytea |
    | date32, date64 | date |
    | timestamp with a zone, without one | timestamp with time zone, without time zone |
    | time32, time64 | time without time zone |
    | decimal(p, s) | numeric(p, s) |
    | list, map, struct | jsonb |
    """
    if kinds.is_dictionary(kind):
        return sql_type(kind.value_type)
    if is_nested(kind):
        return "jsonb" if all(sql_type(inner) for inner in _inner(kind)) else None
    if kinds.is_decimal(kind):
        fits = 0 <= kind.scale <= kind.precision <= _MOST_DIGITS
        return f"numeric({kind.precision},{kind.scale})" if fits else "numeric"
    if kinds.is_timestamp(kind):
        return f"timestamp {'without' if kind.tz is None else 'with'} time zone"
    return next((name for name, holds in _SCALARS if holds(kind)), None)


def room_for(kind: pa.DataType, column: Column) -> Room:
    """Whether a column that is there has room for values of a type.

    A type is never turned into one that would keep less of a value, or something else.
    """
    wanted = sql_type(kind)
    if wanted is None or column.type == "ARRAY":
        return Room.NONE
    room = _room(wanted.partition("(")[0], kind, column)
    return Room.SOME if column.is_domain and room is Room.ALL else room


def _room(wanted: str, kind: pa.DataType, column: Column) -> Room:
    if wanted == "text":
        return _room_for_text(column)
    if column.type == "numeric" and (wanted in _INTEGERS or wanted == "numeric"):
        return _room_for_number(wanted, kind, column)
    if wanted in _INTEGERS and column.type in _INTEGERS:
        has_room = _INTEGERS.index(wanted) <= _INTEGERS.index(column.type)
        return Room.ALL if has_room else Room.NONE
    if wanted == "jsonb":
        return Room.ALL if column.type in ("json", "jsonb") else Room.NONE
    if wanted.startswith("time") and column.fraction not in (None, _FRACTION):
        return Room.NONE
    return Room.ALL if column.type == wanted else Room.NONE


def _room_for_text(column: Column) -> Room:
    if column.type == "text" or (column.type == "character varying" and column.length is None):
        return Room.ALL
    of_a_form = column.type in _TEXTS_OF_A_FORM or column.type == "character varying"
    return Room.SOME if of_a_form or column.is_enum or column.udt == "citext" else Room.NONE


def _room_for_number(wanted: str, kind: pa.DataType, column: Column) -> Room:
    if column.precision is None:
        return Room.ALL
    scale = kind.scale if kinds.is_decimal(kind) else 0
    if kinds.is_decimal(kind):
        digits = kind.precision - scale
    else:
        digits = 20 if wanted == "numeric" else _DIGITS[wanted]
    if (column.scale or 0) < scale:
        return Room.NONE  # it would round
    return Room.ALL if column.precision - (column.scale or 0) >= digits else Room.SOME


def _inner(kind: pa.DataType) -> list[pa.DataType]:
    if kinds.is_map(kind):
        return [kind.key_type, kind.item_type]
    return [kind.field(place).type for place in range(kind.num_fields)]
