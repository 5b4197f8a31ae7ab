"""What becomes of tuples and records that could not be processed: a retry, or a dead letter."""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import numpy as np
import structlog

from acker.acker import Acker
from service.account import Tally
from service.emitter import LETTERED, Emitter
from service.joints import Joints
from service.letters import Letters, dead_letter
from service.reader import Reader
from topology.complaints import Complaints, text_of
from topology.errors import BoltError
from topology.outcome import Failure
from topology.record import Record
from topology.signals import Reject, Retry
from topology.steps import BoltStep

if TYPE_CHECKING:  # it imports OpenTelemetry, which is not there unless it is wanted
    from service.tracing.traces import Traces

log = structlog.get_logger()


class Failures:
    """Fails trees, schedules retries and sends dead letters. The owner thread calls everything.

    The step that failed decides how often its records are tried again, if it has a policy of
    its own; else the pipeline's policy does.
    """

    def __init__(
        self,
        steps: Iterable[BoltStep],
        acker: Acker,
        joints: Joints,
        reader: Reader,
        letters: Letters,
        emitter: Emitter,
        tally: Tally,
        *,
        reasons: dict[int, Failure],
        complaints: Complaints,
        traces: "Traces | None" = None,
    ) -> None:
        """`reasons` says why a failed tree failed, by owner."""
        self._policies = {step.name: step.retries for step in steps if step.retries is not None}
        self._acker = acker
        self._joints = joints
        self._reader = reader
        self._letters = letters
        self._emitter = emitter
        self._tally = tally
        self._reasons = reasons
        self._complaints = complaints
        self._traces = traces
        self.on_failure: Callable[[int, Failure], object] | None = None
        """Told whose try failed, and why, before that is retried or buried."""
        self.void: Callable[[int], object] | None = None
        """Told whose try failed: its rows that are not durable are to be left out."""

    def retry(self, owner: int, failure: Failure, now: float) -> None:
        """Schedule a record's retry, or bury it when its retries are used up."""
        error = failure.error
        after = error.after_seconds if isinstance(error, Retry) else None
        self._tally.failures[failure.step] += 1
        self._complaints.hear("step_failing", failure.step, error)
        if self._traces is not None:
            self._traces.failed(owner, failure)
        if self.on_failure is not None:
            self.on_failure(owner, failure)
        if self.void is not None:
            self.void(owner)
        if self._reader.fail(owner, now, after, self._policies.get(failure.step)):
            log.debug("record_failed", step=failure.step, error=text_of(error))
            return
        self.bury_owner(owner, failure)

    def retry_failed(self, owner: int, now: float) -> None:
        """The same for a record whose tree was failed by `fail`."""
        self.retry(owner, self._reasons.pop(owner), now)

    def fail(self, tree: int, edge: int, failure: Failure) -> None:
        """Fail one tuple of a tree that travels: bury it, or fail the tree for a retry."""
        if is_final(failure.error):
            self.bury(tree, edge, failure)
            return
        one = np.array([tree], np.int64)
        owner = int(self._acker.owners(one)[0])
        if owner >= 0:  # else a sibling has failed the tree already
            self._reasons[owner] = failure
            self._acker.fail(one)

    def bury_owner(self, owner: int, failure: Failure) -> None:
        """Send the dead letter of a record that has no tree."""
        owners, edges = np.array([owner], np.int64), self._emitter.new_edges(1)
        trees = self._acker.begin(owners)
        self._acker.init(trees, edges)
        self.bury(int(trees[0]), int(edges[0]), failure)

    def bury(self, tree: int, edge: int, failure: Failure) -> None:
        """Send a tuple's dead letter; its edge is acked when the letter is durable.

        A tuple that belongs to several records sends a letter for each of them. A record has
        one letter a try, with the first of the reasons, however many of its tuples are bad.
        """
        if is_final(failure.error):  # else `retry` has complained
            self._complaints.hear("step_failing", failure.step, failure.error)
        for one, its_edge in self._joints.split(tree, edge, failure, self._emitter.new_edges):
            trees = np.array([one], np.int64)
            owner = int(self._acker.owners(trees)[0])
            if owner < 0:
                continue
            if int(self._acker.flags(trees)[0]) & LETTERED:
                self._acker.ack(trees, np.array([its_edge], np.uint64))
                continue
            self._acker.mark(trees, LETTERED)
            message = self._reader.message(owner)
            record = Record(message.value(), message)
            letter = dead_letter(record, failure, self._reader.attempts(owner))
            self._tally.letters[record.topic, record.partition] += 1
            self._tally.buried[failure.step, type(failure.error).__name__] += 1
            span = None
            if self._traces is not None:
                letter, span = self._traces.letter(owner, letter, self._letters.name)
            self._letters.send(letter, one, its_edge, span)


def is_final(error: Exception) -> bool:
    """Whether no retry can help: the bolt said so, or it broke its contract."""
    return isinstance(error, (Reject, BoltError))
