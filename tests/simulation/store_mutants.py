"""Faults in what is stored, and in where a partition is taken up (promises 2, 7, 8, 9, 12)."""

from dataclasses import replace
from typing import Any

from partition import recovery
from partition.errors import SourceLost, StoreCorrupt
from partition.interfaces import Claim, StoredOffset
from partition.offsets import offset_store, ownership
from partition.offsets.offset_store import OffsetStore
from partition.offsets.ownership import KnownNode
from partition.offsets.requests import ANY_VERSION, OutcomeUnknown, SetNode
from partition.offsets.znode import OffsetNode, TopicNode
from partition.records import LeaderEpochs, Position
from tests.simulation.mutants import Patches, around, mutant, put

_NOTHING = StoredOffset(Position(0), "p")


@mutant
def no_cas_on_commit() -> Patches:
    """A commit is written whatever the node's version is."""

    def operations(change: Any) -> Any:
        yield SetNode(change.path, change.data, ANY_VERSION)

    return [put(offset_store.Update, "operations", operations)]


@mutant
def incarnation_not_checked() -> Patches:
    """A node that was deleted and made anew is taken for the one that was known."""

    def operations(change: Any) -> Any:
        yield SetNode(change.path, change.data, change.known.version)

    return [put(offset_store.Update, "operations", operations)]


@mutant
def read_back_asks_not_whose() -> Patches:
    """After a lost reply any node counts as our own write."""

    def read_back(at: Any, tried: Any, pending: Any, refused: Any) -> Any:
        for partition in [change.partition for change in tried]:
            found = yield from at.node(partition)
            if found is not None:
                at.held.take(partition, found)
            del pending[partition]

    return [put(offset_store, "_read_back", read_back)]


@mutant
def lost_reply_is_a_failure() -> Patches:
    """After a lost reply a commit is written again, and its own first write fences it."""

    def read_back(original: Any, at: Any, tried: Any, pending: Any, refused: Any) -> Any:
        for change in tried:
            found = yield from at.node(change.partition)
            if found is not None and found.node.writer == change.node.writer:
                unsigned = change._replace(node=replace(change.node, writer=None))
                pending[change.partition] = unsigned
        tried = [pending[change.partition] for change in tried]
        yield from original(at, tried, pending, refused)

    return [around(offset_store, "_read_back", read_back)]


@mutant
def lost_reply_is_a_success() -> Patches:
    """A write whose reply was lost counts as done."""

    def write(original: Any, at: Any, operations: Any) -> Any:
        try:
            return (yield from original(at, operations))
        except OutcomeUnknown:
            return {each.path: getattr(each, "version", -1) + 1 for each in operations}

    return [around(ownership.Access, "write", write)]


@mutant
def claim_does_not_raise_the_epoch() -> Patches:
    """A claim leaves the epoch as it is."""

    def replaced(original: Any, node: Any, **named: Any) -> Any:
        return node if "epoch" in named else original(node, **named)

    return [around(ownership, "replace", replaced)]


@mutant
def claim_ignores_another_claim() -> Patches:
    """A claim is written whatever the node's version is, with the offset that was read."""

    def write(original: Any, at: Any, operations: Any) -> Any:
        blind = [
            SetNode(each.path, each.data, ANY_VERSION)
            if isinstance(each, SetNode) and "/partition_" in each.path
            else each
            for each in operations
        ]
        return original(at, blind)

    return [around(ownership.Access, "write", write)]


@mutant
def zombie_takes_its_partition_back() -> Patches:
    """Who claims anew after a session fences whoever has the partition by now, and then halts."""

    def claim(original: Any, at: Any, partition: Any, *, adopt: bool, **_again: bool) -> Any:
        return original(at, partition, adopt=adopt)

    return [around(offset_store, "claim", claim)]


@mutant
def session_end_ignored() -> Patches:
    """The end of a session takes no ownership with it."""
    return [put(OffsetStore, "session_ended", lambda _nodes: None)]


