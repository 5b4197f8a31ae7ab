"""The executor: runs a topology's bolts over chunks and says what has to go where.

It runs what can run at once (functions, generators, vectorised bolts) to the end, step
by step over the whole chunk, and stops at a boundary: a sink, an async bolt, the dead
letters. It knows no partition, acker or sink; the pipeline gives every delivery its
edges. The owner thread calls it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, TypeAlias, cast

import numpy as np
import pyarrow as pa

from topology.bolt import Kind, VectorisedBolt, target_of
from topology.calls import Called, Parents, call_columns, call_each, call_fan_out
from topology.record import Message, Record
from topology.sink import Piece
from topology.topology import BoltStep, SinkStep, Source, Topology

Boundary: TypeAlias = BoltStep | SinkStep
_CALLS = {Kind.FUNCTION: call_each, Kind.FAN_OUT: call_fan_out}


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a value was not processed, and in which step."""

    step: str
    error: Exception


@dataclass(slots=True)
class Delivery:
    """Values that reached a boundary, and which input each came from."""

    boundary: Boundary
    piece: Piece
    parents: Parents


@dataclass(slots=True)
class Outcome:
    """What became of the inputs of one run, by their places."""

    deliveries: list[Delivery]
    failures: dict[int, Failure]


class Executor:
    """Runs the bolts of one topology.

    A record leaves as a whole: if one of its values fails in any step, none of its
    values is delivered.
    """

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._opened: list[BoltStep] = []

    def open(self) -> None:
        """Open every bolt. If one fails, close those opened and pass its exception on."""
        try:
            for step in self._topology.steps():
                if isinstance(step, BoltStep):
                    self._opened.append(step)
                    step.bolt.open()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close every opened bolt, last first."""
        while self._opened:
            self._opened.pop().bolt.close()

    def run_source(self, source: Source, messages: Sequence[Message]) -> Outcome:
        """Run the records of one topic through the topology."""
        outcome = Outcome([], {})
        records: list[Record] | None = None
        for child in source.children:
            if isinstance(child, BoltStep) and child.kind is Kind.VECTORISED:
                wanted = cast("VectorisedBolt", child.bolt).columns
                self._run_columns(child, columns_of(messages, wanted), None, outcome)
                continue
            if records is None:
                records = records_of(messages)
            self._run_step(child, records, None, outcome)
        return _without_failed(outcome, len(messages))

    def run_after(self, step: BoltStep, values: list[Any]) -> Outcome:
        """Run what an async bolt returned through the steps behind it."""
        outcome = Outcome([], {})
        self._run_children(step, values, None, outcome)
        return _without_failed(outcome, len(values))

    def _run_children(
        self, step: BoltStep, piece: Piece, parents: Parents, outcome: Outcome
    ) -> None:
        if len(piece):
            for child in step.children:
                self._run_step(child, piece, parents, outcome)

    def _run_step(self, step: Boundary, piece: Piece, parents: Parents, outcome: Outcome) -> None:
        if isinstance(step, SinkStep) or step.kind is Kind.ASYNC:
            outcome.deliveries.append(Delivery(step, piece, parents))
        elif step.kind is Kind.VECTORISED:
            self._run_columns(step, piece, parents, outcome)
        else:
            values = cast("list[Any]", piece)  # validated: no columns before a plain bolt
            called = _CALLS[step.kind](step.name, target_of(step.bolt), values)
            self._continue(step, called, parents, outcome)

    def _run_columns(
        self, step: BoltStep, piece: Piece, parents: Parents, outcome: Outcome
    ) -> None:
        batch = piece if isinstance(piece, pa.RecordBatch) else pa.RecordBatch.from_pylist(piece)
        called = call_columns(step.name, target_of(step.bolt), batch)
        self._continue(step, called, parents, outcome)

    def _continue(self, step: BoltStep, called: Called, parents: Parents, outcome: Outcome) -> None:
        for place, error in called.failures.items():
            origin = place if parents is None else int(parents[place])
            outcome.failures[origin] = Failure(step.name, error)
        self._run_children(step, called.piece, _compose(parents, called.parents), outcome)


def records_of(messages: Sequence[Message]) -> list[Record]:
    """A Record for each message; all messages are of one class."""
    if not messages:
        return []
    return list(map(Record, map(type(messages[0]).value, messages), messages))


def columns_of(messages: Sequence[Message], wanted: Sequence[str]) -> pa.RecordBatch:
    """Messages as columns; those wanted of key, value (binary), partition, offset, timestamp_ms."""
    kind = type(messages[0]) if messages else Message
    count = len(messages)
    makers: dict[str, Callable[[], pa.Array[Any]]] = {
        "key": lambda: pa.array(list(map(kind.key, messages)), pa.binary()),
        "value": lambda: pa.array(list(map(kind.value, messages)), pa.binary()),
        "partition": lambda: pa.array(np.fromiter(map(kind.partition, messages), np.int32, count)),
        "offset": lambda: pa.array(np.fromiter(map(kind.offset, messages), np.int64, count)),
        "timestamp_ms": lambda: pa.array(
            np.fromiter(map(itemgetter(1), map(kind.timestamp, messages)), np.int64, count)
        ),
    }
    return pa.RecordBatch.from_arrays([makers[name]() for name in wanted], names=list(wanted))


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
    outcome.deliveries = [d for d in outcome.deliveries if len(d.piece)]
    return outcome


def select(piece: Piece, places: "np.ndarray[Any, np.dtype[np.int64]]") -> Piece:
    """Those of a piece's values that stand at `places`."""
    if isinstance(piece, pa.RecordBatch):
        return piece.take(pa.array(places))
    return [piece[place] for place in places.tolist()]
