"""The executor: runs a topology's bolts over chunks, up to their boundaries.

Functions, generators and vectorised bolts run at once, step by step over the whole chunk. A
boundary is a sink, or a bolt whose calls end later. The executor knows no partition, acker or
sink; the pipeline gives every delivery its edges. The owner thread calls it.
"""

import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from itertools import chain, count
from time import perf_counter
from typing import Any, NamedTuple, TypeAlias, cast

import numpy as np
import pyarrow as pa

from topology.bolt import Bolt, Kind, VectorisedBolt
from topology.calls import (
    Called,
    Delivery,
    Failure,
    Outcome,
    Parents,
    Sent,
    Took,
    Upstream,
    call_each,
    call_fan_out,
    sort_out,
)
from topology.errors import BoltError
from topology.monitoring import CallTimes, Histogram
from topology.record import Message, Record
from topology.sink import Piece
from topology.steps import BoltStep, SinkStep, Source, Step
from topology.values import columns_of_rows
from topology.vectorised import call_columns, columns_of, columns_of_values

# Results of three functions for 2,000 records are megabytes, and have left a core's own caches
# before the next function reads them, or they are freed. Those of a few hundred records stay there.
BLOCK_RECORDS = 512
_LEAST_ROWS = 256  # that are converted to columns: each call of Arrow has its price

_CALLS = {Kind.FUNCTION: call_each, Kind.FAN_OUT: call_fan_out}


# Values for a step; the tasks are those that values of a direct stream name.
_Work: TypeAlias = tuple[Step, Piece, Parents, Upstream, list[int] | None]


