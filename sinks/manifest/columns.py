"""The columns of a table, by the names that Spark's SQL has for their types. Pure.

Files hold what Parquet can: a text is a text there, whichever of Arrow's types it had. So tables
and rows are compared by these names, and readers can give them to Spark.
"""

import re
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from sinks.manifest.entry import Column
from sinks.new_columns import OnNewColumns
from topology.errors import InvalidSchema

_MOST_DIGITS = 38
_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NAMES: list[tuple[pa.DataType, str]] = [
    (pa.bool_(), "boolean"),
    (pa.int8(), "tinyint"),
    (pa.int16(), "smallint"),
    (pa.int32(), "int"),
    (pa.int64(), "bigint"),
    (pa.float32(), "float"),
    (pa.float64(), "double"),
    (pa.string(), "string"),
    (pa.large_string(), "string"),
    (pa.binary(), "binary"),
    (pa.large_binary(), "binary"),
    (pa.date32(), "date"),
]
_ALLOWED = (
    "boolean, int8 to int64, float32, float64, decimals of at most 38 digits, text, binary, "
    "date32, timestamps, lists, maps and structs of these, and dictionaries"
)


def columns_of(schema: pa.Schema) -> tuple[Column, ...]:
    """The columns of a table of these rows. Raises InvalidSchema, naming the column."""
    columns = tuple(Column(field.name, _type(field.type, field.name)) for field in schema)
    seen: dict[str, str] = {}
    for column in columns:
        other = seen.setdefault(column.name.lower(), column.name)
        if other != column.name:
            raise InvalidSchema(_alike(column.name, other))
    return columns


def merged(
    found: Sequence[Column], wanted: Sequence[Column], on_new_columns: OnNewColumns
) -> tuple[tuple[Column, ...], list[str]]:
    """A table's columns once it has rows of the wanted ones, and what keeps those out of it.

    The second is a sentence each; nothing is in the way if there is none. Columns that only
    the table has are null in the rows.
    """
    columns = {column.name: column for column in found}
    lower = {name.lower(): name for name in columns}
    wrong = []
    for column in wanted:
        there = columns.get(column.name)
        if there is not None:
            if there.type != column.type:
                allowed = f"allowed is {there.type}, as in the table"
                wrong.append(f"column '{column.name}': found {column.type}; {allowed}")
        elif column.name.lower() in lower:
            wrong.append(_alike(column.name, lower[column.name.lower()]))
        elif on_new_columns == "reject":
            added = "on_new_columns='add' would add it"
            wrong.append(f"column '{column.name}' is not in the table; {added}")
        else:
            columns[column.name] = column
    return tuple(columns.values()), wrong


def _type(kind: pa.DataType, place: str) -> str:
    for each, name in _NAMES:
        if kind.equals(each):
            return name
    if isinstance(kind, pa.DictionaryType):
        return _type(kind.value_type, place)
    if pa.types.is_timestamp(kind):
        return "timestamp_ntz" if kind.tz is None else "timestamp"
    if pa.types.is_decimal(kind) and kind.precision <= _MOST_DIGITS and kind.scale >= 0:
        return f"decimal({kind.precision},{kind.scale})"
    nested = _nested(kind, place)
    if nested is None:
        raise InvalidSchema(f"column '{place}': found {kind}; allowed are {_ALLOWED}")
    return nested


def _nested(kind: Any, place: str) -> str | None:
    types = pa.types
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return f"array<{_type(kind.value_type, place)}>"
    if types.is_map(kind):
        return f"map<{_type(kind.key_type, place)},{_type(kind.item_type, place)}>"
    if types.is_struct(kind) and kind.num_fields:
        fields = [kind.field(index) for index in range(kind.num_fields)]
        inner = [f"{_quoted(each.name)}:{_type(each.type, place)}" for each in fields]
        return f"struct<{','.join(inner)}>"
    return None


def _quoted(name: str) -> str:
    if _PLAIN.fullmatch(name):
        return name
    doubled = name.replace("`", "``")
    return f"`{doubled}`"


def _alike(name: str, other: str) -> str:
    return f"columns '{other}' and '{name}' differ in case only; Spark takes them for one"
