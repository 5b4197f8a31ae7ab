"""What an entry of a manifest log says, as JSON that people can read too. Pure.

The form is documented for readers in docs/reference/parquet-manifest.md: a change that an older
reader would misread needs another FORMAT.
"""

from typing import Annotated, TypeAlias

import msgspec

FORMAT = 1
FOLDER = "_headrace"  # of the log, within the table's own; Spark passes over such names
_Natural: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
_UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


class InvalidEntry(ValueError):
    """It is no entry that could have been written."""


class Column(msgspec.Struct, frozen=True):
    """A column of the table. Any value of it may be null."""

    name: str
    type: str  # as Spark's SQL names it


class Listed(msgspec.Struct, frozen=True, omit_defaults=True):
    """A file of the table."""

    path: str  # below the table's folder, "/" between levels
    rows: _Natural
    bytes: _Natural
    partition: dict[str, str | None] = {}  # values by partition column


class Line(msgspec.Struct, frozen=True):
    """The last transaction of a line; txid 0: there is none, but the line has an owner."""

    epoch: _Natural
    txid: _Natural = 0
    first: _Natural = 0  # offsets from here
    end: _Natural = 0  # up to before this one
    digest: str = ""


class Whole(msgspec.Struct, frozen=True):
    """The whole table, once its entry is in force."""

    table: str  # an id: another one is another table
    columns: tuple[Column, ...]
    partition_by: tuple[str, ...]
    files: tuple[Listed, ...] = ()
    lines: dict[str, Line] = {}
    removed: dict[str, _Natural] = {}  # files that are not deleted yet: since when (ms)


class Change(msgspec.Struct, frozen=True):
    """What an entry does to the table."""

    add: tuple[Listed, ...] = ()
    remove: tuple[str, ...] = ()  # no part of the table any more, to be deleted later
    forget: tuple[str, ...] = ()  # removed before, and deleted now
    lines: dict[str, Line] = {}
    columns: tuple[Column, ...] | None = None  # all of them, if there are others now


class Entry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One version of the table: what it changes, and now and then the whole."""

    format: int
    version: _Natural
    made_ms: _Natural
    made_by: str
    add: tuple[Listed, ...] = ()
    remove: tuple[str, ...] = ()
    forget: tuple[str, ...] = ()
    lines: dict[str, Line] = {}
    columns: tuple[Column, ...] | None = None
    whole: Whole | None = None


class _Format(msgspec.Struct):
    format: int


_format_decoder = msgspec.json.Decoder(_Format)
_decoder = msgspec.json.Decoder(Entry)
_encoder = msgspec.json.Encoder()


def encode(entry: Entry) -> bytes:
    """Spell an entry out."""
    return _encoder.encode(entry) + b"\n"


def decode(raw: bytes, version: int) -> Entry:
    """Read the entry of this version. Raises InvalidEntry.

    No path that it names leads out of the table's folder.
    """
    try:
        found = _format_decoder.decode(raw).format
        if found != FORMAT:
            raise InvalidEntry(f"found format {found}; this version of Headrace reads {FORMAT}")
        entry = _decoder.decode(raw)
    except _UNREADABLE as error:
        raise InvalidEntry(str(error)) from error
    if entry.version != version:
        raise InvalidEntry(f"it is entry {entry.version}, but its name says {version}")
    if entry.whole is None and version == 0:
        raise InvalidEntry("entry 0 does not say what the table is")
    for path in _paths(entry):
        if not is_inside(path):
            raise InvalidEntry(f"the path {path!r} is none below the table's folder")
    return entry


def is_inside(path: str) -> bool:
    """Whether a path leads to a data file below the folder that it is relative to."""
    parts = path.split("/")
    return not {"", ".", ".."} & set(parts) and "\0" not in path and parts[0] != FOLDER


def line_key(pipeline: str, sink: str, line: str) -> str:
    """The name of a line in the log: two pipelines may write one table."""
    return "/".join(part.replace("%", "%25").replace("/", "%2F") for part in (pipeline, sink, line))


def _paths(entry: Entry) -> list[str]:
    paths = [file.path for file in entry.add]
    paths += [*entry.remove, *entry.forget]
    if entry.whole is not None:
        paths += [file.path for file in entry.whole.files]
        paths += entry.whole.removed
    return paths
