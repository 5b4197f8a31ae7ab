"""Faults in stored offsets, sessions and ownership (1, 2, 7, 8, 9, 10, 12, 15)."""

from dataclasses import replace

from partition import recovery
from partition.assigned_partition import Lost, PartitionState, Revoked
from partition.assignment import Assignment
from partition.delivery import AtLeastOnce
from partition.errors import OwnershipLost, SourceLost, StoreCorrupt
from partition.flow_control import FlowControl
from partition.interfaces import StoredOffset
from partition.offsets import offset_store
from partition.offsets.offset_store import OffsetStore
from partition.offsets.requests import ANY_VERSION, ReplyLost, SetNode
from partition.offsets.znode import OffsetNode, TopicNode
from partition.records import LeaderEpochs, Position
from tests.simulation.mutants import mutant, put, replaces, wraps
from topology.workers.key_queue import CallQueue

_NOTHING = StoredOffset(Position(0), "p")


@replaces(offset_store.Update, "operations")
def no_cas_on_commit(change):
    """A commit is written whatever the node's version is."""
    yield SetNode(change.path, change.data, ANY_VERSION)


@replaces(offset_store.Update, "operations")
def incarnation_not_checked(change):
    """A node that was deleted and made anew is taken for the one that was known."""
    yield SetNode(change.path, change.data, change.known.version)


@replaces(OffsetStore, "_read_back")
def read_back_asks_not_whose(store, tried, pending, refused):
    """After a lost reply any node counts as our own write."""
    for partition in [change.partition for change in tried]:
        found = yield from store._node(partition)
        if found is not None:
            store._held.take(partition, found)
        del pending[partition]


@wraps(OffsetStore, "_read_back")
def lost_reply_is_a_failure(original, store, tried, pending, refused):
    """After a lost reply a commit is written again, and its own first write fences it."""
    for change in tried:
        found = yield from store._node(change.partition)
        if found is not None and found.node.writer == change.node.writer:
            unsigned = change._replace(node=replace(change.node, writer=None))
            pending[change.partition] = unsigned
    tried = [pending[change.partition] for change in tried]
    yield from original(store, tried, pending, refused)


@wraps(OffsetStore, "_write")
def lost_reply_is_a_success(original, store, operations):
    """A write whose reply was lost counts as done."""
    try:
        return (yield from original(store, operations))
    except ReplyLost:
        return {each.path: getattr(each, "version", -1) + 1 for each in operations}


@wraps(offset_store, "replace")
def claim_does_not_raise_the_epoch(original, node, **named):
    """A claim leaves the epoch as it is."""
    return node if "epoch" in named else original(node, **named)


@wraps(OffsetStore, "_write")
def claim_ignores_another_claim(original, store, operations):
    """A claim is written whatever the node's version is, with the offset that was read."""
    blind = [
        SetNode(each.path, each.data, ANY_VERSION)
        if isinstance(each, SetNode) and "/partition_" in each.path
        else each
        for each in operations
    ]
    return original(store, blind)


@wraps(OffsetStore, "_claim")
def zombie_takes_its_partition_back(original, store, partition, *, adopt=False, **_again):
    """Who claims anew after a session fences whoever has the partition by now, and then halts."""
    return original(store, partition, adopt=adopt)


@mutant
def session_end_ignored():
    """The end of a session takes no ownership with it."""
    return [put(OffsetStore, "session_ended", lambda _nodes: None)]


@wraps(OffsetStore, "_update")
def commit_moves_back(original, store, partition, known, position, *open_now):
    """What is stored is now and then less than what is stored already."""
    if position.offset % 5 == 0:
        position = replace(position, offset=max(0, position.offset - 6))
    return original(store, partition, known, position, *open_now)


@replaces(OffsetStore, "_make")
def first_position_not_stored(_nodes, *_given, **_named):
    """Reading begins although no first position is stored."""
    return
    yield


@wraps(OffsetStore, "_claim")
def absent_is_zero(original, store, partition, **named):
    """No offset reads as offset 0."""
    taken = yield from original(store, partition, **named)
    return taken if taken.stored is not None else replace(taken, stored=_NOTHING)


@wraps(offset_store, "decode")
def unreadable_is_zero(original, path, data):
    """What is no offset reads as offset 0."""
    try:
        node = original(path, data)
    except StoreCorrupt:
        return OffsetNode(_NOTHING)
    return node


