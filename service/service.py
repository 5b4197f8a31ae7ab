"""The service: opens the parts in order, runs the loop, drains, and accounts for the run."""

import multiprocessing
import time
from collections.abc import Callable

import structlog

from partition.commits import CommitAges
from service.account import Account
from service.deadline import Deadline
from service.garbage import rare_collections
from service.parts import Parts
from service.snapshot import Snapshot, SparkStatistics, TraceStatistics, snapshot_of

log = structlog.get_logger()

SNAPSHOT_SECONDS = 0.25
_COMMIT_POLL_SECONDS = 0.005
_LAST_COMMIT_SECONDS = 5.0


class Service:
    """One run of one pipeline.

    The thread that calls `run` owns everything but what is said otherwise; `stop` and
    `snapshot` may be called from any thread and from a signal handler.
    """

    def __init__(self, parts: Parts, *, drain_seconds: float) -> None:
        self._parts = parts
        self._drain_seconds = drain_seconds
        self._stopping = False  # a plain flag: a signal handler must not wait for a lock
        self._snapshot: Snapshot | None = None
        self._ages = CommitAges()
        self._started = time.monotonic()
        self.on_snapshot: Callable[[Snapshot], None] | None = None

    @property
    def snapshot(self) -> Snapshot | None:
        """The newest figures; None before the first turn of the loop."""
        return self._snapshot

    def stop(self) -> None:
        """Ask the run to drain and end."""
        self._stopping = True

    def run(self, *, until_caught_up: bool = False) -> Account:
        """Run until stopped, or until every record that was there at the start is resolved.

        Whatever cannot heal is raised, after what was resolved by then is committed.
        """
        # A forked process would share the clients' sockets and locks, without their threads.
        multiprocessing.set_start_method("spawn", force=True)
        parts = self._parts
        deadline: Deadline | None = None  # one, shared by all that a shutdown has to do
        log.info("service_starting", pipeline=parts.name)
        try:
            parts.open()
            self._started = time.monotonic()
            log.info("service_started", pipeline=parts.name, until_caught_up=until_caught_up)
            try:
                with rare_collections():
                    caught_up = self._loop(until_caught_up=until_caught_up)
                deadline = Deadline(self._drain_seconds)
                self._drain(deadline)
            except Exception:
                longest = min(self._drain_seconds, _LAST_COMMIT_SECONDS)
                self._commit_resolved(deadline or Deadline(longest))
                raise
            seconds = time.monotonic() - self._started
            self._publish(time.monotonic())
            return self._account(seconds, caught_up=caught_up)
        except KeyboardInterrupt:  # the second Ctrl-C: whoever pressed it will not wait
            deadline = Deadline(0)
            raise
        finally:
            parts.close(deadline or Deadline(self._drain_seconds))
            log.info("service_stopped", pipeline=parts.name)

    def _loop(self, *, until_caught_up: bool) -> bool:
        """Turn until stopped (False), or until all below the goals is resolved (True)."""
        parts = self._parts
        publish_at = 0.0
        while not self._stopping:
            flush = False
            if until_caught_up:
                if parts.reader.assignment.has_reached_goals:
                    return True
                flush = parts.pipeline.has_last
            parts.references.poll()
            parts.sharing.poll(time.monotonic())
            leaves = bool(
                parts.reader.assignment.leaving
            )  # what leaves should not wait for a full batch
            parts.pipeline.step(flush=flush or leaves, drain=flush)
            parts.letter_limit.look(parts.pipeline.tally)
            now = time.monotonic()
            if now >= publish_at:
                publish_at = now + SNAPSHOT_SECONDS
                self._publish(now)
        return False

    def _drain(self, deadline: Deadline) -> None:
        """Finish what is in flight and commit, as far as the deadline allows.

        1. emit nothing new; 2. flush the batches and wait for trees and letters;
        3. store the frontiers. What is left stays uncommitted, so nothing is lost.
        """
        parts = self._parts
        log.info("service_draining", seconds=deadline.left)
        kept = min(_LAST_COMMIT_SECONDS, deadline.left / 5)  # for storing what is resolved
        while not parts.pipeline.is_idle and deadline.left > kept:
            parts.sharing.poll(time.monotonic())
            parts.pipeline.step(fetch=False, flush=True, drain=True)
        self._commit(deadline)
        if deadline.is_over or not parts.pipeline.is_idle:
            left = self._figures(time.monotonic())
            log.warning("drain_deadline_passed", unresolved=left.unresolved)

    def _commit(self, deadline: Deadline) -> None:
        reader, pipeline = self._parts.reader, self._parts.pipeline
        while not reader.is_committed and not deadline.is_over:
            pipeline.poll(time.monotonic(), opens=False)
            reader.commit(time.monotonic(), force=True)
            time.sleep(_COMMIT_POLL_SECONDS)

    def _commit_resolved(self, deadline: Deadline) -> None:
        """Store what was resolved before the run failed; the failure itself is what counts."""
        try:
            self._commit(deadline)
        except Exception as error:  # noqa: BLE001 - also what a hook raises
            log.warning("last_commit_failed", error=str(error))

    def _figures(self, now: float) -> Snapshot:
        parts, spark = self._parts, self._parts.spark
        traces = None if parts.tracing is None else parts.tracing.traces
        return snapshot_of(
            parts,
            now,
            parts.references.statistics(now),
            ages=self._ages,
            spark=None
            if spark is None
            else SparkStatistics(spark.running, spark.restarts, spark.renewals),
            traces=None if traces is None else TraceStatistics(traces.traced, traces.skipped),
        )

    def _publish(self, now: float) -> None:
        self._snapshot = self._figures(now)
        if self.on_snapshot is not None:
            self.on_snapshot(self._snapshot)

    def _account(self, seconds: float, *, caught_up: bool) -> Account:
        """The account; the logs' ends are those that the client heard of last."""
        parts = self._parts
        return self._figures(time.monotonic()).account(
            {str(partition): end for partition, end in parts.reader.assignment.goals.items()},
            seconds=seconds,
            table=parts.table,
            dead_letters=parts.dead_letters,
            caught_up=caught_up,
        )
