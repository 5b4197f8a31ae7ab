"""Names of tables: paths that stay below their warehouse. Pure."""

import re
from collections.abc import Iterator

from topology.errors import InvalidSchema

_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")
_CONTROL = re.compile("[\0-\x1f\x7f\ud800-\udfff]")  # no path can hold some of them
_GLOB = re.compile(r"[*?\[\]{}\\]")  # Spark would look for files that match
_ALLOWED = (
    "allowed are a path below the warehouse, whose parts are not empty, do not begin with '.' "
    "and have none of : * ? [ ] { } \\, or an absolute path or URI without '..'"
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
    warehouse itself, and is none of its hidden folders, as the spool is. What hides behind
    symbolic links is not looked at.
    """
    if not isinstance(name, str):
        raise InvalidSchema(f"table {name!r}: found {type(name).__name__}; {_ALLOWED}")
    reason = next(_reasons(name), None)
    if reason is not None:
        raise InvalidSchema(f"table {name!r}: {reason}; {_ALLOWED}")
    return name


def _reasons(name: str) -> Iterator[str]:
    """What is wrong with a name."""
    parts = name.split("/")
    if control := _CONTROL.search(name):
        yield f"found the character {control[0]!r}"
    if ".." in parts:
        yield "found '..'"
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
