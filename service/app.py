"""Runs a pipeline as a process: opens its parts, turns the loop, drains, accounts for the run."""

import multiprocessing
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import structlog

from partition.consumer import CommitAges
from service.config.settings import Config
from service.observability.charts import History
from service.observability.health import HealthCheck
from service.observability.http_server import HttpServer
from service.observability.metrics import Metrics
from service.observability.snapshot import (
    RunSummary,
    Snapshot,
    SparkStatistics,
    TraceStatistics,
    snapshot_of,
)
from service.observability.status_page import StatusPage
from service.pipeline.failures import DeadLetterLimit
from service.pipeline.loop import rare_collections
from service.wiring import Deadline, Parts, wire
from sinks.spark.driver import SparkDriver
from topology.errors import InvalidTopology
from topology.topology import Topology

log = structlog.get_logger()

SNAPSHOT_SECONDS = 0.25
_COMMIT_POLL_SECONDS = 0.005
_LAST_COMMIT_SECONDS = 5.0


class Service:
    """One run of one pipeline.

    The thread that calls `run` owns everything. Any thread, and a signal handler, may call
    `stop` and read `snapshot`.
    """

    def __init__(
        self,
        parts: Parts,
        drain_seconds: float,
        on_snapshot: Callable[[Snapshot], None] | None = None,
    ) -> None:
        self._parts = parts
        self._drain_seconds = drain_seconds
        self._on_snapshot = on_snapshot
        self._stopping = False  # a plain flag: a signal handler must not wait for a lock
        self.snapshot: Snapshot | None = None
        """The newest figures; None before the first turn of the loop."""
        self.history = History()
        self._ages = CommitAges()
        self._letter_limit = DeadLetterLimit(**parts.config.dead_letters.model_dump())
        self._started = time.monotonic()

    def stop(self) -> None:
        self._stopping = True

    def run(self, *, until_caught_up: bool = False) -> RunSummary:
        """Run until stopped, or until every record below the log ends at the start is resolved.

        Raises permanent errors, after it has committed what was resolved by then.
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
            return RunSummary.of(
                self._publish(time.monotonic()),
                parts.pipeline.consumer.assignment.goals,
                seconds=seconds,
                table=parts.table,
                dead_letters=parts.dead_letter_sink.name,
                caught_up=caught_up,
            )
        except KeyboardInterrupt:  # the second Ctrl-C: whoever pressed it will not wait
            deadline = Deadline(0)
            raise
        finally:
            parts.close(deadline or Deadline(self._drain_seconds))
            log.info("service_stopped", pipeline=parts.name)

    def _loop(self, *, until_caught_up: bool) -> bool:
        """Turn until stopped (False), or until all records below the goals are resolved (True)."""
        parts = self._parts
        publish_at = 0.0
        while not self._stopping:
            flush = False
            if until_caught_up:
                if parts.pipeline.consumer.assignment.has_reached_goals:
                    return True
                flush = parts.pipeline.consumer.has_emitted_goals
            parts.references.poll()
            parts.membership.poll(time.monotonic())
            # What leaves should not wait for a full batch.
            leaves = bool(parts.pipeline.consumer.assignment.leaving)
            parts.pipeline.step(flush=flush or leaves, drain=flush)
            self._letter_limit.look(parts.pipeline.counters)
            now = time.monotonic()
            if now >= publish_at:
                publish_at = now + SNAPSHOT_SECONDS
                self._publish(now)
        return False

    def _drain(self, deadline: Deadline) -> None:
        """Finish what is in flight and commit, as far as the deadline allows.

        1. Emit nothing new. 2. Flush the batches and wait for trees and dead letters. 3. Store
        the offsets. The rest stays uncommitted, so nothing is lost.
        """
        parts = self._parts
        log.info("service_draining", seconds=deadline.left)
        kept = min(_LAST_COMMIT_SECONDS, deadline.left / 5)  # for storing what is resolved
        while not parts.pipeline.is_idle and deadline.left > kept:
            parts.membership.poll(time.monotonic())
            parts.pipeline.step(fetch=False, flush=True, drain=True)
        self._commit(deadline)
        if not deadline.left or not parts.pipeline.is_idle:
            left = self._take_snapshot(time.monotonic())
            log.warning("drain_deadline_passed", unresolved=left.unresolved)

    def _commit(self, deadline: Deadline) -> None:
        pipeline = self._parts.pipeline
        while not pipeline.consumer.offsets.is_done and deadline.left:
            pipeline.poll(time.monotonic(), opens=False)
            pipeline.consumer.commit(time.monotonic(), force=True)
            time.sleep(_COMMIT_POLL_SECONDS)

    def _commit_resolved(self, deadline: Deadline) -> None:
        """Store what was resolved before the run failed. Errors are logged: the failure counts."""
        try:
            self._commit(deadline)
        except Exception as error:  # noqa: BLE001 - also what a hook raises
            log.warning("last_commit_failed", error=str(error))

    def _take_snapshot(self, now: float) -> Snapshot:
        parts, spark = self._parts, self._parts.spark
        traces = None if parts.tracing is None else parts.tracing.traces
        return snapshot_of(
            parts.pipeline,
            now,
            self._ages,
            references=parts.references.statistics(now),
            spark=None if spark is None else SparkStatistics(spark.running, spark.restarts),
            traces=None if traces is None else TraceStatistics(traces.traced, traces.skipped),
        )

    def _publish(self, now: float) -> Snapshot:
        self.snapshot = snapshot = self._take_snapshot(now)
        self.history.add(snapshot)
        if self._on_snapshot is not None:
            self._on_snapshot(snapshot)
        return snapshot


def run_pipeline(
    topology: Topology,
    config: Config,
    *,
    target: str | None = None,
    until_caught_up: bool = False,
    on_snapshot: Callable[[Snapshot], None] | None = None,
    spark: SparkDriver | None = None,
) -> RunSummary:
    """Run a topology until it is stopped or caught up, and return its account.

    SIGTERM and SIGINT drain (promise 16); a second one ends the process at once. Call it on the
    main thread, which gets the signals. The spark engine needs `target`, "module:name": executors
    import the topology from there. A Spark that is given is used, and not closed. Raises permanent
    errors.
    """
    if config.pipeline.engine == "spark" and target is None:
        raise InvalidTopology(
            f"topology '{topology.name}': executors import it by name, so the engine \"spark\" "
            'needs target="module:name"; `headrace run` has it'
        )
    parts = wire(topology, config, target, spark)
    service = Service(parts, config.pipeline.drain_seconds, on_snapshot)
    server: HttpServer | None = None
    if config.http.port is not None:

        def shown() -> Snapshot | None:
            snapshot = service.snapshot
            if snapshot is None or config.http.show_errors:
                return snapshot
            return snapshot.without_errors()

        health = HealthCheck(shown)
        metrics = Metrics(lambda: service.snapshot)
        page = StatusPage(parts.name, topology, shown, health, service.history)
        server = HttpServer(config.http.host, config.http.port, metrics, health, page)
        server.open()
    try:
        with _draining(service.stop):
            return service.run(until_caught_up=until_caught_up)
    finally:
        if server is not None:
            server.close()


@contextmanager
def _draining(stop: Callable[[], None]) -> Iterator[None]:
    """Turn the first SIGTERM or SIGINT into `stop`; a second one has its usual effect."""
    signals = (signal.SIGTERM, signal.SIGINT)
    before = {number: signal.getsignal(number) for number in signals}

    def handle(_number: int, _frame: FrameType | None) -> None:
        stop()  # no log here: the handler may have interrupted one that holds its lock
        for each, handler in before.items():
            signal.signal(each, handler)

    for number in signals:
        signal.signal(number, handle)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
