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
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import pyarrow as pa
import structlog

from acker.acker import Acker, Resolved
from partition.chunk import Chunk, Partition
from service.account import Tally
from service.backpressure import Backpressure
from service.emitter import LETTERED, SUNK, Emitter, tree_seconds
from service.failures import Failures, is_final
from service.joints import Joints
from service.letters import Letters
from service.outlet import Outlet, Written, good_rows
from service.overdue import Overdue
from service.reader import Owners, Reader
from service.relay import Relay
from service.screen import ScreenPolicy, only, screen
from sinks.writer import WriteRetries
from topology.complaints import Complaints
from topology.executor import Executor, Failure, Outcome
from topology.life import Life
from topology.record import Message
from topology.running.call import Answers
from topology.running.runners import Runners
from topology.signals import Reject
from topology.sink import Sink
from topology.steps import SinkStep
from topology.ticks import TickFailures
from topology.topology import Topology

log = structlog.get_logger()

_IDLE_SECONDS = 0.02
_EXPIRE_EVERY_SECONDS = 0.5
_SPARE_SECONDS = 1e-5  # per value that waits: looking at all of them costs a hundredth of it


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
        letters: Letters,
        policy: PipelinePolicy,
        rng: np.random.Generator,
        clock: Callable[[], float] = time.monotonic,
        sinks: Mapping[str, Sink[Any]] | None = None,
    ) -> None:
        """`sinks` stand in, by step name, for those of the topology (the test kit's do)."""
        self._reader = reader
        self._letters = letters
        self._policy = policy
        self._clock = clock
        self._topology = topology
        self._executor = Executor()
        self._results: queue.SimpleQueue[Answers | Written] = queue.SimpleQueue()
        bolts = list(topology.bolts())
        self._acker = Acker(
            timeout_seconds=policy.message_timeout_seconds,
            longest_seconds=max((tree_seconds(step) or 0 for step in bolts), default=None),
        )
        self._complaints = Complaints(clock)
        self._failed_ticks = TickFailures(bolts, self._complaints)
        reasons: dict[int, Failure] = {}  # why a failed tree failed, by owner
        self._joints = Joints(self._acker, reasons)
        self._runners = Runners(
            [step for step in bolts if step.has_runner],
            self._results.put,
            policy.message_timeout_seconds,
            failed_ticks=self._failed_ticks,
        )
        self._life = Life(topology, self._runners.loop)
        self._outlets = {
            step.name: Outlet(
                step,
                (sinks or {}).get(step.name, step.sink),
                self._results.put,
                at_most_once=topology.reliability == "at-most-once",
                write_retries=policy.write_retries,
            )
            for step in topology.steps()
            if isinstance(step, SinkStep)
        }
        self._emitter = Emitter(self._acker, self._joints, self._outlets, self._runners, rng)
        self.tally = Tally()
        self._failures = Failures(
            bolts,
            self._acker,
            self._joints,
            reader,
            letters,
            self._emitter,
            self.tally,
            reasons=reasons,
            complaints=self._complaints,
        )
        self._relay = Relay(
            bolts,
            self._acker,
            self._joints,
            self._executor,
            self._runners,
            self._emitter,
            self._failures,
            self._failed_ticks,
        )
        self._backpressure = Backpressure(
            topology, self._outlets, self._runners, self._relay.advanced, reader.topic_at
        )
        self._expire_due = 0.0
        self._spare_due = 0.0

    def open(self) -> None:
        """Open the bolts and start the threads. The sinks and the reader are open already."""
        pa.array([0])  # the first conversion looks for pandas, 0.2 s: not in the first chunk
        self._runners.open()
        try:
            self._life.open()
        except BaseException:
            self._runners.close()
            raise
        for outlet in self._outlets.values():
            outlet.start()
        self._relay.start(self._clock())

    def step(self, *, read: bool = True, flush: bool = False, drain: bool = False) -> bool:
        """One turn of the loop; True if anything moved.

        Without `read` no new record is emitted and none is fetched; with `flush` batches
        go to their writers before they are due; with `drain` advanced bolts are asked for what
        they keep. Raises SinkFailed, partition.Fenced and whatever else cannot heal.
        """
        now = self._clock()
        self._reader.poll(now, opens=read)
        self._runners.poll(time.monotonic())  # calls take real time, also in the test kit
        moved = self._take_results(now)
        moved |= self._take_letters(now)
        moved |= self._resolve(now)
        moved |= self._relay.tick(now, drain=drain)
        for outlet in self._outlets.values():
            moved |= outlet.submit_due(now, flush=flush or self._reader.is_stuck)
        may_read = self._may_read(now, read=read)
        moved |= may_read and self._read(now, wait=not moved, fetch=read)
        if not moved and not (may_read and read):  # a fetch waits by itself
            self._wait(_IDLE_SECONDS)
        self._resolve(now)
        self._reader.commit(now)
        self._expire(now)
        return moved

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
        return self._acker.in_flight == self._blocked() and not self._reader.has_stored_waiting

    def _blocked(self) -> int:
        """How many trees cannot resolve before the retry of a record that holds their key."""
        runners = self._runners
        if not runners.held or not all(map(self._reader.comes_again, runners.holders())):
            return 0  # a holder that does not come again is soon released
        if not self._joints and runners.num_blocked < self._acker.in_flight:
            return 0  # others are on their way: no need to list those that are blocked
        blocked = np.array(runners.blocked(), np.int64)
        trees = np.unique(self._joints.with_anchors(blocked))
        return int(np.count_nonzero(self._acker.owners(trees) >= 0))

    @property
    def outlets(self) -> list[Outlet]:
        """The sinks' ends, for figures and health."""
        return list(self._outlets.values())

    @property
    def runners(self) -> Runners:
        """The bolts whose calls end later, for figures."""
        return self._runners

    @property
    def failed_ticks(self) -> dict[str, int]:
        """How many ticks have failed, by step."""
        return self._failed_ticks.counts()

    @property
    def acker(self) -> Acker:
        """The acker, for its figures."""
        return self._acker

    def partition_assigned(self, partition: Partition) -> None:
        """Tell hooks and bolts that a partition is read from now on."""
        self._life.partition_assigned(partition.topic, partition.number)

    def partition_revoked(self, partition: Partition) -> None:
        """Tell hooks and bolts that a partition is not ours now.

        If it is lost for good, its records hold no key, and what waits of them is not begun.
        If it is claimed again, their retries come, and until then the order is kept.
        """
        loss = self._reader.loss_of(partition)
        if loss is not None:
            place = self._reader.place_of(partition)
            for step, calls in self._runners.drop_partition(place):
                for call in calls:
                    self._failures.fail(call.tree, call.edge, Failure(step.name, loss))
        self._life.partition_revoked(partition.topic, partition.number)

    def close(self, timeout_seconds: float) -> bool:
        """Stop the threads and close the bolts; False if a thread did not end in time."""
        self._runners.stop(timeout_seconds)
        ended = [outlet.stop(timeout_seconds) for outlet in self._outlets.values()]
        self._reader.release()
        self._complaints.tell(all_of_it=True)
        try:
            self._life.close(timeout_seconds)
        finally:
            self._runners.close(timeout_seconds)
        return all(ended)

    # Step 1: results of other threads

    def _take_results(self, now: float) -> bool:
        taken = False
        while not self._results.empty():
            taken = True
            result = self._results.get()
            if isinstance(result, Written):
                self._take_written(result)
            else:
                self._relay.take_answers(result, now)
        return taken

    def _wait(self, seconds: float) -> None:
        """Wait for a result, at most so long, and put it back for the next turn."""
        try:
            result = self._results.get(timeout=seconds)
        except queue.Empty:
            return
        self._results.put(result)

    def _take_written(self, written: Written) -> None:
        result = written.result
        if result.error is not None:
            raise result.error
        written.outlet.ended(result)
        trees, edges = good_rows(result)
        self._acker.ack(trees, edges)
        for row, reason in result.rejected.items():
            failure = Failure(written.outlet.step.name, Reject(reason))
            tree = int(result.pending.trees[row])
            self._failures.bury(tree, int(result.pending.edges[row]), failure)

    # Step 2: dead letters

    def _take_letters(self, now: float) -> bool:
        trees, edges = self._letters.poll(now)
        self._acker.ack(trees, edges)
        return len(trees) > 0

    # Step 3: trees that resolved

    def _resolve(self, now: float) -> bool:
        resolved: Resolved = self._acker.drain()
        overdue = Overdue(self._policy.message_timeout_seconds, self._relay.advanced)
        if self._joints:
            resolved = self._joints.resolve(resolved, overdue.of)
        if len(resolved.acked):
            self.tally.acked(resolved.acked_flags, SUNK, LETTERED)
            if self._runners.held:
                self._runners.release(resolved.acked.tolist())
            self._reader.ack(resolved.acked)
        for owner in resolved.failed.tolist():
            self._failures.retry_failed(owner, now)
        for owner in resolved.expired.tolist():
            self._failures.retry(owner, overdue.of(owner), now)
        return bool(len(resolved.acked) or len(resolved.failed) or len(resolved.expired))

    # Step 5: one chunk

    def _read(self, now: float, *, wait: bool, fetch: bool) -> bool:
        emission = self._reader.next(now)
        if emission is None and not fetch:
            return False
        if emission is None:
            waits = wait and self._results.empty()
            busy = self._acker.in_flight > 0 or self._letters.pending > 0
            seconds = (_IDLE_SECONDS / 4 if busy else _IDLE_SECONDS) if waits else 0.0
            if not self._reader.fetch(now, seconds):
                return False
            emission = self._reader.next(now)
            if emission is None:
                return True
        chunk, owners = self._screen(*emission) if emission[0].unusual else emission
        if len(chunk):
            source = self._topology.source_of(chunk.partition.topic)
            # To the partition room a message is only something with a length.
            outcome = self._executor.run_source(source, cast("list[Message]", chunk.messages))
            self._emit(outcome, owners, now)
            self._relay.run_advanced(now)
        return True

    def _screen(self, chunk: Chunk, owners: Owners) -> tuple[Chunk, Owners]:
        """Set apart what policy keeps from the bolts: it is filtered, or buried."""
        screened = screen(chunk, self._policy.screen)
        for place, error in screened.refused.items():
            self._failures.bury_owner(int(owners[place]), Failure("screen", error))
        if screened.skipped:
            self.tally.filtered += len(screened.skipped)
            self._reader.ack(owners[screened.skipped])
        return only(chunk, screened.kept), owners[screened.kept]

    def _emit(self, outcome: Outcome, owners: Owners, now: float) -> None:
        """Begin the trees of a chunk and deliver what came out of it."""
        final = {p: f for p, f in outcome.failures.items() if is_final(f.error)}
        for place, failure in outcome.failures.items():
            if place not in final:
                self._failures.retry(int(owners[place]), failure, now)
        roots = np.zeros(len(owners), np.uint64)
        edges = [self._emitter.edges_of(delivery, roots) for delivery in outcome.deliveries]
        buried = self._emitter.new_edges(len(final))
        for place, edge in zip(final, buried, strict=True):
            roots[place] ^= edge
        if len(final) == len(outcome.failures):
            trees = self._acker.begin(owners)
            alive: Any = slice(None)
        else:  # what waits for its retry has no tree
            alive = np.ones(len(owners), np.bool_)
            alive[[place for place in outcome.failures if place not in final]] = False
            trees = np.zeros(len(owners), np.int64)
            trees[alive] = self._acker.begin(owners[alive])
        for delivery, new_edges in zip(outcome.deliveries, edges, strict=True):
            self._emitter.deliver(delivery, trees, new_edges, now)
        self._acker.init(trees[alive], roots[alive])
        for (place, failure), edge in zip(final.items(), buried.tolist(), strict=True):
            self._failures.bury(int(trees[place]), edge, failure)

    # Step 6: time

    def _expire(self, now: float) -> None:
        if now < self._expire_due:
            return
        self._expire_due = now + min(_EXPIRE_EVERY_SECONDS, self._acker.tick_seconds / 4)
        self._complaints.tell()
        self._relay.advanced.forget_resolved()
        # A call of an earlier try may fail when its record is complete, or another process's.
        again = self._reader.comes_again
        self._runners.release([o for o in self._runners.holders() if not again(o)])
        if now >= self._spare_due:
            self._spare(now)
        self._acker.expire(now)

    def _spare(self, now: float) -> None:
        """Let no time pass for what waits: it is slow, not lost. Rarer the more that is."""
        reset = self._joints.reset_timeout
        count = 0
        for outlet in self._outlets.values():
            for trees in outlet.trees():
                reset(trees)
        for step, waiting in self._runners.waiting():
            reset(np.array(waiting, np.int64), tree_seconds(step))
            count += len(waiting)
        reset(np.array(self._letters.trees(), np.int64))
        self._spare_due = now + min(count * _SPARE_SECONDS, self._acker.tick_seconds / 2)
