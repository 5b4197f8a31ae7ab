"""Figures of what runs a topology's records: this process, or Spark's executors."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Self

from acker.acker import AckerStatistics
from service.pipeline.trees import Tally
from topology.complaints import Complaint
from topology.histogram import Distribution
from topology.workers.runners import RunnerStatistics

_NO_TREES = AckerStatistics(0, 0, 0, 0, 0, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class SinkStatistics:
    """One sink's figures."""

    sink: str
    rows_written: int
    rows_rejected: int
    rows_pending: int
    batches_written: int
    write_seconds: float
    retries: int
    failing_since: float | None
    last_error: str | None
    bytes_written: int | None = None  # None: other processes write them
    write_times: Distribution = field(default_factory=Distribution)


@dataclass(slots=True)
class Apart:
    """What happened in other processes, and no part of this one has seen."""

    retried: int = 0  # emissions after the first
    letters_refused: int = 0
    retries: int = 0  # of groups of ranges: how many tries have failed
    failing_since: float | None = None  # monotonic seconds; None: no group in flight has failed
    last_error: str | None = None


@dataclass(frozen=True, kw_only=True)
class EngineStatistics:
    """An engine's figures at one moment; what it has not is as if nothing had happened there."""

    sinks: tuple[SinkStatistics, ...] = ()
    sunk: int = 0
    filtered: int = 0
    dead_lettered: int = 0
    failures: dict[str, int] = field(default_factory=dict)  # by step
    letters: dict[tuple[str, int], int] = field(default_factory=dict)  # sent, by partition
    buried: dict[tuple[str, str], int] = field(default_factory=dict)  # by step and kind of error
    acker: AckerStatistics = _NO_TREES
    held_back: bool = False
    held_back_seconds: dict[str, float] = field(default_factory=dict)  # by what was full
    runners: dict[str, RunnerStatistics] = field(default_factory=dict)  # by step
    failed_ticks: dict[str, int] = field(default_factory=dict)  # by step
    call_times: dict[str, Distribution] = field(default_factory=dict)  # by step
    recent_failures: tuple[Complaint, ...] = ()  # the oldest first
    apart: Apart = field(default_factory=Apart)  # on Spark's executors

    @classmethod
    def of(cls, tally: Tally, sinks: Iterable[SinkStatistics], apart: Apart, **others: Any) -> Self:
        """Figures with copies of what goes on changing."""
        return cls(
            sinks=tuple(sinks),
            sunk=tally.sunk,
            filtered=tally.filtered,
            dead_lettered=tally.dead_lettered,
            failures=dict(tally.failures),
            letters=dict(tally.letters),
            buried=dict(tally.buried),
            apart=replace(apart),
            **others,
        )
