"""Writes a sink's micro-batches in the background, one after the other."""

import queue
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import structlog

from sinks.batcher import PendingBatch
from sinks.errors import WriterBusy, WriterStopped
from topology.errors import RowsRejected, SinkBusy, SinkFailed
from topology.sink import Sink

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class WriteRetries:
    """The pauses between the tries of one batch: doubling, each shortened by a random part."""

    first_seconds: float = 0.5
    longest_seconds: float = 30.0
    jitter: float = 0.25  # at most this part of a pause is taken off it

    def pause_seconds(self, attempt: int, rng: random.Random) -> float:
        """How long to wait after the `attempt`-th failed try, counted from 1."""
        pause = self.first_seconds * 2.0 ** min(attempt - 1, 60)
        return min(self.longest_seconds, pause) * (1 - self.jitter * rng.random())


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
    ) -> None:
        self._sink = sink
        self._on_done = on_done
        self._at_most_once = at_most_once
        self._policy = retries or WriteRetries()
        self._rng = rng or random.Random()  # noqa: S311 - it spreads pauses, it keeps no secret
        self._clock = clock
        self._inbox: queue.SimpleQueue[PendingBatch | None] = queue.SimpleQueue()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._busy = False
        self._retries = 0
        self._last_error: str | None = None
        self._failing_since: float | None = None

    @property
    def busy(self) -> bool:
        """Whether a batch is being written; False just before `on_done` is called."""
        return self._busy

    @property
    def retries(self) -> int:
        """How many tries have failed and were repeated, since the start."""
        return self._retries

    @property
    def last_error(self) -> str | None:
        """The newest failure of any batch, or None."""
        return self._last_error

    @property
    def failing_since(self) -> float | None:
        """When the batch in hand failed first (monotonic seconds); None while all is well."""
        return self._failing_since

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
            rejected: dict[int, str] = {}
            error: Exception | None = None
            try:
                rejected = self._write(pending)
            except Exception as failure:  # noqa: BLE001 - the owner judges it
                error = failure
            except BaseException as failure:  # noqa: BLE001 - a sink that exits must be heard of
                error = SinkFailed(f"sink '{self._sink.name}' raised {failure!r}")
            if error is not None:
                self._last_error = _line(error)
            result = WriteResult(pending, rejected, error, self._clock() - started)
            self._busy = False
            self._on_done(result)

    def _write(self, pending: PendingBatch) -> dict[int, str]:
        """Try until the batch is durable; return the rows that do not fit, with reasons."""
        attempt = 0
        while True:
            if self._stopping.is_set():
                raise WriterStopped(self._sink.name, pending.sequence)
            attempt += 1
            try:
                self._sink.write(pending.batch)
            except RowsRejected as rejection:
                self._recovered(pending, attempt)
                return self._checked(rejection.reasons, pending)
            except SinkFailed:
                raise
            except SinkBusy as busy:
                log.debug("sink_busy", sink=self._sink.name, after_seconds=busy.after_seconds)
                self._stopping.wait(busy.after_seconds)
            except Exception as error:  # noqa: BLE001 - anything else is taken as passing
                self._failing(error)
                if self._at_most_once:
                    return self._given_up(pending)
                self._wait_to_try_again(pending, attempt)
            else:
                self._recovered(pending, attempt)
                return {}

    def _failing(self, error: Exception) -> None:
        self._last_error = _line(error)
        if self._failing_since is None:
            self._failing_since = self._clock()

    def _given_up(self, pending: PendingBatch) -> dict[int, str]:
        """Whether the batch was written is not known; at most once, it is not tried again."""
        log.error(
            "sink_batch_given_up",
            sink=self._sink.name,
            sequence=pending.sequence,
            rows=pending.num_rows,
            error=self._last_error,
        )
        reason = f"the write to '{self._sink.name}' failed and may be durable: {self._last_error}"
        return dict.fromkeys(range(pending.num_rows), reason)

    def _wait_to_try_again(self, pending: PendingBatch, attempt: int) -> None:
        pause_seconds = self._policy.pause_seconds(attempt, self._rng)
        self._retries += 1
        log.warning(
            "sink_write_failed",
            sink=self._sink.name,
            sequence=pending.sequence,
            rows=pending.num_rows,
            attempt=attempt,
            error=self._last_error,
            retry_in_seconds=round(pause_seconds, 3),
        )
        self._stopping.wait(pause_seconds)

    def _recovered(self, pending: PendingBatch, attempt: int) -> None:
        if self._failing_since is None:
            return
        log.info(
            "sink_recovered",
            sink=self._sink.name,
            sequence=pending.sequence,
            attempt=attempt,
            failing_seconds=round(self._clock() - self._failing_since, 3),
        )
        self._failing_since = None

    def _checked(self, reasons: dict[int, str], pending: PendingBatch) -> dict[int, str]:
        outside = [index for index in reasons if not 0 <= index < pending.num_rows]
        if outside:
            raise SinkFailed(
                f"sink '{self._sink.name}' rejected row {outside[0]} of a batch of "
                f"{pending.num_rows}; allowed are rows 0 to {pending.num_rows - 1}"
            )
        return reasons


def _line(error: BaseException) -> str:
    try:
        lines = str(error).strip().splitlines()
    except Exception:  # noqa: BLE001 - an error that cannot be told must not stop the writer
        lines = []
    return f"{type(error).__name__}: {lines[0] if lines else ''}"[:500]
