"""The spark engine: this process plans ranges and commits them, executors process them.

One turn of the owner thread's loop:

1. partitions that are opened, mended or halted;
2. results of tries, and what the sinks' threads have done;
3. what the logs have come to is planned: a range of each partition, together a group;
4. groups whose plan is stored are run;
5. the lowest group, if it is read, sealed and staged, is committed in every sink;
6. what was planned, sealed and done is stored.

Nothing blocks, but for a moment when there is nothing else to do.
"""

import random
import time
from collections.abc import Callable, Mapping, Sequence
from typing import cast

from partition.assigned_partition import Assigned, Lost, PartitionChange, Revoked
from partition.errors import OffsetOutOfRange
from service.failpoints import nowhere
from service.pipeline.context import ResultQueue
from service.pipeline.dead_letter_sender import DeadLetterSender
from service.pipeline.trees import OutcomeCounters
from service.snapshot import EngineStatistics
from service.spark_engine.attempts import Attempts
from service.spark_engine.cluster import Executors, SharedFolder, Submissions, TasksEnded
from service.spark_engine.planner import RangePlans, Rates
from service.spark_engine.range_buffer import RangeBuffer
from service.spark_engine.range_owner import RangeOwner
from service.spark_engine.task import TaskSettings
from topology.topology import Topology
from topology.workers.lifecycle import EventLoop, Lifecycle
from transactions.groups import (
    GroupMember,
    GroupPhase,
    RangePlanner,
    RangePolicy,
    TransactionGroups,
)
from transactions.partition_transactions import PartitionTransactions

_IDLE_SECONDS = 0.02
_STORING_SECONDS = 0.003  # how soon it is noticed that something is stored


