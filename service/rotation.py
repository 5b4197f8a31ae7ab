"""Which records are emitted next: partitions take turns, one chunk each."""

import math
from collections.abc import Iterator
from itertools import zip_longest
from typing import Any

from partition.assignment import Assignment
from partition.chunk import Chunk
from partition.held import Held
from partition.manager import PartitionManager
from service.commits import Commits
from service.flow import Flow
from service.owners import Owners, owners_of

_FEW_CHUNKS = 2


class Rotation:
    """Goes round the partitions that are ours. The owner thread calls everything."""

    def __init__(
        self,
        assignment: Assignment,
        flow: Flow,
        commits: Commits,
        *,
        fetch_records: int,
        chunk_records: int,
    ) -> None:
        """A chunk has at most `chunk_records`, a fetch brings at most `fetch_records`."""
        self._assignment = assignment
        self._flow = flow
        self._commits = commits
        self._fetch_records = fetch_records
        self._chunk_records = chunk_records
        self._turn = 0

    def next(self, now: float) -> tuple[Chunk, Owners] | None:
        """The next records to emit, with their owners."""
        self._flow.wake = math.inf
        commit = self._commits.seconds_under_way(now)
        for held in self._in_turn():
            manager = held.manager
            if manager is None or not held.is_owned:
                continue
            due = manager.next_due()
            if (due is None or due > now) and not manager.waiting:
                continue
            allowance = self._flow.allowance(held, manager, now)
            before = manager.read
            chunk = manager.next_chunk(now, self._chunk_records, allowance)
            if chunk is not None:
                self._commits.look_at(manager)
                self._flow.emitted(held.partition.topic, manager.read - before)
                self._turn = held.place + 1
                return chunk, owners_of(held.place, chunk.offsets)
            if manager.delivery.stores_first:
                self._commits.look_at(manager)
                if allowance.new != 0:
                    self._flow.await_commit(manager, now, commit)
        return None

    def upcoming(self) -> list[Chunk]:
        """The chunks that, as things stand, `next` gives whole, in turn."""
        queues = [
            held.manager.upcoming(self._chunk_records)
            for held in ([] if self._flow.is_paused else self._in_turn())
            if held.is_owned and held.manager is not None and not held.is_leaving
        ]
        return [chunk for row in zip_longest(*queues) for chunk in row if chunk is not None]

    @property
    def waits_little(self) -> bool:
        """Whether few chunks and fewer records than two fetches wait that may be emitted soon.

        With records alone, short chunks that come fast would pile up, one emitted a turn.
        """
        chunks = records = 0
        for manager in self._owned():
            # What waits for its plan counts: it comes in a moment.
            if manager.may_emit or manager.accepts_more:
                chunks += manager.waiting_chunks
                records += manager.waiting
        return chunks <= _FEW_CHUNKS and records < 2 * self._fetch_records

    @property
    def has_stored_waiting(self) -> bool:
        """Whether records wait that are stored as read, or planned, or about to be.

        A drain emits them: else they would be lost (at most once), or their transactions be
        left open (exactly once).
        """
        return any(each.delivery.owes_emission() for each in self._owned())

    @property
    def is_stuck(self) -> bool:
        """Whether every partition that has records waiting has used up its window."""
        managers = [held.manager for held in self._assignment]
        waiting = [manager for manager in managers if manager is not None and manager.waiting]
        return bool(waiting) and all(manager.is_full for manager in waiting)

    def end(self) -> None:
        """Store nothing more ahead; what is stored or planned is emitted as soon as it can be."""
        self._flow.end()
        for held in self._assignment:
            if held.manager is not None:
                held.manager.stop()

    def _in_turn(self) -> Iterator[Held]:
        """Every partition, the one whose turn it is first."""
        count = len(self._assignment)
        for turn in range(self._turn, self._turn + count):
            yield self._assignment.at(turn % count)

    def _owned(self) -> Iterator[PartitionManager[Any]]:
        for held in self._assignment:
            if held.manager is not None and held.is_owned:
                yield held.manager
