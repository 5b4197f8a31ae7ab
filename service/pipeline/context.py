"""Shared by all parts of a pipeline: the queue of results, and the observers."""

import queue
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from acker.acker import Edges
from partition.records import Chunk, RecordIds
from topology.calls import Failure, Outcome
from topology.monitoring import FailureLog
from topology.sink import DeadLetter, RowTraces, Share, TraceHeaders
from topology.workers.key_queue import Call
from topology.workers.lifecycle import Lifecycle


class ResultQueue:
    """Results of other threads. Any thread may `put`; the rest is the owner's."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._awaited: list[Any] = []  # one at most: the next to be taken
        self.put = self._queue.put

    @property
    def is_empty(self) -> bool:
        return not self._awaited and self._queue.empty()

    def take_all(self) -> Iterator[Any]:
        """Take all results, also those that come meanwhile."""
        while self._awaited or not self._queue.empty():
            yield self._awaited.pop() if self._awaited else self._queue.get()

    def wait(self, seconds: float) -> None:
        """Wait until there is a result, or for `seconds`."""
        if not self._awaited:
            with suppress(queue.Empty):
                self._awaited.append(self._queue.get(timeout=seconds))


class Observer:
    """Gets events of records, a chunk at a time, on the owner thread. It must not raise."""

    def chunk_emitted(self, chunk: Chunk, record_ids: RecordIds) -> None:
        """Records are given to the bolts, for the first time or again."""

    def bolts_ran(self, record_ids: RecordIds, outcome: Outcome) -> None:
        """Bolts were run over values of these records, one value of each."""

    def calls_started(self, step: str, record_ids: RecordIds, edges: Edges) -> None:
        """Calls of a bolt begin that end later; each has its edge."""

    def calls_ended(self, calls: Sequence[Call]) -> None:
        """Such calls have ended, or were given up."""

    def record_failed(self, record_id: int, failure: Failure) -> None:
        """A try of a record has failed; a retry or a dead letter follows."""

    def dead_letter_sent(
        self, record_id: int, letter: DeadLetter, sink: str
    ) -> TraceHeaders | None:
        """A record's dead letter is about to be sent; it carries the headers returned."""

    def dead_letter_acked(self, record_id: int) -> None:
        """A record's dead letter is durable."""

    def batch_submitted(
        self,
        sink: str,
        number: int,
        record_ids: RecordIds,
        joined_ids: RecordIds,
        shares: Sequence[Share],
    ) -> RowTraces | None:
        """A batch, or a group of transactions (`shares`), goes to a sink's threads.

        Row i is of `record_ids[i]`; `joined_ids` are records that rows of several came of. The
        rows carry the headers returned.
        """

    def batch_ended(
        self, sink: str, number: int, record_ids: RecordIds, rejected: int, error: str | None
    ) -> None:
        """A batch or group is durable but for rows that were rejected, or is given up (`error`).

        `record_ids` are of the rows that are durable; -1 where the record failed meanwhile.
        """

    def records_resolved(self, record_ids: RecordIds) -> None:
        """Records are done: their offsets may pass."""

    def resolved_below(self, index: int, end: int) -> None:
        """All that was emitted of a partition below an offset is done: its transaction is."""

    def partition_lost(self, index: int) -> None:
        """A partition is another's, and what is in flight of it is let go."""


@dataclass(frozen=True, slots=True)
class RunContext:
    clock: Callable[[], float]
    results: ResultQueue
    life: Lifecycle  # of the bolts and hooks
    failure_log: FailureLog
    observers: Sequence[Observer]