class Executor:
    """Runs the bolts of one topology.

    If one value of a record fails in any step, no value of the record is delivered.
    """

    def __init__(
        self, sources: Iterable[Source] = (), schemas: Mapping[str, pa.Schema] | None = None
    ) -> None:
        """Prefetches concurrent bolts of `sources`. `schemas` are the sinks' own, by step name."""
        self._schemas = schemas or {}
        self._turns: Counter[str] = Counter()  # values routed, by step
        self.times = CallTimes(Histogram)
        """Call times; the calls of a chunk count with their mean."""
        self.prefetcher = Prefetcher(sources, self.run_concurrent)

    def run_source(self, source: Source, messages: Sequence[Message]) -> Outcome:
        if len(messages) > BLOCK_RECORDS and _is_plain(source):
            starts = range(0, len(messages), BLOCK_RECORDS)
            blocks = [messages[start : start + BLOCK_RECORDS] for start in starts]
            parts = [self._run_records(source, block, Outcome([], {})) for block in blocks]
            return self._as_columns(self._ended(_joined(parts), len(messages)))
        outcome = self.prefetcher.take(messages)
        if outcome is None:
            outcome = self.run_concurrent(source, messages)
        reached, outcome.deliveries = outcome.deliveries, []
        self._run_steps(
            [(e.boundary, e.piece, e.parents, e.origin, None) for e in reached], outcome
        )
        outcome = self._ended(self._run_records(source, messages, outcome), len(messages))
        return self._as_columns(outcome)

    def run_concurrent(self, source: Source, messages: Sequence[Message]) -> Outcome:
        """Run the concurrent bolts that come first, up to the next steps.

        Any thread may call it: it changes nothing but the outcome.
        """
        outcome, origin = Outcome([], {}), Upstream(source.label)
        for step in source.children:
            if isinstance(step, BoltStep) and step.is_concurrent:
                work = (step, _columns_for(step, messages), None, origin, None)
                self._run_steps([work], outcome, concurrent_only=True)
        return outcome

    def run_after(self, step: BoltStep, values: list[Any], parents: Parents = None) -> Outcome:
        """Run the results of a boundary's calls through the steps behind it.

        `parents` are the indices of the calls, if some returned more than one value.
        """
        outcome = Outcome([], {})
        count = len(values) if parents is None else int(parents.max(initial=-1)) + 1
        called = sort_out(step.name, values, parents, {})
        self._run_steps(self._sent(step, called, None, outcome), outcome)
        return self._ended(outcome, count)

    def run_emitted(
        self, step: BoltStep, stream: str, values: list[Any], tasks: dict[int, int]
    ) -> Outcome:
        """Run values that an advanced bolt emitted into one of its streams."""
        outcome = Outcome([], {})
        chosen = [tasks.get(index) for index in range(len(values))] if tasks else None
        sent = Sent(values, None, chosen)
        self._run_steps(self._into(step, stream, sent, None, outcome), outcome)
        return self._ended(outcome, len(values))

    def _ended(self, outcome: Outcome, count: int) -> Outcome:
        for took in outcome.took:
            self.times[took.step].add(took.seconds, took.calls)
        return _without_failed(outcome, count)

    def _as_columns(self, outcome: Outcome) -> Outcome:
        """Convert rows for sinks to columns while they are in the caches, if all of them fit."""
        for delivery in outcome.deliveries:
            schema, rows = self._schemas.get(delivery.boundary.name), delivery.piece
            if schema is not None and isinstance(rows, list) and len(rows) >= _LEAST_ROWS:
                delivery.piece = _columns_or(rows, schema)
        return outcome

    def _run_records(
        self, source: Source, messages: Sequence[Message], outcome: Outcome
    ) -> Outcome:
        origin = Upstream(source.label)
        records: list[Record] | None = None
        for step in source.children:
            if step.is_concurrent:
                continue
            if isinstance(step, BoltStep) and step.kind is Kind.VECTORISED:
                piece: Piece = _columns_for(step, messages)
            else:
                piece = records = _records_of(messages) if records is None else records
            self._run_steps([(step, piece, None, origin, None)], outcome)
        return outcome

    def _run_steps(
        self, works: Iterable[_Work], outcome: Outcome, *, concurrent_only: bool = False
    ) -> None:
        """Run values through the steps up to the next boundaries, depth first.

        Each item of the stack lazily gives the values that one call sent to the steps behind it.
        """
        stack = [iter(works)]
        while stack:
            work = next(stack[-1], None)
            if work is None:
                stack.pop()
                continue
            step, piece, parents, origin, tasks = work
            if (
                isinstance(step, SinkStep)
                or tasks is not None
                or (concurrent_only and not step.is_concurrent)
            ):
                outcome.deliveries.append(Delivery(step, piece, parents, origin, tasks))
            elif step.is_boundary:
                self._route(step, cast("list[Any]", piece), parents, origin, outcome)
            elif step.kind is not Kind.VECTORISED:
                values = cast("list[Any]", piece)  # validated: no columns before a plain bolt
                started = perf_counter()
                called = _CALLS[step.kind](step.name, step.bolt.process, values)
                _took(step, len(values), started, parents, outcome)
                stack.append(self._sent(step, called, parents, outcome))
            elif isinstance(piece, list):  # single values
                stack.append(_batches(step, piece, parents, origin, outcome))
            else:
                bolt = cast("Bolt[Any, Any]", step.bolt)
                started = perf_counter()
                called = call_columns(step.name, bolt.process, piece, row_by_row=bolt.row_by_row)
                _took(step, piece.num_rows, started, parents, outcome)
                stack.append(self._sent(step, called, parents, outcome))

    def _sent(
        self, step: BoltStep, called: Called, parents: Parents, outcome: Outcome
    ) -> Iterator[_Work]:
        """Give the values that calls of a bolt sent to the steps behind it, stream by stream."""
        for index, error in called.failures.items():
            outcome.failures[_origin(parents, index)] = Failure(step.name, error)
        works = (self._into(step, *each, parents, outcome) for each in called.sent.items())
        return chain.from_iterable(works)

    def _into(
        self, step: BoltStep, stream: str, sent: Sent, parents: Parents, outcome: Outcome
    ) -> Iterator[_Work]:
        if not len(sent.piece):
            return
        came_from = _compose(parents, sent.parents)
        children = step.streams.get(stream)
        # Validated: of a direct stream all steps behind it are grouped so.
        grouping = getattr(children[0], "grouping", None) if children else None
        names_tasks = grouping is not None and grouping.is_direct
        if not children:
            allowed = ", ".join(name for name, read in step.streams.items() if read)
            error = f"bolt '{step.name}' sent to stream '{stream}', expected {allowed}"
            failure = Failure(step.name, BoltError(error))
            origins = (_origin(came_from, index) for index in range(len(sent.piece)))
            outcome.failures.update(dict.fromkeys(origins, failure))
            return
        origin = Upstream(step.name, stream)
        given = (sent.tasks or [None] * len(sent.piece)) if names_tasks else None
        for index, task in enumerate(given or ()):
            if task is None:
                error = f"bolt '{step.name}' named no task in its direct stream '{stream}'"
                failure = Failure(step.name, BoltError(error))
                outcome.failures[_origin(came_from, index)] = failure
        for child in children:
            tasks = None if given is None else _checked_tasks(child, given, came_from, outcome)
            yield child, sent.piece, came_from, origin, tasks

    def _route(
        self,
        step: BoltStep,
        values: list[Any],
        parents: Parents,
        origin: Upstream,
        outcome: Outcome,
    ) -> None:
        grouping = step.grouping
        if grouping is None:
            outcome.deliveries.append(Delivery(step, values, parents, origin))
            return
        routed = grouping.route(values, len(step.bolts), self._turns[step.name])
        self._turns[step.name] += len(values)
        for index, error in routed.failures.items():
            outcome.failures[_origin(parents, index)] = Failure(step.name, error)
        chosen = [values[index] for index in routed.indices.tolist()]
        came_from = _compose(parents, routed.indices)
        outcome.deliveries.append(Delivery(step, chosen, came_from, origin, routed.tasks))


