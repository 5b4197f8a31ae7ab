"""The figures of a run at one moment, and its summary: where every record is."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Self

from acker.acker import AckerStatistics
from partition.assigned_partition import Departed
from partition.assignment import Moves
from partition.consumer import CommitAges
from partition.latency import CommitLatency
from partition.manager import PartitionStatistics
from partition.records import Partition
from service.pipeline.reference_tables import ReferenceStatistics
from service.pipeline.trees import OutcomeCounters
from topology.monitoring import Distribution, RecentFailure
from topology.workers.runners import RunnerStatistics

if TYPE_CHECKING:
    from service.pipeline.loop import Pipeline
    from service.spark_engine.engine import SparkEngine

TOTALS = ("read", "written", "filtered", "dead_lettered", "unresolved", "retried", "rows")
_HIDDEN = "(hidden by [http] show_errors)"
_CAUSES = 3  # of dead letters, in a summary
_NO_TREES = AckerStatistics(0, 0, 0, 0, 0, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class TraceStatistics:
    """Records chosen to be traced: those that were, and those too many at once."""

    traced: int
    skipped: int


@dataclass(frozen=True, slots=True)
class SparkStatistics:
    is_running: bool  # its JVM is there; it may be broken without anyone having noticed yet
    restarts: int


@dataclass(frozen=True, slots=True)
class SinkStatistics:
    sink: str
    rows_written: int
    rows_rejected: int
    rows_pending: int
    retries: int
    failing_since: float | None
    last_error: str | None
    bytes_written: int | None = None  # None: other processes write them
    write_times: Distribution = field(default_factory=Distribution)


@dataclass(slots=True)
class ExecutorCounters:
    """Events of other processes, which no part of this one has seen."""

    retried: int = 0  # emissions after the first
    dead_letters_refused: int = 0
    retries: int = 0  # of groups of ranges: how many tries have failed
    failing_since: float | None = None  # monotonic seconds; None: no group in flight has failed
    last_error: str | None = None


@dataclass(frozen=True, kw_only=True)
class EngineStatistics:
    """An engine's figures at one moment; what it has not is as if nothing had happened there."""

    sinks: tuple[SinkStatistics, ...] = ()
    written: int = 0
    filtered: int = 0
    dead_lettered: int = 0
    failures: dict[str, int] = field(default_factory=dict)  # by step
    dead_letters: dict[tuple[str, int], int] = field(default_factory=dict)  # sent, by partition
    dead_letter_causes: dict[tuple[str, str], int] = field(default_factory=dict)  # by step, error
    acker: AckerStatistics = _NO_TREES
    held_back: bool = False
    held_back_seconds: dict[str, float] = field(default_factory=dict)  # by what was full
    runners: dict[str, RunnerStatistics] = field(default_factory=dict)  # by step
    failed_ticks: dict[str, int] = field(default_factory=dict)  # by step
    call_times: dict[str, Distribution] = field(default_factory=dict)  # by step
    recent_failures: tuple[RecentFailure, ...] = ()  # the oldest first
    apart: ExecutorCounters = field(default_factory=ExecutorCounters)  # on Spark's executors

    @classmethod
    def of(
        cls,
        counters: OutcomeCounters,
        sinks: Iterable[SinkStatistics],
        apart: ExecutorCounters,
        **others: Any,
    ) -> Self:
        """Figures with copies of what goes on changing."""
        return cls(
            sinks=tuple(sinks),
            written=counters.written,
            filtered=counters.filtered,
            dead_lettered=counters.dead_lettered,
            failures=dict(counters.failures),
            dead_letters=dict(counters.dead_letters),
            dead_letter_causes=dict(counters.dead_letter_causes),
            apart=replace(apart),
            **others,
        )


@dataclass(frozen=True, kw_only=True)
class Snapshot(EngineStatistics):
    """The figures of one moment, published by the owner thread and never changed."""

    taken_at: float  # monotonic seconds
    partitions: tuple[PartitionStatistics, ...]
    dead_letters_pending: int = 0
    dead_letters_refused: int = 0
    dead_letters_waiting_seconds: float = 0.0  # without one of them becoming durable
    kafka_available: bool = True
    store_available: bool = True
    commit_seconds: float = 0.0  # of the last write of offsets, or the one under way
    halted: dict[Partition, str] = field(default_factory=dict)  # not read any more, and why
    mirror_failures: int = 0  # commits of a partition to the consumer group
    settled: bool = True  # whether every partition is open or halted
    references: tuple[ReferenceStatistics, ...] = ()
    latencies: dict[str, CommitLatency] = field(default_factory=dict)  # by topic
    departed: Departed = field(default_factory=Departed)  # of partitions that others have now
    moves: Moves = field(default_factory=Moves)
    spark: SparkStatistics | None = None  # None: there is none
    traces: TraceStatistics | None = None  # None: tracing is off

    def without_errors(self) -> "Snapshot":
        """The same without the texts of errors, which may show what records hold."""

        def hidden(error: str | None) -> str | None:
            return None if error is None else _HIDDEN

        failures = (replace(each, error=_HIDDEN) for each in self.recent_failures)
        sinks = (replace(each, last_error=hidden(each.last_error)) for each in self.sinks)
        apart = replace(self.apart, last_error=hidden(self.apart.last_error))
        return replace(self, recent_failures=tuple(failures), sinks=tuple(sinks), apart=apart)

    @property
    def read(self) -> int:
        """Records emitted for the first time."""
        return sum(part.read for part in self.partitions) + self.departed.read

    @property
    def rows(self) -> int:
        return sum(sink.rows_written for sink in self.sinks)

    @property
    def retried(self) -> int:
        here = sum(part.retried for part in self.partitions)
        return here + self.apart.retried + self.departed.retried

    @property
    def unresolved(self) -> int:
        """Records emitted and not resolved."""
        return sum(part.ledger.pending - part.ledger.waiting for part in self.partitions)


