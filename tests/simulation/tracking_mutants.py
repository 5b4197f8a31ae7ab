"""Faults in the tracking of records: ledger, retries, manager, acker (1, 3, 4, 5, 10, 11, 13)."""

from dataclasses import replace
from typing import Any

import numpy as np

from acker.acker import Acker
from acker.slots import FREE, SLOT, SlotTable
from partition.consumer import Consumer
from partition.ledger import Ledger
from partition.manager import PartitionManager
from partition.records import Chunk
from partition.retry import RetryPolicy, RetryQueue
from tests.simulation.life import Life
from tests.simulation.mutants import Patches, around, mutant, put


@mutant
def ack_before_durable() -> Patches:
    """Rows are acked when the sink gets them."""

    def seal(original: Any, life: Life, dice: int) -> None:
        if life.batch and not life.writing:
            for tup in life.batch:
                life.ack_tuple(tup)
        original(life, dice)

    return [around(Life, "do_seal", seal)]


@mutant
def dead_letter_not_awaited() -> Patches:
    """A record is acked when its dead letter is sent."""

    def bury(original: Any, life: Life, tup: Any) -> None:
        original(life, tup)
        life.ack_tuple(tup)

    return [around(Life, "bury", bury)]


@mutant
def early_resolution() -> Patches:
    """A tree is complete with the first of its tuples that is acked."""

    def ack(original: Any, acker: Acker, trees: Any, edges: Any, **named: Any) -> None:
        slots, _tags, _record_ids, live = acker._table.find(trees)
        if live is None:
            acker._table.values[slots] = edges
        original(acker, trees, edges, **named)

    return [around(Acker, "ack", ack)]


@mutant
def failed_tree_lives_on() -> Patches:
    """A failure is told, but its tree stays: what its siblings do counts again."""

    def fail(_original: Any, acker: Acker, trees: Any) -> None:
        slots, _tags, record_ids, _live = acker._table.find(trees)
        acker._failed.add(record_ids)
        acker._table.values[slots] = 0

    return [around(Acker, "fail", fail)]


@mutant
def failure_counts_as_ack() -> Patches:
    """A tree that failed is told as complete."""

    def fail(_original: Any, acker: Acker, trees: Any) -> None:
        acker.ack(trees, acker._table.values.take(acker._table.find(trees)[0]))

    return [around(Acker, "fail", fail)]


@mutant
def stale_handle_accepted() -> Patches:
    """A handle counts for whatever tree has its slot now."""

    def find(_original: Any, table: SlotTable, trees: Any) -> Any:
        slots = trees & SLOT
        there = slots < table.capacity
        inside = slots[there]
        tags = table.tags.take(inside)
        used = tags & FREE == 0
        mask = np.zeros(len(trees), np.bool_)
        mask[np.flatnonzero(there)[used]] = True
        live = None if mask.all() else mask
        return inside[used], tags[used], table.owners.take(inside[used]), live

    return [around(SlotTable, "find", find)]


@mutant
def tree_resolves_twice() -> Patches:
    """What was drained once is drained once more."""

    def drain(original: Any, acker: Acker) -> Any:
        resolved = original(acker)
        before = getattr(acker, "_before", resolved.acked)
        acker._before = resolved.acked  # type: ignore[attr-defined]
        acked = np.concatenate([before, resolved.acked]) if before is not None else resolved.acked
        return replace(resolved, acked=acked)

    return [around(Acker, "drain", drain)]


@mutant
def timeout_too_early() -> Patches:
    """A tree expires after a part of its time."""

    def begin(original: Any, acker: Acker, record_ids: Any) -> Any:
        trees = original(acker, record_ids)
        slots = acker._table.find(trees)[0]
        acker._table.deadlines[slots] = (acker._wheel.current + 2) & 0xFF
        return trees

    return [around(Acker, "begin", begin)]


@mutant
def last_completed_offset_is_the_highest_resolved() -> Patches:
    """The last completed offset is where emitting stands."""
    return [put(Ledger, "last_completed_offset", property(lambda ledger: ledger.emitted_to))]


