"""Write one sink in the background: one thread stages a batch while another commits the last."""

import queue
import random
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias, TypeVar

import structlog

from sinks.errors import WriterStopped, described, with_free_space
from topology.errors import RowsRejected, SinkBusy, SinkFailed, SinkFenced
from topology.sink import Batch, Committed, Fence, Sink, Staged, innermost

log = structlog.get_logger()
Result = TypeVar("Result")

_FINAL = (SinkFailed, SinkFenced, WriterStopped)


@dataclass(frozen=True, slots=True)
class WriteRetries:
    """The pauses between attempts at one batch: doubling, each shortened by a random part."""

    first_seconds: float = 0.5
    longest_seconds: float = 30.0
    jitter: float = 0.25  # at most this part of a pause is taken off it

    def pause_seconds(self, attempt: int) -> float:
        pause = self.first_seconds * 2.0 ** min(attempt - 1, 60)
        return min(self.longest_seconds, pause) * (1 - self.jitter * random.random())  # noqa: S311


@dataclass(frozen=True, slots=True)
class BatchStaged:
    """A batch that may be committed, or the error for which it cannot be.

    The error is SinkFenced, SinkFailed or WriterStopped, as in BatchCommitted.
    """

    sink: str  # the step's name
    batch: Batch
    staged: Staged | None
    error: Exception | None


@dataclass(frozen=True, slots=True)
class BatchCommitted:
    """A batch whose rows and txids are durable in the sink, but for the rejected rows.

    With SinkFenced nothing is durable, as far as the lines are still ours; with WriterStopped the
    outcome is unknown.
    """

    sink: str  # the step's name
    staged: Staged
    error: Exception | None
    seconds: float


Done: TypeAlias = BatchStaged | BatchCommitted


class RetryLoop:
    """Repeats a piece of a sink's work until it succeeds, and reports how that goes.

    One thread runs the work; any thread may read the figures and set `stopping`: then the attempt
    under way ends, and no other begins. SinkFailed and SinkFenced are not retried.
    """

    def __init__(
        self,
        sink: str,
        stopping: threading.Event | None = None,
        policy: WriteRetries | None = None,
        place: Callable[[], object] = lambda: None,
    ) -> None:
        """`place` returns where the sink writes to, once it is known."""
        self._sink = sink
        self._place = place
        self._stopping = stopping or threading.Event()
        self._policy = policy or WriteRetries()
        self.retries = 0
        self.last_error: str | None = None
        self.failing_since: float | None = None  # monotonic seconds; None while all is well

    def run(
        self, work: Callable[[], Result], what: str, *, once: bool = False, **facts: str | int
    ) -> Result:
        """Return what `work` returns as soon as it succeeds; `facts` go into the log.

        SinkBusy is repeated when the sink asks for it, any other error after a pause, but with
        `once` the error is raised. Raises WriterStopped, which says that `what` was not done.
        """
        failures = 0  # a sink that was busy has not failed
        while True:
            if self._stopping.is_set():
                raise WriterStopped(f"the writer of sink '{self._sink}' was stopped before {what}")
            try:
                result = work()
            except (SinkFailed, SinkFenced):
                raise
            except SinkBusy as busy:
                tell = log.warning if busy.reason else log.debug
                tell(
                    "sink_busy",
                    sink=self._sink,
                    after_seconds=busy.after_seconds,
                    reason=busy.reason,
                )
                self._stopping.wait(busy.after_seconds)
            except Exception as error:
                self.last_error = with_free_space(described(error), self._place())
                if self.failing_since is None:
                    self.failing_since = time.monotonic()
                if once:
                    raise
                failures += 1
                self._pause(failures, facts)
            else:
                self._recovered(failures + 1, facts)
                return result

    def outcome(
        self, work: Callable[[], Result], what: str, *, once: bool = False, **facts: str | int
    ) -> tuple[Result | None, Exception | None]:
        """Run `work` and return its result or its error; an attempt to exit is SinkFailed."""
        try:
            return self.run(work, what, once=once, **facts), None
        except Exception as failure:  # noqa: BLE001 - the owner judges it
            error = failure
        except BaseException as failure:  # noqa: BLE001 - a sink that exits is reported
            error = SinkFailed(f"sink '{self._sink}' raised {failure!r}")
        self.last_error = with_free_space(described(error), self._place())
        if isinstance(error, SinkFenced):  # the sink is well, the work is another owner's
            self.failing_since = None
        return None, error

    def discard(self, work: Callable[[], object]) -> None:
        """Run work that removes what nobody sees; a failure is only logged."""
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - it is not visible, so it may stay
            self.last_error = with_free_space(described(error), self._place())
            log.warning("sink_discard_failed", sink=self._sink, error=self.last_error)

    def _pause(self, attempt: int, facts: dict[str, str | int]) -> None:
        pause_seconds = self._policy.pause_seconds(attempt)
        self.retries += 1
        log.warning(
            "sink_write_failed",
            sink=self._sink,
            **facts,
            attempt=attempt,
            error=self.last_error,
            retry_in_seconds=round(pause_seconds, 3),
        )
        self._stopping.wait(pause_seconds)

    def _recovered(self, attempt: int, facts: dict[str, str | int]) -> None:
        if self.failing_since is None:
            return
        log.info(
            "sink_recovered",
            sink=self._sink,
            **{name: fact for name, fact in facts.items() if name != "rows"},
            attempt=attempt,
            failing_seconds=round(time.monotonic() - self.failing_since, 3),
        )
        self.failing_since = None


