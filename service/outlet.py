"""The sink side of a pipeline: each sink's micro-batch, its writer, and their results."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from acker.acker import Edges, Trees
from sinks.batcher import Batcher, PendingBatch
from sinks.tries import WriteRetries
from sinks.writer import Writer, WriteResult
from topology.histogram import Histogram
from topology.sink import Piece, Sink
from topology.steps import SinkStep

if TYPE_CHECKING:  # it imports OpenTelemetry, which is not there unless it is wanted
    from service.tracing.traces import Traces


@dataclass(frozen=True, slots=True)
class Written:
    """A batch's end, as the writer's thread reports it."""

    outlet: "Outlet"
    result: WriteResult


class Outlet:
    """One sink step: a batch that fills while another is written in the background.

    The owner thread calls everything; `on_written` is called by the writer's thread.
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
        """With `at_most_once` no batch is tried twice; see `Writer`, which has `at` too."""
        self.step = step
        self._traces = traces
        self._batcher = Batcher(step.policy)
        self._writer = Writer(
            sink,
            lambda result: on_written(Written(self, result)),
            at_most_once=at_most_once,
            retries=write_retries,
            at=at,
        )
        self._writing: PendingBatch | None = None
        self.rows_written = 0
        self.batches_written = 0
        self.rows_rejected = 0
        self.write_seconds = 0.0
        self.bytes_written = 0
        self.write_times = Histogram()

    def start(self) -> None:
        """Start the writer's thread."""
        self._writer.start()

    def add(self, piece: Piece, trees: Trees, edges: Edges, now: float) -> None:
        """Take rows for the batch that fills."""
        self._batcher.add(piece, trees, edges, now)

    def submit_due(self, now: float, *, flush: bool) -> bool:
        """Hand the batch to the writer if it is due (or `flush`) and the writer is free."""
        if self._writing is not None or not self._batcher.num_rows:
            return False
        if not flush and not self._batcher.due(now):
            return False
        pending = self._batcher.take()
        if self._traces is not None:
            pending = self._traces.batch(self.step.name, pending)
        self._writing = pending
        self._writer.submit(pending)
        return True

    def is_full(self, now: float) -> bool:
        """Whether the next batch is due while the last is still being written: backpressure."""
        return self._writing is not None and self._batcher.due(now)

    def ended(self, result: WriteResult) -> None:
        """Learn that the writer has finished a batch without error."""
        self._writing = None
        if self._traces is not None:
            self._traces.written(self.step.name, result.pending.sequence, len(result.rejected))
        self.rows_written += result.pending.num_rows - len(result.rejected)
        self.rows_rejected += len(result.rejected)
        self.batches_written += 1
        self.write_seconds += result.seconds
        self.bytes_written += result.pending.num_bytes
        self.write_times.add(result.seconds)

    @property
    def rows_pending(self) -> int:
        """Rows that fill a batch or are being written."""
        writing = self._writing.num_rows if self._writing is not None else 0
        return self._batcher.num_rows + writing

    @property
    def deadline(self) -> float | None:
        """When the batch that fills is due at the latest."""
        return self._batcher.deadline

    @property
    def writer(self) -> Writer:
        """The writer, for its health."""
        return self._writer

    def trees(self) -> Iterator[Trees]:
        """The trees of the rows that are on their way: slow, but not lost."""
        if self._writing is not None:
            yield self._writing.trees
        yield from self._batcher.trees()

    def stop(self, timeout_seconds: float) -> bool:
        """Stop the writer's thread; False if it did not end in time."""
        return self._writer.stop(timeout_seconds)


def good_rows(result: WriteResult) -> tuple[Trees, Edges]:
    """Trees and edges of the rows that are durable now."""
    if not result.rejected:
        return result.pending.trees, result.pending.edges
    good = np.ones(result.pending.num_rows, np.bool_)
    good[list(result.rejected)] = False
    return result.pending.trees[good], result.pending.edges[good]
