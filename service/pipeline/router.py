"""Routes the values that bolts return to sinks, workers and advanced bolts."""

import time
from collections import deque
from collections.abc import Iterator, Sequence
from functools import cache, partial
from itertools import repeat
from operator import attrgetter, is_
from time import perf_counter
from typing import Any, cast

import numpy as np

from acker.acker import Edges, Flags, Trees
from partition.records import (
    MAX_PARTITION_INDEX,
    WRITTEN,
    Chunk,
    RecordIds,
    partition_index_of,
)
from service.pipeline.committers import SinkCommitter
from service.pipeline.context import RunContext
from service.pipeline.failures import FailureHandler
from service.pipeline.sink_buffer import Rows
from service.pipeline.trees import TreeTracker, joined_edges
from topology.advanced import Actions, AdvancedRunner, Emitted
from topology.bolt import Kind
from topology.calls import Delivery, Failure, Outcome, Parents, Took, failure_of, sort_out
from topology.errors import BoltError
from topology.executor import Executor
from topology.record import Message
from topology.steps import BoltStep, SinkStep
from topology.topology import NO_TRANSACTION, Topology
from topology.workers.key_queue import Answers, Call, Inputs, Many, Ticked, values_of_tick
from topology.workers.pool import WorkerPool

_TREE, _EDGE, _VALUE, _ERROR = map(attrgetter, ("tree", "edge", "value", "error"))
_is_none = partial(is_, None)
_ANSWER_SECONDS = 1.0
_TIDY_SECONDS = 0.5
_FULL_SECONDS = 1.0  # until a tick is tried again whose sink was full
_NO_EDGES: Edges = np.empty(0, np.uint64)


class _Tuples:
    """Tuples that bolts ran over, and what came of each: new edges, XORed, and flags."""

    def __init__(self, record_ids: RecordIds, trees: Trees) -> None:
        self.record_ids = record_ids
        self.trees = trees
        self.edges: Edges = np.zeros(len(trees), np.uint64)
        self.flags: Flags = np.zeros(len(trees), np.uint8)

    def emit(self, parents: Parents, edges: Edges) -> None:
        if parents is None:
            self.edges ^= edges
            return
        parents, edges = joined_edges(parents, edges)
        if (parents[1:] > parents[:-1]).all():
            self.edges[parents] ^= edges
        else:
            np.bitwise_xor.at(self.edges, parents, edges)


