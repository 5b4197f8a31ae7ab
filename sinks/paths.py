"""Places of tables: local paths, URIs as Hadoop reads them, and where links lead."""

import os
import re
from pathlib import Path

from sinks.names import is_absolute, is_uri
from topology.errors import SinkFailed

_FILE_URI = re.compile(r"file:(?://[^/]*)?(.*)", re.DOTALL)
_INNER = ("_delta_log", "metadata", "data")  # what tables have in their folders


def local_path(place: str) -> Path | None:
    """A path or `file:` URI as a path; None for any other scheme.

    A URI is read as Hadoop reads it: nothing in it is escaped.
    """
    found = _FILE_URI.match(place)
    if found is not None:
        place = found[1]
    elif is_uri(place):
        return None
    return Path(os.path.abspath(place))  # noqa: PTH100 - as Hadoop does, without a look at links


def local_uri(path: Path) -> str:
    """A path as a URI that Hadoop reads back as that path: nothing in it is escaped."""
    return f"file://{path}"


def table_path(warehouse: str, table: str) -> str:
    """The table's URI as Hadoop reads it: the table if absolute, else below the warehouse."""
    place = table if is_absolute(table) else f"{warehouse.rstrip('/')}/{table}"
    path = local_path(place)
    return place if path is None else local_uri(path)


def table_folder(warehouse: str, table: str) -> Path | None:
    """The table's folder, which need not be there; None where it is not local.

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
            f"{place} leads to {found}, not below {root}; allowed are links that stay below it"
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
