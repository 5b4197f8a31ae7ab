"""Failed records: retried or sent to the dead letters; and records that no bolt sees.

Null keys and empty values are delivered as they are; null values and values above the limit are
screened before any bolt sees them.
"""

import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
import structlog

from partition.records import DEAD_LETTERED, Chunk, RecordIds, offset_of, partition_index_of
from service.errors import TooManyDeadLetters
from service.pipeline.dead_letter_sender import DeadLetterSender
from service.pipeline.trees import OutcomeCounters, TreeTracker
from topology.calls import Failure
from topology.errors import BoltError
from topology.masking import mask
from topology.monitoring import error_at, text_of
from topology.record import Record, Reject, Retry
from topology.sink import DeadLetter
from topology.steps import RetryRule

if TYPE_CHECKING:  # the configuration imports this file, and is to be read fast
    from partition.consumer import Consumer
    from service.pipeline.committers import RefusedRow, SinkCommitter
    from service.pipeline.context import RunContext

log = structlog.get_logger()

_MARKS = 10  # the limit's records move on by a tenth of them

NullValues: TypeAlias = Literal["deliver", "skip", "dead-letter"]


class NullValue(Reject):
    def __init__(self) -> None:
        super().__init__("the record has no value, and null_values says 'dead-letter'")


class Oversized(Reject):
    def __init__(self, size: int, limit: int) -> None:
        super().__init__(f"the value has {size} bytes, more than max_record_bytes = {limit}")


@dataclass(frozen=True, slots=True)
class ScreenPolicy:
    null_values: NullValues = "deliver"
    max_record_bytes: int | None = None


