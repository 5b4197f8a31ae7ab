"""What a Delta table remembers of a line: one number, in which a higher epoch always wins.

Delta's SetTransaction keeps one version per application id. With the epoch in its upper
bits, a commit of a lower epoch than the table has seen is told from its version alone, so a
successor fences by committing a higher one.
"""

from collections.abc import Mapping, Sequence

from topology.transactional import Committed

_TXID_BITS = 32
_LAST_TXID = (1 << _TXID_BITS) - 1
_LAST_EPOCH = (1 << (63 - _TXID_BITS)) - 1


def app_id(pipeline: str, sink: str, line: str) -> str:
    """The application id of a line: never of a process, or a successor would not find it."""
    return f"headrace/{pipeline}/{sink}/{line}"


def pack(epoch: int, txid: int) -> int:
    """One version out of both. Raises ValueError when one of them has no room."""
    if not (0 <= epoch <= _LAST_EPOCH and 0 <= txid <= _LAST_TXID):
        raise ValueError(f"epoch {epoch}, txid {txid}; up to {_LAST_EPOCH}, {_LAST_TXID} have room")
    return epoch << _TXID_BITS | txid


def unpack(version: int) -> tuple[int, int]:
    """The epoch and the txid of a version."""
    return version >> _TXID_BITS, version & _LAST_TXID


def committed_of(
    lines: Sequence[str], apps: Sequence[str], versions: Mapping[str, int]
) -> list[Committed]:
    """What is committed of each line; an application without a version knows nothing."""
    return [
        Committed(line, *unpack(versions.get(app, 0)))
        for line, app in zip(lines, apps, strict=True)
    ]
