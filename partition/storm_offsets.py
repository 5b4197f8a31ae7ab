"""The offsets at which a Storm topology stopped reading, from its spouts' nodes. Pure, strict.

core            <path>/partition_<N>, or with a topic wildcard <path>/<topic>/partition_<N>;
                <path> is `<zkRoot>/<id>` of storm-kafka's SpoutConfig (PartitionManager, ZkState):
                {"topology": {"id", "name"}, "offset", "partition", "broker", "topic"}
trident         <path>/user/partition_<N>/<txid>, or <path>/user/<topic>/partition_<N>/<txid>;
                <path> is `<transactional.zookeeper.root>/<the stream's txid>`:
                {"offset", "nextOffset", "instanceId", "partition", "broker", "topic", "topology"};
                no instanceId where a fetch had failed
trident-client  <path>/user/<topic>@<N>/<txid>, of storm-kafka-client:
                {"firstOffset", "lastOffset", "topologyId"}

The Trident layouts keep one node per transaction; those below `<path>/coordinator/currtx` are
committed (MasterBatchCoordinator, RotatingTransactionalState). Its other nodes are not read, nor
is `coordinator/meta`, which need not be JSON.

Keys come in any order, each once, and further ones are ignored. What is needed must be there and
have its own type: 0 is an offset, and nothing else stands for one, -0 neither.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal, Protocol, TypeAlias, TypeVar

import msgspec

from partition.errors import StormUnreadable
from partition.offsets.requests import ZNode
from partition.offsets.znode import said, shown
from partition.records import Partition

T = TypeVar("T")
Layout: TypeAlias = Literal["core", "trident", "trident-client"]

_MAX_OFFSET = 2**63 - 1

_Natural = Annotated[int, msgspec.Meta(ge=0, le=_MAX_OFFSET)]
_Long = Annotated[int, msgspec.Meta(ge=-_MAX_OFFSET, le=_MAX_OFFSET - 1)]
_PREFIX = "partition_"
_NUMBER = re.compile(r"0|[1-9][0-9]{0,18}")
_SHOWN_NAMES = 5


class Tree(Protocol):
    """Nodes to read. Both raise StoreUnavailable, in bounded time: no answer is not absence."""

    def children(self, path: str) -> Sequence[str] | None:
        """Return the names below a node, in any order; None if it certainly does not exist."""

    def get(self, path: str) -> ZNode | None:
        """Return a node; None if it certainly does not exist."""


@dataclass(frozen=True, slots=True)
class StormOffset:
    """The offset at which Storm would read on in a partition, and the node that says so."""

    offset: int  # the next to read
    path: str
    version: int  # the node's stat.version
    note: str


Found: TypeAlias = Mapping[Partition, StormOffset | StormUnreadable]


def read_offsets(tree: Tree, layout: Layout, path: str, topics: Sequence[str]) -> Found:
    """Read what Storm holds for these topics; a partition that it holds nothing for is left out.

    A partition whose node cannot be read gets that as its error: there is no default offset.
    Raises StormUnreadable when the tree does not lead to these topics' partitions, or not to
    one place for each; and as `tree` does.
    """
    path = path.rstrip("/")
    read: Callable[[Partition, str], StormOffset | None]
    if layout == "core":
        folders = _kafka_folders(tree, path, topics)
        read = partial(_committed, tree)
    else:
        current = _current_transaction(tree, f"{path}/coordinator/currtx")
        find = _kafka_folders if layout == "trident" else _client_folders
        decode = decode_kafka_batch if layout == "trident" else decode_client_batch
        folders = find(tree, f"{path}/user", topics)
        read = partial(_resumed, tree, current, decode)
    found: dict[Partition, StormOffset | StormUnreadable] = {}
    for partition, folder in sorted(folders.items()):
        try:
            offset = read(partition, folder)
        except StormUnreadable as error:
            found[partition] = error
        else:
            if offset is not None:
                found[partition] = offset
    return found


def _committed(tree: Tree, partition: Partition, path: str) -> StormOffset:
    node, version = _node(tree, partition, path, decode_core)
    return StormOffset(node.following, path, version, f"stored by topology {node.topology}")


def _resumed(
    tree: Tree,
    current: int,
    decode: "Callable[[str, bytes], StormNode]",
    partition: Partition,
    folder: str,
) -> StormOffset | None:
    """Go on after the highest committed transaction, else begin at the lowest: Trident's rule."""
    transactions = sorted(
        _number(f"{folder}/{name}", name, "the number of a transaction")
        for name in _children(tree, folder)
    )
    if not transactions:  # made before the first batch, which was never stored
        return None
    committed = [each for each in transactions if each < current]
    chosen = committed[-1] if committed else transactions[0]
    path = f"{folder}/{chosen}"
    node, version = _node(tree, partition, path, decode)
    if committed:
        note = f"after transaction {chosen}; to be committed next: {current}"
        return StormOffset(node.following, path, version, note)
    note = f"at the begin of transaction {chosen}; none is committed"
    return StormOffset(node.first, path, version, note)


