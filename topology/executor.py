"""The executor: runs a topology's bolts over chunks and says what has to go where.

It runs what can run at once (functions, generators, vectorised bolts) to the end, step
by step over the whole chunk, and stops at a boundary: a sink, a bolt whose calls end later,
the dead letters. It knows no partition, acker or sink; the pipeline gives every delivery
its edges. The owner thread calls it.
"""

from collections import Counter
from collections.abc import Sequence
from time import perf_counter
from typing import Any, cast

import numpy as np
import pyarrow as pa

from topology import blocks
from topology.bolt import Bolt, Kind, VectorisedBolt, target_of
from topology.calls import Called, Parents, Sent, call_each, call_fan_out, sort_out
from topology.columns import call_columns
from topology.errors import BoltError
from topology.histogram import CallTimes
from topology.messages import columns_of, records_of
from topology.outcome import Delivery, Failure, Origin, Outcome, Took
from topology.record import Message, Record
from topology.rows import columns_of_values
from topology.signals import DEFAULT_STREAM
from topology.sink import Piece
from topology.steps import BoltStep, SinkStep, Source, Step

_CALLS = {Kind.FUNCTION: call_each, Kind.FAN_OUT: call_fan_out}


class Executor:
    """Runs the bolts of one topology.

    A record leaves as a whole: if one of its values fails in any step, none of its
    values is delivered.
    """

    def __init__(self) -> None:
        self._turns: Counter[str] = Counter()  # values routed, by step
        self.times = CallTimes()
        """How long calls took: of a chunk's worth of them, the mean."""

    def run_source(
        self, source: Source, messages: Sequence[Message], ahead: Outcome | None = None
    ) -> Outcome:
        """Run the records of one topic through the topology.

        `ahead` is what `run_ahead` has made of them, if it was called already.
        """
        if ahead is None and len(messages) > blocks.RECORDS and blocks.suits(source):
            parts = [self._run_records(source, block) for block in blocks.blocks(messages)]
            return self._ended(blocks.joined(parts), len(messages))
        outcome = run_ahead(source, messages) if ahead is None else ahead
        reached, outcome.deliveries = outcome.deliveries, []
        for each in reached:
            if isinstance(each.boundary, SinkStep):
                outcome.deliveries.append(each)
            else:
                self._run_step(each.boundary, each.piece, each.parents, each.origin, outcome)
        return self._ended(self._run_records(source, messages, outcome), len(messages))

    def _run_records(
        self, source: Source, messages: Sequence[Message], outcome: Outcome | None = None
    ) -> Outcome:
        """Run what takes a source's records now, into an outcome."""
        outcome = Outcome([], {}) if outcome is None else outcome
        origin = Origin(source.label)
        records: list[Record] | None = None
        for child in source.children:
            if child.is_concurrent:
                continue
            if isinstance(child, BoltStep) and child.kind is Kind.VECTORISED:
                self._run_columns(child, _columns_for(child, messages), None, outcome)
                continue
            if records is None:
                records = records_of(messages)
            self._run_step(child, records, None, origin, outcome)
        return outcome

    def run_after(self, step: BoltStep, values: list[Any], parents: Parents = None) -> Outcome:
        """Run what calls of a boundary returned through the steps behind it.

        `parents` are the calls' places, if some returned more than one value; without them
        the i-th value is the i-th call's.
        """
        outcome = Outcome([], {})
        count = len(values) if parents is None else int(parents.max(initial=-1)) + 1
        self._continue(step, sort_out(step.name, values, parents, {}), None, outcome)
        return self._ended(outcome, count)

    def run_emitted(
        self, step: BoltStep, stream: str, values: list[Any], tasks: dict[int, int]
    ) -> Outcome:
        """Run what an advanced bolt emitted into one of its streams."""
        outcome = Outcome([], {})
        chosen = [tasks.get(place) for place in range(len(values))] if tasks else None
        self._send(step, stream, Sent(values, None, chosen), None, outcome)
        return self._ended(outcome, len(values))

    def _ended(self, outcome: Outcome, count: int) -> Outcome:
        for took in outcome.took:
            self.times.add(took.step, took.calls, took.seconds)
        return _without_failed(outcome, count)

    def _run_step(
        self, step: Step, piece: Piece, parents: Parents, origin: Origin, outcome: Outcome
    ) -> None:
        if isinstance(step, SinkStep):
            outcome.deliveries.append(Delivery(step, piece, parents, origin))
        elif step.is_boundary:
            self._route(step, cast("list[Any]", piece), parents, origin, outcome)
        elif step.kind is Kind.VECTORISED:
            self._run_columns(step, piece, parents, outcome)
        else:
            values = cast("list[Any]", piece)  # validated: no columns before a plain bolt
            started = perf_counter()
            called = _CALLS[step.kind](step.name, target_of(step.bolt), values)
            ended = perf_counter()
            outcome.took.append(Took(step.name, len(values), ended - started, ended, parents))
            self._continue(step, called, parents, outcome)

    def _run_columns(
        self, step: BoltStep, piece: Piece, parents: Parents, outcome: Outcome
    ) -> None:
        if isinstance(piece, list):
            self._run_rows(step, piece, parents, outcome)
            return
        bolt = cast("Bolt[Any, Any]", step.bolt)
        started = perf_counter()
        called = call_columns(step.name, target_of(bolt), piece, row_by_row=bolt.row_by_row)
        ended = perf_counter()
        outcome.took.append(Took(step.name, piece.num_rows, ended - started, ended, parents))
        self._continue(step, called, parents, outcome)

    def _run_rows(
        self, step: BoltStep, rows: list[Any], parents: Parents, outcome: Outcome
    ) -> None:
        """Run single values as columns; those that fit into no columns with others run apart."""
        columns = columns_of_values(rows)
        for place, reason in columns.refused.items():
            kind = type(rows[place]).__name__
            error = BoltError(
                f"bolt '{step.name}' takes columns, and a {kind} gives none: {reason}"
            )
            outcome.failures[_origin(parents, place)] = Failure(step.name, error)
        for batch, places in columns.batches:
            self._run_columns(step, batch, _compose(parents, places), outcome)

    def _continue(self, step: BoltStep, called: Called, parents: Parents, outcome: Outcome) -> None:
        for place, error in called.failures.items():
            outcome.failures[_origin(parents, place)] = Failure(step.name, error)
        if DEFAULT_STREAM not in called.named:
            plain = Sent(called.piece, called.parents)
            self._send(step, DEFAULT_STREAM, plain, parents, outcome)
        for stream, sent in called.named.items():
            self._send(step, stream, sent, parents, outcome)

    def _send(
        self, step: BoltStep, stream: str, sent: Sent, parents: Parents, outcome: Outcome
    ) -> None:
        """Pass what a bolt sent into one of its streams to the steps behind it."""
        if not len(sent.piece):
            return
        came_from = _compose(parents, sent.parents)
        children = step.streams.get(stream)
        error: BoltError | None = None
        if not children:
            allowed = ", ".join(name for name, read in step.streams.items() if read)
            error = BoltError(f"bolt '{step.name}' sent to stream '{stream}'; allowed: {allowed}")
        elif step.is_direct(stream) and (sent.tasks is None or None in sent.tasks):
            error = BoltError(f"bolt '{step.name}' named no task in its direct stream '{stream}'")
        if not children or error is not None:
            assert error is not None  # noqa: S101 - for the type checker
            for place in range(len(sent.piece)):
                outcome.failures[_origin(came_from, place)] = Failure(step.name, error)
            return
        origin = Origin(step.name, stream)
        if not step.is_direct(stream):
            for child in children:
                self._run_step(child, sent.piece, came_from, origin, outcome)
            return
        tasks = cast("list[int]", sent.tasks)
        for child in cast("list[BoltStep]", children):
            _check_tasks(child, tasks, came_from, outcome)
            outcome.deliveries.append(Delivery(child, sent.piece, came_from, origin, tasks))

    def _route(
        self,
        step: BoltStep,
        values: list[Any],
        parents: Parents,
        origin: Origin,
        outcome: Outcome,
    ) -> None:
        """Deliver values to a bolt whose calls end later, to the tasks its grouping chooses."""
        grouping = step.grouping
        if grouping is None:
            outcome.deliveries.append(Delivery(step, values, parents, origin))
            return
        routed = grouping.route(values, len(step.bolts), self._turns[step.name])
        self._turns[step.name] += len(values)
        for place, error in routed.failures.items():
            outcome.failures[_origin(parents, place)] = Failure(step.name, error)
        chosen = [values[place] for place in routed.places.tolist()]
        came_from = _compose(parents, routed.places)
        outcome.deliveries.append(Delivery(step, chosen, came_from, origin, routed.tasks))


