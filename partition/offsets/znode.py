"""The stored form of an offset: storm-kafka's JSON, plus our fields. Pure functions.

storm-kafka 1.x wrote {"topology": {"id", "name"}, "offset", "partition",
"broker": {"host", "port"}, "topic"} and its tools need `topology.id` and `offset`. We
add "headrace": by `writer` and `sequence` a process knows a write as its own when the
server's reply was lost, `epoch` counts the owners, `leader_epoch` and `topic_id` say which
log the offset is of, and `incarnation` names the node below that tells this node from
another of the same path and version. `transactions` are the open ones; one node holds them and
the offset, so one write stores both or neither. A "version" above ours is of a later version of
this package and is not read.

A topic's node lists the partitions that were begun, {"headrace": {"begun": [0, 1, 2],
"first": 4}}: their first offset was stored, so a missing node of theirs was lost, and a missing
node of any other was never made. The topic had four partitions when the first of them was begun:
a fifth was added later. It is written together with a partition's first offset; other fields of
the node are kept.
"""

from dataclasses import astuple, dataclass, field
from typing import Annotated, TypeVar

import msgspec

from partition.errors import StoreCorrupt
from partition.interfaces import StoredOffset
from partition.records import (
    OpenTransaction,
    Partition,
    Position,
    Range,
    TransactionKind,
    Transactions,
)

T = TypeVar("T")

VERSION = 1  # of "headrace"; not written as long as it is the first
MAX_BYTES = 1024 * 1024  # ZooKeeper's own limit (jute.maxbuffer)
MAX_OFFSET = 2**63 - 1
_SHOWN_BYTES = 60
_SAID = 200  # characters
_NEEDED = StoreCorrupt.needed
_NEEDED_OF_TOPIC = 'a JSON object with the partitions that were begun, as "headrace"."begun",'

_Natural = Annotated[int, msgspec.Meta(ge=0, le=MAX_OFFSET)]
# It becomes part of a path, so nothing else is allowed.
_Incarnation = Annotated[str, msgspec.Meta(pattern=r"\A[0-9A-Za-z-]{1,64}\Z")]


@dataclass(frozen=True, slots=True)
class Writer:
    """The mark of a write: a process (random, new at each start) and its count of writes."""

    process: str
    sequence: int


@dataclass(frozen=True, slots=True)
class OffsetNode:
    """A decoded node; `writer` and `incarnation` are None where storm-kafka wrote it."""

    stored: StoredOffset
    writer: Writer | None = None
    incarnation: str | None = None


class _Topology(msgspec.Struct):
    id: str
    name: str | None = None


class _Broker(msgspec.Struct):
    """Storm-kafka's tools look for one; they need neither its host nor its port."""

    host: str = ""
    port: int = 0


class _Open(msgspec.Struct, omit_defaults=True):
    txid: _Natural
    attempt: _Natural
    first: _Natural
    end: _Natural
    count: _Natural | None = None  # absent, as is the digest, while the range is only planned
    digest: str | None = None
    leader_epoch: _Natural | None = None


class _Transactions(msgspec.Struct):
    kind: TransactionKind
    committed: _Natural
    open: list[_Open]


class _Headrace(msgspec.Struct):
    writer: str
    sequence: _Natural
    epoch: _Natural = 0  # absent where an earlier version of this package wrote
    leader_epoch: _Natural | None = None
    topic_id: str | None = None
    incarnation: _Incarnation | None = None
    transactions: _Transactions | msgspec.UnsetType | None = msgspec.UNSET


class _Read(msgspec.Struct):
    """The fields that storm-kafka's own reader needs; everything else may be missing."""

    topology: _Topology
    offset: _Natural
    headrace: _Headrace | None = None


class _Written(msgspec.Struct):
    topology: _Topology
    offset: _Natural
    partition: int
    broker: _Broker
    topic: str
    headrace: _Headrace | msgspec.UnsetType = msgspec.UNSET


class _Version(msgspec.Struct):
    version: _Natural = VERSION


class _Versioned(msgspec.Struct):
    headrace: _Version | None = None


def incarnation_path(path: str, incarnation: str) -> str:
    return f"{path}/incarnation-{incarnation}"