def _node(
    tree: Tree, partition: Partition, path: str, decode: "Callable[[str, bytes], StormNode]"
) -> "tuple[StormNode, int]":
    found = tree.get(path)
    if found is None:
        raise StormUnreadable(path, "that it has just gone", "a topology that is deactivated")
    node = decode(path, found.data)
    topic = partition.topic if node.topic is None else node.topic
    number = partition.number if node.number is None else node.number
    if (topic, number) != partition:
        raise StormUnreadable(path, f"the offset of {Partition(topic, number)}", f"{partition}'s")
    return node, found.version


def _current_transaction(tree: Tree, path: str) -> int:
    found = tree.get(path)
    if found is None:
        raise StormUnreadable(
            path,
            "no such node",
            "the transaction to be committed next; without it nothing tells which batches are",
        )
    return decode_transaction(path, found.data)


def _kafka_folders(tree: Tree, path: str, topics: Sequence[str]) -> dict[Partition, str]:
    """Return storm-kafka's nodes: without a topic in their path, or below one each (wildcard)."""
    names = _children(tree, path)
    plain = [name for name in names if name.startswith(_PREFIX)]
    by_topic = [topic for topic in topics if topic in names and topic not in plain]
    if plain and by_topic:
        raise StormUnreadable(
            path,
            f"both '{min(plain)}' and '{by_topic[0]}'",
            f"one of them; {path}/{by_topic[0]} leads to the second",
        )
    if plain:
        if len(topics) != 1:
            raise StormUnreadable(
                path, f"'{min(plain)}', of one topic", f"one topic of {', '.join(topics)}"
            )
        return _numbered(path, topics[0], plain)
    if not by_topic:
        raise _leads_nowhere(path, names, f"{_PREFIX}<N>, or a topic: {', '.join(topics)}")
    folders: dict[Partition, str] = {}
    for topic in by_topic:
        folder = f"{path}/{topic}"
        folders |= _numbered(
            folder, topic, [name for name in _children(tree, folder) if name.startswith(_PREFIX)]
        )
    return folders


def _client_folders(tree: Tree, path: str, topics: Sequence[str]) -> dict[Partition, str]:
    """Return storm-kafka-client's nodes: `<topic>@<N>`; a topic's name has no @."""
    names = _children(tree, path)
    folders: dict[Partition, str] = {}
    for name in names:
        topic, at, number = name.partition("@")
        if at and topic in topics:
            place = f"{path}/{name}"
            folders[Partition(topic, _number(place, number, "the number of a partition"))] = place
    if not folders:
        raise _leads_nowhere(path, names, f"<topic>@<N> with a topic of {', '.join(topics)}")
    return folders


def _numbered(path: str, topic: str, names: Sequence[str]) -> dict[Partition, str]:
    return {
        Partition(
            topic,
            _number(f"{path}/{name}", name.removeprefix(_PREFIX), "the number of a partition"),
        ): f"{path}/{name}"
        for name in names
    }


def _number(path: str, text: str, needed: str) -> int:
    if not _NUMBER.fullmatch(text):
        raise StormUnreadable(path, f"'{text}'", needed)
    return int(text)


def _children(tree: Tree, path: str) -> Sequence[str]:
    names = tree.children(path)
    if names is None:
        raise StormUnreadable(path, "no such node", "the place where Storm keeps its offsets")
    return names


def _leads_nowhere(path: str, names: Sequence[str], needed: str) -> StormUnreadable:
    shown = ", ".join(f"'{name}'" for name in sorted(names)[:_SHOWN_NAMES])
    more = f" and {len(names) - _SHOWN_NAMES} more" if len(names) > _SHOWN_NAMES else ""
    return StormUnreadable(path, f"{shown}{more}" if names else "nothing below it", needed)


@dataclass(frozen=True, slots=True)
class StormNode:
    """A decoded node. `topic`, `number` and `topology` are None where it does not name them."""

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


def decode_core(path: str, data: bytes) -> StormNode:
    node = _decode(
        _CORE, path, data, 'an object with a string "topology"."id" and an "offset" from 0'
    )
    return StormNode(node.offset, node.offset, node.topic, node.partition, node.topology.id)


def decode_kafka_batch(path: str, data: bytes) -> StormNode:
    needed = 'an object with "offset" and "nextOffset", integers from 0, the first not above'
    node = _decode(_KAFKA_BATCH, path, data, needed)
    if node.nextOffset < node.offset:
        raise StormUnreadable(path, shown(data), needed)
    topology = node.topology.id if node.topology is not None else None
    return StormNode(node.offset, node.nextOffset, node.topic, node.partition, topology)


def decode_client_batch(path: str, data: bytes) -> StormNode:
    """Decode a transaction's node of storm-kafka-client's Trident spouts. Raises StormUnreadable.

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


def decode_transaction(path: str, data: bytes) -> int:
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
    # msgspec takes it for 0, and Storm never writes it.
    if number == "-0":
        raise ValueError("a number is -0")


def _with_keys_once(pairs: list[tuple[str, Any]]) -> None:
    seen: set[str] = set()
    for key, _ in pairs:
        if key in seen:
            raise ValueError(f"an object has the key {json.dumps(key)} twice")
        seen.add(key)
