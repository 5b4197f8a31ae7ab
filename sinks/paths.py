"""Places of tables: local paths, and URIs as Hadoop reads them. Pure."""

import os
import re
from pathlib import Path

from sinks.names import is_absolute, is_uri

_FILE_URI = re.compile(r"file:(?://[^/]*)?(.*)", re.DOTALL)


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