def snapshot_of(
    pipeline: "Pipeline | SparkEngine", now: float, ages: CommitAges | None = None, **others: Any
) -> Snapshot:
    """The figures at `now`, in the seconds of the owner's clock. The owner thread calls it.

    `ages` remembers what the snapshots before have seen; without it no commit has an age.
    """
    ages = CommitAges() if ages is None else ages
    engine, consumer, letters = pipeline.statistics(), pipeline.consumer, pipeline.dead_letters
    assignment = consumer.assignment
    return Snapshot(
        **{each.name: getattr(engine, each.name) for each in fields(engine)},
        **consumer.health(now)._asdict(),
        taken_at=now,
        partitions=tuple(ages.of(consumer.statistics(now), now)),
        halted=assignment.halted,
        settled=assignment.is_settled,
        latencies=dict(consumer.offsets.latencies),
        departed=assignment.departed,
        moves=assignment.moves,
        dead_letters_pending=letters.pending,
        dead_letters_waiting_seconds=letters.waiting_seconds(now),
        dead_letters_refused=letters.refused + engine.apart.dead_letters_refused,
        **others,
    )


@dataclass(frozen=True, slots=True)
class PartitionSummary:
    """Offsets of one partition; each is the next to read."""

    committed: int
    last_completed_offset: int
    log_end: int
    goal: int | None = None  # where the log ended when a finite run began

    @property
    def lag(self) -> int:
        return self.log_end - self.committed

    @property
    def missing(self) -> int:
        """Offsets that a finite run should have committed, and did not."""
        return max(0, (self.log_end if self.goal is None else self.goal) - self.committed)


@dataclass(frozen=True, slots=True)
class DeadLetterCause:
    """Dead letters of one step and class of error, and the text and place of one error."""

    step: str
    error_class: str
    letters: int
    error: str
    error_at: str

    def __str__(self) -> str:
        said = self.error.removeprefix(f"{self.error_class}: ")
        where = f" (at {self.error_at})" if self.error_at else ""
        text = f": {said}" if said and said != self.error_class else ""
        return f"{self.letters:,} in '{self.step}': {self.error_class}{text}{where}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """Says where every record is. It reconciles when nothing is missing and nothing is open."""

    read: int = 0
    written: int = 0
    rows: int = 0
    filtered: int = 0
    retried: int = 0
    dead_lettered: int = 0
    unresolved: int = 0
    given_up: int = 0  # in flight when their partitions went to other replicas, which read anew
    lost: int = 0  # offsets the source has lost, or that were skipped by policy
    seconds: float
    partitions: dict[str, PartitionSummary]
    halted: dict[str, str]  # partitions of which nothing more is read, and why
    table: str | None
    dead_letters: str | None
    dead_letter_causes: tuple[DeadLetterCause, ...] = ()  # the three commonest
    caught_up: bool  # False: the run was stopped, or had no end

    @classmethod
    def of(cls, snapshot: Snapshot, goals: Mapping[Partition, int], **facts: Any) -> Self:
        """Sum up a run by its last snapshot; `goals` are where its logs ended at first."""
        partitions = {
            str(part.partition): PartitionSummary(
                committed=part.committed,
                last_completed_offset=part.ledger.last_completed_offset,
                log_end=max(part.log_end or 0, part.ledger.fetched_to),
                goal=goals.get(part.partition),
            )
            for part in snapshot.partitions
        }
        return cls(
            **{name: getattr(snapshot, name) for name in TOTALS},
            given_up=snapshot.departed.given_up,
            lost=sum(sum(part.lost.values()) for part in snapshot.partitions),
            partitions=partitions,
            halted={str(partition): why for partition, why in snapshot.halted.items()},
            dead_letter_causes=tuple(_commonest_causes(snapshot)),
            **facts,
        )

    @property
    def mostly_dead(self) -> bool:
        """Whether more than half of the resolved records became dead letters."""
        return self.dead_lettered > self.written + self.filtered

    @property
    def records_per_second(self) -> float:
        return self.read / self.seconds if self.seconds > 0 else 0.0

    def losses(self) -> list[str]:
        """Records that are in none of the known places. Always empty."""
        resolved = self.written + self.filtered + self.dead_lettered
        placed = resolved + self.unresolved + self.given_up
        if placed == self.read:
            return []
        return [f"{self.read} records were read but {placed} are accounted for"]

    def problems(self) -> list[str]:
        """Reasons why a finite run is incomplete; empty when it reconciles."""
        found = self.losses()
        if self.unresolved:
            found.append(f"{self.unresolved} records are unresolved")
        found += [
            f"{name}: committed {part.committed}, {part.missing} short of where the log ended"
            for name, part in self.partitions.items()
            if part.missing
        ]
        return found + [f"{name} is halted: {why}" for name, why in self.halted.items()]

    def as_json(self) -> dict[str, Any]:
        facts = asdict(self)
        facts["records_per_second"] = round(self.records_per_second, 1)
        facts["seconds"] = round(self.seconds, 3)
        return facts


def _commonest_causes(snapshot: Snapshot) -> Iterator[DeadLetterCause]:
    known = {(each.step, each.error_class): each for each in snapshot.recent_failures}
    counts = Counter(snapshot.dead_letter_causes)
    for (step, error_class), letters in counts.most_common(_CAUSES):
        one = known.get((step, error_class))
        found = (one.error, one.error_at) if one else ("", "")
        yield DeadLetterCause(step, error_class, letters, *found)