@mutant
def commit_moves_back() -> Patches:
    """What is stored is now and then less than what is stored already."""

    def change_to(
        original: Any, at: Any, partition: Any, known: KnownNode, position: Any, *open_now: Any
    ) -> Any:
        if position.offset % 5 == 0:
            position = replace(position, offset=max(0, position.offset - 6))
        return original(at, partition, known, position, *open_now)

    return [around(offset_store, "change_to", change_to)]


@mutant
def first_position_not_stored() -> Patches:
    """Reading begins although no first position is stored."""

    def first(_nodes: Any, *_given: Any, **_named: Any) -> Any:
        return
        yield

    return [put(OffsetStore, "_first", first)]


@mutant
def absent_is_zero() -> Patches:
    """No offset reads as offset 0."""

    def claim(original: Any, at: Any, partition: Any, **named: Any) -> Any:
        taken: Claim = yield from original(at, partition, **named)
        return taken if taken.stored is not None else replace(taken, stored=_NOTHING)

    return [around(offset_store, "claim", claim)]


@mutant
def unreadable_is_zero() -> Patches:
    """What is no offset reads as offset 0."""

    def decode(original: Any, path: str, data: bytes) -> OffsetNode:
        try:
            node: OffsetNode = original(path, data)
        except StoreCorrupt:
            return OffsetNode(_NOTHING)
        return node

    return [around(ownership, "decode", decode)]


@mutant
def missing_is_new() -> Patches:
    """A node that is gone looks like one that never was."""

    def topic(original: Any, at: Any, name: str) -> Any:
        node, version = yield from original(at, name)
        at.held.begun.pop(name, None)
        return TopicNode(frozenset(), node.first, node.others), version

    return [around(ownership.Access, "topic", topic)]


@mutant
def recreated_topic_not_noticed() -> Patches:
    """A topic's id is not looked at."""

    def loss_of(original: Any, partition: Any, position: Any, log: Any, **named: Any) -> Any:
        return original(partition, replace(position, topic_id=log.topic_id), log, **named)

    return [around(recovery, "loss_of", loss_of)]


@mutant
def topic_id_not_stored() -> Patches:
    """The topic's id is left out of what is committed."""
    position = LeaderEpochs.at
    return [put(LeaderEpochs, "at", lambda *about: replace(position(*about), topic_id=None))]


@mutant
def truncation_not_noticed() -> Patches:
    """Where the log was cut off is not looked at."""

    def loss_of(original: Any, partition: Any, position: Any, log: Any, **named: Any) -> Any:
        if position.topic_id == log.topic_id and position.offset >= log.start:
            return None
        return original(partition, position, log, **named)

    return [around(recovery, "loss_of", loss_of)]


@mutant
def lost_range_not_told() -> Patches:
    """A range is skipped without a notice."""

    def jump(loss: Any, ways: Any, policy: str, transactions: Any) -> Any:
        if policy == "halt":
            raise SourceLost(loss.partition, loss.reason, loss.position.offset, loss.found)
        yield ways.store.move(loss.partition, loss.resume, loss.reason, transactions)
        return loss.resume

    return [put(recovery, "_jump", jump)]


@mutant
def lost_range_notice_not_awaited() -> Patches:
    """A range is skipped before its notice is durable."""

    def jump(loss: Any, ways: Any, policy: str, transactions: Any) -> Any:
        if policy == "halt":
            raise SourceLost(loss.partition, loss.reason, loss.position.offset, loss.found)
        ways.notify(loss)
        yield ways.store.move(loss.partition, loss.resume, loss.reason, transactions)
        return loss.resume

    return [put(recovery, "_jump", jump)]


@mutant
def new_partition_starts_at_latest() -> Patches:
    """A partition that was added while running starts at its end."""

    def first(original: Any, partition: Any, start_from: Any, claim: Claim, found: Any) -> Any:
        if claim.topic_begun:
            return Position(found.end, None, found.topic_id)
        return original(partition, start_from, claim, found)

    return [around(recovery, "_first", first)]
