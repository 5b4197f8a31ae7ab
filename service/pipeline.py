"""The pipeline: the page to read first.

One turn of the owner thread's loop:

0. partitions that are opened, mended or halted;
1. results that other threads handed over: answers of async bolts, ends of batches;
2. dead letters that have become durable;
3. trees that resolved: acked ones move the frontier, failed ones wait for their retry;
4. batches that are due go to their writers;
5. if nothing holds it back, one chunk: fetched, run through the bolts, delivered;
6. frontiers that moved are stored, trees that are too old expire.

No step blocks, but the fetch, for some milliseconds, when there is nothing else to do, and
the first reading of a topic, for a second at most.
"""

import queue
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import numpy as np
import pyarrow as pa
import structlog

from acker.acker import Acker, Flags, Trees
from partition.assignment import Assigned, Lost, PartitionChange, Revoked
from partition.chunk import Chunk
from service.account import Tally
from service.backpressure import Backpressure
from service.committers import BatchCommitter, TransactionCommitter
from service.dead_letter_sender import DeadLetterSender
from service.engine import Apart
from service.failpoints import nowhere
from service.failures import FailureHandler, ScreenPolicy
from service.fences import Fences
from service.owners import Owners, places_of
from service.reader import Reader
from service.router import Router, tree_seconds
from service.sink_buffer import BatchBuffer, TransactionBuffer, WriterEvent
from service.trees import TreeTracker
from sinks.tries import WriteRetries
from topology.advanced_runner import AdvancedRunner
from topology.bolt import Kind
from topology.complaints import Complaint, Complaints
from topology.executor import Executor
from topology.histogram import Distribution
from topology.hooks import Hooks
from topology.life import Life
from topology.outcome import Failure
from topology.record import Message
from topology.running.call import Answers, TickFailed
from topology.running.runners import Runners
from topology.sink import Sink
from topology.steps import SinkStep
from topology.topology import Topology

if TYPE_CHECKING:  # tracing imports OpenTelemetry, which is not there unless it is wanted
    from service.spark_engine.staging import Staging
    from service.tracing.traces import Traces

log = structlog.get_logger()

Result: TypeAlias = Answers | TickFailed | WriterEvent
"""What another thread hands to the owner."""

_IDLE_SECONDS = 0.02
_TELL_EVERY_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class PipelinePolicy:
    """How records are tracked."""

    message_timeout_seconds: float = 30.0
    screen: ScreenPolicy = field(default_factory=ScreenPolicy)
    write_retries: WriteRetries = field(default_factory=WriteRetries)


