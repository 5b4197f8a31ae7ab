"""The executor of before: it recurses into the steps behind a bolt, the chunk as a whole."""

from time import perf_counter

from topology.bolt import Kind
from topology.calls import (
    Delivery,
    Failure,
    Outcome,
    Sent,
    Took,
    Upstream,
    call_each,
    call_fan_out,
    sort_out,
)
from topology.errors import BoltError
from topology.executor import (
    Executor,
    _check_tasks,
    _columns_for,
    _compose,
    _origin,
    _records_of,
    _without_failed,
)
from topology.record import DEFAULT_STREAM
from topology.steps import SinkStep, is_direct
from topology.vectorised import call_columns, columns_of_values


class RecursiveExecutor(Executor):
    """Runs each step with all that is behind it before the next."""

    def run_source(self, source, messages):
        outcome, origin = Outcome([], {}), Upstream(source.label)
        for step in source.children:
            if step.kind is Kind.VECTORISED:
                self._run_columns(step, _columns_for(step, messages), None, outcome)
            else:
                self._run_step(step, _records_of(messages), None, origin, outcome)
        return _without_failed(outcome, len(messages))

    def run_after(self, step, values, parents=None):
        outcome = Outcome([], {})
        self._continue(step, sort_out(step.name, values, parents, {}), None, outcome)
        count = len(values) if parents is None else int(parents.max(initial=-1)) + 1
        return _without_failed(outcome, count)

    def _run_step(self, step, piece, parents, origin, outcome):
        if isinstance(step, SinkStep):
            outcome.deliveries.append(Delivery(step, piece, parents, origin))
        elif step.is_boundary:
            self._route(step, piece, parents, origin, outcome)
        elif step.kind is Kind.VECTORISED:
            self._run_columns(step, piece, parents, outcome)
        else:
            call = call_each if step.kind is Kind.FUNCTION else call_fan_out
            called = call(step.name, step.bolt.process, piece)
            outcome.took.append(Took(step.name, len(piece), 0.0, perf_counter(), parents))
            self._continue(step, called, parents, outcome)

    def _run_columns(self, step, piece, parents, outcome):
        if not isinstance(piece, list):
            called = call_columns(step.name, step.bolt.process, piece)
            outcome.took.append(Took(step.name, piece.num_rows, 0.0, perf_counter(), parents))
            self._continue(step, called, parents, outcome)
            return
        columns = columns_of_values(piece)
        for place, reason in columns.refused.items():
            kind = type(piece[place]).__name__
            error = f"bolt '{step.name}' takes columns, and a {kind} gives none: {reason}"
            outcome.failures[_origin(parents, place)] = Failure(step.name, BoltError(error))
        for batch, places in columns.batches:
            self._run_columns(step, batch, _compose(parents, places), outcome)

    def _continue(self, step, called, parents, outcome):
        for place, error in called.failures.items():
            outcome.failures[_origin(parents, place)] = Failure(step.name, error)
        if DEFAULT_STREAM not in called.named:
            plain = Sent(called.piece, called.parents)
            self._send(step, DEFAULT_STREAM, plain, parents, outcome)
        for stream, sent in called.named.items():
            self._send(step, stream, sent, parents, outcome)

    def _send(self, step, stream, sent, parents, outcome):
        if not len(sent.piece):
            return
        came_from = _compose(parents, sent.parents)
        children = step.streams.get(stream)
        names_tasks = any(map(is_direct, children or ()))
        error = None
        if not children:
            allowed = ", ".join(name for name, read in step.streams.items() if read)
            error = f"bolt '{step.name}' sent to stream '{stream}', expected {allowed}"
        elif names_tasks and (sent.tasks is None or None in sent.tasks):
            error = f"bolt '{step.name}' named no task in its direct stream '{stream}'"
        if error is not None:
            for place in range(len(sent.piece)):
                failure = Failure(step.name, BoltError(error))
                outcome.failures[_origin(came_from, place)] = failure
            return
        origin = Upstream(step.name, stream)
        for child in children:
            if names_tasks:
                _check_tasks(child, sent.tasks, came_from, outcome)
                delivery = Delivery(child, sent.piece, came_from, origin, sent.tasks)
                outcome.deliveries.append(delivery)
            else:
                self._run_step(child, sent.piece, came_from, origin, outcome)
