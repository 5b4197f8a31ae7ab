"""The pipeline: the page to read first.

One turn of the owner thread's loop:

0. partitions that are opened, mended or halted;
1. results that other threads handed over: answers of async bolts, ends of batches;
2. dead letters that have become durable;
3. trees that resolved: acked ones move the frontier, failed ones wait for their retry;
4. batches that are due go to their writers;
5. if nothing holds it back, one chunk: fetched, run through the bolts, delivered;
6. frontiers that moved are stored, trees that are too old expire.

No step blocks, but the fetch, for some milliseconds, when there is nothing else to do, and
the first reading of a topic, for a second at most.
"""

import queue
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import structlog

from acker.acker import Acker, Resolved
from partition.chunk import Chunk
from service.account import Tally
from service.emitter import LETTERED, SUNK, Emitter, tree_seconds
from service.letters import Letters, dead_letter
from service.outlet import Outlet, Written, good_rows
from service.reader import Owners, Reader
from service.screen import ScreenPolicy, only, screen
from topology.bolt import Kind
from topology.concurrent import Answer, Answers, AsyncRunner
from topology.errors import BoltError, NothingReturned
from topology.executor import Executor, Failure, Outcome
from topology.record import Message, Record
from topology.signals import SKIP, Reject, Retry
from topology.sink import Sink
from topology.topology import BoltStep, SinkStep, Topology

log = structlog.get_logger()

_IDLE_SECONDS = 0.02
_MAX_LETTERS = 10_000
_MAX_TREES = 1 << 23  # half of what the acker takes
_BACKLOG_PER_WORKER = 4
_EXPIRE_EVERY_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class PipelinePolicy:
    """How records are tracked."""

    message_timeout_seconds: float = 30.0
    screen: ScreenPolicy = field(default_factory=ScreenPolicy)


