"""Gives values their edges and hands them to what comes next: a sink, or a bolt's runner."""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from acker.acker import Edges, Trees
from service.outlet import Outlet
from service.owners import Owners, places_of
from service.trees import SUNK, TreeTracker
from topology.bolt import Kind
from topology.outcome import Delivery
from topology.running.call import Inputs
from topology.running.runners import Runners
from topology.sink import Piece
from topology.steps import BoltStep, SinkStep

if TYPE_CHECKING:  # it imports OpenTelemetry, which is not there unless it is wanted
    from service.tracing.traces import Traces

_ANSWER_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Arrived:
    """Values that wait for their advanced bolt, which runs when what brought them is done."""

    delivery: Delivery
    trees: Trees
    edges: Edges


class Emitter:
    """The way out of the executor. The owner thread calls everything."""

    def __init__(
        self,
        trees: TreeTracker,
        outlets: Mapping[str, Outlet],
        runners: Runners,
        *,
        add_rows: Callable[[str, Piece, Owners], object] | None = None,
        traces: "Traces | None" = None,
    ) -> None:
        """`add_rows` takes the rows for a sink, by its name, if they are no tuples of a tree.

        So it is where a tree resolves when its rows are ready (exactly once).
        """
        self._add_rows = add_rows
        self._traces = traces
        self._trees = trees
        self._outlets = outlets
        self._runners = runners
        self.arrived: deque[Arrived] = deque()
        """What is to be run by advanced bolts."""

    def edges_of(self, delivery: Delivery, roots: Edges) -> Edges:
        """A new edge for each value delivered, XORed into its input's place in `roots`."""
        if self._add_rows is not None and isinstance(delivery.boundary, SinkStep):
            return np.zeros(len(delivery.piece), np.uint64)
        edges = self._trees.new_edges(len(delivery.piece))
        parents = delivery.parents
        if parents is None:
            roots ^= edges
        elif len(parents) < 2 or bool((parents[1:] > parents[:-1]).all()):  # noqa: PLR2004
            roots[parents] ^= edges
        else:
            np.bitwise_xor.at(roots, parents, edges)
        return edges

    def deliver(self, delivery: Delivery, trees: Trees, edges: Edges, now: float) -> None:
        """Hand values over, before the trees' edges are: `trees` are those of the inputs."""
        if delivery.parents is not None:
            trees = trees[delivery.parents]
        step = delivery.boundary
        if isinstance(step, SinkStep):
            self._trees.mark(trees, SUNK)
            if self._add_rows is None:
                self._outlets[step.name].add(delivery.piece, trees, edges, now)
            else:
                self._add_rows(step.name, delivery.piece, self._trees.owners(trees))
            return
        seconds = tree_seconds(step)
        if seconds is not None:
            self._trees.touch(trees, seconds)
        if step.kind is Kind.ADVANCED:
            self.arrived.append(Arrived(delivery, trees, edges))
            return
        piece = delivery.piece
        values = piece if isinstance(piece, list) else piece.to_pylist()
        owners = self._trees.owners(trees)
        if self._trees.has_joint and self._runners.held:
            # A record that comes again as part of another tuple must not wait for itself.
            self._runners.release(self._trees.records_of(trees).tolist())
        if self._traces is not None:
            self._traces.called(step.name, owners, edges)
        inputs = Inputs(values, trees, edges, owners, places_of(owners), delivery.tasks)
        self._runners.submit(step, inputs)


def tree_seconds(step: BoltStep) -> float | None:
    """How long a tree may take whose tuple is at a bolt with a time-out of its own.

    A moment longer than the call itself, whose own error says more.
    """
    return None if step.timeout_seconds is None else step.timeout_seconds + _ANSWER_SECONDS