class Router:
    """Runs chunks through the bolts and delivers the results. The owner thread calls it.

    Values are delivered before the acker knows the edges of their inputs, and an input is acked
    after everything derived from it has edges: so no tree is complete too early.
    """

    def __init__(
        self,
        topology: Topology,
        executor: Executor,
        runners: WorkerPool,
        advanced: AdvancedRunner,
        trees: TreeTracker,
        committer: SinkCommitter,
        failures: FailureHandler,
        context: RunContext,
    ) -> None:
        self._source_of = cache(topology.source_of)
        self.executor = executor
        self.runners = runners
        self.advanced = advanced
        self._trees = trees
        self._committer = committer
        self._failures = failures
        self._observers = context.observers
        bolts = list(topology.bolts())
        self._called_later = [step for step in bolts if step.has_runner]
        self._advanced_steps = [step for step in bolts if step.kind is Kind.ADVANCED]
        self._arrived: deque[tuple[Delivery, Trees, Edges]] = deque()  # at advanced bolts
        self._tick_seconds = {
            step: step.bolt.tick_seconds for step in bolts if step.bolt.tick_seconds is not None
        }
        self._sinks_below = {step: set(_sinks_below(step)) for step in self._tick_seconds}
        self._step_of = {step.name: step for step in bolts}
        self.failed_ticks = {step.name: 0 for step in self._tick_seconds}
        """Ticks that raised or took too long, by step."""
        self._tick_due: dict[BoltStep, float] = {}
        self._tidy_due = 0.0

    @property
    def next_tick(self) -> float | None:
        return min(self._tick_due.values(), default=None)

    def start(self, now: float) -> None:
        self._tick_due = {step: now + seconds for step, seconds in self._tick_seconds.items()}

    def run(self, chunk: Chunk, record_ids: RecordIds, now: float) -> Outcome:
        """Run a chunk through the bolts, up to those that are called later.

        Each record gets a tree, except those in the outcome's `failures`.
        """
        # To the partition room a message is only something with a length.
        messages = cast("list[Message]", chunk.messages)
        outcome = self.executor.run_source(self._source_of(chunk.partition.topic), messages)
        for observer in self._observers:
            observer.bolts_ran(record_ids, outcome)
        good: Any = slice(None)
        if outcome.failures:
            good = np.ones(len(record_ids), np.bool_)
            good[list(outcome.failures)] = False
        trees = np.zeros(len(record_ids), np.int64)
        trees[good] = self._trees.begin(record_ids[good])
        inputs = _Tuples(record_ids, trees)
        self._deliver(outcome.deliveries, inputs, now)
        self._trees.init(trees[good], inputs.edges[good], inputs.flags[good])
        self._run_advanced(now)
        return outcome

    def prefetch(self, chunks: Sequence[Chunk]) -> None:
        """Start the concurrent bolts of the next chunks, and drop the results of all others."""
        self.executor.prefetcher.prefetch(
            [
                (self._source_of(each.partition.topic), cast("list[Message]", each.messages))
                for each in chunks
            ]
        )

    def handle(self, result: Answers | Ticked, now: float) -> None:
        if isinstance(result, Ticked):
            self._ticked(result, now)
            return
        step, calls = result.step, result.take()
        for observer in self._observers:
            observer.calls_ended(calls)
        live = self._trees.record_ids(_trees(calls)) >= 0
        if not live.all() or not all(map(_is_none, map(_ERROR, calls))):
            calls = [
                call
                for call, is_live in zip(calls, live.tolist(), strict=True)
                if is_live and not self._has_failed(step, call)
            ]
        if not calls:
            return
        values = list(map(_VALUE, calls))
        parents = None
        if Many in set(map(type, values)):
            groups = [each if type(each) is Many else (each,) for each in values]
            parents = np.repeat(np.arange(len(calls)), [len(group) for group in groups])
            values = [value for group in groups for value in group]
        edges = np.fromiter(map(_EDGE, calls), np.uint64, len(calls))
        outcome = self.executor.run_after(step, values, parents)
        self._hand_on(outcome, _trees(calls), edges, now)
        self._run_advanced(now)

    def _has_failed(self, step: BoltStep, call: Call) -> bool:
        if call.error is None:
            return False
        self._failures.fail_tuple(call.tree, call.edge, Failure(step.name, call.error))
        if not self._failures.comes_again(call.record_id):  # of several records: not as it was
            self.runners.release([call.record_id])
        return True

    def tick(self, now: float, *, drain: bool, leaving: Sequence[int] = ()) -> bool:
        """Tick the bolts that are due; fail tuples that are held, and calls that run, for too long.

        With `drain` all advanced bolts are asked for the tuples they hold, else those that hold
        tuples of the partitions that are `leaving`. Returns whether a bolt was ticked.
        """
        if self._called_later:
            self.runners.poll(time.monotonic())  # calls take real time, also in the test kit
        due = [step for step, at in self._tick_due.items() if at <= now]
        for step in due:  # once, however long it is ago
            self._tick_due[step] = now + self._tick_seconds[step]
            if any(self._committer.is_full(sink) for sink in self._sinks_below[step]):
                self._tick_due[step] = now + min(self._tick_seconds[step], _FULL_SECONDS)
                continue  # what ticks emit has no tree that could hold it back
            if step.kind is Kind.ADVANCED:
                self._carry_out(step, self.advanced.tick(step, now), now)
            elif step.has_runner:
                self.runners.tick(step)
            else:
                self._tick_here(step, now)
        for step in self._advanced_steps:
            kept = self.advanced.kept[step.name].by_partition
            # What came of several records is kept under no partition.
            if drain or (leaving and not kept.keys().isdisjoint([MAX_PARTITION_INDEX, *leaving])):
                self._carry_out(step, self.advanced.drain(step, now), now)
            if step.timeout_seconds is not None:
                self._carry_out(step, self.advanced.overdue(step, now), now)
        self._run_advanced(now)
        if now >= self._tidy_due and (self._called_later or self._advanced_steps):
            self._tidy_due = now + _TIDY_SECONDS
            self.advanced.forget_resolved()
            # A call of an earlier try may fail when its record is done, or another process's.
            again = self._failures.comes_again
            self.runners.release([each for each in self.runners.holders() if not again(each)])
        return bool(due)

    def release_keys(self, record_ids: RecordIds) -> None:
        if self._called_later and self.runners.held:
            self.runners.release(record_ids.tolist())

    def num_blocked(self) -> int:
        """Count the trees that wait for the retry of a record that holds their key."""
        runners = self.runners
        if not self._called_later or not runners.held:
            return 0
        if not all(map(self._failures.comes_again, runners.holders())):
            return 0  # a holder that does not come again is soon released
        if not self._trees.has_compound and runners.num_blocked < self._trees.acker.in_flight:
            return 0  # others are on their way: no need to list those that are blocked
        blocked = np.array(runners.blocked(), np.int64)
        trees = np.unique(self._trees.with_anchors(blocked))
        return int(np.count_nonzero(self._trees.record_ids(trees) >= 0))

    def waiting_trees(self) -> list[tuple[Trees, float | None]]:
        if not self._called_later:
            return []
        waiting = self.runners.waiting()
        return [(np.array(trees, np.int64), tree_seconds(step)) for step, trees in waiting]

    def _deliver(self, deliveries: Sequence[Delivery], inputs: _Tuples, now: float) -> None:
        for delivery in deliveries:
            step, parents = delivery.boundary, delivery.parents
            record_ids, trees = inputs.record_ids, inputs.trees
            if parents is not None:
                record_ids, trees = record_ids[parents], trees[parents]
            # Exactly once a tree is complete when its rows are ready: they are no tuples of it.
            edges = _NO_EDGES
            if not isinstance(step, SinkStep) or self._committer.rows_have_edges:
                edges = self._trees.new_edges(len(delivery.piece))
                inputs.emit(parents, edges)
            if isinstance(step, SinkStep):
                inputs.flags[slice(None) if parents is None else parents] = WRITTEN
                rows = Rows(delivery.piece, record_ids, trees, edges)
                self._committer.add(step.name, rows, now)
                continue
            seconds = tree_seconds(step)
            if seconds is not None:
                self._trees.touch(trees, seconds)
            if step.kind is Kind.ADVANCED:
                self._arrived.append((delivery, trees, edges))
            else:
                self._submit(step, delivery, record_ids, trees, edges)

    def _submit(
        self,
        step: BoltStep,
        delivery: Delivery,
        record_ids: RecordIds,
        trees: Trees,
        edges: Edges,
    ) -> None:
        piece = delivery.piece
        values = piece if isinstance(piece, list) else piece.to_pylist()
        if self._trees.has_compound and self.runners.held:
            # A record that comes again as part of another tuple must not wait for itself.
            self.runners.release(self._trees.records_of(trees).tolist())
        for observer in self._observers:
            observer.calls_started(step.name, record_ids, edges)
        partitions = partition_index_of(record_ids)
        self.runners.submit(
            step, Inputs(values, trees, edges, record_ids, partitions, delivery.tasks)
        )

    def _hand_on(self, outcome: Outcome, trees: Trees, edges: Edges, now: float) -> None:
        """Deliver the results of tuples, then ack the tuples."""
        inputs = _Tuples(self._trees.record_ids(trees), trees)
        for observer in self._observers:
            observer.bolts_ran(inputs.record_ids, outcome)
        for place, failure in outcome.failures.items():
            self._failures.fail_tuple(int(trees[place]), int(edges[place]), failure)
            edges[place] = 0  # the letter keeps the edge, or the tree has failed
        self._deliver(outcome.deliveries, inputs, now)
        if inputs.flags.any():
            self._trees.mark(trees[inputs.flags > 0], WRITTEN)
        self._trees.ack(trees, edges ^ inputs.edges)

    # Advanced bolts

    def _run_advanced(self, now: float) -> None:
        """Run advanced bolts on the tuples that have arrived, and on those they emit to others.

        They run after the call that brought the tuples, not within it: else calls would nest.
        """
        while self._arrived:
            delivery, trees, edges = self._arrived.popleft()
            step = cast("BoltStep", delivery.boundary)
            started = perf_counter()
            actions = self.advanced.run(
                step,
                cast("list[Any]", delivery.piece),
                trees,
                edges,
                now,
                source=delivery.origin.source,
                stream=delivery.origin.stream,
                tasks=delivery.tasks,
            )
            seconds = perf_counter() - started
            self.executor.times[step.name].add(seconds, len(delivery.piece))
            for observer in self._observers:
                own = np.union1d(self._trees.record_ids(trees), self._trees.records_of(trees))
                took = Took(step.name, len(own), seconds, started + seconds, None)
                observer.bolts_ran(own, Outcome([], {}, [took]))
            self._carry_out(step, actions, now)

    def _carry_out(self, step: BoltStep, actions: Actions, now: float) -> None:
        for tuple_, error in actions.failed:
            self._failures.fail_tuple(tuple_.tree, tuple_.edge, Failure(step.name, error))
        for emission in actions.emissions():
            placed = self._trees.place(emission)
            outcome = self.executor.run_emitted(step, emission.stream, placed.values, placed.tasks)
            for place in outcome.failures:
                if not placed.edges[place]:  # a letter needs one
                    placed.edges[[place]] = edge = self._trees.new_edges(1)
                    self._trees.ack(placed.trees[[place]], edge)
            self._hand_on(outcome, placed.trees, placed.edges, now)
        if actions.acked:
            self._trees.ack(*actions.acks())
        if actions.reset:
            trees = np.fromiter((each.tree for each in actions.reset), np.int64)
            self._trees.touch(trees, tree_seconds(step))
        for error in actions.errors:
            self._tick_failed(step.name, error)

    def _tick_here(self, step: BoltStep, now: float) -> None:
        try:
            ticked = Ticked(step.name, values_of_tick(step.bolt.tick()))
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001  # it may raise anything
            ticked = Ticked(step.name, error=failure_of(step.name, error))
        self._ticked(ticked, now)

    def _ticked(self, ticked: Ticked, now: float) -> None:
        """Send what a tick emits, which belongs to no record."""
        error, actions = ticked.error, Actions()
        if ticked.values and not self._committer.rows_have_edges:
            error = BoltError(f"tick of bolt '{ticked.step}' emitted: {NO_TRANSACTION}")
        if error is None:
            called = sort_out(ticked.step, list(ticked.values), None, {})
            error = next(iter(called.failures.values()), None)
            for stream, sent in called.sent.items():
                tasks = sent.tasks or repeat(None)
                values = zip(cast("list[Any]", sent.piece), tasks, strict=False)
                actions.emitted += [Emitted(value, (), stream, task) for value, task in values]
        if error is not None:
            self._tick_failed(ticked.step, error)
        else:
            self._carry_out(self._step_of[ticked.step], actions, now)
            self._run_advanced(now)

    def _tick_failed(self, step: str, error: BaseException) -> None:
        self.failed_ticks[step] += 1
        self._failures.complain("tick_failed", step, error)


def _sinks_below(step: BoltStep) -> Iterator[str]:
    """Return the sinks to which the values of an ordinary bolt may get."""
    for child in step.children if step.kind is not Kind.ADVANCED else ():
        if isinstance(child, SinkStep):
            yield child.name
        else:
            yield from _sinks_below(child)


def tree_seconds(step: BoltStep) -> float | None:
    """Return the timeout of a tree whose tuple is at a bolt with its own; that error says more."""
    return None if step.timeout_seconds is None else step.timeout_seconds + _ANSWER_SECONDS


def _trees(calls: Sequence[Call]) -> Trees:
    return np.fromiter(map(_TREE, calls), np.int64, len(calls))
