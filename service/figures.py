"""Takes snapshots: reads the figures of a running pipeline off its parts."""

from dataclasses import fields
from typing import Protocol

from partition.commits import CommitAges
from partition.consumer import Consumer
from partition.interfaces import Fetcher, OffsetStore
from service.engine import Engine
from service.pipeline.dead_letters import DeadLetterSender
from service.pipeline.references import ReferenceStatistics
from service.snapshot import Snapshot, SparkStatistics, TraceStatistics


class Observed(Protocol):
    """The parts that a snapshot is read off."""

    @property
    def fetcher(self) -> Fetcher:
        """Kafka's side."""
        ...

    @property
    def store(self) -> OffsetStore:
        """ZooKeeper's side."""
        ...

    @property
    def reader(self) -> Consumer:
        """The partitions."""
        ...

    @property
    def letters(self) -> DeadLetterSender:
        """The dead letters on their way."""
        ...

    @property
    def pipeline(self) -> Engine:
        """The loop."""
        ...


class Healing(Protocol):
    """Spark, as far as its health goes."""

    @property
    def running(self) -> bool:
        """Whether a JVM is there."""
        ...

    @property
    def restarts(self) -> int:
        """How often there was another one."""
        ...

    @property
    def renewals(self) -> int:
        """How often one was given a new context."""
        ...


class Tracing(Protocol):
    """What traces records, as far as their number goes."""

    @property
    def traced(self) -> int:
        """How many were traced."""
        ...

    @property
    def skipped(self) -> int:
        """How many were to be traced while as many as may be were."""
        ...


def snapshot_of(
    parts: Observed,
    now: float,
    references: tuple[ReferenceStatistics, ...] = (),
    *,
    ages: CommitAges | None = None,
    spark: Healing | None = None,
    traces: Tracing | None = None,
) -> Snapshot:
    """The figures at `now`, in the seconds of the owner's clock. The owner thread calls it.

    `ages` remembers what the snapshots before have seen; without it no commit has an age.
    """
    ages = CommitAges() if ages is None else ages
    engine = parts.pipeline.statistics()
    return Snapshot(
        **{each.name: getattr(engine, each.name) for each in fields(engine)},
        taken_at=now,
        partitions=tuple(ages.of(parts.reader.statistics(now), now)),
        halted=parts.reader.assignment.halted,
        settled=parts.reader.assignment.is_settled,
        mirror_failures=parts.fetcher.mirror_failures,
        letters_pending=parts.letters.pending,
        letters_waiting_seconds=parts.letters.waiting_seconds(now),
        letters_refused=parts.letters.refused + engine.apart.letters_refused,
        references=references,
        departed=parts.reader.assignment.departed,
        moves=parts.reader.assignment.moves,
        spark=None
        if spark is None
        else SparkStatistics(spark.running, spark.restarts, spark.renewals),
        traces=None if traces is None else TraceStatistics(traces.traced, traces.skipped),
        kafka_available=parts.fetcher.available,
        store_available=parts.store.available,
        commit_seconds=parts.reader.commit_seconds(now),
    )