def encode(partition: Partition, node: OffsetNode) -> bytes:
    """Return the node's bytes; without a writer, storm-kafka's. Raises ValueError if invalid."""
    stored, writer = node.stored, node.writer
    ours: _Headrace | msgspec.UnsetType = msgspec.UNSET
    written: _Transactions | msgspec.UnsetType = msgspec.UNSET
    if stored.transactions is not None:
        found = stored.transactions.checked(stored.position.offset)
        entries = [_Open(each.txid, each.attempt, *astuple(each.range)) for each in found.open]
        written = _Transactions(found.kind, found.committed, entries)
    if writer is not None:
        ours = _Headrace(
            writer.process,
            writer.sequence,
            stored.epoch,
            stored.position.leader_epoch,
            stored.position.topic_id,
            node.incarnation,
            written,
        )
    return msgspec.json.encode(
        _Written(
            topology=_Topology(stored.topology_id, stored.topology_name),
            offset=stored.position.offset,
            partition=partition.number,
            broker=_Broker(),
            topic=partition.topic,
            headrace=ours,
        )
    )


def parse(path: str, data: bytes | msgspec.Raw, kind: type[T], needed: str) -> T:
    """Decode JSON strictly. Raises StoreCorrupt, which says what is `needed`."""
    try:
        bytes(data).decode("utf-8")  # msgspec looks only at the strings that it keeps
        return msgspec.json.decode(data, type=kind)
    except (UnicodeDecodeError, RecursionError, msgspec.DecodeError) as error:
        reason = "nesting too deep" if isinstance(error, RecursionError) else said(error)
        raise StoreCorrupt(path, f"{reason} in {shown(bytes(data))}", needed) from error


def decode(path: str, data: bytes) -> OffsetNode:
    if len(data) > MAX_BYTES:
        raise StoreCorrupt(path, f"{len(data)} bytes, more than {MAX_BYTES}")
    check_version(path, data, _NEEDED)
    node = parse(path, data, _Read, _NEEDED)
    ours, name = node.headrace, node.topology.name or ""
    if ours is None:
        return OffsetNode(StoredOffset(Position(node.offset), node.topology.id, name))
    position = Position(node.offset, ours.leader_epoch, ours.topic_id)
    try:
        transactions = _as_read(ours.transactions, node.offset)
    except ValueError as error:
        raise StoreCorrupt(path, f"transactions: {error}") from error
    stored = StoredOffset(position, node.topology.id, name, ours.epoch, transactions)
    return OffsetNode(stored, Writer(ours.writer, ours.sequence), ours.incarnation)


def check_version(path: str, data: bytes, needed: str) -> None:
    """Raise StoreCorrupt for data of a later version of this package, or no data of any."""
    ours = parse(path, data, _Versioned, needed).headrace
    if ours is not None and ours.version > VERSION:
        found = f'"headrace"."version" {ours.version}, which a later version of this package wrote'
        raise StoreCorrupt(path, found, f'"version" up to {VERSION}, or a later package,')


def _as_read(found: _Transactions | msgspec.UnsetType | None, offset: int) -> Transactions | None:
    if not isinstance(found, _Transactions):
        return None
    entries = (
        OpenTransaction(
            each.txid,
            each.attempt,
            Range(each.first, each.end, each.count, each.digest, each.leader_epoch),
        )
        for each in found.open
    )
    return Transactions(found.kind, found.committed, tuple(entries)).checked(offset)


@dataclass(frozen=True, slots=True)
class TopicNode:
    begun: frozenset[int] = frozenset()
    first: int | None = None  # how many partitions there were then; None: not noted
    others: dict[str, msgspec.Raw] = field(default_factory=dict)


class _Begun(msgspec.Struct, omit_defaults=True):
    begun: list[int] = []
    first: int | None = None


def decode_topic(path: str, data: bytes) -> TopicNode:
    if not data:
        return TopicNode()
    check_version(path, data, _NEEDED_OF_TOPIC)
    others = parse(path, data, dict[str, msgspec.Raw], _NEEDED_OF_TOPIC)
    ours = others.pop("headrace", msgspec.Raw(b"{}"))
    told = parse(path, ours, _Begun, _NEEDED_OF_TOPIC)
    return TopicNode(frozenset(told.begun), told.first, others)


def encode_topic(node: TopicNode) -> bytes:
    ours = _Begun(sorted(node.begun), node.first)
    return msgspec.json.encode({**node.others, "headrace": ours})


def shown(data: bytes) -> str:
    start = data[:_SHOWN_BYTES].decode("utf-8", "backslashreplace")
    return f"{start!r}" + ("..." if len(data) > _SHOWN_BYTES else "")


def said(error: Exception) -> str:
    """Return a parser's error text; a long one, which quotes a value, without its middle."""
    text = str(error)
    return text if len(text) <= 2 * _SAID else f"{text[:_SAID]}...{text[-_SAID:]}"