class _Prefix(Executor):
    """Runs concurrent bolts only; what comes out of them is delivered to whatever is next."""

    def run(self, source: Source, messages: Sequence[Message]) -> Outcome:
        outcome = Outcome([], {})
        for child in source.children:
            if isinstance(child, BoltStep) and child.is_concurrent:
                self._run_columns(child, _columns_for(child, messages), None, outcome)
        return outcome

    def _run_step(
        self, step: Step, piece: Piece, parents: Parents, origin: Origin, outcome: Outcome
    ) -> None:
        if step.is_concurrent:
            super()._run_step(step, piece, parents, origin, outcome)
        else:
            outcome.deliveries.append(Delivery(step, piece, parents, origin))


def run_ahead(source: Source, messages: Sequence[Message]) -> Outcome:
    """Run the concurrent bolts that come first; `Executor.run_source` goes on from there.

    Any thread may call it: nothing outlives the call.
    """
    return _Prefix().run(source, messages)


def _columns_for(step: BoltStep, messages: Sequence[Message]) -> pa.RecordBatch:
    bolt: Bolt[Any, Any] = step.bolt
    as_lines = isinstance(bolt, VectorisedBolt) and bolt.line_breaks
    return columns_of(messages, bolt.columns, line_breaks=as_lines)


def _check_tasks(step: BoltStep, tasks: list[int], parents: Parents, outcome: Outcome) -> None:
    count = len(step.bolts)
    for place, task in enumerate(tasks):
        if not isinstance(task, int) or not 0 <= task < count:
            message = f"bolt '{step.name}' has no task {task!r}; 0 to {count - 1} are allowed"
            outcome.failures[_origin(parents, place)] = Failure(step.name, BoltError(message))


