"""What a topic's node holds: which of its partitions were begun. Pure functions.

{"headrace": {"begun": [0, 1, 2], "first": 4}}: the first offset of these partitions was
stored, so a node of theirs that is not there is missing, and any other's is not there yet.
The topic had four partitions when the first of them was begun: a fifth was added later. It
is written together with a partition's first offset; what else the node holds is kept.
"""

from dataclasses import dataclass, field

import msgspec

from partition.errors import StoreCorrupt
from partition.offsets.znode import check_version, said, shown

_NEEDED = 'a JSON object with the partitions that were begun, as "headrace"."begun",'


@dataclass(frozen=True, slots=True)
class TopicNode:
    """The partitions that were begun, and what others keep in the node."""

    begun: frozenset[int] = frozenset()
    first: int | None = None  # how many partitions there were then; None: not noted
    others: dict[str, msgspec.Raw] = field(default_factory=dict)


class _Headrace(msgspec.Struct, omit_defaults=True):
    begun: list[int] = []
    first: int | None = None


def topic_path(root: str, pipeline: str, topic: str) -> str:
    """Return a topic's path: `<root>/<pipeline>/<topic>`."""
    return f"{root.rstrip('/')}/{pipeline}/{topic}"


def decode_topic(path: str, data: bytes) -> TopicNode:
    """Read a topic's node; one made as a mere parent is empty. Raises StoreCorrupt."""
    if not data:
        return TopicNode()
    try:
        check_version(path, data)
        others = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
        ours = others.pop("headrace", None)
        told = _Headrace() if ours is None else msgspec.json.decode(ours, type=_Headrace)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise StoreCorrupt(path, f"{said(error)} in {shown(data)}", _NEEDED) from error
    return TopicNode(frozenset(told.begun), told.first, others)


def encode_topic(node: TopicNode) -> bytes:
    """Return the node's bytes."""
    ours = _Headrace(sorted(node.begun), node.first)
    return msgspec.json.encode({**node.others, "headrace": ours})
