"""A pipeline's parts that tell the timeline what they do."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from partition.chunk import Chunk, Partition
from service.committers import TransactionCommitter
from service.dead_letter_sender import DeadLetterSender, Ends
from service.owners import Owners, offset_of, place_of
from service.pipeline import Pipeline
from service.reader import Reader
from service.sink_buffer import BatchBuffer, TransactionBuffer, WriterEvent, good_rows
from service.testing.timeline import Timeline, What
from sinks.writer import BatchCommitted
from topology.complaints import text_of
from topology.outcome import Failure
from topology.record import Record
from topology.sink import DeadLetter, DeadLetterSink, Staged


class WatchedReader(Reader):
    """A reader that remembers the records it acked, and tells of every emission."""

    def __init__(
        self, timeline: Timeline, clock: Callable[[], float], *parts: Any, **options: Any
    ) -> None:
        super().__init__(*parts, **options)
        self._timeline = timeline
        self._clock = clock
        self.acked: list[Record] = []
        self._processed: dict[int, None] = {}

    def next(self, now: float) -> tuple[Chunk, Owners] | None:
        """Tell what is emitted."""
        emission = super().next(now)
        if emission is not None:
            chunk, _owners = emission
            self._timeline.emitted(now, chunk.partition, chunk.offsets.tolist())
        return emission

    def fetch(self, now: float, timeout_seconds: float) -> bool:  # noqa: ARG002
        """Take what is there. Nothing comes by itself, so there is nothing to wait for."""
        return super().fetch(now, 0.0)

    def ack(self, owners: Owners) -> None:
        """Remember the records, then resolve them."""
        self._remember(owners.tolist())
        super().ack(owners)

    def processed(self, owners: Owners) -> None:
        """Remember whose trees have resolved, for `resolve_to`."""
        self._processed |= dict.fromkeys(owners.tolist())
        super().processed(owners)

    def resolve_to(self, place: int, end: int) -> int:
        """Remember the records, then resolve them."""
        done = [
            owner
            for owner in self._processed
            if place_of(owner) == place and offset_of(owner) < end
        ]
        self._remember(done)
        for owner in done:
            del self._processed[owner]
        return super().resolve_to(place, end)

    def _remember(self, owners: list[int]) -> None:
        for message in [self.message(owner) for owner in owners]:
            self.acked.append(Record(message.value(), message))
            self.note(self._clock(), "resolved", message)

    def note(
        self,
        now: float,
        what: What,
        message: Any,
        step: str | None = None,
        reason: str | None = None,
    ) -> None:
        """Tell what happened to a message's record."""
        partition = Partition(message.topic(), message.partition())
        self._timeline.note(now, what, partition, message.offset(), step, reason)

    def next_due(self) -> float | None:
        """When the next retry is due, or a rate limit lets the next records pass; or None."""
        managers = [held.manager for held in self._assignment]
        dues = [manager.next_due() for manager in managers if manager is not None]
        wake = self._flow.wake
        dues.append(wake if math.isfinite(wake) else None)
        return min((due for due in dues if due is not None), default=None)

    def is_held_up(self, topic: str, now: float) -> bool:
        """Whether nothing new of a topic may be emitted now, by its rate or by backpressure."""
        return self._flow.is_held_up(topic, now)


class WatchedLetters(DeadLetterSender):
    """Dead letters that tell the timeline when they are sent."""

    def __init__(
        self, timeline: Timeline, clock: Callable[[], float], sink: DeadLetterSink
    ) -> None:
        super().__init__(sink)
        self._timeline = timeline
        self._clock = clock

    def send(self, letter: DeadLetter, tree: int, edge: int, span: Ends | None = None) -> None:
        """Tell of the letter, and send it."""
        partition = Partition(letter.record.topic, letter.record.partition)
        self._timeline.note(
            self._clock(), "rejected", partition, letter.record.offset, letter.step, letter.reason
        )
        super().send(letter, tree, edge, span)


class WatchedPipeline(Pipeline):
    """A pipeline that tells which tries failed, and which records have durable rows."""

    _reader: WatchedReader

    def __init__(self, *parts: Any, **options: Any) -> None:
        super().__init__(*parts, **options)
        self._failures.on_failure = self._note_failure
        self._called_later = [step for step in self._topology.bolts() if step.has_runner]

    @property
    def works_elsewhere(self) -> bool:
        """Whether there is any bolt that is called on another thread, or whose calls may wait.

        So are sinks that keep transactions, which are staged before they are committed.
        """
        return isinstance(self._committer, TransactionCommitter) or bool(self._called_later)

    @property
    def next_tick(self) -> float | None:
        """When a bolt is ticked next, or None."""
        return self._router.next_tick

    @property
    def rests(self) -> bool:
        """Whether no thread works on anything: what is unresolved is kept, or waits its turn."""
        steps = self._called_later
        return (
            not any(map(self._runners.backlog, steps))
            and not any(self._runners.statistics(step).in_flight for step in steps)
            and self._committer.is_idle
            # Rows of a transaction may wait for a record that is retried, and are at rest.
            and (
                isinstance(self._committer, TransactionCommitter)
                or not any(outlet.rows_pending for outlet in self._committer.outlets)
            )
            and not self._letters.pending
            and not self._awaited
            and self._results.empty()
        )

    def wait(self, seconds: float) -> None:
        """Wait for a result of another thread, at most so long."""
        self._wait(seconds)

    def _note_failure(self, owner: int, failure: Failure) -> None:
        message = self._reader.message(owner)
        reason = text_of(failure.error)
        self._reader.note(self._clock(), "failed", message, failure.step, reason)

    def _written(self, event: WriterEvent) -> None:
        done, buffer = event.done, self._committer.by_name[event.sink]
        if isinstance(done, BatchCommitted) and done.error is None:
            self._note_committed(buffer, done.staged)
        super()._written(event)

    def _note_committed(self, buffer: Any, staged: Staged) -> None:
        if isinstance(buffer, BatchBuffer):
            trees, _edges = good_rows(buffer.committing, staged)
            self._note_written(buffer.name, self._acker.owners(trees))
        elif isinstance(buffer, TransactionBuffer) and buffer.committing is not None:
            owners = np.concatenate([part.owners for part in buffer.committing.parts])
            good = np.ones(len(owners), np.bool_)
            good[list(staged.rejected)] = False
            self._note_written(buffer.name, owners[good])

    def _note_written(self, sink: str, owners: Owners) -> None:
        for owner in np.unique(owners).tolist():
            # -1: a sibling has failed the record. A joint tree is of several records, or of none.
            if owner >= 0 and not self._trees.is_joint(owner):
                message = self._reader.message(owner)
                self._reader.note(self._clock(), "written", message, sink)
