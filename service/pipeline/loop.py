"""The pipeline: the page to read first.

`Pipeline.step` is one turn of the owner thread's loop; `service.wiring` makes what it uses.
No step blocks, but the fetch, for some milliseconds, when there is nothing else to do, and
the first reading of a topic, for a second at most.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, TypeAlias

import pyarrow as pa

from acker.acker import Trees
from partition.assignment import Assigned, Lost, PartitionChange, Revoked
from partition.consumer import Consumer
from partition.records import Chunk, RecordIds, partition_indexes_of
from service.engine import Apart, EngineStatistics
from service.pipeline.backpressure import Backpressure
from service.pipeline.committers import BatchCommitter, TransactionCommitter
from service.pipeline.context import RunContext
from service.pipeline.dead_letters import DeadLetterSender
from service.pipeline.failures import FailureHandler
from service.pipeline.router import Router
from service.pipeline.sink_buffer import BatchBuffer, TransactionBuffer
from service.pipeline.trees import TreeTracker
from topology.running.call import Answers, TickFailed

if TYPE_CHECKING:  # only a task of the spark engine has it
    from service.spark_engine.staging import Staging

_IDLE_SECONDS = 0.02

Committer: TypeAlias = "BatchCommitter | TransactionCommitter | Staging"


class Pipeline:
    """Moves records from the reader through the bolts to the sinks, and acks them.

    The thread that calls `step` owns all of it, without a lock. Bolts and sinks hand their
    results back through one queue. `service.wiring` makes it.
    """

    def __init__(
        self,
        consumer: Consumer,
        router: Router,
        trees: TreeTracker,
        committer: Committer,
        failures: FailureHandler,
        dead_letters: DeadLetterSender,
        backpressure: Backpressure,
        context: RunContext,
    ) -> None:
        self.consumer = consumer
        self.router = router
        self.committer = committer
        self.dead_letters = dead_letters
        self.backpressure = backpressure
        """What holds new records back."""
        self.acker = trees.acker
        """For its figures."""
        self.runners = router.runners
        """The bolts whose calls end later, for figures."""
        self.results = context.results
        self.tally = committer.tally
        self._trees = trees
        self._failures = failures
        self._context = context
        self._clock = context.clock
        self._life = context.life
        self._on = context.on

    def open(self) -> None:
        """Open the bolts and start the threads. The sinks and the reader are open already."""
        pa.array([0])  # the first conversion looks for pandas, 0.2 s: not in the first chunk
        self.runners.open()
        try:
            self._life.open()
        except BaseException:
            self.runners.close()
            raise
        self.router.executor.open()
        for outlet in self.outlets:
            outlet.start()
        self.router.start(self._clock())

    def step(  # noqa: C901 - one turn, in its order
        self, *, read: bool = True, flush: bool = False, drain: bool = False
    ) -> bool:
        """One turn of the loop; True if anything moved.

        Without `read` no new record is emitted and none is fetched; with `flush` batches
        go to their writers before they are due; with `drain` advanced bolts are asked for what
        they keep, else only those that keep something of a partition that leaves. Raises
        SinkFailed, partition.Fenced and whatever else cannot heal.
        """
        now = self._clock()
        # 1. Partitions that were found, claimed, recovered, revoked, lost.
        self.poll(now, opens=read)
        # 2. Results of other threads.
        moved = False
        for result in self.results.take_all():
            moved = True
            if isinstance(result, Answers | TickFailed):  # of async and blocking bolts
                self.router.handle(result, now)  # runs the bolts behind, acks the inputs
                continue
            for row in self.committer.handle(result):  # acks durable rows, gives refused ones
                self._failures.reject_row(row)
        # 3. Dead letters that the broker has.
        trees, edges = self.dead_letters.poll(now)
        self._trees.ack(trees, edges)
        moved |= len(trees) > 0
        # 4. Trees that resolved: offsets are acked, failed records wait for their retry.
        moved |= self._resolve(now)
        # 5. Ticks; time-outs of calls, and of tuples that bolts hold.
        moved |= self.router.tick(now, drain=drain, leaving=self.consumer.leaving)
        # 6. Batches or transactions that are due go to the writers' threads.
        moved |= self.committer.step(now, flush=flush, plan=read)
        if not read:
            self.router.prefetch(())  # the run ends: nothing comes next
        # 7. One chunk: due retries first, then new records; partitions take turns.
        chunk = None
        may_read = self._may_read(now, read=read)
        if may_read:
            if read and self.router.executor.prefetches:
                self._prefetch(now)
            chunk = self.consumer.next(now)
        if chunk is None and may_read and read:
            seconds = 0.0 if moved else self._idle_seconds()
            if self.consumer.fetch(now, seconds):
                moved = True
                # A frozen process goes on after a wait: first it is asked what is ours yet.
                if not seconds or not self.consumer.is_shared:
                    chunk = self.consumer.next(now)
        elif chunk is None and not moved:
            self.results.wait(_IDLE_SECONDS)
        if chunk is not None:
            moved = True
            self._run(*chunk, now)
        # 8. Offsets that moved are stored, one write at a time; trees that are too old expire.
        self._resolve(now)
        self.consumer.commit(now)
        self._trees.expire(now, self._waiting_trees)
        return moved

    def _run(self, chunk: Chunk, record_ids: RecordIds, now: float) -> None:
        """Run one chunk through the bolts; each record that does not fail gets a tree."""
        for notify in self._on.chunk_emitted:
            notify(chunk, record_ids)
        if chunk.unusual:  # null or oversized values; retries
            chunk, record_ids = self._failures.screen(chunk, record_ids)
        if not len(chunk):
            return
        outcome = self.router.run(chunk, record_ids, now)
        if outcome.failures:
            failed = [(int(record_ids[place]), each) for place, each in outcome.failures.items()]
            self._failures.fail_records(failed, now)

    def _prefetch(self, now: float) -> None:
        """Have some chunks wait, and begin their concurrent bolts, but what is to be screened."""
        if not self.consumer.foresees:
            return
        while self.consumer.waits_little and self.consumer.fetch(now, 0):
            pass
        self.router.prefetch([each for each in self.consumer.upcoming() if not each.unusual])

    def _idle_seconds(self) -> float:
        """How many seconds there are to wait for records."""
        if not self.results.is_empty:
            return 0.0
        is_busy = self.acker.in_flight > 0 or self.dead_letters.pending > 0
        return _IDLE_SECONDS / 4 if is_busy else _IDLE_SECONDS

    def _may_read(self, now: float, *, read: bool) -> bool:
        pressure = self.backpressure
        pressure.look(now, letters=self.dead_letters.pending, trees=self.acker.in_flight)
        if pressure.silences_all:
            return False
        held, silent = pressure.held_sources, pressure.silent_sources
        topics = self.consumer.topics if held else ()
        self.consumer.hold_back(
            pressure.topics_of(held, topics), pressure.topics_of(silent, topics)
        )
        return read or self.consumer.has_stored_waiting

    @property
    def is_idle(self) -> bool:
        """Whether no record is on its way; some may wait for their retry.

        So may those that come after such a one in the order of a key or a partition.
        """
        if not self.committer.is_idle or self.consumer.has_stored_waiting:
            return False
        return self.acker.in_flight == self.router.num_blocked()

    def _waiting_trees(self) -> Iterator[tuple[Trees, float | None]]:
        """Give the trees of what waits for a sink, a worker, or the dead letters' broker."""
        for trees in self.committer.waiting_trees():
            yield trees, None
        yield from self.router.waiting_trees()
        yield self.dead_letters.trees(), None

    @property
    def has_last(self) -> bool:
        """Whether every record below the goals is emitted."""
        return self.consumer.has_emitted_goals

    @property
    def outlets(self) -> "Sequence[BatchBuffer | TransactionBuffer]":
        """The sinks' ends, for figures and health."""
        return self.committer.outlets

    def statistics(self) -> EngineStatistics:
        """The figures of this moment."""
        return EngineStatistics.of(
            self.tally,
            (outlet.statistics() for outlet in self.outlets),
            Apart(),
            acker=self.acker.statistics(),
            held_back=self.backpressure.holds_any,
            held_back_seconds=dict(self.backpressure.seconds),
            runners=self.runners.figures(),
            failed_ticks=dict(self.router.failed_ticks),
            call_times=self.router.executor.times.figures() | self.runners.call_times(),
            recent_failures=self._context.complaints.recent(),
        )

    def poll(self, now: float, *, opens: bool) -> None:
        """Look at the partitions; tell hooks and bolts of those that came and went.

        Without `opens` no further one is opened. Raises what hooks raise.
        """
        for change in self.consumer.poll(now, opens=opens):
            self._partition_changed(change)
        for index in self.consumer.given_up(now):
            if not self._names_records_of(index):
                self.consumer.forget(index)

    def _partition_changed(self, change: PartitionChange) -> None:
        """Tell who has to know.

        What waits of a partition that is revoked is not begun, as it may be another's; if it is
        claimed again that goes on, its retries come, and until then the order is kept.
        """
        match change:
            case Assigned(partition, index):
                self._life.partition_assigned(partition.topic, partition.number)
                self.runners.resume(index)
            case Revoked(partition, index):
                self.runners.suspend(index)
                self._life.partition_revoked(partition.topic, partition.number)
            case Lost(_, index):
                self._drop(index)

    def _drop(self, index: int) -> None:
        """Let go of what is in flight of a partition: whoever has it next begins anew.

        Its trees come to nothing, its records hold no key, and what waits of them is not begun.
        """
        orphans = self._trees.discard(lambda record_ids: partition_indexes_of(record_ids) == index)
        self.runners.drop(lambda call: call.partition == index or call.record_id in orphans)
        self.runners.resume(index)
        self.committer.partition_lost(index)
        for notify in self._on.partition_lost:
            notify(index)

    def _names_records_of(self, index: int) -> bool:
        """Whether anything is left that names a record of a partition.

        Rows at a sink, dead letters, and calls without an order name their trees only, which
        `_drop` has let go of.
        """
        return (
            self.acker.holds(lambda record_ids: partition_indexes_of(record_ids) == index)
            or self.runners.holds(index)
            or self.router.advanced.holds(index)
            or self.committer.holds(index)
        )

    def close(self, timeout_seconds: float) -> bool:
        """Stop the threads and close the bolts; False if a thread did not end in time."""
        self.runners.stop(timeout_seconds)
        ended = [outlet.stop(timeout_seconds) for outlet in self.outlets]
        for change in self.consumer.release():
            self._partition_changed(change)
        self._context.complaints.tell(all_of_it=True)
        ended.append(self.router.executor.close(timeout_seconds))
        try:
            self._life.close(timeout_seconds)
        finally:
            self.runners.close(timeout_seconds)
        return all(ended)

    def settle(self) -> None:
        """Let no bolt be at work on another thread's chunk: what bolts look up is to change."""
        self.router.executor.wait_idle()

    def _resolve(self, now: float) -> bool:
        resolved = self._trees.drain()
        if len(resolved.acked):
            self.router.release_keys(resolved.acked)
            self.committer.resolved(resolved.acked, resolved.flags)
        if resolved.failed:
            self._failures.fail_records(resolved.failed, now)
        return bool(resolved)
