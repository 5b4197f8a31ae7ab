"""The way in: one chunk at a time is fetched, run through the bolts, and delivered as trees."""

from typing import TYPE_CHECKING, Any, cast

import numpy as np

from partition.chunk import Chunk
from service.emitter import Emitter
from service.failures import FailureHandler, is_final
from service.owners import Owners
from service.reader import Reader
from service.trees import TreeTracker
from topology.executor import Executor
from topology.outcome import Outcome
from topology.record import Message
from topology.topology import Topology

if TYPE_CHECKING:  # it imports OpenTelemetry, which is not there unless it is wanted
    from service.tracing.traces import Traces


class Intake:
    """Emits records: retries first, then those that are fetched. The owner calls everything."""

    def __init__(
        self,
        topology: Topology,
        reader: Reader,
        executor: Executor,
        trees: TreeTracker,
        emitter: Emitter,
        failures: FailureHandler,
        *,
        traces: "Traces | None" = None,
    ) -> None:
        self._traces = traces
        self._topology = topology
        self._reader = reader
        self._executor = executor
        self._trees = trees
        self._emitter = emitter
        self._failures = failures

    def take(self, now: float, timeout_seconds: float, *, fetch: bool) -> bool:
        """Emit at most one chunk; True if one was emitted, or fetched to be.

        When there is nothing it waits for so long; without `fetch` nothing new is fetched.
        """
        if fetch and self._executor.prefetches:
            self._prefetch(now)
        emission = self._reader.next(now)
        if emission is None and not fetch:
            return False
        if emission is None:
            if not self._reader.fetch(now, timeout_seconds):
                return False
            if timeout_seconds and self._reader.is_shared:
                return True  # a frozen process goes on here: first it is asked what is ours yet
            emission = self._reader.next(now)
            if emission is None:
                return True
        chunk, owners = self._failures.screen(*emission) if emission[0].unusual else emission
        if len(chunk):
            source = self._topology.source_of(chunk.partition.topic)
            messages = _messages(chunk)
            traces = self._traces
            if traces is not None:
                traces.read(chunk.partition, messages, owners)
            outcome = self._executor.run_source(source, messages)
            if traces is not None:
                traces.ran(owners, outcome)
            self._emit(outcome, owners, now)
        return True

    def _prefetch(self, now: float) -> None:
        """Have some chunks wait, and begin them, but those that the screen has yet to see."""
        if not self._reader.foresees:
            return
        while self._reader.waits_little and self._reader.fetch(now, 0):
            pass
        upcoming = [chunk for chunk in self._reader.upcoming() if not chunk.unusual]
        source_of = self._topology.source_of
        chunks = [(source_of(chunk.partition.topic), _messages(chunk)) for chunk in upcoming]
        self._executor.prefetch(chunks)

    def _emit(self, outcome: Outcome, owners: Owners, now: float) -> None:
        """Begin the trees of a chunk and deliver what came out of it."""
        final = {p: f for p, f in outcome.failures.items() if is_final(f.error)}
        for place, failure in outcome.failures.items():
            if place not in final:
                self._failures.fail_record(int(owners[place]), failure, now)
        roots = np.zeros(len(owners), np.uint64)
        edges = [self._emitter.edges_of(delivery, roots) for delivery in outcome.deliveries]
        buried = self._trees.new_edges(len(final))
        for place, edge in zip(final, buried, strict=True):
            roots[place] ^= edge
        if len(final) == len(outcome.failures):
            trees = self._trees.begin(owners)
            alive: Any = slice(None)
        else:  # what waits for its retry has no tree
            alive = np.ones(len(owners), np.bool_)
            alive[[place for place in outcome.failures if place not in final]] = False
            trees = np.zeros(len(owners), np.int64)
            trees[alive] = self._trees.begin(owners[alive])
        for delivery, new_edges in zip(outcome.deliveries, edges, strict=True):
            self._emitter.deliver(delivery, trees, new_edges, now)
        self._trees.init(trees[alive], roots[alive])
        for (place, failure), edge in zip(final.items(), buried.tolist(), strict=True):
            self._failures.reject_tuple(int(trees[place]), edge, failure)


def _messages(chunk: Chunk) -> "list[Message]":
    # To the partition room a message is only something with a length.
    return cast("list[Message]", chunk.messages)
