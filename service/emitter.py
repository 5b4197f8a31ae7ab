"""Gives values their edges and hands them to what comes next: a sink, or an async bolt."""

from collections.abc import Mapping

import numpy as np

from acker.acker import Acker, Edges, Trees
from service.outlet import Outlet
from topology.concurrent import AsyncRunner
from topology.executor import Delivery
from topology.topology import BoltStep, SinkStep

_ANSWER_SECONDS = 1.0

SUNK, LETTERED = 1, 2  # flags of a tree: a row of it went to a sink, a dead letter was sent


class Emitter:
    """The way out of the executor. The owner thread calls everything."""

    def __init__(
        self,
        acker: Acker,
        outlets: Mapping[str, Outlet],
        runner: AsyncRunner,
        rng: np.random.Generator,
    ) -> None:
        self._acker = acker
        self._outlets = outlets
        self._runner = runner
        self._rng = rng

    def new_edges(self, count: int) -> Edges:
        """Random ids, never 0."""
        return self._rng.integers(1, 2**64, count, np.uint64)

    def edges_of(self, delivery: Delivery, roots: Edges) -> Edges:
        """A new edge for each value delivered, XORed into its input's place in `roots`."""
        edges = self.new_edges(len(delivery.piece))
        parents = delivery.parents
        if parents is None:
            roots ^= edges
        elif len(parents) < 2 or bool((parents[1:] > parents[:-1]).all()):  # noqa: PLR2004
            roots[parents] ^= edges
        else:
            np.bitwise_xor.at(roots, parents, edges)
        return edges

    def deliver(self, delivery: Delivery, trees: Trees, edges: Edges, now: float) -> None:
        """Hand values over. `trees` are those of the inputs they came from."""
        if delivery.parents is not None:
            trees = trees[delivery.parents]
        step = delivery.boundary
        if isinstance(step, SinkStep):
            self._acker.mark(trees, SUNK)
            self._outlets[step.name].add(delivery.piece, trees, edges, now)
        else:
            piece = delivery.piece
            values = piece if isinstance(piece, list) else piece.to_pylist()
            seconds = tree_seconds(step)
            if seconds is not None:
                self._acker.reset_timeout(trees, seconds)
            self._runner.submit(step, values, trees, edges)


def tree_seconds(step: BoltStep) -> float | None:
    """How long a tree may take whose tuple is at a bolt with a time-out of its own.

    A moment longer than the call itself, whose own error says more.
    """
    return None if step.timeout_seconds is None else step.timeout_seconds + _ANSWER_SECONDS
