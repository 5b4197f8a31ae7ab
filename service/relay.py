"""Hands on what comes out of bolts whose calls end later, and of advanced bolts."""

from collections.abc import Sequence
from functools import partial
from operator import attrgetter, is_
from time import perf_counter
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from acker.acker import Edges, Trees
from service.emitter import Emitter, tree_seconds
from service.failures import FailureHandler
from service.owners import MAX_PLACE
from service.trees import TreeTracker
from topology.actions import Actions
from topology.advanced_runner import AdvancedRunner
from topology.bolt import Kind
from topology.calls import failure_of
from topology.executor import Executor
from topology.outcome import Failure, Outcome
from topology.running.call import Answers, Call, Many
from topology.running.runners import Runners
from topology.steps import BoltStep
from topology.ticks import TickFailures, Ticks

if TYPE_CHECKING:  # it imports OpenTelemetry, which is not there unless it is wanted
    from service.tracing.traces import Traces

_TREE, _EDGE, _VALUE, _ERROR = map(attrgetter, ("tree", "edge", "value", "error"))
_is_none = partial(is_, None)
_TIDY_SECONDS = 0.5


class Relay:
    """Between the bolts: what one gave goes to the next, and its input is acked.

    The owner thread calls everything.
    """

    def __init__(
        self,
        steps: Sequence[BoltStep],
        trees: TreeTracker,
        executor: Executor,
        runners: Runners,
        advanced: AdvancedRunner,
        emitter: Emitter,
        failures: FailureHandler,
        failed_ticks: TickFailures,
        *,
        traces: "Traces | None" = None,
    ) -> None:
        self._traces = traces
        self._trees = trees
        self._executor = executor
        self._runners = runners
        self._emitter = emitter
        self._failures = failures
        self._failed_ticks = failed_ticks
        self._advanced_steps = [step for step in steps if step.kind is Kind.ADVANCED]
        self._timed = [s for s in self._advanced_steps if s.timeout_seconds is not None]
        self._advanced = advanced
        self._ticks = Ticks(steps)
        self._tidy_due = 0.0

    @property
    def next_tick(self) -> float | None:
        """When a bolt is ticked next, or None."""
        return self._ticks.next_due()

    def start(self, now: float) -> None:
        """Count the ticks from now."""
        self._ticks.start(now)

    def take_answers(self, answers: Answers, now: float) -> None:
        """Take what calls of a bolt came to; those of trees already resolved are void."""
        step, calls = answers.step, answers.take()
        if self._traces is not None:
            self._traces.answered(calls)
        live = self._trees.owners(_trees(calls)) >= 0
        if live.all() and all(map(_is_none, map(_ERROR, calls))):
            if calls:
                self._take_good_answers(step, calls, now)
            return
        good: list[Call] = []
        for call, is_live in zip(calls, live.tolist(), strict=True):
            if not is_live:
                continue
            if call.error is None:
                good.append(call)
                continue
            self._failures.fail_tuple(call.tree, call.edge, Failure(step.name, call.error))
            if self._trees.is_joint(call.owner):
                self._runners.release([call.owner])  # it never comes again as it was
        if good:
            self._take_good_answers(step, good, now)

    def _take_good_answers(self, step: BoltStep, calls: list[Call], now: float) -> None:
        count = len(calls)
        trees = _trees(calls)
        edges = np.fromiter(map(_EDGE, calls), np.uint64, count)
        values = list(map(_VALUE, calls))
        parents = None
        if Many in set(map(type, values)):
            groups = [each if type(each) is Many else (each,) for each in values]
            parents = np.repeat(np.arange(count), [len(group) for group in groups])
            values = [value for group in groups for value in group]
        self._forward(self._executor.run_after(step, values, parents), trees, edges, now)
        self.run_advanced(now)

    def _forward(self, outcome: Outcome, trees: Trees, edges: Edges, now: float) -> None:
        """Deliver what came of tuples and ack them; `trees` and `edges` are theirs."""
        if self._traces is not None and self._traces.num_live:
            self._traces.ran(self._trees.owners(trees), outcome)
        for place, failure in outcome.failures.items():
            self._failures.fail_tuple(int(trees[place]), int(edges[place]), failure)
            edges[place] = 0  # the letter keeps the edge, or the tree has failed
        emitted = np.zeros(len(trees), np.uint64)
        handed = [self._emitter.edges_of(delivery, emitted) for delivery in outcome.deliveries]
        for delivery, new_edges in zip(outcome.deliveries, handed, strict=True):
            self._emitter.deliver(delivery, trees, new_edges, now)
        self._trees.ack(trees, edges ^ emitted)

    def run_advanced(self, now: float) -> None:
        """Run advanced bolts on what has arrived for them, and on what they emit for others."""
        arrived = self._emitter.arrived
        while arrived:
            each = arrived.popleft()
            delivery = each.delivery
            step = cast("BoltStep", delivery.boundary)
            started = perf_counter()
            actions = self._advanced.run(
                step,
                cast("list[Any]", delivery.piece),
                each.trees,
                each.edges,
                now,
                source=delivery.origin.source,
                stream=delivery.origin.stream,
                tasks=delivery.tasks,
            )
            seconds = perf_counter() - started
            self._executor.times.add(step.name, len(delivery.piece), seconds)
            if self._traces is not None:
                self._traces.advanced(step.name, each.trees, seconds)
            self._carry_out(step, actions, now)

    def _carry_out(self, step: BoltStep, actions: Actions, now: float) -> None:
        """Do what an advanced bolt asked for, in the order that `Actions` gives."""
        for tuple_, error in actions.failed:
            self._failures.fail_tuple(tuple_.tree, tuple_.edge, Failure(step.name, error))
        for emission in actions.emissions() if actions.values else ():
            placed = self._trees.place(emission)
            outcome = self._executor.run_emitted(step, emission.stream, placed.values, placed.tasks)
            for place in outcome.failures:
                if not placed.edges[place]:  # a letter needs one
                    placed.edges[[place]] = edge = self._trees.new_edges(1)
                    self._trees.acker.anchor(placed.trees[[place]], edge)
            self._forward(outcome, placed.trees, placed.edges, now)
        if actions.acked:
            self._trees.ack(*actions.acks())
        if actions.reset:
            self._trees.touch(actions.resets(), tree_seconds(step))
        for error in actions.errors:
            self._failed_ticks.add(step.name, error)

    def tick(self, now: float, *, drain: bool, leaving: Sequence[int] = ()) -> bool:
        """Tick the bolts whose time has come, and ask advanced ones for what they keep.

        All of them with `drain`, else those that keep something of the places that are `leaving`.
        """
        steps = self._ticks.due(now)
        for step in steps:
            if step.kind is Kind.ADVANCED:
                self._carry_out(step, self._advanced.tick(step, now), now)
            elif step.has_runner:
                self._runners.tick(step)
            else:
                self._tick_here(step)
        for step in self._advanced_steps if drain or leaving else ():
            if drain or self._keeps_of(leaving, step):
                self._carry_out(step, self._advanced.drain(step, now), now)
        for step in self._timed:
            self._carry_out(step, self._advanced.overdue(step, now), now)
        self.run_advanced(now)
        if now >= self._tidy_due:
            self._tidy_due = now + _TIDY_SECONDS
            self._advanced.forget_resolved()
            # A call of an earlier try may fail when its record is done, or another process's.
            again = self._failures.comes_again
            self._runners.release([each for each in self._runners.holders() if not again(each)])
        return bool(steps)

    def _keeps_of(self, places: Sequence[int], step: BoltStep) -> bool:
        """Whether a bolt keeps what is, or may be, made of records of these partitions."""
        kept = self._advanced.held_by_place(step)
        return MAX_PLACE in kept or any(place in kept for place in places)

    def _tick_here(self, step: BoltStep) -> None:
        try:
            step.bolt.tick()
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001  # it may raise anything
            self._failed_ticks.add(step.name, failure_of(step.name, error))


def _trees(calls: Sequence[Call]) -> Trees:
    return np.fromiter(map(_TREE, calls), np.int64, len(calls))
