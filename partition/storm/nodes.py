"""Reads the nodes in which Storm's Kafka spouts keep what they have read. Pure and strict.

storm-kafka core     {"topology": {"id", "name"}, "offset", "partition", "broker", "topic"}
storm-kafka Trident  {"offset", "nextOffset", "instanceId", "partition", "broker", "topic",
                     "topology"}; no instanceId where a fetch had failed
storm-kafka-client   {"firstOffset", "lastOffset", "topologyId"}

Keys come in any order, each once, and further ones are passed over. What is needed must be
there and of its own type: 0 is an offset, and nothing else stands for one, -0 neither.
"""

import json
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

import msgspec

from partition.errors import StormUnreadable
from partition.offsets.znode import said, shown

T = TypeVar("T")

_MAX_OFFSET = 2**63 - 1

_Natural = Annotated[int, msgspec.Meta(ge=0, le=_MAX_OFFSET)]
_Long = Annotated[int, msgspec.Meta(ge=-_MAX_OFFSET, le=_MAX_OFFSET - 1)]


@dataclass(frozen=True, slots=True)
class StormNode:
    """One node: what was read, and whose it is as far as the node says."""

    first: int  # of the batch; in core's node the same as `following`
    following: int  # the next offset to read
    topic: str | None = None
    number: int | None = None
    topology: str | None = None


class _Topology(msgspec.Struct):
    id: str


class _Core(msgspec.Struct):
    topology: _Topology
    offset: _Natural
    topic: str | None = None
    partition: int | None = None


class _KafkaBatch(msgspec.Struct):
    offset: _Natural
    nextOffset: _Natural  # noqa: N815 - Storm's names
    topic: str | None = None
    partition: int | None = None
    topology: _Topology | None = None


class _ClientBatch(msgspec.Struct):
    firstOffset: _Long  # noqa: N815
    lastOffset: _Long  # noqa: N815
    topologyId: str | None = None  # noqa: N815


_CORE = msgspec.json.Decoder(_Core)
_KAFKA_BATCH = msgspec.json.Decoder(_KafkaBatch)
_CLIENT_BATCH = msgspec.json.Decoder(_ClientBatch)
_TRANSACTION = msgspec.json.Decoder(_Natural)


def core(path: str, data: bytes) -> StormNode:
    """Read a core spout's node. Raises StormUnreadable."""
    node = _decode(
        _CORE, path, data, 'an object with a string "topology"."id" and an "offset" from 0'
    )
    return StormNode(node.offset, node.offset, node.topic, node.partition, node.topology.id)


def kafka_batch(path: str, data: bytes) -> StormNode:
    """Read a transaction's node of storm-kafka's Trident spouts. Raises StormUnreadable."""
    needed = 'an object with "offset" and "nextOffset", integers from 0, the first not above'
    node = _decode(_KAFKA_BATCH, path, data, needed)
    if node.nextOffset < node.offset:
        raise StormUnreadable(path, shown(data), needed)
    topology = node.topology.id if node.topology is not None else None
    return StormNode(node.offset, node.nextOffset, node.topic, node.partition, topology)


def client_batch(path: str, data: bytes) -> StormNode:
    """Read a transaction's node of storm-kafka-client's Trident spouts. Raises StormUnreadable.

    An empty batch says position - 1 twice, so -1 twice before the first record of a log
    (KafkaTridentSpoutEmitter.emitPartitionBatchNew, STORM-3279).
    """
    needed = (
        'an object with "firstOffset" and "lastOffset", integers from 0, the first not above; '
        "or both -1"
    )
    node = _decode(_CLIENT_BATCH, path, data, needed)
    first, last = node.firstOffset, node.lastOffset
    if last < first or (first < 0 and (first, last) != (-1, -1)):
        raise StormUnreadable(path, shown(data), needed)
    return StormNode(max(0, first), last + 1, topology=node.topologyId)


def transaction(path: str, data: bytes) -> int:
    """Read the node `currtx`: the transaction to be committed next. Raises StormUnreadable."""
    return _decode(_TRANSACTION, path, data, "an integer from 0")


def _decode(decoder: "msgspec.json.Decoder[T]", path: str, data: bytes, needed: str) -> T:
    try:
        text = data.decode("utf-8")  # msgspec looks at the strings it keeps only
        node = decoder.decode(data)
        json.loads(text, parse_int=_checked, object_pairs_hook=_with_keys_once)
    except (ValueError, RecursionError, msgspec.DecodeError) as error:
        raise StormUnreadable(path, f"{shown(data)} ({said(error)})", needed) from error
    return node


def _checked(number: str) -> None:
    """Refuse what msgspec takes for 0, and Storm never writes."""
    if number == "-0":
        raise ValueError("a number is -0")


def _with_keys_once(pairs: list[tuple[str, Any]]) -> None:
    """Refuse an object that says something twice: which of them holds is not guessed."""
    seen: set[str] = set()
    for key, _ in pairs:
        if key in seen:
            raise ValueError(f"an object has the key {json.dumps(key)} twice")
        seen.add(key)