@mutant
def failed_record_is_passed() -> Patches:
    """A record that failed holds the frontier no more."""

    def fail(original: Any, ledger: Ledger, offset: int) -> bool:
        done: bool = original(ledger, offset)
        ledger.resolve(np.array([offset], np.int64))
        return done

    return [around(Ledger, "fail", fail)]


@mutant
def gap_blocks_the_frontier() -> Patches:
    """That the log ends after a gap is not heard."""
    return [put(Ledger, "pass_gap", lambda _ledger, _offset: None)]


@mutant
def commit_of_what_is_fetched() -> Patches:
    """What is committed is where fetching stands."""

    def progress(original: Any, manager: PartitionManager[Any]) -> Any:
        found = original(manager)
        offset = manager.ledger.fetched_to
        return found and replace(found, position=replace(found.position, offset=offset))

    return [around(PartitionManager, "progress", progress)]


@mutant
def window_ignored() -> Patches:
    """However much is emitted, there is room for more."""
    return [put(Ledger, "emitted_count", property(lambda _ledger: 0))]


@mutant
def keys_not_counted() -> Patches:
    """The window counts the bytes of values alone."""

    def fetched(original: Any, manager: PartitionManager[Any], chunk: Chunk, now: float) -> None:
        original(manager, replace(chunk, other_bytes=0), now)

    return [around(PartitionManager, "fetched", fetched)]


@mutant
def retry_of_the_chunk_before() -> Patches:
    """A retry's message is looked for one chunk before its own."""

    def message(original: Any, manager: PartitionManager[Any], offset: int) -> Any:
        before = [each.chunk for each in manager._kept if each.chunk.offsets[-1] < offset]
        return before[-1].messages[-1] if before else original(manager, offset)

    return [around(PartitionManager, "message", message)]


@mutant
def retries_wait_for_room() -> Patches:
    """With a full window nothing is emitted, retries included."""

    def give(original: Any, manager: PartitionManager[Any], *rest: Any) -> Any:
        return None if manager.is_full else original(manager, *rest)

    return [around(PartitionManager, "next_chunk", give)]


@mutant
def one_full_window_stops_all() -> Patches:
    """A partition whose window is full holds the others back."""

    def give(original: Any, reader: Consumer, now: float) -> Any:
        managers = [held.manager for held in reader.assignment]
        full = any(manager is not None and manager.is_full for manager in managers)
        due = any(m is not None and (m.retries.due or now + 1) <= now for m in managers)
        return None if full and not due else original(reader, now)

    return [around(Consumer, "next_chunk", give)]


@mutant
def retry_count_forgotten() -> Patches:
    """Each failure counts as the first."""

    def failed(original: Any, queue: RetryQueue, offset: int, *rest: Any) -> bool:
        queue.failures.clear()
        done: bool = original(queue, offset, *rest)
        return done

    return [around(RetryQueue, "failed", failed)]


@mutant
def retry_limit_ignored() -> Patches:
    """A record is tried again for ever."""

    def failed(original: Any, queue: RetryQueue, *rest: Any) -> bool:
        queue._policy = replace(queue._policy, limit=1 << 30)
        done: bool = original(queue, *rest)
        return done

    return [around(RetryQueue, "failed", failed)]


@mutant
def retry_without_a_pause() -> Patches:
    """A record is tried again at once."""
    return [put(RetryPolicy, "delay_seconds", lambda *_rest: 0.0)]


@mutant
def duplicate_delivery_not_filtered() -> Patches:
    """Records that the client delivers again are taken for new ones."""

    def fetched(original: Any, manager: PartitionManager[Any], chunk: Any, *rest: Any) -> None:
        ledger = manager.ledger
        ledger.fetched_to = min(ledger.fetched_to, int(chunk.offsets[0]))
        original(manager, chunk, *rest)

    return [around(PartitionManager, "fetched", fetched)]


@mutant
def recovery_waits_for_nothing() -> Patches:
    """A partition starts anew while records of it are in flight."""
    return [put(PartitionManager, "is_idle", property(lambda _manager: True))]
