"""Makes a sink's transactions durable in the background: stages one group, commits another."""

import queue
import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import structlog

from sinks.errors import WriterBusy
from sinks.tries import Tries, WriteRetries, check_rejected
from topology.errors import SinkBusy, SinkFailed, SinkFenced
from topology.transactional import Committed, Fence, Group, Share, Staged, TransactionalSink

log = structlog.get_logger()

_FINAL = (SinkFailed, SinkFenced)


@dataclass(frozen=True, slots=True)
class FencesRaised:
    """What is committed of each line, in the order of the fences; nothing with `error`.

    That is SinkFenced, SinkFailed or WriterStopped, here and below.
    """

    fences: tuple[Fence, ...]
    committed: list[Committed]
    error: Exception | None


@dataclass(frozen=True, slots=True)
class GroupStaged:
    """A group that may be committed; with `error` there is nothing to commit."""

    group: Group
    staged: Staged | None
    error: Exception | None


@dataclass(frozen=True, slots=True)
class GroupCommitted:
    """Every row and txid of it is durable in the sink.

    With SinkFenced none of them is, as far as their lines are still ours; with WriterStopped it
    is not known.
    """

    staged: Staged
    error: Exception | None
    seconds: float


Done: TypeAlias = FencesRaised | GroupStaged | GroupCommitted


