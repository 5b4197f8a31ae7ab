"""One thread's tries of its work, with pauses between them."""

import random
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

import structlog

from sinks.errors import WriterStopped
from sinks.spark.reasons import one_line
from topology.errors import SinkBusy, SinkFailed

log = structlog.get_logger()
Result = TypeVar("Result")

_LONGEST = 500


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


class Tries:
    """Tries a piece of a sink's work until it is done, and knows how that goes.

    One thread tries; any may read the figures, and set `stopping`: the try under way ends, and
    no other begins. Errors of the kinds in `final` are not tried again.
    """

    def __init__(
        self,
        sink: str,
        stopping: threading.Event,
        *,
        final: tuple[type[Exception], ...] = (SinkFailed,),
        policy: WriteRetries | None = None,
        rng: random.Random | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._sink = sink
        self._stopping = stopping
        self._final = final
        self._policy = policy or WriteRetries()
        self._rng = rng or random.Random()  # noqa: S311 - it spreads pauses, it keeps no secret
        self._clock = clock
        self.retries = 0
        """How many tries have failed and were repeated, since the start."""
        self.last_error: str | None = None
        """The newest failure, in one line; None if there was none."""
        self.failing_since: float | None = None
        """When the work in hand failed first (monotonic seconds); None while all is well."""

    def until_done(
        self, work: Callable[[], Result], what: str, *, once: bool = False, **facts: str | int
    ) -> Result:
        """Return what `work` returns, as soon as it does; `facts` go into the log.

        After SinkBusy it comes again when the sink wants it, after anything else when the
        pause is over, but with `once` that is raised on. Raises WriterStopped, which says
        `what` was not done, and what is final.
        """
        failures = 0  # a sink that was busy has not failed
        while True:
            if self._stopping.is_set():
                raise WriterStopped(self._sink, what)
            try:
                result = work()
            except self._final:
                raise
            except SinkBusy as busy:
                tell = log.warning if busy.reason else log.debug
                tell(
                    "sink_busy",
                    sink=self._sink,
                    after_seconds=busy.after_seconds,
                    reason=busy.reason,
                )
                self._stopping.wait(busy.after_seconds)
            except Exception as error:
                self._failing(error)
                if once:
                    raise
                failures += 1
                self._wait(failures, facts)
            else:
                self._recovered(failures + 1, facts)
                return result

    def heard(self, work: Callable[[], Result]) -> tuple[Result | None, Exception | None]:
        """What `work` returns, or what it raises; an attempt to exit becomes SinkFailed."""
        try:
            return work(), None
        except Exception as failure:  # noqa: BLE001 - the owner judges it
            error = failure
        except BaseException as failure:  # noqa: BLE001 - a sink that exits must be heard of
            error = SinkFailed(f"sink '{self._sink}' raised {failure!r}")
        self.last_error = _line(error)
        return None, error

    def forget_failing(self) -> None:
        """Learn that the work in hand was given up, and the sink may be well."""
        self.failing_since = None

    def _failing(self, error: Exception) -> None:
        self.last_error = _line(error)
        if self.failing_since is None:
            self.failing_since = self._clock()

    def _wait(self, attempt: int, facts: dict[str, str | int]) -> None:
        pause_seconds = self._policy.pause_seconds(attempt, self._rng)
        self.retries += 1
        log.warning(
            "sink_write_failed",
            sink=self._sink,
            **facts,
            attempt=attempt,
            error=self.last_error,
            retry_in_seconds=round(pause_seconds, 3),
        )
        self._stopping.wait(pause_seconds)

    def _recovered(self, attempt: int, facts: dict[str, str | int]) -> None:
        if self.failing_since is None:
            return
        log.info(
            "sink_recovered",
            sink=self._sink,
            **{name: fact for name, fact in facts.items() if name != "rows"},
            attempt=attempt,
            failing_seconds=round(self._clock() - self.failing_since, 3),
        )
        self.failing_since = None


def check_rejected(rejected: Iterable[int], num_rows: int, sink: str) -> None:
    """Raise SinkFailed when one of these rows is none that the sink was given."""
    outside = [index for index in rejected if not 0 <= index < num_rows]
    if outside:
        raise SinkFailed(
            f"sink '{sink}' rejected row {outside[0]} of a batch of "
            f"{num_rows}; allowed are rows 0 to {num_rows - 1}"
        )


def _line(error: BaseException) -> str:
    """Its class and what it says; of Java's errors, Java's class and what that says."""
    kind, said = type(error).__name__, one_line(error)
    return kind if said == kind else f"{kind}: {said}"[:_LONGEST]