class Pipeline:
    """Moves records from the reader through the bolts to the sinks, and acks them.

    The thread that calls `step` owns the reader, the acker and the executor; none of
    them has a lock. Bolts and sinks hand their results back through one queue.
    """

    def __init__(
        self,
        topology: Topology,
        reader: Reader,
        letters: Letters,
        policy: PipelinePolicy,
        rng: np.random.Generator,
        clock: Callable[[], float] = time.monotonic,
        sinks: Mapping[str, Sink[Any]] | None = None,
    ) -> None:
        """`sinks` stand in, by step name, for those of the topology (the test kit's do)."""
        self._reader = reader
        self._letters = letters
        self._policy = policy
        self._clock = clock
        self._topology = topology
        self._executor = Executor(topology)
        self._results: queue.SimpleQueue[Answers | Written] = queue.SimpleQueue()
        steps = list(topology.steps())
        self._async_steps = [s for s in steps if isinstance(s, BoltStep) and s.kind is Kind.ASYNC]
        self._acker = Acker(
            timeout_seconds=policy.message_timeout_seconds,
            longest_seconds=max((tree_seconds(s) or 0 for s in self._async_steps), default=None),
        )
        self._runner = AsyncRunner(
            self._async_steps, self._results.put, policy.message_timeout_seconds
        )
        self._outlets = {
            step.name: Outlet(step, (sinks or {}).get(step.name, step.sink), self._results.put)
            for step in steps
            if isinstance(step, SinkStep)
        }
        self._emitter = Emitter(self._acker, self._outlets, self._runner, rng)
        self._failures: dict[int, Failure] = {}  # why a failed tree failed, by owner
        self._expire_due = 0.0
        self.tally = Tally()

    def open(self) -> None:
        """Open the bolts and start the threads. The sinks and the reader are open already."""
        self._executor.open()
        self._runner.open()
        for outlet in self._outlets.values():
            outlet.start()

    def step(self, *, read: bool = True, flush: bool = False) -> bool:
        """One turn of the loop; True if anything moved.

        Without `read` no new record is emitted and none is fetched; with `flush` batches
        go to their writers before they are due. Raises SinkFailed, partition.Fenced and
        whatever else cannot heal.
        """
        now = self._clock()
        self._reader.poll(now, opens=read)
        moved = self._take_results(now)
        moved |= self._take_letters(now)
        moved |= self._resolve(self._acker.drain(), now)
        for outlet in self._outlets.values():
            moved |= outlet.submit_due(now, flush=flush or self._reader.is_stuck)
        if read and not self.is_held_back(now):
            moved |= self._read(now, wait=not moved)
        elif not moved:
            self._wait(_IDLE_SECONDS)
        self._resolve(self._acker.drain(), now)
        self._reader.commit(now)
        self._expire(now)
        return moved

    def is_held_back(self, now: float) -> bool:
        """Whether a slow sink, bolt or dead-letter topic holds new records back."""
        return (
            any(outlet.is_full(now) for outlet in self._outlets.values())
            or any(
                self._runner.backlog(step) > _BACKLOG_PER_WORKER * step.workers
                for step in self._async_steps
            )
            or self._letters.pending >= _MAX_LETTERS
            or self._acker.in_flight >= _MAX_TREES
        )

    @property
    def is_idle(self) -> bool:
        """Whether no record is on its way; some may wait for their retry."""
        return self._acker.in_flight == 0

    @property
    def outlets(self) -> list[Outlet]:
        """The sinks' ends, for figures and health."""
        return list(self._outlets.values())

    @property
    def acker(self) -> Acker:
        """The acker, for its figures."""
        return self._acker

    def close(self, timeout_seconds: float) -> bool:
        """Stop the threads and close the bolts; False if a thread did not end in time."""
        self._runner.close(timeout_seconds)
        ended = [outlet.stop(timeout_seconds) for outlet in self._outlets.values()]
        self._executor.close()
        return all(ended)

    # Step 1: results of other threads

    def _take_results(self, now: float) -> bool:
        taken = False
        while not self._results.empty():
            taken = True
            result = self._results.get()
            if isinstance(result, Written):
                self._take_written(result)
            else:
                self._take_answers(result, now)
        return taken

    def _wait(self, seconds: float) -> None:
        """Wait for a result, at most so long, and put it back for the next turn."""
        try:
            result = self._results.get(timeout=seconds)
        except queue.Empty:
            return
        self._results.put(result)

    def _take_written(self, written: Written) -> None:
        result = written.result
        if result.error is not None:
            raise result.error
        written.outlet.ended(result)
        trees, edges = good_rows(result)
        self._acker.ack(trees, edges)
        for row, reason in result.rejected.items():
            failure = Failure(written.outlet.step.name, Reject(reason))
            tree = int(result.pending.trees[row])
            self._bury(tree, int(result.pending.edges[row]), failure)

    def _take_answers(self, answers: Answers, now: float) -> None:
        """Take what an async bolt's calls came to; those of trees already resolved are void."""
        trees = np.array([answer.tree for answer in answers.answers], np.int64)
        owners = self._acker.owners(trees)
        good: list[Answer] = []
        for answer, owner in zip(answers.answers, owners.tolist(), strict=True):
            if owner < 0:
                continue
            error = answer.error
            if error is None and answer.value is None:
                error = NothingReturned(answers.step.name)
            if error is None:
                good.append(answer)
            else:
                self._fail_tree(answer.tree, answer.edge, Failure(answers.step.name, error))
        if good:
            self._take_good_answers(answers.step, good, now)

    def _take_good_answers(self, step: BoltStep, answers: list[Answer], now: float) -> None:
        trees = np.array([answer.tree for answer in answers], np.int64)
        edges = np.array([answer.edge for answer in answers], np.uint64)
        kept = np.array([answer.value is not SKIP for answer in answers], np.bool_)
        outcome = self._executor.run_after(step, [a.value for a in answers if a.value is not SKIP])
        places = np.flatnonzero(kept)
        for place, failure in outcome.failures.items():
            at = places[place]
            self._fail_tree(int(trees[at]), int(edges[at]), failure)
            edges[at] = 0  # the letter keeps the edge, or the tree has failed
        emitted = np.zeros(len(places), np.uint64)
        handed = [self._emitter.edges_of(delivery, emitted) for delivery in outcome.deliveries]
        for delivery, new_edges in zip(outcome.deliveries, handed, strict=True):
            self._emitter.deliver(delivery, trees[places], new_edges, now)
        edges[places] ^= emitted
        self._acker.ack(trees, edges)

    # Step 2: dead letters

    def _take_letters(self, now: float) -> bool:
        trees, edges = self._letters.poll(now)
        self._acker.ack(trees, edges)
        return len(trees) > 0

    def _bury_owner(self, owner: int, failure: Failure) -> None:
        """Send the dead letter of a record that has no tree."""
        owners, edges = np.array([owner], np.int64), self._emitter.new_edges(1)
        trees = self._acker.begin(owners)
        self._acker.init(trees, edges)
        self._bury(int(trees[0]), int(edges[0]), failure)

    def _bury(self, tree: int, edge: int, failure: Failure) -> None:
        """Send a record's dead letter; its edge is acked when the letter is durable."""
        one = np.array([tree], np.int64)
        owner = int(self._acker.owners(one)[0])
        if owner < 0:
            return
        self._acker.mark(one, LETTERED)
        message = self._reader.message(owner)
        record = Record(message.value(), message)
        letter = dead_letter(record, failure, self._reader.attempts(owner))
        self._letters.send(letter, tree, edge)

    # Step 3: trees that resolved

    def _resolve(self, resolved: Resolved, now: float) -> bool:
        if len(resolved.acked):
            self.tally.acked(resolved.acked_flags, SUNK, LETTERED)
            self._reader.ack(resolved.acked)
        for owner in resolved.failed.tolist():
            self._retry(owner, self._failures.pop(owner), now)
        for owner in resolved.expired.tolist():
            seconds = self._policy.message_timeout_seconds
            error = TimeoutError(f"the record's tree was not resolved within {seconds} seconds")
            self._retry(owner, Failure("topology", error), now)
        return bool(len(resolved.acked) or len(resolved.failed) or len(resolved.expired))

    def _retry(self, owner: int, failure: Failure, now: float) -> None:
        """Schedule a record's retry, or bury it when its retries are used up."""
        after = failure.error.after_seconds if isinstance(failure.error, Retry) else None
        self.tally.failures[failure.step] += 1
        if self._reader.fail(owner, now, after):
            log.debug("record_failed", step=failure.step, error=str(failure.error))
            return
        self._bury_owner(owner, failure)

    def _fail_tree(self, tree: int, edge: int, failure: Failure) -> None:
        """Fail one tuple of a tree that travels: bury it, or fail the tree for a retry."""
        if _is_final(failure.error):
            self._bury(tree, edge, failure)
            return
        one = np.array([tree], np.int64)
        owner = int(self._acker.owners(one)[0])
        if owner >= 0:  # else a sibling has failed the tree already
            self._failures[owner] = failure
            self._acker.fail(one)

    # Step 5: one chunk

    def _read(self, now: float, *, wait: bool) -> bool:
        emission = self._reader.next(now)
        if emission is None:
            waits = wait and self._results.empty()
            busy = self._acker.in_flight > 0 or self._letters.pending > 0
            seconds = (_IDLE_SECONDS / 4 if busy else _IDLE_SECONDS) if waits else 0.0
            if not self._reader.fetch(now, seconds):
                return False
            emission = self._reader.next(now)
            if emission is None:
                return True
        chunk, owners = self._screen(*emission) if emission[0].unusual else emission
        if len(chunk):
            source = self._topology.source_of(chunk.partition.topic)
            # To the partition room a message is only something with a length.
            outcome = self._executor.run_source(source, cast("list[Message]", chunk.messages))
            self._emit(outcome, owners, now)
        return True

    def _screen(self, chunk: Chunk, owners: Owners) -> tuple[Chunk, Owners]:
        """Set apart what policy keeps from the bolts: it is filtered, or buried."""
        screened = screen(chunk, self._policy.screen)
        for place, error in screened.refused.items():
            self._bury_owner(int(owners[place]), Failure("screen", error))
        if screened.skipped:
            self.tally.filtered += len(screened.skipped)
            self._reader.ack(owners[screened.skipped])
        return only(chunk, screened.kept), owners[screened.kept]

    def _emit(self, outcome: Outcome, owners: Owners, now: float) -> None:
        """Begin the trees of a chunk and deliver what came out of it."""
        final = {p: f for p, f in outcome.failures.items() if _is_final(f.error)}
        for place, failure in outcome.failures.items():
            if place not in final:
                self._retry(int(owners[place]), failure, now)
        roots = np.zeros(len(owners), np.uint64)
        edges = [self._emitter.edges_of(delivery, roots) for delivery in outcome.deliveries]
        buried = self._emitter.new_edges(len(final))
        for place, edge in zip(final, buried, strict=True):
            roots[place] ^= edge
        if len(final) == len(outcome.failures):
            trees = self._acker.begin(owners)
            alive: Any = slice(None)
        else:  # what waits for its retry has no tree
            alive = np.ones(len(owners), np.bool_)
            alive[[place for place in outcome.failures if place not in final]] = False
            trees = np.zeros(len(owners), np.int64)
            trees[alive] = self._acker.begin(owners[alive])
        for delivery, new_edges in zip(outcome.deliveries, edges, strict=True):
            self._emitter.deliver(delivery, trees, new_edges, now)
        self._acker.init(trees[alive], roots[alive])
        for (place, failure), edge in zip(final.items(), buried.tolist(), strict=True):
            self._bury(int(trees[place]), edge, failure)

    # Step 6: time

    def _expire(self, now: float) -> None:
        if now < self._expire_due:
            return
        self._expire_due = now + min(_EXPIRE_EVERY_SECONDS, self._acker.tick_seconds / 4)
        for outlet in self._outlets.values():
            for trees in outlet.trees():
                self._acker.reset_timeout(trees)
        for step, trees_of_step in self._runner.waiting():
            self._acker.reset_timeout(np.array(trees_of_step, np.int64), tree_seconds(step))
        self._acker.reset_timeout(np.array(self._letters.trees(), np.int64))
        self._acker.expire(now)


def _is_final(error: Exception) -> bool:
    """Whether no retry can help: the bolt said so, or it broke its contract."""
    return isinstance(error, (Reject, BoltError))