def _columns_or(rows: list[Any], schema: pa.Schema) -> Piece:
    """Convert rows to columns, or leave them for the sink to reject."""
    try:
        return (set(map(type, rows)) == {dict} and columns_of_rows(rows, schema)) or rows
    except KeyboardInterrupt:
        raise
    except BaseException:  # noqa: BLE001  # a user's value may raise anything
        return rows


def _batches(
    step: BoltStep, rows: list[Any], parents: Parents, origin: Upstream, outcome: Outcome
) -> Iterator[_Work]:
    """Give single values as columns, in several batches if their types differ."""
    columns = columns_of_values(rows)
    for index, reason in columns.refused.items():
        kind = type(rows[index]).__name__
        error = BoltError(f"bolt '{step.name}' takes columns: found a {kind}, {reason}")
        outcome.failures[_origin(parents, index)] = Failure(step.name, error)
    for batch, indices in columns.batches:
        yield step, batch, _compose(parents, indices), origin, None


def _took(step: BoltStep, calls: int, started: float, parents: Parents, outcome: Outcome) -> None:
    ended = perf_counter()
    outcome.took.append(Took(step.name, calls, ended - started, ended, parents))


def _records_of(messages: Sequence[Message]) -> list[Record]:
    value = type(messages[0]).value if messages else Message.value
    return list(map(Record, map(value, messages), messages))


def _columns_for(step: BoltStep, messages: Sequence[Message]) -> pa.RecordBatch:
    bolt: Bolt[Any, Any] = step.bolt
    as_lines = isinstance(bolt, VectorisedBolt) and bolt.line_breaks
    return columns_of(messages, bolt.columns, line_breaks=as_lines)


def _checked_tasks(
    step: Step, given: Sequence[int | None], parents: Parents, outcome: Outcome
) -> list[int]:
    """Fail the values whose task a step does not have; None has failed before."""
    count = len(cast("BoltStep", step).bolts)
    for index, task in enumerate(given):
        if task is not None and not (isinstance(task, int) and 0 <= task < count):
            message = f"task of bolt '{step.name}': found {task!r}, expected 0 to {count - 1}"
            outcome.failures[_origin(parents, index)] = Failure(step.name, BoltError(message))
    return cast("list[int]", given)


def _origin(parents: Parents, index: int) -> int:
    return index if parents is None else int(parents[index])


def _compose(outer: Parents, inner: Parents) -> Parents:
    if outer is None or inner is None:
        return inner if outer is None else outer
    return outer[inner]


def _without_failed(outcome: Outcome, count: int) -> Outcome:
    """Remove the values of failed inputs from every delivery."""
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
                delivery.tasks = [delivery.tasks[index] for index in keep.tolist()]
    outcome.deliveries = [d for d in outcome.deliveries if len(d.piece)]
    return outcome


def select(piece: Piece, indices: "np.ndarray[Any, np.dtype[np.int64]]") -> Piece:
    if isinstance(piece, pa.RecordBatch):
        return piece.take(pa.array(indices))
    return [piece[index] for index in indices.tolist()]


def _is_plain(source: Source) -> bool:
    """Whether all bolts up to the boundaries take single values.

    A vectorised bolt has a price per call, so its columns should be long.
    """
    left: list[Step] = list(source.children)
    while left:
        step = left.pop()
        if isinstance(step, BoltStep) and not step.is_boundary:
            if step.kind not in _CALLS:
                return False
            left += step.children
    return True