@wraps(OffsetStore, "_topic")
def missing_is_new(original, store, name):
    """A node that is gone looks like one that never was."""
    node, version = yield from original(store, name)
    store._held.begun.pop(name, None)
    return TopicNode(frozenset(), node.first, node.others), version


@wraps(recovery, "loss_of")
def recreated_topic_not_noticed(original, partition, position, log, **named):
    """A topic's id is not looked at."""
    return original(partition, replace(position, topic_id=log.topic_id), log, **named)


@mutant
def topic_id_not_stored():
    """The topic's id is left out of what is committed."""
    position = LeaderEpochs.at
    return [put(LeaderEpochs, "at", lambda *about: replace(position(*about), topic_id=None))]


@wraps(recovery, "loss_of")
def truncation_not_noticed(original, partition, position, log, **named):
    """Where the log was cut off is not looked at."""
    if position.topic_id == log.topic_id and position.offset >= log.start:
        return None
    return original(partition, position, log, **named)


@replaces(recovery, "_jump")
def lost_range_not_told(loss, ways, policy, transactions):
    """A range is skipped without a notice."""
    if policy == "halt":
        raise SourceLost(loss.partition, loss.reason, loss.position.offset, loss.found)
    yield ways.store.move(loss.partition, loss.resume, loss.reason, transactions)
    return loss.resume


@replaces(recovery, "_jump")
def lost_range_notice_not_awaited(loss, ways, policy, transactions):
    """A range is skipped before its notice is durable."""
    if policy == "halt":
        raise SourceLost(loss.partition, loss.reason, loss.position.offset, loss.found)
    ways.notify(loss)
    yield ways.store.move(loss.partition, loss.resume, loss.reason, transactions)
    return loss.resume


@wraps(recovery, "_first")
def new_partition_starts_at_latest(original, partition, start_from, claim, found):
    """A partition that was added while running starts at its end."""
    if claim.topic_begun:
        return Position(found.end, None, found.topic_id)
    return original(partition, start_from, claim, found)


@wraps(Assignment, "_run")
def emits_without_a_claim(original, assignment, held, opened):
    """A partition that was opened runs, though the session of its claim is over."""
    held.session = assignment._ways.store.session
    original(assignment, held, opened)


@mutant
def uncommitted_not_counted():
    """The window reaches from the last completed offset, however little of it is stored."""
    return [put(AtLeastOnce, "in_flight", lambda mode: mode._ledger.emitted_count)]


@wraps(Assignment, "refuse")
def refuse_forgets_what_is_under_way(original, assignment, partition, error):
    """Who loses a partition while it is mended takes it back, and mends it no more."""
    held = assignment[partition]
    was_under_way = held.chain is not None
    original(assignment, partition, error)
    if was_under_way and isinstance(error, OwnershipLost):
        held.retry_at = held.trouble = None
        if held.state is PartitionState.RECOVERING:
            held.state = PartitionState.READING


@wraps(FlowControl, "pause_if_full")
def not_owned_and_not_paused(original, flow, held):
    """What waits for its claim is fetched on and on."""
    if held.is_owned:
        original(flow, held)


@wraps(Assignment, "_notify")
def session_end_not_told(original, assignment, held):
    """Who hears of its partitions does not hear that one is not its any more."""
    if held.is_owned:
        original(assignment, held)


@wraps(Assignment, "_add")
def place_freed_at_once(original, assignment, partition, topic):
    """A place is another's as soon as its partition is given up."""
    assigned, places = original(assignment, partition, topic), assignment._partitions
    retired = [each for each in places if each.state is PartitionState.RETIRED]
    if retired:
        assigned.index = retired[0].index
        places[assigned.index] = places.pop()
    return assigned


@wraps(Assignment, "_note")
def loss_after_a_revocation_not_told(original, assignment, held, change):
    """Who hears of its partitions does not hear of a loss while one is claimed again."""
    if isinstance(change, Lost) and isinstance(held.told, Revoked) and held.told.error is None:
        held.told = change
        return
    original(assignment, held, change)


@mutant
def suspended_calls_start():
    """What waits of a partition starts while it is claimed again."""
    return [put(CallQueue, "suspend", lambda _queue, _partition: None)]


@mutant
def calls_of_a_lost_partition_start():
    """What waits of a partition that is lost is on its way all the same."""
    return [put(CallQueue, "drop", lambda _queue, _is_gone: [])]
