"""The pipeline: the file to read first.

`Pipeline.step` is one turn of the owner thread's loop; `build_pipeline` makes its parts.
"""

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pyarrow as pa

from acker.acker import Trees
from partition.assigned_partition import Assigned, Lost, PartitionChange, Revoked
from partition.consumer import Consumer
from partition.records import Chunk, RecordIds, partition_index_of
from service.observability.snapshot import EngineStatistics, ExecutorCounters
from service.pipeline.backpressure import Backpressure
from service.pipeline.committers import SinkCommitter
from service.pipeline.context import RunContext
from service.pipeline.dead_letter_sender import DeadLetterSender
from service.pipeline.failures import FailureHandler
from service.pipeline.router import Router
from service.pipeline.sink_buffer import SinkBuffer
from service.pipeline.trees import TreeTracker
from topology.monitoring import distributions_of
from topology.workers.key_queue import Answers, Ticked

_IDLE_SECONDS = 0.02
_NET_CONTAINERS = 500_000


class Pipeline:
    """Moves records from the consumer through the bolts to the sinks, and acks them.

    The thread that calls `step` owns all parts, so none has a lock. Bolts and sinks hand their
    results back through one queue. `build_pipeline` makes it.
    """

    def __init__(
        self,
        consumer: Consumer,
        router: Router,
        trees: TreeTracker,
        committer: SinkCommitter,
        failures: FailureHandler,
        dead_letters: DeadLetterSender,
        backpressure: Backpressure,
        context: RunContext,
    ) -> None:
        self.consumer = consumer
        self.router = router
        self.trees = trees
        self.committer = committer
        self.failures = failures
        self.dead_letters = dead_letters
        self.backpressure = backpressure
        self.context = context
        self.acker = trees.acker
        self.runners = router.runners
        self.results = context.results
        self.counters = committer.counters
        self.outlets: Sequence[SinkBuffer] = list(committer.buffers.values())

    def open(self) -> None:
        """Open the bolts and start the threads. The sinks and the consumer are open already."""
        pa.array([0])  # its first conversion imports pandas, 0.2 s: not in the first chunk
        self.runners.open()
        try:
            self.context.life.open()
        except BaseException:
            self.runners.close()
            raise
        self.router.executor.prefetcher.open()
        for outlet in self.outlets:
            outlet.writer.start()
        self.router.start(self.context.clock())

    def step(self, *, fetch: bool = True, flush: bool = False, drain: bool = False) -> bool:
        """Run one turn; return whether anything moved. Blocks for at most 20 ms, when idle.

        fetch=False: the run ends; only what is stored as read or planned is emitted. flush: no
        batch waits to be full. drain: bolts are asked for the tuples they hold. Raises permanent
        errors: SinkFailed, partition.Fenced.
        """
        now = self.context.clock()
        # 1. Partitions found, claimed, recovered, revoked, lost: their futures are polled.
        self.poll(now, opens=fetch)
        # 2. Results of other threads.
        moved = False
        for result in self.results.take_all():
            moved = True
            if isinstance(result, Answers | Ticked):  # async and blocking bolts
                self.router.handle(result, now)  # runs the bolts behind, acks the inputs
            else:  # the sinks' writer threads
                for row in self.committer.handle(result):  # acks durable rows, returns refused ones
                    self.failures.reject_row(row)
        # 3. Dead letters that the broker has acknowledged.
        trees, edges = self.dead_letters.poll(now)
        self.trees.ack(trees, edges)
        moved |= len(trees) > 0
        # 4. Trees that resolved: offsets are acked, failed records wait for their retry.
        moved |= self._resolve(now)
        # 5. Ticks; timeouts of calls, and of tuples that bolts hold.
        moved |= self.router.tick(now, drain=drain, leaving=self.consumer.leaving)
        # 6. Batches or transactions that are due go to the writer threads.
        moved |= self.committer.step(now, flush=flush, plan=fetch)
        # 7. One chunk: due retries first, then new records; partitions take turns.
        held = self.backpressure.update(now)  # topics whose records lead to something full
        self.consumer.hold_back(held.topics, held.silent)
        may_emit = not held.everything and (fetch or self.consumer.owes_emission)
        self._prefetch(now, fetch=fetch, may_emit=may_emit)
        chunk = self.consumer.next_chunk(now) if may_emit else None
        if chunk is None and fetch and may_emit:
            seconds = 0.0 if moved else self._idle_seconds()
            if self.consumer.fetch(now, seconds):
                moved = True
                chunk = self.consumer.next_chunk(now)
        elif chunk is None and not moved:
            self.results.wait(_IDLE_SECONDS)
        if chunk is not None:
            self._run(*chunk, now)
        # 8. Store offsets that moved, one write at a time; expire trees that are too old.
        self._resolve(now)
        self.consumer.commit(now)
        self.trees.expire(now, self._waiting_trees)  # what waits is slow, not lost
        return moved or chunk is not None

    def _run(self, chunk: Chunk, record_ids: RecordIds, now: float) -> None:
        for observer in self.context.observers:
            observer.chunk_emitted(chunk, record_ids)
        if chunk.unusual:  # null or oversized values; retries
            chunk, record_ids = self.failures.screen(chunk, record_ids)
        if not len(chunk):
            return
        outcome = self.router.run(chunk, record_ids, now)
        if outcome.failures:
            failed = [(int(record_ids[index]), each) for index, each in outcome.failures.items()]
            self.failures.fail_records(failed, now)

    def _resolve(self, now: float) -> bool:
        resolved = self.trees.drain()
        if len(resolved.acked):
            self.router.release_keys(resolved.acked)
            self.committer.resolved(resolved.acked, resolved.flags)
        if resolved.failed:  # expired ones too: TimeoutError
            self.failures.fail_records(resolved.failed, now)
        return bool(resolved)

    def _prefetch(self, now: float, *, fetch: bool, may_emit: bool) -> None:
        """Begin the concurrent bolts of chunks that come next, but not of what is screened."""
        if not fetch:
            self.router.prefetch(())  # the run ends: nothing comes next
        elif may_emit and self.router.executor.prefetcher.is_used and self.consumer.can_prefetch:
            while self.consumer.waits_little and self.consumer.fetch(now, 0):
                pass
            self.router.prefetch([each for each in self.consumer.upcoming() if not each.unusual])

    def _idle_seconds(self) -> float:
        if not self.results.is_empty:
            return 0.0
        is_busy = self.acker.in_flight > 0 or self.dead_letters.pending > 0
        return _IDLE_SECONDS / 4 if is_busy else _IDLE_SECONDS

    def _waiting_trees(self) -> Iterator[tuple[Trees, float | None]]:
        for trees in self.committer.waiting_trees():
            yield trees, None
        yield from self.router.waiting_trees()
        yield self.dead_letters.trees(), None

    @property
    def is_idle(self) -> bool:
        """Whether no record is on its way. Some may wait for a retry, their own or another's."""
        if not self.committer.is_idle or self.consumer.owes_emission:
            return False
        return self.acker.in_flight == self.router.num_blocked()

    def statistics(self) -> EngineStatistics:
        return EngineStatistics.of(
            self.counters,
            (outlet.statistics() for outlet in self.outlets),
            ExecutorCounters(),
            acker=self.acker.statistics(),
            held_back=bool(self.backpressure.held_sources),
            held_back_seconds=dict(self.backpressure.seconds),
            runners=self.runners.statistics(),
            failed_ticks=dict(self.router.failed_ticks),
            call_times=distributions_of(self.router.executor.times) | self.runners.call_times(),
            recent_failures=self.context.failure_log.recent(),
        )

    def poll(self, now: float, *, opens: bool) -> None:
        for change in self.consumer.poll(now, opens=opens):
            self._partition_changed(change)

    def _partition_changed(self, change: PartitionChange) -> None:
        """Pass a change on; waiting calls of a revoked partition begin once it is claimed again."""
        match change:
            case Assigned(partition, index):
                self.context.life.partition_assigned(partition.topic, partition.number)
                self.runners.resume(index)
            case Revoked(partition, index):
                self.runners.suspend(index)
                self.context.life.partition_revoked(partition.topic, partition.number)
            case Lost(_, index):
                self._drop(index)

    def _drop(self, index: int) -> None:
        """Drop what is in flight of a partition, without an outcome: its next owner begins anew."""
        orphans = self.trees.discard(lambda ids: partition_index_of(ids) == index)
        self.runners.drop(lambda call: call.partition == index or call.record_id in orphans)
        self.runners.resume(index)
        self.committer.partition_lost(index)
        for observer in self.context.observers:
            observer.partition_lost(index)

    def close(self, timeout_seconds: float) -> bool:
        """Stop the threads and close the bolts; False if a thread did not end in time."""
        self.runners.stop(timeout_seconds)
        ended = [outlet.writer.stop(timeout_seconds) for outlet in self.outlets]
        for change in self.consumer.release():
            self._partition_changed(change)
        self.context.failure_log.log_due(all_of_it=True)
        ended.append(self.router.executor.prefetcher.close(timeout_seconds))
        try:
            self.context.life.close(timeout_seconds)
        finally:
            self.runners.close(timeout_seconds)
        return all(ended)

    def settle(self) -> None:
        """Wait for bolts that run ahead on other threads, before what they look up changes."""
        self.router.executor.prefetcher.wait_idle()


@contextmanager
def rare_collections() -> Iterator[None]:
    """Let the collector run after half a million more containers than before, not 700.

    Without cycles all of them are freed when their batch is written, and the default would walk
    every record in flight over and over: measured, 0.7 of 2.3 µs CPU per record.
    """
    before, is_frozen = gc.get_threshold(), gc.get_freeze_count() > 0
    if not is_frozen:
        gc.freeze()  # modules, classes and look-up tables need no second look
    gc.set_threshold(_NET_CONTAINERS, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
        if not is_frozen:
            gc.unfreeze()
