"""Takes snapshots: reads the figures of a running pipeline off its parts."""

from dataclasses import replace
from typing import Protocol

from partition.fetcher import Fetcher
from partition.store import OffsetStore
from service.commit_ages import CommitAges
from service.dead_letter_sender import DeadLetterSender
from service.engine import Engine
from service.reader import Reader
from service.references import ReferenceStatistics
from service.snapshot import SinkStatistics, Snapshot, SparkStatistics, TraceStatistics


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
    def reader(self) -> Reader:
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
    tally, apart = parts.pipeline.tally, parts.pipeline.apart
    return Snapshot(
        taken_at=now,
        partitions=tuple(ages.of(parts.reader.statistics(now), now)),
        halted=parts.reader.halted(),
        settled=parts.reader.is_settled,
        mirror_failures=parts.fetcher.mirror_failures,
        sinks=tuple(
            SinkStatistics(
                sink=outlet.step.name,
                rows_written=outlet.rows_written,
                rows_rejected=outlet.rows_rejected,
                rows_pending=outlet.rows_pending,
                batches_written=outlet.batches_written,
                write_seconds=outlet.write_seconds,
                retries=outlet.writer.retries,
                failing_since=outlet.writer.failing_since,
                last_error=outlet.writer.last_error,
                bytes_written=outlet.bytes_written,
                write_times=outlet.write_times.figures(),
            )
            for outlet in parts.pipeline.outlets
        ),
        acker=parts.pipeline.acker.statistics(),
        sunk=tally.sunk,
        filtered=tally.filtered,
        dead_lettered=tally.dead_lettered,
        failures=dict(tally.failures),
        letters_pending=parts.letters.pending,
        letters_waiting_seconds=parts.letters.waiting_seconds(now),
        letters_refused=parts.letters.refused + apart.letters_refused,
        held_back=parts.pipeline.backpressure.holds_any,
        held_back_seconds=dict(parts.pipeline.backpressure.seconds),
        references=references,
        runners=parts.pipeline.runners.figures(),
        failed_ticks=parts.pipeline.failed_ticks,
        apart=replace(apart),
        departed=parts.reader.departed,
        letters=dict(tally.letters),
        buried=dict(tally.buried),
        call_times=parts.pipeline.call_times,
        recent_failures=parts.pipeline.recent_failures,
        moves=parts.reader.moves,
        spark=None
        if spark is None
        else SparkStatistics(spark.running, spark.restarts, spark.renewals),
        traces=None if traces is None else TraceStatistics(traces.traced, traces.skipped),
        kafka_available=parts.fetcher.available,
        store_available=parts.store.available,
        commit_seconds=parts.reader.commit_seconds(now),
    )