def _joined(parts: Sequence[Outcome]) -> Outcome:
    """Join the outcomes of a chunk's blocks."""
    failures: dict[int, Failure] = {}
    deliveries: dict[object, list[tuple[int, Delivery]]] = {}
    took: list[Took] = []
    for start, part in zip(count(0, BLOCK_RECORDS), parts, strict=False):
        failures.update((start + index, failure) for index, failure in part.failures.items())
        took += [each._replace(start=start) for each in part.took]
        for each in part.deliveries:
            key = (each.boundary, each.origin, each.tasks is None)
            deliveries.setdefault(key, []).append((start, each))
    return Outcome([_one(found, len(parts)) for found in deliveries.values()], failures, took)


def _one(found: list[tuple[int, Delivery]], num_parts: int) -> Delivery:
    """Join the deliveries of several blocks; each comes with the first index of its block."""
    delivery = found[0][1]
    # No vectorised bolt makes columns here.
    values = list(chain.from_iterable(cast("list[Any]", each.piece) for _, each in found))
    tasks = None
    if delivery.tasks is not None:
        tasks = list(chain.from_iterable(each.tasks or () for _, each in found))
    is_whole = len({start for start, _ in found}) == len(found) == num_parts
    if is_whole and all(each.parents is None for _, each in found):
        parents = None
    else:
        parents = np.concatenate(
            [
                start + (np.arange(len(each.piece)) if each.parents is None else each.parents)
                for start, each in found
            ]
        )
    return Delivery(delivery.boundary, values, parents, delivery.origin, tasks)


THREADS = 2
_LEAST_RECORDS = 500  # fewer are done sooner than handed over


class _Begun(NamedTuple):
    source: Source
    messages: Sequence[Message]  # kept here, so that its id stays its own
    outcome: "Future[Outcome]"


class Prefetcher:
    """Runs the concurrent bolts that read topics, on its own threads, before their turn.

    The owner thread calls all methods; the threads call `run`.
    """

    def __init__(
        self, sources: Iterable[Source], run: Callable[[Source, Sequence[Message]], Outcome]
    ) -> None:
        self._run = run
        self._sources = frozenset(source for source in sources if source.is_concurrent)
        self._tasks: queue.SimpleQueue[_Begun | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._begun: dict[int, _Begun] = {}
        self._forgotten: list[Future[Outcome]] = []  # those that still run

    @property
    def is_used(self) -> bool:
        """Whether a concurrent bolt reads a source."""
        return bool(self._sources)

    def open(self) -> None:
        for number in range(THREADS if self.is_used else 0):
            thread = threading.Thread(target=self._work, name=f"prefetch-{number}", daemon=True)
            thread.start()
            self._threads.append(thread)

    def prefetch(self, upcoming: Sequence[tuple[Source, Sequence[Message]]]) -> None:
        """Begin these chunks, and forget all others. A single one would only be waited for."""
        kept: dict[int, _Begun] = {}
        for source, messages in upcoming:
            key = id(messages)
            is_long = source in self._sources and len(messages) >= _LEAST_RECORDS
            if key in self._begun:
                kept[key] = self._begun.pop(key)
            elif is_long and len(upcoming) > 1:
                kept[key] = _Begun(source, messages, Future())
                self._tasks.put(kept[key])
        self._forget()
        self._begun = kept

    def take(self, messages: Sequence[Message]) -> Outcome | None:
        """Wait for the outcome of a chunk; None if it was not begun. Raises what `run` raises."""
        begun = self._begun.pop(id(messages), None)
        return None if begun is None else begun.outcome.result()

    def _forget(self) -> None:
        self._forgotten = [outcome for outcome in self._forgotten if not outcome.done()]
        self._forgotten += [e.outcome for e in self._begun.values() if not e.outcome.cancel()]
        self._begun = {}

    def wait_idle(self) -> None:
        """Forget all chunks, and wait until no bolt runs."""
        self._forget()
        wait(self._forgotten)

    def close(self, timeout_seconds: float) -> bool:
        """End the threads, which are daemons; False if one did not end in time."""
        self._forget()
        for _ in self._threads:
            self._tasks.put(None)
        deadline = time.monotonic() + timeout_seconds
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def _work(self) -> None:
        while (begun := self._tasks.get()) is not None:
            if begun.outcome.set_running_or_notify_cancel():
                try:
                    begun.outcome.set_result(self._run(begun.source, begun.messages))
                except BaseException as error:  # noqa: BLE001 - `take` raises it
                    begun.outcome.set_exception(error)
            del begun
