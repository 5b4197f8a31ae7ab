"""Writes one sink in the background: a thread stages a batch while another commits the last."""

import queue
import random
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

import structlog

from sinks.errors import WriterBusy, WriterStopped
from sinks.tries import Tries, WriteRetries, check_rejected
from topology.errors import RowsRejected, SinkFailed, SinkFenced
from topology.sink import Batch, Committed, Fence, Share, Sink, Staged

log = structlog.get_logger()

_FINAL = (SinkFailed, SinkFenced)
_ENDS = (*_FINAL, WriterStopped)


@dataclass(frozen=True, slots=True)
class BatchStaged:
    """A batch that may be committed; with `error` there is nothing to commit.

    That is SinkFenced, SinkFailed or WriterStopped, also below.
    """

    batch: Batch
    staged: Staged | None
    error: Exception | None


@dataclass(frozen=True, slots=True)
class BatchCommitted:
    """Every row and txid of it is durable in the sink, but the rows that are rejected.

    With SinkFenced none of them is, as far as their lines are still ours; with WriterStopped it
    is not known.
    """

    staged: Staged
    error: Exception | None
    seconds: float


Done: TypeAlias = BatchStaged | BatchCommitted


class SinkWriter:
    """Two threads of one sink: one stages a batch while the other commits the one before it.

    All methods belong to the owner thread. `on_done` is called from both threads, exactly once for
    each `stage`, `commit` and `write` before `stop` was called: give it a thread-safe queue's
    `put`. Each thread does its work in the order it was asked; fences and commits are the commit
    thread's. What fails is tried again with the same arguments until it is done, `stop` comes, or
    the sink says that it cannot be.

    With `at_most_once` a commit that has failed is not tried again, since it may be durable all the
    same: all rows of the batch are reported as rejected. SinkBusy says that nothing was written,
    so such a batch comes again.
    """

    def __init__(
        self,
        sink: Sink[Any],
        on_done: Callable[[Done], object],
        *,
        at_most_once: bool = False,
        retries: WriteRetries | None = None,
        rng: random.Random | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._sink = sink
        self._on_done = on_done
        self._at_most_once = at_most_once
        self._clock = clock
        self._stopping = threading.Event()
        self._staging, self._committing = (
            _Hand(
                f"{task}-{sink.name}",
                Tries(
                    sink.name, self._stopping, final=_FINAL, policy=retries, rng=rng, clock=clock
                ),
            )
            for task in ("stage", "commit")
        )
        self._commits_asked = 0
        self._commits_ended = 0  # written by the commit thread alone

    @property
    def busy(self) -> bool:
        """Whether anything was asked and not told; its end counts just before `on_done`."""
        return self._staging.busy or self._committing.busy

    @property
    def is_committing(self) -> bool:
        """Whether a commit was asked and its end not told."""
        return self._commits_asked != self._commits_ended

    @property
    def retries(self) -> int:
        """How many tries have failed and were repeated, since the start."""
        return self._staging.tries.retries + self._committing.tries.retries

    @property
    def last_error(self) -> str | None:
        """The newest failure of a commit or a fence, or else of staging; None if there is none."""
        return self._committing.tries.last_error or self._staging.tries.last_error

    @property
    def failing_since(self) -> float | None:
        """Since when one of the threads has failed (monotonic seconds); None: all is well."""
        since = [hand.tries.failing_since for hand in (self._staging, self._committing)]
        return min((each for each in since if each is not None), default=None)

    def start(self) -> None:
        """Start the threads."""
        self._staging.start()
        self._committing.start()

    def fence(self, fences: Sequence[Fence]) -> Future[list[Committed]]:
        """Raise the epochs of lines; ends with what is committed of each, in order.

        Fails with SinkFenced, SinkFailed or WriterStopped.
        """
        answer: Future[list[Committed]] = Future()
        self._committing.ask(partial(self._fence, tuple(fences), answer))
        return answer

    def write(self, batch: Batch) -> None:
        """Stage a batch of no transactions, and commit it behind those before it.

        BatchCommitted comes, or BatchStaged with the error.
        """
        self._staging.ask(partial(self._write, batch))

    def stage(self, batch: Batch, by: Callable[[Batch], Staged] | None = None) -> None:
        """Make a batch's rows ready; BatchStaged comes. Several may wait.

        `by` does it in place of the sink, on the staging thread and with its tries.
        """
        self._staging.ask(partial(self._stage, batch, by or self._sink.stage))

    def commit(self, staged: Staged) -> None:
        """Make them durable; BatchCommitted comes.

        Raises WriterBusy while another commit is under way: what becomes of it decides what
        the next may be.
        """
        if self.is_committing:
            raise WriterBusy(self._sink.name)
        self._commits_asked += 1
        self._committing.ask(partial(self._commit, staged))

    def discard(self, staged: Staged) -> None:
        """Let what was staged go; nothing comes."""
        self.let_go(partial(self._sink.discard, staged))

    def let_go(self, work: Callable[[], object]) -> None:
        """Have the staging thread remove what will not be committed; nothing comes."""
        self._staging.ask(partial(self._discard, work))

    def stop(self, timeout_seconds: float) -> bool:
        """Let the tries under way end, but no other begin; return whether both threads ended.

        What is not done is reported with WriterStopped.
        """
        deadline = time.monotonic() + timeout_seconds
        self._stopping.set()
        ended = []
        for hand in (self._staging, self._committing):  # what is staged last may be for the other
            hand.ask(None)
            ended.append(hand.join(deadline - time.monotonic()))
        return all(ended)

    def _tell(self, hand: "_Hand", done: Done) -> None:
        if isinstance(done, BatchCommitted):
            self._commits_ended += 1
        hand.ended()
        self._on_done(done)

    def _fence(self, fences: tuple[Fence, ...], answer: Future[list[Committed]]) -> None:
        lines = ", ".join(fence.line for fence in fences) or "the sink"

        def work() -> list[Committed]:
            committed = self._sink.fence(fences)
            self._check_told(committed, [fence.line for fence in fences])
            return committed

        tries = self._committing.tries
        found, error = tries.heard(
            lambda: tries.until_done(work, f"{lines} was fenced", task="fence", lines=lines)
        )
        self._gave_up(tries, error)
        self._committing.ended()
        if error is None:
            answer.set_result(found or [])
        else:
            answer.set_exception(error)

    def _write(self, batch: Batch) -> None:
        staged, error = self._staged(batch, self._sink.stage)
        if staged is None:
            self._tell(self._staging, BatchStaged(batch, None, error))
            return
        self._commits_asked += 1
        self._committing.ask(partial(self._commit, staged, replace(batch, pieces=[], traces={})))
        self._staging.ended()

    def _stage(self, batch: Batch, by: Callable[[Batch], Staged]) -> None:
        self._tell(self._staging, BatchStaged(batch, *self._staged(batch, by)))

    def _staged(
        self, batch: Batch, by: Callable[[Batch], Staged]
    ) -> tuple[Staged | None, Exception | None]:
        def work() -> Staged:
            staged = by(batch)
            check_rejected(staged.rejected, batch.num_rows, self._sink.name)
            if staged.shares != batch.shares:
                message = f"sink '{self._sink.name}' staged other shares than it was given"
                raise SinkFailed(message)
            return staged

        tries = self._staging.tries
        staged, error = tries.heard(
            lambda: tries.until_done(
                work,
                f"batch {batch.sequence} was staged",
                task="stage",
                sequence=batch.sequence,
                rows=batch.num_rows,
            )
        )
        self._gave_up(tries, error)
        return staged, error

    def _commit(self, staged: Staged, batch: Batch | None = None) -> None:
        """Commit what was staged; with a `batch`, rows that the sink refuses now are rejected."""
        started = self._clock()
        named = _named(staged.shares) if batch is None else f"batch {batch.sequence}"
        facts: dict[str, str | int] = {"rows": staged.num_rows}
        facts |= {"lines": named} if batch is None else {"sequence": batch.sequence}
        tries = self._committing.tries
        committed, error = tries.heard(
            lambda: tries.until_done(
                partial(self._try_commit, staged, batch),
                f"{named} was committed",
                once=self._at_most_once,
                task="commit",
                **facts,
            )
        )
        if batch is not None and error is not None:
            if isinstance(error, _ENDS):
                self._let_go(partial(self._sink.discard, staged), tries)
            else:  # at most once
                committed, error = self._given_up(staged, batch), None
        self._gave_up(tries, error)
        seconds = self._clock() - started
        self._tell(self._committing, BatchCommitted(committed or staged, error, seconds))

    def _try_commit(self, staged: Staged, batch: Batch | None) -> Staged:
        try:
            self._sink.commit(staged)
        except RowsRejected as rejection:
            if batch is None:
                message = f"sink '{self._sink.name}' rejected rows that belong to transactions"
                raise SinkFailed(message) from rejection
            check_rejected(rejection.reasons, batch.num_rows, self._sink.name)
            num_rows = staged.num_rows - len(rejection.reasons)
            rejected = {**staged.rejected, **rejection.reasons}
            return replace(staged, num_rows=num_rows, rejected=rejected)
        return staged

    def _given_up(self, staged: Staged, batch: Batch) -> Staged:
        """Whether the batch was written is not known; at most once, it is not tried again."""
        error = self._committing.tries.last_error
        log.error(
            "sink_batch_given_up",
            sink=self._sink.name,
            sequence=batch.sequence,
            rows=batch.num_rows,
            error=error,
        )
        self._let_go(partial(self._sink.discard, staged), self._committing.tries)
        reason = f"the write to '{self._sink.name}' failed and may be durable: {error}"
        reasons = dict.fromkeys(range(batch.num_rows), reason) | dict(staged.rejected)
        return replace(staged, num_rows=0, rejected=reasons)

    def _check_told(self, committed: list[Committed], lines: list[str]) -> None:
        if [each.line for each in committed] != lines:
            found = ", ".join(each.line for each in committed) or "nothing"
            message = (
                f"sink '{self._sink.name}' was asked of {', '.join(lines)}, it told of {found}"
            )
            raise SinkFailed(message)

    def _discard(self, work: Callable[[], object]) -> None:
        self._let_go(work, self._staging.tries)
        self._staging.ended()

    def _let_go(self, work: Callable[[], object], tries: Tries) -> None:
        _, error = tries.heard(work)
        if error is not None:  # it is not visible, so it may stay
            log.warning("sink_discard_failed", sink=self._sink.name, error=tries.last_error)

    def _gave_up(self, tries: Tries, error: Exception | None) -> None:
        if isinstance(error, SinkFenced):
            tries.forget_failing()


class _Hand:
    """A thread that does what it is asked, in order."""

    def __init__(self, name: str, tries: Tries) -> None:
        self.tries = tries
        self._inbox: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._asked = 0  # written by the one thread that asks
        self._ended = 0  # written by this thread alone

    @property
    def busy(self) -> bool:
        return self._asked != self._ended

    def start(self) -> None:
        self._thread.start()

    def ask(self, work: Callable[[], None] | None) -> None:
        self._asked += work is not None
        self._inbox.put(work)

    def ended(self) -> None:
        self._ended += 1

    def join(self, timeout_seconds: float) -> bool:
        if self._thread.ident is not None:
            self._thread.join(max(0.0, timeout_seconds))
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (work := self._inbox.get()) is not None:
            work()


def _named(shares: Sequence[Share]) -> str:
    return ", ".join(f"{share.line} {share.txid}" for share in shares)