class Pipeline:
    """Moves records from the reader through the bolts to the sinks, and acks them.

    The thread that calls `step` owns the reader, the acker and the executor; none of
    them has a lock. Bolts and sinks hand their results back through one queue.
    """

    def __init__(
        self,
        topology: Topology,
        reader: Reader,
        letters: DeadLetterSender,
        policy: PipelinePolicy,
        rng: np.random.Generator,
        clock: Callable[[], float] = time.monotonic,
        sinks: Mapping[str, Sink[Any]] | None = None,
        *,
        fences: Fences | None = None,
        stages: "Callable[[Tally, Callable[[int, Failure], object]], Staging] | None" = None,
        hooks: Sequence[Hooks] | None = None,
        at: Callable[[str], object] = nowhere,
        traces: "Traces | None" = None,
    ) -> None:
        """`sinks` stand in, by step name, for those of the topology (the test kit's do).

        `fences` are those that the reader opens partitions with; a topology that is exactly-once
        has them. In a task of the spark engine `stages` makes what stages its rows, of a tally and
        what buries a record. `hooks` are the topology's, unless they are given. `at` is told of
        the points where a test may end the process.
        """
        self._traces = traces
        self._reader = reader
        self._letters = letters
        self._policy = policy
        self._clock = clock
        self._topology = topology
        self._executor = Executor(topology.sources)
        self._results: queue.SimpleQueue[Result] = queue.SimpleQueue()
        self._awaited: list[Result] = []  # one at most: the next to be taken
        bolts = list(topology.bolts())
        self._acker = Acker(
            timeout_seconds=policy.message_timeout_seconds,
            longest_seconds=max((tree_seconds(step) or 0 for step in bolts), default=None),
        )
        self._complaints = Complaints(clock)
        advanced_steps = [step for step in bolts if step.kind is Kind.ADVANCED]
        self._advanced = AdvancedRunner(advanced_steps, self._acker.owners, places_of)
        self._trees = TreeTracker(
            self._acker, self._advanced.holders, policy.message_timeout_seconds, rng
        )
        self._tell_due = 0.0
        if traces is not None:
            traces.bind(self._trees.owners, self._trees.records_of)
        self._runners = Runners(
            [step for step in bolts if step.has_runner],
            self._results.put,
            policy.message_timeout_seconds,
        )
        self._life = Life(bolts, topology.listeners if hooks is None else hooks, self._runners.loop)
        self.tally = Tally()
        self.apart = Apart()  # nothing is
        self._committer: BatchCommitter | TransactionCommitter | Staging
        if stages is None:
            self._committer = self._committer_of(fences, sinks or {}, at)
        else:
            self._committer = stages(self.tally, self._bury_owner)
        committer = self._committer
        self._failures = FailureHandler(
            self._trees,
            reader,
            letters,
            committer,
            {step.name: step.retries for step in bolts if step.retries is not None},
            policy.screen,
            self._complaints,
            traces,
        )
        self._router = Router(
            topology,
            self._executor,
            self._runners,
            self._advanced,
            self._trees,
            committer,
            self._failures,
            traces,
        )
        self._backpressure = Backpressure(
            topology,
            committer.by_name,
            self._runners,
            self._advanced,
            reader.topic_at,
        )

    def _committer_of(
        self, fences: Fences | None, sinks: Mapping[str, Sink[Any]], at: Callable[[str], object]
    ) -> BatchCommitter | TransactionCommitter:
        """By transactions if there are fences, else by acks."""
        steps = [step for step in self._topology.steps() if isinstance(step, SinkStep)]
        places = [(step, sinks.get(step.name, step.sink)) for step in steps]
        tell, retries = self._results.put, self._policy.write_retries
        traces = self._traces
        if fences is not None:
            ends = [
                TransactionBuffer(step, sink, tell, write_retries=retries, at=at, traces=traces)
                for step, sink in places
            ]
            committer = TransactionCommitter(self._reader, ends, fences, self.tally, at)
            committer.on_done = None if traces is None else traces.resolved_to
            return committer
        at_most_once = self._topology.reliability == "at-most-once"
        outlets = [
            BatchBuffer(
                step,
                sink,
                tell,
                at_most_once=at_most_once,
                write_retries=retries,
                at=at,
                traces=traces,
            )
            for step, sink in places
        ]
        return BatchCommitter(outlets, self._trees, self._reader, self.tally)

    def open(self) -> None:
        """Open the bolts and start the threads. The sinks and the reader are open already."""
        pa.array([0])  # the first conversion looks for pandas, 0.2 s: not in the first chunk
        self._runners.open()
        try:
            self._life.open()
        except BaseException:
            self._runners.close()
            raise
        self._executor.open()
        for outlet in self.outlets:
            outlet.start()
        self._router.start(self._clock())

    def step(self, *, read: bool = True, flush: bool = False, drain: bool = False) -> bool:
        """One turn of the loop; True if anything moved.

        Without `read` no new record is emitted and none is fetched; with `flush` batches
        go to their writers before they are due; with `drain` advanced bolts are asked for what
        they keep, else only those that keep something of a partition that leaves. Raises
        SinkFailed, partition.Fenced and whatever else cannot heal.
        """
        now = self._clock()
        self.poll(now, opens=read)
        moved = self._take_results(now)
        moved |= self._take_letters(now)
        moved |= self._resolve(now)
        moved |= self._router.tick(now, drain=drain, leaving=self._reader.leaving)
        moved |= self._committer.step(now, flush=flush, plan=read)
        if not read:
            self._executor.prefetch(())  # the run ends: nothing comes next
        may_read = self._may_read(now, read=read)
        chunk = None
        if may_read:
            if read and self._executor.prefetches:
                self._prefetch(now)
            chunk = self._reader.next(now)
            if chunk is None and read:
                seconds = 0.0 if moved else self._patience()
                if self._reader.fetch(now, seconds):
                    moved = True
                    # A frozen process goes on after a wait: first it is asked what is ours yet.
                    if not seconds or not self._reader.is_shared:
                        chunk = self._reader.next(now)
        if chunk is not None:
            moved = True
            self._run(*chunk, now)
        elif not moved and not (may_read and read):  # a fetch waits by itself
            self._wait(_IDLE_SECONDS)
        self._resolve(now)
        self._reader.commit(now)
        self._trees.expire(now, self._waiting_trees)
        if now >= self._tell_due:
            self._tell_due = now + _TELL_EVERY_SECONDS
            self._complaints.tell()
        return moved

    def _run(self, chunk: Chunk, owners: Owners, now: float) -> None:
        """Run one chunk through the bolts; each record that does not fail gets a tree."""
        if chunk.unusual:  # null or oversized values; retries
            chunk, owners = self._failures.screen(chunk, owners)
        if not len(chunk):
            return
        outcome = self._router.run(chunk, owners, now)
        if outcome.failures:
            failed = [(int(owners[place]), each) for place, each in outcome.failures.items()]
            self._failures.fail_records(failed, now)

    def _prefetch(self, now: float) -> None:
        """Have some chunks wait, and begin their concurrent bolts, but what is to be screened."""
        if not self._reader.foresees:
            return
        while self._reader.waits_little and self._reader.fetch(now, 0):
            pass
        upcoming = [chunk for chunk in self._reader.upcoming() if not chunk.unusual]
        source_of = self._topology.source_of
        self._executor.prefetch(
            [
                (source_of(chunk.partition.topic), cast("list[Message]", chunk.messages))
                for chunk in upcoming
            ]
        )

    def _patience(self) -> float:
        """How many seconds there are to wait for records."""
        if not self._results.empty():
            return 0.0
        is_busy = self._acker.in_flight > 0 or self._letters.pending > 0
        return _IDLE_SECONDS / 4 if is_busy else _IDLE_SECONDS

    def _may_read(self, now: float, *, read: bool) -> bool:
        pressure = self._backpressure
        pressure.look(now, letters=self._letters.pending, trees=self._acker.in_flight)
        if pressure.silences_all:
            return False
        held, silent = pressure.held_sources, pressure.silent_sources
        self._reader.hold_back(self._topics_of(held), self._topics_of(silent))
        return read or self._reader.has_stored_waiting

    def _topics_of(self, sources: frozenset[str]) -> frozenset[str]:
        if not sources:
            return sources
        source_of = self._topology.source_of
        return frozenset(t for t in self._reader.topics if source_of(t).label in sources)

    @property
    def backpressure(self) -> Backpressure:
        """What holds new records back."""
        return self._backpressure

    @property
    def is_idle(self) -> bool:
        """Whether no record is on its way; some may wait for their retry.

        So may those that come after such a one in the order of a key or a partition.
        """
        if not self._committer.is_idle or self._reader.has_stored_waiting:
            return False
        return self._acker.in_flight == self._router.num_blocked()

    def _waiting_trees(self) -> Iterator[tuple[Trees, float | None]]:
        """Give the trees of what waits for a sink, a worker, or the dead letters' broker."""
        for trees in self._committer.waiting_trees():
            yield trees, None
        yield from self._router.waiting_trees()
        yield self._letters.trees(), None

    @property
    def has_last(self) -> bool:
        """Whether every record below the goals is emitted."""
        return self._reader.has_emitted_goals

    @property
    def outlets(self) -> "Sequence[BatchBuffer | TransactionBuffer]":
        """The sinks' ends, for figures and health."""
        return self._committer.outlets

    @property
    def runners(self) -> Runners:
        """The bolts whose calls end later, for figures."""
        return self._runners

    @property
    def failed_ticks(self) -> dict[str, int]:
        """How many ticks have failed, by step."""
        return self._router.failed_ticks

    @property
    def call_times(self) -> dict[str, Distribution]:
        """How long calls of bolts took, by step."""
        return self._executor.times.figures() | self._runners.call_times()

    @property
    def recent_failures(self) -> tuple[Complaint, ...]:
        """What failed lately, the oldest first."""
        return self._complaints.recent()

    @property
    def acker(self) -> Acker:
        """The acker, for its figures."""
        return self._acker

    def poll(self, now: float, *, opens: bool) -> None:
        """Look at the partitions; tell hooks and bolts of those that came and went.

        Without `opens` no further one is opened. Raises what hooks raise.
        """
        for change in self._reader.poll(now, opens=opens):
            self._partition_changed(change)
        for index in self._reader.given_up(now):
            if not self._names_records_of(index):
                self._reader.forget(index)

    def _partition_changed(self, change: PartitionChange) -> None:
        """Tell who has to know.

        What waits of a partition that is revoked is not begun, as it may be another's; if it is
        claimed again that goes on, its retries come, and until then the order is kept.
        """
        match change:
            case Assigned(partition, index):
                self._life.partition_assigned(partition.topic, partition.number)
                self._runners.resume(index)
            case Revoked(partition, index):
                self._runners.suspend(index)
                self._life.partition_revoked(partition.topic, partition.number)
            case Lost(_, index):
                self._drop(index)

    def _drop(self, index: int) -> None:
        """Let go of what is in flight of a partition: whoever has it next begins anew.

        Its trees come to nothing, its records hold no key, and what waits of them is not begun.
        """
        orphans = self._trees.discard(lambda owners: places_of(owners) == index)
        self._runners.drop(lambda call: call.partition == index or call.owner in orphans)
        self._runners.resume(index)
        self._committer.partition_lost(index)
        if self._traces is not None:
            self._traces.lost(index)

    def _names_records_of(self, index: int) -> bool:
        """Whether anything is left that names a record of a partition.

        Rows at a sink, dead letters, and calls without an order name their trees only, which
        `_drop` has let go of.
        """
        return (
            self._acker.holds(lambda owners: places_of(owners) == index)
            or self._runners.holds(index)
            or self._advanced.holds(index)
            or self._committer.holds(index)
        )

    def close(self, timeout_seconds: float) -> bool:
        """Stop the threads and close the bolts; False if a thread did not end in time."""
        self._runners.stop(timeout_seconds)
        ended = [outlet.stop(timeout_seconds) for outlet in self.outlets]
        for change in self._reader.release():
            self._partition_changed(change)
        self._complaints.tell(all_of_it=True)
        ended.append(self._executor.close(timeout_seconds))
        try:
            self._life.close(timeout_seconds)
        finally:
            self._runners.close(timeout_seconds)
        return all(ended)

    def settle(self) -> None:
        """Let no bolt be at work on another thread's chunk: what bolts look up is to change."""
        self._executor.wait_idle()

    # Step 1: results of other threads

    def _take_results(self, now: float) -> bool:
        taken = False
        while self._awaited or not self._results.empty():
            taken = True
            result = self._awaited.pop() if self._awaited else self._results.get()
            if isinstance(result, WriterEvent):
                self._written(result)
            else:
                self._router.handle(result, now)
        return taken

    def _wait(self, seconds: float) -> None:
        """Wait for a result, at most so long; the next turn begins with it."""
        with suppress(queue.Empty):
            self._awaited.append(self._results.get(timeout=seconds))

    def _written(self, event: WriterEvent) -> None:
        """Hear what a sink's thread has done."""
        if isinstance(self._committer, BatchCommitter | TransactionCommitter):
            for refused in self._committer.handle(event):
                self._failures.reject_row(refused)

    # Step 2: dead letters

    def _take_letters(self, now: float) -> bool:
        trees, edges = self._letters.poll(now)
        self._acker.ack(trees, edges)
        return len(trees) > 0

    # Step 3: trees that resolved

    def _resolve(self, now: float) -> bool:
        resolved = self._trees.drain()
        if len(resolved.acked):
            self._router.release_keys(resolved.acked)
            self._settle(resolved.acked, resolved.flags)
        if resolved.failed:
            self._failures.fail_records(resolved.failed, now)
        return bool(resolved)

    def _settle(self, owners: Owners, flags: Flags) -> None:
        """Records are done, but for the transactions they are in."""
        self._committer.resolved(owners, flags)
        if self._traces is not None and isinstance(self._committer, BatchCommitter):
            self._traces.resolved(owners)

    # A task's committer is made before `FailureHandler`, which needs it.

    def _bury_owner(self, owner: int, failure: Failure) -> None:
        self._failures.reject_records([(owner, failure)])
