"""Tables by name and columns: which are allowed, where a table lies, whether rows fit it."""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import pyarrow as pa

from topology.errors import InvalidSchema, SinkFailed

OnNewColumns: TypeAlias = Literal["reject", "add"]

_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")
_CONTROL = re.compile("[\0-\x1f\x7f\ud800-\udfff]")  # no path can hold some of them
_GLOB = re.compile(r"[*?\[\]{}\\]")  # Spark would look for files that match
_LOG = "_delta_log"  # what lies in it is a table's own
_LONGEST_COLUMN = 255  # characters
_SHOWN = 40
_ALLOWED = (
    "expected a path below the warehouse, whose parts are not empty, do not begin with '.' "
    "and have none of : * ? [ ] { } \\, or an absolute path or URI without '..'; no part is "
    "_delta_log"
)
_FILE_URI = re.compile(r"file:(?://[^/]*)?(.*)", re.DOTALL)
_INNER = ("_delta_log", "metadata", "data")  # what tables have in their folders


def is_absolute(name: str) -> bool:
    """Whether a table's name is an absolute path or a URI, so that no warehouse matters."""
    return name.startswith("/") or is_uri(name)


def is_uri(name: str) -> bool:
    """Whether a name begins with a scheme, as `file:/` and `s3a://` do."""
    return _URI.match(name) is not None


def checked_table(name: str) -> str:
    """Return the name if it is a place below any warehouse, or an absolute one.

    Raises InvalidSchema. A path that is joined to a warehouse never leaves it, and is neither the
    warehouse itself nor one of its hidden folders, such as the spool, nor a table's log.
    `table_folder` looks behind symbolic links.
    """
    if not isinstance(name, str):
        raise InvalidSchema(f"table {name!r}: found {type(name).__name__}; {_ALLOWED}")
    reason = next(_reasons(name), None)
    if reason is not None:
        raise InvalidSchema(f"table {name!r}: {reason}; {_ALLOWED}")
    return name


def checked_columns(schema: pa.Schema, table: str) -> pa.Schema:
    """Return the schema if files can have its columns. Raises InvalidSchema."""
    for field in (field for each in schema for field in _fields(each)):
        reason = next(_column_reasons(field), None)
        if reason is not None:
            raise InvalidSchema(
                f"table '{table}', column {_shown(field.name)}: {reason}, expected names of 1 "
                f"to {_LONGEST_COLUMN} characters without control characters, and decimals with "
                "no more digits behind the point than in all"
            )
    return schema


def names_in(schema: pa.Schema) -> Iterator[str]:
    return (field.name for each in schema for field in _fields(each))


def checked_new_columns(value: OnNewColumns, table: str) -> OnNewColumns:
    """Return `on_new_columns` as it was given. Raises InvalidSchema."""
    if value not in get_args(OnNewColumns):
        names = " and ".join(f"'{each}'" for each in get_args(OnNewColumns))
        raise InvalidSchema(f"table '{table}': on_new_columns is {value!r}, expected {names}")
    return value


def backticked(name: str) -> str:
    """Quote a name as Spark's SQL and delta-rs have it."""
    return "`" + name.replace("`", "``") + "`"


def local_path(place: str) -> Path | None:
    """Return a path or `file:` URI as a path, None for any other scheme.

    A URI is read as Hadoop reads it: nothing in it is escaped.
    """
    found = _FILE_URI.match(place)
    if found is not None:
        place = found[1]
    elif is_uri(place):
        return None
    return Path(os.path.abspath(place))  # noqa: PTH100 - as Hadoop does, without a look at links


def local_uri(path: Path) -> str:
    """Return a path as the URI that Hadoop reads back as that path: nothing is escaped."""
    return f"file://{path}"


def table_path(warehouse: str, table: str) -> str:
    """Return the table's URI as Hadoop reads it: an absolute table, or one below the warehouse."""
    place = table if is_absolute(table) else f"{warehouse.rstrip('/')}/{table}"
    path = local_path(place)
    return place if path is None else local_uri(path)


def table_folder(warehouse: str, table: str) -> Path | None:
    """Return the table's folder, which may be missing; None where it is not local.

    Raises SinkFailed when links lead from it to the warehouse or out of it, or from what a table
    has in its folder out of that. A warehouse, or a table's absolute path, may be a link itself.
    """
    folder = local_path(table_path(warehouse, table))
    if folder is None:
        return None
    root = None if is_absolute(table) else local_path(warehouse)
    try:
        if root is not None:
            check_below(folder, root)
        for inner in _INNER:
            check_below(folder / inner, folder)
    except SinkFailed as error:
        raise SinkFailed(f"table '{table}': {error}") from error
    return folder


def check_below(place: Path, root: Path) -> None:
    """Raise SinkFailed unless a place is below a root, whatever links there are."""
    found, top = os.path.realpath(place), os.path.realpath(root)
    if not found.startswith(os.path.join(top, "")):  # noqa: PTH118 - "/" stays "/"
        raise SinkFailed(
            f"{place} leads to {found}, not below {root}, expected links that stay below it"
        )


def check_kind(table: str, folder: Path, own: str) -> None:
    """Raise SinkFailed when the folder is a table of another kind than this sink's."""
    metadata = folder / "metadata"
    # In this order: a Delta table may have Iceberg's metadata too, for Iceberg's readers.
    if (folder / "_delta_log").exists():
        kind, sink = "a Delta table", "DeltaSink"
    elif (metadata / "version-hint.text").exists() or any(metadata.glob("*.metadata.json")):
        kind, sink = "an Iceberg table", "IcebergSink"
    else:
        return
    if sink != own:
        raise SinkFailed(f"table '{table}' at {folder} is {kind}; use {sink}")


def _fields(field: "pa.Field[Any]") -> Iterator["pa.Field[Any]"]:
    yield field
    kind: Any = field.type
    for number in range(kind.num_fields):
        yield from _fields(kind.field(number))


def _column_reasons(field: "pa.Field[Any]") -> Iterator[str]:
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


def compared(wanted: pa.Schema, found: pa.Schema) -> "tuple[list[str], list[pa.Field[Any]]]":
    """Return why rows of `wanted` do not fit a table, a sentence each, and the columns it lacks.

    The order of columns does not matter. A column that only the table has becomes null.
    """
    there = {field.name: field for field in found}
    alike = {name.lower(): name for name in there}
    wrong: list[str] = []
    missing: list[pa.Field[Any]] = []
    for field in wanted:
        its, name = there.pop(field.name, None), f"column '{field.name}'"
        if its is None and (other := alike.get(field.name.lower())):  # to Spark they are the same
            wrong.append(f"{name}: found '{other}' in the table, spelled differently")
        elif its is None:
            missing.append(field)
        elif not field.type.equals(its.type):
            wrong.append(f"{name}: found {field.type}, expected {its.type}, as in the table")
        elif field.nullable and not its.nullable:
            wrong.append(f"{name} is NOT NULL in the table only")
    only = [field.name for field in there.values() if not field.nullable]
    return [*wrong, *(f"column '{name}' is NOT NULL in the table only" for name in only)], missing


def lacks(name: str, adding: str) -> str:
    """Describe a column that a table lacks and that `adding` would add."""
    return f"column '{name}' is not in the table; {adding} would add it"
