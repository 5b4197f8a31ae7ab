"""The sink side of a pipeline: each sink's micro-batch, its writer, and their results."""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from acker.acker import Edges, Trees
from service.sink_end import SinkEnd
from sinks.batcher import Batcher, PendingBatch
from sinks.tries import WriteRetries
from sinks.writer import BatchCommitted, Done, FencesRaised
from topology.sink import Piece, Sink, Staged
from topology.steps import SinkStep

if TYPE_CHECKING:  # it imports OpenTelemetry, which is not there unless it is wanted
    from service.tracing.traces import Traces

_MOST_BATCHES = 2  # one that is committed, one that is staged


@dataclass(frozen=True, slots=True)
class Written:
    """What a sink's threads report."""

    outlet: "Outlet"
    done: Done


class Outlet(SinkEnd):
    """One sink step: a batch that fills while others are written in the background.

    The owner thread calls everything; `on_written` is called by the writer's threads.
    """

    def __init__(
        self,
        step: SinkStep,
        sink: Sink[Any],
        on_written: Callable[[Written], None],
        *,
        at_most_once: bool = False,
        write_retries: WriteRetries | None = None,
        at: Callable[[str], object] | None = None,
        traces: "Traces | None" = None,
    ) -> None:
        """With `at_most_once` no commit is tried twice; see `SinkWriter`, which has `at` too."""
        super().__init__(
            step,
            sink,
            lambda done: on_written(Written(self, done)),
            at_most_once=at_most_once,
            write_retries=write_retries,
            at=at,
        )
        self._traces = traces
        self._batcher = Batcher(step.policy)
        self._is_ready = False  # the sink can stage
        self._writing: deque[PendingBatch] = deque()  # without their pieces

    def start(self) -> None:
        """Start the writer's threads."""
        super().start()
        self.writer.fence(())

    def add(self, piece: Piece, trees: Trees, edges: Edges, now: float) -> None:
        """Take rows for the batch that fills."""
        self._batcher.add(piece, trees, edges, now)

    def submit_due(self, now: float, *, flush: bool) -> bool:
        """Hand the batch to the writer if it is due (or `flush`) and the writer takes one."""
        if not self._takes_one or not self._batcher.num_rows:
            return False
        if not flush and not self._batcher.due(now):
            return False
        pending = self._batcher.take()
        if self._traces is not None:
            pending = self._traces.batch(self.name, pending)
        self._writing.append(replace(pending, batch=replace(pending.batch, pieces=[])))
        self.writer.write(pending.batch)
        return True

    @property
    def _takes_one(self) -> bool:
        return self._is_ready and len(self._writing) < _MOST_BATCHES

    def is_full(self, now: float) -> bool:
        """Whether the next batch is due while the last ones are being written: backpressure."""
        return not self._takes_one and self._batcher.due(now)

    def take(self, done: Done) -> tuple[PendingBatch, Staged] | None:
        """Learn what the writer has done; the batch that has ended, if one has.

        Raises what ends the run.
        """
        if done.error is not None:
            raise done.error
        if isinstance(done, FencesRaised):
            self._is_ready = True
        if not isinstance(done, BatchCommitted):
            return None
        pending, staged = self._writing.popleft(), done.staged
        if self._traces is not None:
            self._traces.written(self.name, pending.batch.sequence, len(staged.rejected))
        self._count(staged.num_rows, len(staged.rejected), pending.num_bytes, done.seconds)
        return pending, staged

    @property
    def committing(self) -> PendingBatch:
        """The oldest of the batches that are being written."""
        return self._writing[0]

    @property
    def rows_pending(self) -> int:
        """Rows that fill a batch or are being written."""
        return self._batcher.num_rows + sum(each.batch.num_rows for each in self._writing)

    @property
    def deadline(self) -> float | None:
        """When the batch that fills is due at the latest."""
        return self._batcher.deadline

    def trees(self) -> Iterator[Trees]:
        """The trees of the rows that are on their way: slow, but not lost."""
        for pending in self._writing:
            yield pending.trees
        yield from self._batcher.trees()


def good_rows(pending: PendingBatch, staged: Staged) -> tuple[Trees, Edges]:
    """Trees and edges of the rows that are durable now."""
    if not staged.rejected:
        return pending.trees, pending.edges
    good = np.ones(pending.batch.num_rows, np.bool_)
    good[list(staged.rejected)] = False
    return pending.trees[good], pending.edges[good]