class SparkEngine:
    """Plans, runs and commits groups of ranges: what `Pipeline` is to the local engine.

    The thread that calls `step` owns all of it. Attempts and sinks report through one queue.
    """

    def __init__(
        self,
        topology: Topology,
        owner: RangeOwner,
        letters: DeadLetterSender,
        buffers: Sequence[RangeBuffer],
        results: ResultQueue,
        executors: Executors,
        folder: SharedFolder,
        settings: TaskSettings,
        *,
        ranges: RangePolicy,
        clock: Callable[[], float] = time.monotonic,
        rng: random.Random | None = None,
        at: Callable[[str], object] = nowhere,
    ) -> None:
        """`buffers` report to `results`.

        `at` is called at the points where a test may end the process.
        """
        self.consumer = owner
        self.dead_letters = letters
        self.outlets = buffers
        self._assignment = owner.assignment
        self._ends = owner.ends
        self._folder = folder
        self._clock = clock
        self._results = results  # of TasksEnded, WriterEvent
        self._submissions = Submissions(executors, results.put)
        groups = TransactionGroups(ranges.max_active, rng)
        by_name = {buffer.name: buffer for buffer in buffers}
        self._attempts = Attempts(groups, by_name, self._submissions, owner, settings, folder, at)
        rates = Rates(topology.source_of, ranges.seconds)
        self._plans = RangePlans(groups, owner.ends, RangePlanner(ranges), rates)
        self._life = Lifecycle((), topology.listeners, EventLoop())  # bolts live on executors
        self._lines: dict[int, PartitionTransactions] = {}

    def open(self) -> None:
        """Start Spark and the threads, and tell the hooks. Sinks and reader are open already.

        Raises SinkFailed, and what starting Spark raises.
        """
        self._folder.open()
        self._submissions.open()
        self._life.open()
        for outlet in self.outlets:
            outlet.writer.start()

    def step(self, *, fetch: bool = True, flush: bool = False, drain: bool = False) -> bool:
        """Run one turn of the loop; True if anything moved.

        Without `fetch` nothing is planned or run; with `flush` nothing waits for more to come.
        Raises TaskError, SinkFailed, and other errors that cannot heal.
        """
        del drain  # bolts keep nothing from one task to the next
        now = self._clock()
        self.poll(now, opens=fetch)
        moved = self._take_results(now)
        self.dead_letters.poll(now)
        lines = self._look()
        if fetch:
            self._poll_ends(now, lines)
            self._attempts.leaders_away(self._ends.leaderless, now)
            if not self._assignment.is_paused:
                is_settled = self._assignment.is_settled
                lines = self._readable(now, lines)
                moved |= self._plans.plan(now, lines, is_settled=is_settled, flush=flush)
            moved |= self._attempts.run(now)
        moved |= self._attempts.commit_next(now)
        if not moved:
            self._wait()
        self.consumer.commit(now)
        return moved

    @property
    def counters(self) -> OutcomeCounters:
        """How records were resolved whose transactions are committed."""
        return self._attempts.counters

    def statistics(self) -> EngineStatistics:
        """The figures of this moment: no record is in flight here, and no bolt is called."""
        sinks = (outlet.statistics() for outlet in self.outlets)
        return EngineStatistics.of(self.counters, sinks, self._attempts.apart)

    @property
    def is_idle(self) -> bool:
        """Whether no group is run or committed; what is only planned is run after a restart."""
        return all(group.phase is GroupPhase.PLANNED for group in self._attempts.groups)

    @property
    def has_last(self) -> bool:
        """Whether all partitions are open: then what was there at the start is there to plan."""
        return self._assignment.is_settled

    def settle(self) -> None:
        """Do nothing: tasks have tables of their own."""

    def poll(self, now: float, *, opens: bool) -> None:
        """Look at the partitions, and tell hooks and groups of those that came and went."""
        for change in self._assignment.poll(now, opens=opens):
            self._partition_changed(change)
        for index in self._assignment.given_up(now):
            if not self._attempts.holds(index):
                self._assignment.forget(index)

    def _partition_changed(self, change: PartitionChange) -> None:
        """Tell the hooks. One that is lost or halted is left out of its groups."""
        match change:
            case Assigned(partition):
                self._life.partition_assigned(partition.topic, partition.number)
            case Revoked(partition, index, error):
                if error is not None:
                    self._attempts.leave_out(index, at_once=True)
                self._life.partition_revoked(partition.topic, partition.number)
            case Lost(_, index):
                self._attempts.leave_out(index, at_once=True)
                self._lines.pop(index, None)

    def close(self, timeout_seconds: float) -> bool:
        """Stop what runs, the threads, and the hooks; False if a thread did not end in time."""
        deadline = time.monotonic() + timeout_seconds
        ended = [self._submissions.stop(timeout_seconds)]
        ended += [outlet.writer.stop(deadline - time.monotonic()) for outlet in self.outlets]
        for change in self._assignment.release():
            self._partition_changed(change)
        self._folder.close()
        self._life.close(max(0.0, deadline - time.monotonic()))
        return all(ended)

    def _look(self) -> dict[int, PartitionTransactions]:
        """The lines, by partition index, of partitions of which more may be read."""
        steady: dict[int, PartitionTransactions] = {}
        for index, manager in self._assignment.owned():
            line = cast("PartitionTransactions", manager.delivery)
            if self._assignment.at(index).is_steady:
                steady[index] = line
            if self._lines.get(index) is not line:
                if index in self._lines:  # its log goes on elsewhere
                    self._attempts.leave_out(index, at_once=True)
                self._lines[index] = line
            elif index not in steady:  # its log may: what is planned of it may be dropped any time
                self._attempts.leave_out(index, at_once=False)
        self._attempts.silences.keep(steady)
        self._attempts.look()
        return {i: line for i, line in steady.items() if not self._attempts.is_leaving(i)}

    def _readable(
        self, now: float, lines: Mapping[int, PartitionTransactions]
    ) -> dict[int, PartitionTransactions]:
        """Those of the lines whose partitions can be read now, as far as is known."""
        silences, ends = self._attempts.silences, self._ends
        return {
            index: line
            for index, line in lines.items()
            if not silences.is_out(index, now, is_answered=not ends.is_silent(line.partition))
        }

    def _poll_ends(self, now: float, lines: Mapping[int, PartitionTransactions]) -> None:
        if not self._ends.poll(now, [line.partition for line in lines.values()]):
            return
        for index, line in lines.items():
            end = self._ends.end_of(line.partition)
            trouble = self._ends.trouble(now, line.partition, line.planned_to)
            if isinstance(trouble, OffsetOutOfRange) and self._asks_a_task(index, line):
                continue
            if trouble is not None:
                self._assignment.fail(line.partition, trouble)
                self._attempts.leave_out(index, at_once=False)
            elif end is not None and end.offset >= line.planned_to:
                self._assignment.log_end(self._assignment.at(index), end.offset, is_read=False)

    def _asks_a_task(self, index: int, line: PartitionTransactions) -> bool:
        """Ask where a log was cut off that ends before what was planned; False: nobody knows.

        It may have been cut off lower, and written anew, unread, up to its end. The broker tells
        only a reader under the epoch of the last record, so a range is planned where one begins.
        """
        manager = self._assignment.at(index).manager
        if manager is None or manager.position.leader_epoch is None:
            return False
        groups = self._attempts.groups
        if line.may_begin and not manager.open_transactions and groups.may_plan:
            groups.plan([GroupMember(index, line, line.begin(line.planned_to + 1).txid)])
        return True

    def _take_results(self, now: float) -> bool:
        moved = False
        for result in self._results.take_all():
            moved = True
            if isinstance(result, TasksEnded):
                self._attempts.ended(result, now)
            else:
                self._attempts.handle(result, now)
        return moved

    def _wait(self) -> None:
        """Wait for a result; the next turn begins with it."""
        is_storing = any(m.line.is_due for group in self._attempts.groups for m in group.members)
        seconds = _STORING_SECONDS if is_storing else _IDLE_SECONDS
        self._results.wait(seconds)