class SinkWriter:
    """Two threads of one sink: one stages a batch while the other commits the one before it.

    All methods belong to the owner thread. `on_done` is called from both threads, exactly once for
    each `stage`, `commit` and `write` before `stop` was called: give it a thread-safe queue's
    `put`. Each thread works in the order of the calls; fences and commits are the commit
    thread's. Failed work is repeated with the same arguments until it succeeds, `stop` is called,
    or the sink raises a final error.

    With `at_most_once` a failed commit is not repeated, since it may be durable all the same: all
    rows of the batch are reported as rejected. SinkBusy says that nothing was written, so such a
    batch is repeated.
    """

    def __init__(
        self,
        sink: Sink[Any],
        on_done: Callable[[Done], object],
        *,
        step: str | None = None,
        at_most_once: bool = False,
        retries: WriteRetries | None = None,
    ) -> None:
        self._sink = sink
        self._step = step or sink.name
        self._on_done = on_done
        self._at_most_once = at_most_once
        self._stopping = threading.Event()
        self._fences: queue.SimpleQueue[tuple[Fence | None, Future[int]]] = queue.SimpleQueue()
        place = partial(getattr, innermost(sink), "path", None)
        self._staging, self._committing = (
            _Worker(f"{task}-{sink.name}", RetryLoop(sink.name, self._stopping, retries, place))
            for task in ("stage", "commit")
        )
        self._workers = (self._staging, self._committing)

    @property
    def retries(self) -> int:
        """Number of failed attempts that were repeated, since the start."""
        return sum(each.loop.retries for each in self._workers)

    @property
    def last_error(self) -> str | None:
        """The newest failure of a commit or a fence, or else of staging; None if there is none."""
        return self._committing.loop.last_error or self._staging.loop.last_error

    @property
    def failing_since(self) -> float | None:
        """Since when one of the threads has failed (monotonic seconds); None while all is well."""
        since = [each.loop.failing_since for each in self._workers]
        return min((each for each in since if each is not None), default=None)

    def start(self) -> None:
        for each in self._workers:
            each.thread.start()

    def fence(self, fence: Fence | None = None) -> Future[int]:
        """Raise the epoch of a line; the result is the txid that is committed of it.

        Without a line the sink becomes able to stage, no more; the result is 0. What waits at the
        same time is asked together. Fails with SinkFenced, SinkFailed or WriterStopped.
        """
        answer: Future[int] = Future()
        self._fences.put((fence, answer))
        self._committing.inbox.put(self._fence)
        return answer

    def write(self, batch: Batch) -> None:
        """Stage a batch of no transactions, and commit it behind those before it.

        BatchCommitted is reported, or BatchStaged with the error.
        """
        self._staging.inbox.put(partial(self._write, batch))

    def stage(self, batch: Batch, by: Callable[[Batch], Staged] | None = None) -> None:
        """Make a batch's rows ready; BatchStaged is reported. Several may wait.

        `by` does it in place of the sink, on the staging thread and with its retries.
        """
        self._staging.inbox.put(partial(self._stage, batch, by or self._sink.stage))

    def commit(self, staged: Staged) -> None:
        """Make what was staged durable; BatchCommitted is reported.

        One at a time: the outcome decides what the next may be.
        """
        self._committing.inbox.put(partial(self._commit, staged))

    def discard(self, staged: Staged) -> None:
        """Discard what was staged; nothing is reported."""
        self.let_go(partial(self._sink.discard, staged))

    def let_go(self, work: Callable[[], object]) -> None:
        """Have the staging thread remove what will not be committed; nothing is reported."""
        self._staging.inbox.put(partial(self._staging.loop.discard, work))

    def stop(self, timeout_seconds: float) -> bool:
        """Let the attempts under way end, but no other begin; return whether both threads ended.

        Unfinished work is reported with WriterStopped.
        """
        deadline = time.monotonic() + timeout_seconds
        self._stopping.set()
        for each in self._workers:  # what is staged last may be for the other
            each.inbox.put(None)
            if each.thread.ident is not None:
                each.thread.join(max(0.0, deadline - time.monotonic()))
        return not any(each.thread.is_alive() for each in self._workers)

    def _fence(self) -> None:
        waiting: list[tuple[Fence | None, Future[int]]] = []
        while not self._fences.empty():
            waiting.append(self._fences.get())
        while waiting:
            fences = tuple(fence for fence, _ in waiting if fence is not None)
            lines = ", ".join(fence.line for fence in fences) or "the sink"
            found, error = self._committing.loop.outcome(
                partial(self._try_fence, fences), f"{lines} was fenced", task="fence", lines=lines
            )
            txids = {each.line: each.txid for each in found or ()}
            line = error.line if isinstance(error, SinkFenced) else None
            # Another owner has that line only: the others are asked for again.
            refused = [each for each in waiting if each[0] and each[0].line == line]
            for fence, answer in refused or waiting:
                if error is not None:
                    answer.set_exception(error)
                else:
                    answer.set_result(txids[fence.line] if fence else 0)
            waiting = [each for each in waiting if each not in refused] if refused else []

    def _try_fence(self, fences: Sequence[Fence]) -> list[Committed]:
        committed = self._sink.fence(fences)
        asked = [fence.line for fence in fences]
        if [each.line for each in committed] != asked:
            found = ", ".join(each.line for each in committed) or "none"
            raise SinkFailed(
                f"sink '{self._sink.name}' fenced the wrong lines: found {found}, expected "
                f"{', '.join(asked)}"
            )
        return committed

    def _write(self, batch: Batch) -> None:
        staged, error = self._staged(batch, self._sink.stage)
        if staged is None:
            self._on_done(BatchStaged(self._step, batch, None, error))
            return
        self._committing.inbox.put(
            partial(self._commit, staged, replace(batch, pieces=[], traces={}))
        )

    def _stage(self, batch: Batch, by: Callable[[Batch], Staged]) -> None:
        self._on_done(BatchStaged(self._step, batch, *self._staged(batch, by)))

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

        return self._staging.loop.outcome(
            work,
            f"batch {batch.sequence} was staged",
            task="stage",
            sequence=batch.sequence,
            rows=batch.num_rows,
        )

    def _commit(self, staged: Staged, batch: Batch | None = None) -> None:
        started = time.monotonic()
        lines = ", ".join(f"{share.line} {share.txid}" for share in staged.shares)
        facts: dict[str, Any] = {"rows": staged.num_rows}
        facts |= {"lines": lines} if batch is None else {"sequence": batch.sequence}
        loop = self._committing.loop
        committed, error = loop.outcome(
            partial(self._try_commit, staged, batch),
            f"{lines if batch is None else f'batch {batch.sequence}'} was committed",
            once=self._at_most_once,
            task="commit",
            **facts,
        )
        if batch is not None and error is not None:
            if not isinstance(error, _FINAL):  # at most once
                committed, error = self._abandoned(staged, batch), None
            loop.discard(partial(self._sink.discard, staged))
        seconds = time.monotonic() - started
        self._on_done(BatchCommitted(self._step, committed or staged, error, seconds))

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

    def _abandoned(self, staged: Staged, batch: Batch) -> Staged:
        error = self._committing.loop.last_error
        log.error(
            "sink_batch_given_up",
            sink=self._sink.name,
            sequence=batch.sequence,
            rows=batch.num_rows,
            error=error,
        )
        reason = f"the write to '{self._sink.name}' failed and may be durable: {error}"
        reasons = dict.fromkeys(range(batch.num_rows), reason) | dict(staged.rejected)
        return replace(staged, num_rows=0, rejected=reasons)


class _Worker:
    def __init__(self, name: str, loop: RetryLoop) -> None:
        self.loop = loop
        self.thread = threading.Thread(target=self._run, name=name, daemon=True)
        self.inbox: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()

    def _run(self) -> None:
        while (work := self.inbox.get()) is not None:
            work()


def check_rejected(rejected: Iterable[int], num_rows: int, sink: str) -> None:
    """Raise SinkFailed for a rejected row that is outside of its batch."""
    outside = [index for index in rejected if not 0 <= index < num_rows]
    if outside:
        raise SinkFailed(
            f"sink '{sink}' rejected row {outside[0]} of a batch of "
            f"{num_rows}, expected rows 0 to {num_rows - 1}"
        )
