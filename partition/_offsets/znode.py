"""The form in which an offset is stored in a ZooKeeper node: storm-kafka's, plus our writer.

storm-kafka 1.x wrote {"topology": {"id", "name"}, "offset", "partition",
"broker": {"host", "port"}, "topic"} and its tools need `topology.id` and `offset`. We
add "headrace": {"writer", "sequence"}, by which a process knows a write as its own when
the server's reply was lost. Everything here is a pure function.
"""

from dataclasses import dataclass
from typing import Annotated

import msgspec

from partition.chunk import Partition
from partition.errors import StoreCorrupt
from partition.store import StoredOffset

MAX_BYTES = 1024 * 1024  # ZooKeeper's own limit (jute.maxbuffer)
MAX_OFFSET = 2**63 - 1
_SHOWN_BYTES = 60

_Natural = Annotated[int, msgspec.Meta(ge=0, le=MAX_OFFSET)]


@dataclass(frozen=True, slots=True)
class Broker:
    """The broker named in a node, for storm-kafka's tools; nothing here reads it."""

    host: str = ""
    port: int = 0


@dataclass(frozen=True, slots=True)
class Writer:
    """Who wrote a node: a process (random, new at each start) and its count of writes."""

    process: str
    sequence: int


@dataclass(frozen=True, slots=True)
class OffsetNode:
    """What a node holds; `writer` is None where storm-kafka wrote it."""

    stored: StoredOffset
    writer: Writer | None = None


class _Topology(msgspec.Struct):
    id: str
    name: str | None = None


class _Broker(msgspec.Struct):
    host: str
    port: int


class _Headrace(msgspec.Struct):
    writer: str
    sequence: _Natural


class _Read(msgspec.Struct):
    """What storm-kafka's own reader needs; everything else may be there or not."""

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


_decoder = msgspec.json.Decoder(_Read)


def node_path(root: str, pipeline: str, partition: Partition) -> str:
    """Return a partition's path: `<root>/<pipeline>/<topic>/partition_<N>`."""
    return f"{root.rstrip('/')}/{pipeline}/{partition.topic}/partition_{partition.number}"


def encode(partition: Partition, node: OffsetNode, broker: Broker) -> bytes:
    """Return the node's bytes."""
    writer = node.writer
    return msgspec.json.encode(
        _Written(
            topology=_Topology(node.stored.topology_id, node.stored.topology_name),
            offset=node.stored.offset,
            partition=partition.number,
            broker=_Broker(broker.host, broker.port),
            topic=partition.topic,
            headrace=_Headrace(writer.process, writer.sequence) if writer else msgspec.UNSET,
        )
    )


def decode(path: str, data: bytes) -> OffsetNode:
    """Read a node's bytes. Raises StoreCorrupt, which names the path and what was found."""
    if len(data) > MAX_BYTES:
        raise StoreCorrupt(path, f"{len(data)} bytes, more than {MAX_BYTES}")
    try:
        data.decode("utf-8")
        node = _decoder.decode(data)
    except UnicodeDecodeError as error:
        raise StoreCorrupt(path, f"{error} in {_shown(data)}") from error
    except RecursionError as error:
        raise StoreCorrupt(path, f"nesting too deep in {_shown(data)}") from error
    except msgspec.DecodeError as error:
        raise StoreCorrupt(path, f"{error} in {_shown(data)}") from error
    stored = StoredOffset(node.offset, node.topology.id, node.topology.name or "")
    ours = node.headrace
    return OffsetNode(stored, Writer(ours.writer, ours.sequence) if ours else None)


def _shown(data: bytes) -> str:
    start = data[:_SHOWN_BYTES].decode("utf-8", "backslashreplace")
    return f"{start!r}" + ("..." if len(data) > _SHOWN_BYTES else "")
