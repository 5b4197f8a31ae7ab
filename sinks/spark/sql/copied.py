"""Rows as COPY writes them to a file, read back as columns. Pure, but for the file."""

import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds
from pyarrow import csv

from sinks.spark.sql.columns import is_text, sql_type
from sinks.spark.sql.names import quoted

_BLOCK_BYTES = 1 << 20
_MOST_BYTES = 2**31 - 1  # of a block, and so of a file
_UNITS = ("s", "ms", "us")
_IN_COLUMN = re.compile(r"In CSV column #(\d+): ")


def is_exact(kind: pa.DataType) -> bool:
    """Whether each value of a type comes back from PostgreSQL as it was."""
    if kinds.is_timestamp(kind):
        return str(kind.unit) in _UNITS
    if kinds.is_decimal128(kind):
        return bool(0 <= kind.scale <= kind.precision)
    if is_text(kind):
        return not kinds.is_string_view(kind)
    return bool(
        kinds.is_boolean(kind)
        or kinds.is_integer(kind)
        or kinds.is_float32(kind)
        or kinds.is_float64(kind)
        or kinds.is_date32(kind)
    )


def select_list(schema: pa.Schema, alias: str) -> str:
    """These columns of the table of that alias, so that `read_copied` understands them.

    Times with a zone are told in UTC: what zone the session has may not matter. Others are told as
    the type that a column of ours has: one with more room would tell them otherwise, as 7.00.
    """
    return ", ".join(f"{alias}.{quoted(field.name)}{_as_ours(field.type)}" for field in schema)


def read_copied(path: Path, schema: pa.Schema) -> pa.Table:
    """Read a file that COPY … WITH (FORMAT csv) has written from `select_list`'s columns.

    Only types that are exact. Raises OSError, and ArrowInvalid for a value that is none of its
    type, such as an infinite time, and a file of more than 2 GiB; see `unreadable`.
    """
    size = path.stat().st_size
    if not size:
        return schema.empty_table()
    plain = pa.schema([pa.field(field.name, _without_zone(field.type)) for field in schema])
    table = csv.read_csv(
        path,
        # A row may be as long as the file; and one that ends in the next block is none.
        csv.ReadOptions(
            column_names=plain.names, block_size=min(max(size, _BLOCK_BYTES), _MOST_BYTES)
        ),
        csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False),
        csv.ConvertOptions(
            column_types=plain,
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
            true_values=["t"],
            false_values=["f"],
        ),
    )
    columns = [_with_zone(table.column(field.name), field.type) for field in schema]
    return pa.table(columns, schema=schema)


def unreadable(error: pa.ArrowInvalid, schema: pa.Schema) -> str:
    """What `read_copied` means by its error; without the value, which is nobody else's."""
    found = _IN_COLUMN.match(str(error))
    if found is None:
        return f"its rows cannot be read: {error}"
    field = schema.field(int(found[1]))
    return f"column '{field.name}' has a value that is no {field.type}"


def _as_ours(kind: pa.DataType) -> str:
    return " AT TIME ZONE 'UTC'" if _has_zone(kind) else f"::{sql_type(kind)}"


def _has_zone(kind: Any) -> bool:
    return kinds.is_timestamp(kind) and kind.tz is not None


def _without_zone(kind: Any) -> pa.DataType:
    return pa.timestamp(kind.unit) if _has_zone(kind) else kind


def _with_zone(column: Any, kind: pa.DataType) -> Any:
    return pc.assume_timezone(column, "UTC").cast(kind) if _has_zone(kind) else column
