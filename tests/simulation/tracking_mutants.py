"""Faults in the tracking of records: ledger, retries, manager, acker (1, 3, 4, 5, 10, 11, 13)."""

from dataclasses import replace

import numpy as np

from acker.acker import Acker
from acker.slots import FREE, SLOT, SlotTable
from partition.consumer import Consumer
from partition.ledger import Ledger, RetryPolicy, RetryQueue
from partition.manager import PartitionManager
from tests.simulation.life import Life
from tests.simulation.mutants import mutant, put, wraps


@wraps(Life, "do_seal")
def ack_before_durable(original, life, dice):
    """Rows are acked when the sink gets them."""
    if life.batch and not life.writing:
        for tup in life.batch:
            life.ack_tuple(tup)
    original(life, dice)


@wraps(Life, "bury")
def dead_letter_not_awaited(original, life, tup):
    """A record is acked when its dead letter is sent."""
    original(life, tup)
    life.ack_tuple(tup)


@wraps(Acker, "ack")
def early_resolution(original, acker, trees, edges, **named):
    """A tree is complete with the first of its tuples that is acked."""
    slots, _tags, _record_ids, live = acker._table.find(trees)
    if live is None:
        acker._table.values[slots] = edges
    original(acker, trees, edges, **named)


@wraps(Acker, "fail")
def failed_tree_lives_on(_original, acker, trees):
    """A failure is told, but its tree stays: what its siblings do counts again."""
    slots, _tags, record_ids, _live = acker._table.find(trees)
    acker._failed.add(record_ids)
    acker._table.values[slots] = 0


@wraps(Acker, "fail")
def failure_counts_as_ack(_original, acker, trees):
    """A tree that failed is told as complete."""
    acker.ack(trees, acker._table.values.take(acker._table.find(trees)[0]))


@wraps(SlotTable, "find")
def stale_handle_accepted(_original, table, trees):
    """A handle counts for whatever tree has its slot now."""
    slots = trees & SLOT
    there = slots < table.capacity
    inside = slots[there]
    tags = table.tags.take(inside)
    used = tags & FREE == 0
    mask = np.zeros(len(trees), np.bool_)
    mask[np.flatnonzero(there)[used]] = True
    live = None if mask.all() else mask
    return inside[used], tags[used], table.owners.take(inside[used]), live


@wraps(Acker, "drain")
def tree_resolves_twice(original, acker):
    """What was drained once is drained once more."""
    resolved = original(acker)
    before = getattr(acker, "_before", resolved.acked)
    acker._before = resolved.acked
    acked = np.concatenate([before, resolved.acked]) if before is not None else resolved.acked
    return replace(resolved, acked=acked)


@wraps(Acker, "begin")
def timeout_too_early(original, acker, record_ids):
    """A tree expires after a part of its time."""
    trees = original(acker, record_ids)
    slots = acker._table.find(trees)[0]
    acker._table.deadlines[slots] = (acker._wheel.current + 2) & 0xFF
    return trees


@mutant
def last_completed_offset_is_the_highest_resolved():
    """The last completed offset is where emitting stands."""
    return [put(Ledger, "last_completed_offset", property(lambda ledger: ledger.emitted_to))]


@wraps(Ledger, "fail")
def failed_record_is_passed(original, ledger, offset):
    """A record that failed holds the last completed offset no more."""
    done = original(ledger, offset)
    ledger.resolve(np.array([offset], np.int64))
    return done


@mutant
def gap_blocks_the_last_completed_offset():
    """That the log ends after a gap is not heard."""
    return [put(Ledger, "pass_gap", lambda _ledger, _offset: None)]


@wraps(PartitionManager, "progress")
def commit_of_what_is_fetched(original, manager):
    """What is committed is where fetching stands."""
    found = original(manager)
    offset = manager.ledger.fetched_to
    return found and replace(found, position=replace(found.position, offset=offset))


@mutant
def window_ignored():
    """However much is emitted, there is room for more."""
    return [put(Ledger, "emitted_count", property(lambda _ledger: 0))]


@wraps(PartitionManager, "fetched")
def keys_not_counted(original, manager, chunk, *rest):
    """The window counts the bytes of values alone."""
    original(manager, replace(chunk, other_bytes=0), *rest)


@wraps(PartitionManager, "message")
def retry_of_the_chunk_before(original, manager, offset):
    """A retry's message is looked for one chunk before its own."""
    before = [each.chunk for each in manager._kept if each.chunk.offsets[-1] < offset]
    return before[-1].messages[-1] if before else original(manager, offset)


@wraps(PartitionManager, "next_chunk")
def retries_wait_for_room(original, manager, *rest):
    """With a full window nothing is emitted, retries included."""
    return None if manager.is_full else original(manager, *rest)


@wraps(Consumer, "next_chunk")
def one_full_window_stops_all(original, reader, now):
    """A partition whose window is full holds the others back."""
    managers = [held.manager for held in reader.assignment]
    full = any(manager is not None and manager.is_full for manager in managers)
    due = any(m is not None and (m.retries.due or now + 1) <= now for m in managers)
    return None if full and not due else original(reader, now)


@wraps(RetryQueue, "failed")
def retry_count_forgotten(original, queue, offset, *rest):
    """Each failure counts as the first."""
    queue.failures.clear()
    return original(queue, offset, *rest)


@wraps(RetryQueue, "failed")
def retry_limit_ignored(original, queue, *rest):
    """A record is tried again for ever."""
    queue._policy = replace(queue._policy, limit=1 << 30)
    return original(queue, *rest)


@mutant
def retry_without_a_pause():
    """A record is tried again at once."""
    return [put(RetryPolicy, "delay_seconds", lambda *_rest: 0.0)]


@wraps(PartitionManager, "fetched")
def duplicate_delivery_not_filtered(original, manager, chunk, *rest):
    """Records that the client delivers again are taken for new ones."""
    ledger = manager.ledger
    ledger.fetched_to = min(ledger.fetched_to, int(chunk.offsets[0]))
    original(manager, chunk, *rest)


@mutant
def recovery_waits_for_nothing():
    """A partition starts anew while records of it are in flight."""
    return [put(PartitionManager, "is_idle", property(lambda _manager: True))]
