"""What runs a topology's records, as the service knows it: this process, or Spark's executors."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from acker.acker import AckerStatistics
from service.account import Tally
from topology.complaints import Complaint
from topology.histogram import Distribution, Histogram
from topology.running.runner import RunnerStatistics
from topology.steps import SinkStep


class Working(Protocol):
    """A sink's writer, for its health. Any thread may ask."""

    @property
    def retries(self) -> int:
        """How many tries have failed and were repeated."""
        ...

    @property
    def failing_since(self) -> float | None:
        """When it failed first (monotonic seconds); None while all is well."""
        ...

    @property
    def last_error(self) -> str | None:
        """The newest failure, in one line."""
        ...


class SinkEnd(Protocol):
    """One sink step of a running pipeline, for figures."""

    @property
    def step(self) -> SinkStep:
        """The step."""
        ...

    @property
    def writer(self) -> Working:
        """What writes."""
        ...

    @property
    def rows_written(self) -> int:
        """Rows that are durable."""
        ...

    @property
    def rows_rejected(self) -> int:
        """Rows that the sink did not take."""
        ...

    @property
    def rows_pending(self) -> int:
        """Rows that wait, or are being written."""
        ...

    @property
    def batches_written(self) -> int:
        """Micro-batches, or groups of transactions, that are durable."""
        ...

    @property
    def write_seconds(self) -> float:
        """How long their writes, or commits, took in all."""
        ...

    @property
    def bytes_written(self) -> int | None:
        """What the rows have as columns; None where other processes write them."""
        ...

    @property
    def write_times(self) -> Histogram:
        """How long each write, or commit, took."""
        ...


class Trees(Protocol):
    """What tracks records in flight."""

    def statistics(self) -> AckerStatistics:
        """Its figures."""
        ...


class HoldingBack(Protocol):
    """What holds new records back."""

    @property
    def holds_any(self) -> bool:
        """Whether it does so now."""
        ...

    @property
    def seconds(self) -> Mapping[str, float]:
        """For how long so far, by what was full."""
        ...


class Calling(Protocol):
    """The bolts whose calls end later."""

    def figures(self) -> dict[str, RunnerStatistics]:
        """Their figures, by step."""
        ...


@dataclass(slots=True)
class Apart:
    """What happened in other processes, and no part of this one has seen."""

    retried: int = 0  # emissions after the first
    letters_refused: int = 0
    retries: int = 0  # of groups of ranges: how many tries have failed
    failing_since: float | None = None  # monotonic seconds; None: no group in flight has failed
    last_error: str | None = None


class Engine(Protocol):
    """Moves records from the sources to the sinks. The owner thread calls everything."""

    @property
    def tally(self) -> Tally:
        """How records were resolved."""
        ...

    @property
    def outlets(self) -> Sequence[SinkEnd]:
        """The sinks' ends."""
        ...

    @property
    def acker(self) -> Trees:
        """What tracks the records in flight here."""
        ...

    @property
    def backpressure(self) -> HoldingBack:
        """What holds new records back."""
        ...

    @property
    def runners(self) -> Calling:
        """The bolts whose calls end later."""
        ...

    @property
    def failed_ticks(self) -> dict[str, int]:
        """How many ticks have failed, by step."""
        ...

    @property
    def call_times(self) -> dict[str, Distribution]:
        """How long calls of bolts took in this process, by step."""
        ...

    @property
    def recent_failures(self) -> tuple[Complaint, ...]:
        """What failed in this process lately, the oldest first; `at` is by the engine's clock."""
        ...

    @property
    def apart(self) -> Apart:
        """What happened in other processes."""
        ...

    @property
    def is_idle(self) -> bool:
        """Whether nothing is under way; some records may wait for another try."""
        ...

    @property
    def has_last(self) -> bool:
        """Whether a finite run has the last of its records on their way: nothing waits for more."""
        ...

    def open(self) -> None:
        """Start. The sinks and the reader are open already."""
        ...

    def step(self, *, read: bool = True, flush: bool = False, drain: bool = False) -> bool:
        """One turn of the loop; True if anything moved. Raises what cannot heal.

        Without `read` nothing new is begun; with `flush` nothing waits to be due; with `drain`
        what bolts keep is asked for.
        """
        ...

    def settle(self) -> None:
        """Let nothing be at work that what bolts look up would change under."""
        ...

    def poll(self, now: float, *, opens: bool) -> None:
        """Look at the partitions, and tell of those that came and went; `step` does so first.

        Without `opens` no further one is opened.
        """
        ...

    def close(self, timeout_seconds: float) -> bool:
        """Stop the threads and close the bolts; False if a thread did not end in time."""
        ...
