"""The timeline of the test kit: the events of each record."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np

from partition.records import Chunk, RecordIds, offset_of, partition_index_of
from service.pipeline.context import Observer
from topology.calls import Failure
from topology.monitoring import text_of
from topology.record import Record
from topology.sink import DeadLetter

What: TypeAlias = Literal["read", "failed", "retried", "written", "rejected", "resolved"]


@dataclass(frozen=True, slots=True)
class Event:
    """An event of one record.

    `what` is one of
    read: the bolts got it for the first time;
    failed: an attempt failed in `step` for `reason`, and a retry or a dead letter follows;
    retried: the bolts got it again, for the `attempt`-th time;
    written: rows of it alone, no joined ones, became durable in the sink `step`;
    rejected: its dead letter was sent, because of `step` and `reason`;
    resolved: its offset may be committed.
    """

    seconds: float  # of the test kit's time
    what: What
    topic: str
    partition: int
    offset: int
    attempt: int
    step: str | None = None
    reason: str | None = None

    def __str__(self) -> str:
        record = f"{self.topic}[{self.partition}]@{self.offset}"
        where = f" in {self.step}" if self.step else ""
        why = f": {self.reason}" if self.reason else ""
        return f"{self.seconds:g} s {record} {self.what}{where} (attempt {self.attempt}){why}"


class RecordingObserver(Observer):
    """Records the events of all records, and the complete records."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.events: list[Event] = []
        self.acked: list[Record] = []
        self._clock = clock
        self._messages: dict[int, Any] = {}  # of unresolved records, by record id
        self._attempts: dict[int, int] = {}

    def chunk_emitted(self, chunk: Chunk, record_ids: RecordIds) -> None:
        for record_id, message in zip(record_ids.tolist(), chunk.messages, strict=True):
            self._messages[record_id] = message
            attempt = self._attempts[record_id] = self._attempts.get(record_id, 0) + 1
            self._note("read" if attempt == 1 else "retried", record_id)

    def record_failed(self, record_id: int, failure: Failure) -> None:
        self._note("failed", record_id, failure.step, text_of(failure.error))

    def dead_letter_sent(self, record_id: int, letter: DeadLetter, sink: str) -> None:
        del sink
        self._note("rejected", record_id, letter.step, letter.reason)

    def batch_ended(
        self, sink: str, number: int, record_ids: RecordIds, rejected: int, error: str | None
    ) -> None:
        del number, rejected, error
        for record_id in np.unique(record_ids).tolist():
            if record_id in self._messages:  # else it is of several records, or of none
                self._note("written", record_id, sink)

    def records_resolved(self, record_ids: RecordIds) -> None:
        for record_id in record_ids.tolist():
            self._note("resolved", record_id)
            message = self._messages.pop(record_id)
            self.acked.append(Record(message.value(), message))

    def resolved_below(self, index: int, end: int) -> None:
        done = [each for each in self._of_partition(index) if offset_of(each) < end]
        self.records_resolved(np.array(done, np.int64))

    def partition_lost(self, index: int) -> None:
        for record_id in self._of_partition(index):  # whoever has it now emits it again
            del self._messages[record_id]

    def _of_partition(self, index: int) -> list[int]:
        return [each for each in self._messages if partition_index_of(each) == index]

    def _note(
        self, what: What, record_id: int, step: str | None = None, reason: str | None = None
    ) -> None:
        message = self._messages[record_id]
        place = message.topic(), message.partition(), message.offset()
        attempt = self._attempts[record_id]
        self.events.append(Event(self._clock(), what, *place, attempt, step, reason))