class TransactionWriter:
    """Two threads of one sink: one stages a group while the other commits the one before it.

    All methods belong to the owner thread. `on_done` is called from both threads, exactly once
    for each `fence`, `stage` and `commit` before `stop` was called: give it a thread-safe
    queue's `put`. Each thread does its work in the order it was asked; fences and commits are
    the commit thread's. What fails is tried again, as the same group with the same staged rows,
    until it is done, `stop` comes, or the sink says that it cannot be.

    When it is not known what became of a commit, the sink is asked what it has, and the commit
    is repeated only if it is not there. `at` is told the points of the way by name, for tests
    that end the process there.
    """

    def __init__(
        self,
        sink: TransactionalSink[Any],
        on_done: Callable[[Done], object],
        *,
        retries: WriteRetries | None = None,
        rng: random.Random | None = None,
        clock: Callable[[], float] = time.monotonic,
        at: Callable[[str], object] | None = None,
    ) -> None:
        self._sink = sink
        self._on_done = on_done
        self._clock = clock
        self._at = at or _nothing
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

    def fence(self, fences: Sequence[Fence]) -> None:
        """Raise the epochs of lines; FencesRaised comes."""
        self._committing.ask(partial(self._fence, tuple(fences)))

    def stage(self, group: Group) -> None:
        """Make a group's rows ready; GroupStaged comes. Several may wait."""
        self._staging.ask(partial(self._stage, group))

    def commit(self, staged: Staged) -> None:
        """Make them durable; GroupCommitted comes.

        Raises WriterBusy while another commit is under way: what becomes of it decides what
        the next may be.
        """
        if self.is_committing:
            raise WriterBusy(self._sink.name)
        self._commits_asked += 1
        self._committing.ask(partial(self._commit, staged))

    def discard(self, staged: Staged) -> None:
        """Let what was staged go; nothing comes."""
        self._staging.ask(partial(self._discard, staged))

    def stop(self, timeout_seconds: float) -> bool:
        """Let the tries under way end, but no other begin; return whether both threads ended.

        What is not done is reported with WriterStopped.
        """
        deadline = time.monotonic() + timeout_seconds
        self._stopping.set()
        hands = (self._staging, self._committing)
        for hand in hands:
            hand.ask(None)
        ended = [hand.join(deadline - time.monotonic()) for hand in hands]
        return all(ended)

    def _tell(self, hand: "_Hand", done: Done) -> None:
        if isinstance(done, GroupCommitted):
            self._commits_ended += 1
        hand.ended()
        self._on_done(done)

    def _fence(self, fences: tuple[Fence, ...]) -> None:
        lines = ", ".join(fence.line for fence in fences)

        def work() -> list[Committed]:
            self._at("sink_before_fence")
            committed = self._sink.fence(fences)
            self._at("sink_after_fence")
            return self._of(committed, [fence.line for fence in fences])

        tries = self._committing.tries
        found, error = tries.heard(
            lambda: tries.until_done(work, f"{lines} was fenced", task="fence", lines=lines)
        )
        self._gave_up(tries, error)
        self._tell(self._committing, FencesRaised(fences, found or [], error))

    def _stage(self, group: Group) -> None:
        def work() -> Staged:
            self._at("sink_before_stage")
            staged = self._sink.stage(group)
            check_rejected(staged.rejected, group.num_rows, self._sink.name)
            if staged.shares != group.shares:
                message = f"sink '{self._sink.name}' staged other shares than it was given"
                raise SinkFailed(message)
            return staged

        tries = self._staging.tries
        staged, error = tries.heard(
            lambda: tries.until_done(
                work,
                f"group {group.number} was staged",
                task="stage",
                sequence=group.number,
                rows=group.num_rows,
            )
        )
        self._gave_up(tries, error)
        self._tell(self._staging, GroupStaged(group, staged, error))

    def _commit(self, staged: Staged) -> None:
        started = self._clock()
        is_unknown = False

        def work() -> None:
            nonlocal is_unknown
            if is_unknown and self._has(staged.shares):
                log.info("sink_commit_found", sink=self._sink.name, lines=_named(staged.shares))
                return
            self._at("sink_before_commit")
            try:
                self._sink.commit(staged)
                self._at("sink_after_commit")
            except (SinkBusy, *_FINAL):
                raise
            except Exception:
                is_unknown = True
                raise

        tries = self._committing.tries
        _, error = tries.heard(
            lambda: tries.until_done(
                work,
                f"{_named(staged.shares)} was committed",
                task="commit",
                lines=_named(staged.shares),
                rows=staged.num_rows,
            )
        )
        self._gave_up(tries, error)
        self._tell(self._committing, GroupCommitted(staged, error, self._clock() - started))

    def _has(self, shares: Sequence[Share]) -> bool:
        """Whether the sink has these shares; they are committed together, or none is.

        A line that has been taken over says nothing: its new owner may have committed the txid.
        """
        lines = [share.line for share in shares]
        found = self._of(self._sink.committed(lines), lines)
        ours = [
            line.txid >= share.txid
            for share, line in zip(shares, found, strict=True)
            if line.epoch <= share.epoch
        ]
        return bool(ours) and all(ours)

    def _of(self, committed: list[Committed], lines: list[str]) -> list[Committed]:
        if [each.line for each in committed] != lines:
            found = ", ".join(each.line for each in committed) or "nothing"
            message = (
                f"sink '{self._sink.name}' was asked of {', '.join(lines)}, it told of {found}"
            )
            raise SinkFailed(message)
        return committed

    def _discard(self, staged: Staged) -> None:
        _, error = self._staging.tries.heard(lambda: self._sink.discard(staged))
        if error is not None:  # it is not visible, so it may stay
            log.warning("sink_discard_failed", sink=self._sink.name, error=self.last_error)
        self._staging.ended()

    def _gave_up(self, tries: Tries, error: Exception | None) -> None:
        if isinstance(error, SinkFenced):
            tries.forget_failing()


class _Hand:
    """A thread that does what it is asked, in order."""

    def __init__(self, name: str, tries: Tries) -> None:
        self.tries = tries
        self._inbox: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._asked = 0  # written by the owner alone
        self._ended = 0  # written by the thread alone

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


def _nothing(name: str) -> None:
    """No point of the way is of interest."""
    del name


def _named(shares: Sequence[Share]) -> str:
    return ", ".join(f"{share.line} {share.txid}" for share in shares)
