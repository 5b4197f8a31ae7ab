"""Keeps what the test kit shows: the timeline, and the records that are complete."""

from collections.abc import Callable
from typing import Any

import numpy as np

from partition.records import Chunk, Partition, RecordIds, offset_of, partition_index_of
from service.pipeline.context import Observer
from service.testing.timeline import Timeline, What
from topology.calls import Failure
from topology.complaints import text_of
from topology.record import Record
from topology.sink import DeadLetter


class RecordingObserver(Observer):
    """Tells the timeline what becomes of records, and keeps those that are acked."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.timeline = Timeline()
        self.acked: list[Record] = []
        self._clock = clock
        self._messages: dict[int, Any] = {}  # of the records that are not resolved, by their ids

    def chunk_emitted(self, chunk: Chunk, record_ids: RecordIds) -> None:
        """Keep the messages."""
        self._messages.update(zip(record_ids.tolist(), chunk.messages, strict=True))
        self.timeline.emitted(self._clock(), chunk.partition, chunk.offsets.tolist())

    def record_failed(self, record_id: int, failure: Failure) -> None:
        """Tell of a try that failed."""
        self._note("failed", record_id, failure.step, text_of(failure.error))

    def dead_letter_sent(self, record_id: int, letter: DeadLetter) -> None:
        """Tell of a dead letter."""
        self._note("rejected", record_id, letter.step, letter.reason)

    def rows_written(self, sink: str, record_ids: RecordIds) -> None:
        """Tell of durable rows, but of those that are of several records, or of none."""
        for record_id in np.unique(record_ids).tolist():
            if record_id in self._messages:
                self._note("written", record_id, sink)

    def records_resolved(self, record_ids: RecordIds) -> None:
        """Keep the records."""
        for record_id in record_ids.tolist():
            self._note("resolved", record_id)
            message = self._messages.pop(record_id)
            self.acked.append(Record(message.value(), message))

    def resolved_below(self, index: int, end: int) -> None:
        """Keep the records of transactions."""
        of_it = [each for each in self._messages if partition_index_of(each) == index]
        done = [each for each in of_it if offset_of(each) < end]
        self.records_resolved(np.array(done, np.int64))

    def partition_lost(self, index: int) -> None:
        """Keep nothing of it: whoever has it now emits it again."""
        for record_id in [each for each in self._messages if partition_index_of(each) == index]:
            del self._messages[record_id]

    def _note(
        self, what: What, record_id: int, step: str | None = None, reason: str | None = None
    ) -> None:
        message = self._messages[record_id]
        partition = Partition(message.topic(), message.partition())
        self.timeline.note(self._clock(), what, partition, message.offset(), step, reason)
