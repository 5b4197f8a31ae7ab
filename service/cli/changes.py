"""Which offsets operators have moved, and why: the node `@changes`, beside `@control`. Pure.

A JSON list, the oldest first: {"at_ms", "by", "why", "partition", "from", "to"}; "from" is null
where nothing was stored.
"""

import msgspec

from partition.errors import StoreCorrupt
from partition.offsets.znode import said, shown

KEPT = 100  # the newest

_NEEDED = "a JSON list of what operators moved"


class Change(msgspec.Struct, frozen=True):
    """One partition's stored offset, moved by an operator."""

    at_ms: int  # since 1970
    by: str
    why: str
    partition: str
    before: int | None = msgspec.field(name="from")  # None: nothing was stored, or readable
    to: int


def changes_path(replicas_path: str) -> str:
    """Return the path of the node, from that of `@replicas` beside it."""
    return f"{replicas_path.rpartition('/')[0]}/@changes"


def decode_changes(path: str, data: bytes | None) -> list[Change]:
    """Read the node; one that is not there, or empty, tells of none. Raises StoreCorrupt."""
    if not data:
        return []
    try:
        return msgspec.json.decode(data, type=list[Change])
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise StoreCorrupt(path, f"{said(error)} in {shown(data)}", _NEEDED) from error


def with_change(path: str, data: bytes | None, change: Change) -> bytes:
    """Return the node's bytes with one more change, unless it is there. Raises StoreCorrupt."""
    changes = decode_changes(path, data)
    if change not in changes:
        changes.append(change)
    return msgspec.json.encode(changes[-KEPT:])
