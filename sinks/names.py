"""Names of tables, which stay below their warehouse, and of their columns. Pure."""

import re
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from topology.errors import InvalidSchema

_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")
_CONTROL = re.compile("[\0-\x1f\x7f\ud800-\udfff]")  # no path can hold some of them
_GLOB = re.compile(r"[*?\[\]{}\\]")  # Spark would look for files that match
_LOG = "_delta_log"  # what lies in it is a table's own
_LONGEST_COLUMN = 255  # characters
_SHOWN = 40
_ALLOWED = (
    "allowed are a path below the warehouse, whose parts are not empty, do not begin with '.' "
    "and have none of : * ? [ ] { } \\, or an absolute path or URI without '..'; no part is "
    "_delta_log"
)


def is_absolute(name: str) -> bool:
    """Whether a table's name is an absolute path or a URI, so that no warehouse matters."""
    return name.startswith("/") or is_uri(name)


def is_uri(name: str) -> bool:
    """Whether a name begins with a scheme, as `file:/` and `s3a://` do."""
    return _URI.match(name) is not None


def checked_table(name: str) -> str:
    """The name itself, if it names a place that is below any warehouse, or an absolute one.

    Raises InvalidSchema. A path that is joined to a warehouse never leaves it, is not the
    warehouse itself, and is none of its hidden folders, as the spool is, nor a table's log. What
    hides behind symbolic links, `table_folder` looks at.
    """
    if not isinstance(name, str):
        raise InvalidSchema(f"table {name!r}: found {type(name).__name__}; {_ALLOWED}")
    reason = next(_reasons(name), None)
    if reason is not None:
        raise InvalidSchema(f"table {name!r}: {reason}; {_ALLOWED}")
    return name


def checked_columns(schema: pa.Schema, table: str) -> pa.Schema:
    """The schema itself, if files can have its columns. Raises InvalidSchema."""
    for field in (field for each in schema for field in _fields(each)):
        reason = next(_column_reasons(field), None)
        if reason is not None:
            raise InvalidSchema(
                f"table '{table}', column {_shown(field.name)}: {reason}; allowed are names of 1 "
                f"to {_LONGEST_COLUMN} characters without control characters, and decimals with "
                "no more digits behind the point than in all"
            )
    return schema


def names_in(schema: pa.Schema) -> Iterator[str]:
    """The names of a schema's columns, and of those that are in them."""
    return (field.name for each in schema for field in _fields(each))


def _fields(field: "pa.Field[Any]") -> Iterator["pa.Field[Any]"]:
    """A column, and all that is in it."""
    yield field
    kind: Any = field.type
    for number in range(kind.num_fields):
        yield from _fields(kind.field(number))


def _column_reasons(field: "pa.Field[Any]") -> Iterator[str]:
    """What is wrong with a column by itself."""
    kind: Any = field.type
    if not field.name:
        yield "it is empty"
    if control := _CONTROL.search(field.name):
        yield f"found the character {control[0]!r}"
    if len(field.name) > _LONGEST_COLUMN:
        yield f"found {len(field.name)} characters"
    if isinstance(kind, pa.DictionaryType):
        kind = kind.value_type
    if pa.types.is_decimal(kind) and not 0 <= kind.scale <= kind.precision:
        yield f"found {kind}"


def _shown(name: str) -> str:
    return repr(name if len(name) <= _SHOWN else f"{name[:_SHOWN]}…")


def _reasons(name: str) -> Iterator[str]:
    """What is wrong with a name."""
    parts = name.split("/")
    if control := _CONTROL.search(name):
        yield f"found the character {control[0]!r}"
    if ".." in parts:
        yield "found '..'"
    if _LOG in parts:
        yield f"found the part '{_LOG}', a table's log"
    if is_absolute(name):
        return
    if ":" in name:
        yield "found ':', but no URI"
    if "" in parts:
        yield "found an empty part" if name else "it is empty"
    if hidden := [part for part in parts if part.startswith(".")]:
        yield f"found the part {hidden[0]!r}"
    if glob := _GLOB.search(name):
        yield f"found {glob[0]!r}"
