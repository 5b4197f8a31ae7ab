"""Writes a sink's micro-batches in the background, one after the other."""

import queue
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import structlog

from sinks.batcher import PendingBatch
from sinks.errors import WriterBusy, WriterStopped
from sinks.tries import Tries, WriteRetries, check_rejected
from topology.errors import RowsRejected, SinkFailed
from topology.sink import Sink

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class WriteResult:
    """What became of a batch.

    Without `error`, every row is durable but the rejected ones. With `error`, nothing may
    be taken as durable: SinkFailed ends the process, WriterStopped says that `stop` came
    first.
    """

    pending: PendingBatch
    rejected: dict[int, str]
    error: Exception | None
    seconds: float


class Writer:
    """One thread that writes one batch at a time to one sink.

    `submit`, `start` and `stop` belong to the owner thread. `on_done` is called from the
    writer's thread, exactly once for each batch submitted before `stop` returned True:
    give it a thread-safe queue's `put`.

    With `at_most_once` a batch whose write has failed is not tried again, since it may be
    durable all the same: all its rows are reported as rejected. SinkBusy says that nothing
    was written, so such a batch comes again.
    """

    def __init__(
        self,
        sink: Sink[Any],
        on_done: Callable[[WriteResult], object],
        *,
        at_most_once: bool = False,
        retries: WriteRetries | None = None,
        rng: random.Random | None = None,
        clock: Callable[[], float] = time.monotonic,
        at: Callable[[str], object] | None = None,
    ) -> None:
        """`at` is told the points of the way by name, for tests that end the process there."""
        self._sink = sink
        self._at = at or _nothing
        self._on_done = on_done
        self._at_most_once = at_most_once
        self._clock = clock
        self._inbox: queue.SimpleQueue[PendingBatch | None] = queue.SimpleQueue()
        self._stopping = threading.Event()
        self._tries = Tries(sink.name, self._stopping, policy=retries, rng=rng, clock=clock)
        self._thread: threading.Thread | None = None
        self._busy = False

    @property
    def busy(self) -> bool:
        """Whether a batch is being written; False just before `on_done` is called."""
        return self._busy

    @property
    def retries(self) -> int:
        """How many tries have failed and were repeated, since the start."""
        return self._tries.retries

    @property
    def last_error(self) -> str | None:
        """The newest failure of any batch, or None."""
        return self._tries.last_error

    @property
    def failing_since(self) -> float | None:
        """When the batch in hand failed first (monotonic seconds); None while all is well."""
        return self._tries.failing_since

    def start(self) -> None:
        """Start the thread."""
        self._thread = threading.Thread(
            target=self._run, name=f"writer-{self._sink.name}", daemon=True
        )
        self._thread.start()

    def submit(self, pending: PendingBatch) -> None:
        """Write a batch in the background. Raises WriterBusy while another is being written."""
        if self._busy:
            raise WriterBusy(self._sink.name)
        self._busy = True
        self._inbox.put(pending)

    def stop(self, timeout_seconds: float) -> bool:
        """Let the try under way end, but no other begin; return whether the thread has ended.

        A batch that waits for its next try is reported with WriterStopped.
        """
        self._stopping.set()
        self._inbox.put(None)
        if self._thread is None:
            return True
        self._thread.join(max(0.0, timeout_seconds))
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (pending := self._inbox.get()) is not None:
            started = self._clock()
            rejected, error = self._tries.heard(partial(self._write, pending))
            result = WriteResult(pending, rejected or {}, error, self._clock() - started)
            self._busy = False
            self._on_done(result)

    def _write(self, pending: PendingBatch) -> dict[int, str]:
        """Try until the batch is durable; return the rows that do not fit, with reasons."""
        try:
            return self._tries.until_done(
                partial(self._try, pending),
                f"batch {pending.sequence} became durable",
                once=self._at_most_once,
                sequence=pending.sequence,
                rows=pending.num_rows,
            )
        except (SinkFailed, WriterStopped):
            raise
        except Exception:  # noqa: BLE001 - `once`: anything else is taken as passing
            return self._given_up(pending)

    def _try(self, pending: PendingBatch) -> dict[int, str]:
        self._at("sink_before_write")
        try:
            self._sink.write(pending.batch)
        except RowsRejected as rejection:
            check_rejected(rejection.reasons, pending.num_rows, self._sink.name)
            return rejection.reasons
        self._at("sink_after_write")
        return {}

    def _given_up(self, pending: PendingBatch) -> dict[int, str]:
        """Whether the batch was written is not known; at most once, it is not tried again."""
        log.error(
            "sink_batch_given_up",
            sink=self._sink.name,
            sequence=pending.sequence,
            rows=pending.num_rows,
            error=self.last_error,
        )
        reason = f"the write to '{self._sink.name}' failed and may be durable: {self.last_error}"
        return dict.fromkeys(range(pending.num_rows), reason)


def _nothing(place: str) -> None:
    """No point of the way is of interest."""
    del place