def _origin(parents: Parents, place: int) -> int:
    return place if parents is None else int(parents[place])


def _compose(outer: Parents, inner: Parents) -> Parents:
    """Where values come from two steps back."""
    if outer is None or inner is None:
        return inner if outer is None else outer
    return outer[inner]


def _without_failed(outcome: Outcome, count: int) -> Outcome:
    """Take the values of failed inputs out of every delivery."""
    if not outcome.failures:
        return outcome
    good = np.ones(count, np.bool_)
    good[list(outcome.failures)] = False
    for delivery in outcome.deliveries:
        parents = np.arange(count) if delivery.parents is None else delivery.parents
        keep = np.flatnonzero(good[parents])
        if len(keep) < len(parents):
            delivery.parents = parents[keep]
            delivery.piece = select(delivery.piece, keep)
            if delivery.tasks is not None:
                delivery.tasks = [delivery.tasks[place] for place in keep.tolist()]
    outcome.deliveries = [d for d in outcome.deliveries if len(d.piece)]
    return outcome


def select(piece: Piece, places: "np.ndarray[Any, np.dtype[np.int64]]") -> Piece:
    """Those of a piece's values that stand at `places`."""
    if isinstance(piece, pa.RecordBatch):
        return piece.take(pa.array(places))
    return [piece[place] for place in places.tolist()]