class FailureHandler:
    """Retries records, sends dead letters, and skips records. The owner thread calls everything."""

    def __init__(
        self,
        trees: TreeTracker,
        reader: "Consumer",
        dead_letters: DeadLetterSender,
        committer: "SinkCommitter",
        retries: Mapping[str, RetryRule],
        screen_policy: ScreenPolicy,
        context: "RunContext",
    ) -> None:
        self._trees = trees
        self._reader = reader
        self._dead_letters = dead_letters
        self._committer = committer
        self._counters = committer.counters
        self._retries = retries
        self._screen_policy = screen_policy
        self.complain = context.failure_log.record
        self._observers = context.observers

    # Records, which have no tree

    def fail_records(self, failed: Sequence[tuple[int, Failure]], now: float) -> None:
        """Schedule retries, or send dead letters where retries are used up or cannot help."""
        self.reject_records([each for each in failed if not self._retries_it(*each, now)])

    def _retries_it(self, record_id: int, failure: Failure, now: float) -> bool:
        error = failure.error
        if is_final(error):
            return False
        after = error.after_seconds if isinstance(error, Retry) else None
        self._counters.failures[failure.step] += 1
        self.complain("step_failing", failure.step, error)
        for observer in self._observers:
            observer.record_failed(record_id, failure)
        self._committer.discard_attempt(record_id)
        manager = self._reader.living(partition_index_of(record_id))
        policy = self._retries.get(failure.step)
        # Of a partition that is lost its next owner has the record.
        if manager is not None and not manager.fail(offset_of(record_id), now, after, policy):
            return False
        log.debug("record_failed", step=failure.step, error=text_of(error))
        return True

    def comes_again(self, record_id: int) -> bool:
        """Whether a record of ours is not done, and its partition is not lost."""
        manager = self._reader.living(partition_index_of(record_id))
        return manager is not None and manager.ledger.comes_again(offset_of(record_id))

    def reject_records(self, rejected: Sequence[tuple[int, Failure]]) -> None:
        """Send the dead letters of records that have no tree, but not of a lost partition's."""
        living = self._reader.living
        rejected = [each for each in rejected if living(partition_index_of(each[0])) is not None]
        if not rejected:
            return
        trees = self._trees.begin(
            np.array([record_id for record_id, _failure in rejected], np.int64)
        )
        edges = self._trees.new_edges(len(rejected))
        self._trees.init(trees, edges, np.full(len(trees), DEAD_LETTERED, np.uint8))
        places = zip(trees.tolist(), edges.tolist(), strict=True)
        for (record_id, failure), (tree, edge) in zip(rejected, places, strict=True):
            self._log_if_final(failure)
            self._send(record_id, tree, edge, failure)

    def reject_row(self, refused: "RefusedRow") -> None:
        if refused.tree < 0:
            self.reject_records([(refused.record_id, refused.failure)])
        else:
            self.reject_tuple(refused.tree, refused.edge, refused.failure)

    def screen(self, chunk: Chunk, record_ids: RecordIds) -> tuple[Chunk, RecordIds]:
        """Remove the records that no bolt sees: they are skipped, or become dead letters."""
        limit, null_values = self._screen_policy.max_record_bytes, self._screen_policy.null_values
        kept, skipped, rejected = [], [], []
        messages: list[Any] = chunk.messages
        for place, message in enumerate(messages):
            size = len(message)
            if limit is not None and size > limit:
                refused: Reject = Oversized(size, limit)
            elif size or null_values == "deliver" or message.value() is not None:
                kept.append(place)
                continue
            elif null_values == "skip":
                skipped.append(place)
                continue
            else:
                refused = NullValue()
            rejected.append((int(record_ids[place]), Failure("screen", refused)))
        self.reject_records(rejected)
        if skipped:
            self._committer.resolved(record_ids[skipped], np.zeros(len(skipped), np.uint8))
        if len(kept) == len(messages):
            return chunk, record_ids
        record_ids = record_ids[np.array(kept, np.intp)]
        messages = [messages[place] for place in kept]
        return Chunk(chunk.partition, offset_of(record_ids), messages), record_ids

    # Tuples of trees

    def fail_tuple(self, tree: int, edge: int, failure: Failure) -> None:
        """Send a tuple's dead letter, or fail its tree if a retry may help."""
        if is_final(failure.error):
            self.reject_tuple(tree, edge, failure)
        else:
            self._trees.fail(tree, failure)

    def reject_tuple(self, tree: int, edge: int, failure: Failure) -> None:
        """Send a tuple's dead letter, one for each of its records; then its edge is acked.

        A record has one dead letter per attempt, with the first of the reasons.
        """
        self._log_if_final(failure)
        for one, its_edge in self._trees.split(tree, edge, failure):
            trees = np.array([one], np.int64)
            record_id = int(self._trees.record_ids(trees)[0])
            if record_id < 0:
                continue
            if int(self._trees.flags(trees)[0]) & DEAD_LETTERED:
                self._trees.ack(trees, np.array([its_edge], np.uint64))
                continue
            self._trees.mark(trees, DEAD_LETTERED)
            self._send(record_id, one, its_edge, failure)

    def _log_if_final(self, failure: Failure) -> None:
        if is_final(failure.error):  # else `fail_records` has complained
            self.complain("step_failing", failure.step, failure.error)

    def _send(self, record_id: int, tree: int, edge: int, failure: Failure) -> None:
        manager, offset = self._reader.manager(partition_index_of(record_id)), offset_of(record_id)
        message: Any = manager.message(offset)
        letter = DeadLetter(
            record=Record(message.value(), message),
            reason=mask(text_of(failure.error)),
            attempts=manager.retries.attempts(offset),
            error_class=type(failure.error).__name__,
            step=failure.step,
            failed_at_ms=time.time_ns() // 1_000_000,
            by_reference=isinstance(failure.error, Oversized),
            error_at=error_at(failure.error),
            error=failure.error,
        )
        self._counters.dead_letters[message.topic(), message.partition()] += 1
        self._counters.dead_letter_causes[failure.step, letter.error_class] += 1
        for observer in self._observers:
            trace = observer.dead_letter_sent(record_id, letter, self._dead_letters.name)
            letter = replace(letter, trace=trace) if trace else letter
        self._dead_letters.send(letter, tree, edge, record_id)


def is_final(error: Exception) -> bool:
    return isinstance(error, (Reject, BoltError))


class DeadLetterLimit:
    """Ends a run when too many of its newest records became dead letters.

    It looks at the last `of_records` resolved records or a few more, and at nothing before there
    are so many. The owner thread calls it.
    """

    def __init__(self, max_ratio: float | None = None, of_records: int = 1_000) -> None:
        """Without a ratio there is no limit."""
        self._max_ratio = max_ratio
        self._of_records = of_records
        self._marks: deque[tuple[int, int]] = deque([(0, 0)])  # resolved, and letters of them

    def look(self, counters: OutcomeCounters) -> None:
        """Raises TooManyDeadLetters."""
        if self._max_ratio is None:
            return
        letters = counters.dead_lettered
        resolved = counters.written + counters.filtered + letters
        marks = self._marks
        if resolved - marks[-1][0] < max(1, self._of_records // _MARKS):
            return
        marks.append((resolved, letters))
        while resolved - marks[1][0] >= self._of_records:
            marks.popleft()
        records, among = resolved - marks[0][0], letters - marks[0][1]
        if records >= self._of_records and among > self._max_ratio * records:
            raise TooManyDeadLetters(among, records, self._max_ratio)
