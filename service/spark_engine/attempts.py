"""Attempts to run groups of ranges, from the tasks to the commit in every sink."""

from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import structlog

from partition.errors import (
    CorruptRecord,
    Fenced,
    KafkaError,
    KafkaUnavailable,
    OffsetOutOfRange,
    TopicMissing,
)
from partition.records import Partition, Position, later_epoch
from service.errors import ServiceError, TaskError
from service.observability.snapshot import ExecutorCounters
from service.pipeline.trees import OutcomeCounters
from service.spark_engine.cluster import Submissions, TaskCluster, TasksEnded, deal
from service.spark_engine.planner import RangeOwner
from service.spark_engine.range_buffer import RangeBuffer, RangeWork, again
from service.spark_engine.task import Reasons, Task, TaskDone, TaskFailed, TaskRange
from sinks.errors import SparkTimeout
from sinks.writer import BatchStaged, Done
from topology.errors import SinkError, SinkFailed, SinkFenced
from topology.monitoring import RECENT, RecentFailure
from transactions.groups import GroupMember, GroupPhase, TransactionGroup, TransactionGroups

log = structlog.get_logger()


@dataclass(slots=True, eq=False)
class Attempt:
    """One attempt to run a group of ranges, until every sink has committed it."""

    number: int  # of the group
    attempt: int
    members: tuple[GroupMember, ...]
    tasks: list[Task]
    works: dict[str, RangeWork]  # by sink step
    results: tuple[TaskDone, ...] = ()
    fenced: dict[str, str] = field(default_factory=dict)
    """Lines for which a sink has rejected the commit, and its message."""
    commits_under_way: int = 0

    def log_fields(self) -> dict[str, Any]:
        lines = ", ".join(f"{member.line.partition} {member.txid}" for member in self.members)
        return {"group": self.number, "attempt": self.attempt, "lines": lines}


class Attempts:
    """Runs groups of ranges on executors, and commits them in order.

    The owner thread calls everything, and nothing blocks: jobs and the sinks' threads report
    through the engine's queue. An attempt whose group is to run again is abandoned at once: its
    job is cancelled, and what it has staged is discarded, now or when it ends.
    """

    def __init__(
        self,
        groups: TransactionGroups,
        buffers: Mapping[str, RangeBuffer],
        submissions: Submissions,
        owner: RangeOwner,
        cluster: TaskCluster,
    ) -> None:
        self.groups = groups
        self.apart = ExecutorCounters()
        self.counters = OutcomeCounters()
        self.recent_failures: deque[RecentFailure] = deque(maxlen=RECENT)
        self.running: dict[tuple[int, int], Attempt] = {}
        """Attempts that executors run, by group and attempt."""
        self.processed: dict[int, Attempt] = {}
        """Attempts whose ranges are sealed and that are not committed yet, by group."""
        self._buffers = buffers
        self._submissions = submissions
        self._assignment = owner.assignment
        self._ends = owner.ends
        self._executors = cluster.executors
        self._folder = cluster.folder
        self._settings = cluster.settings
        self._leaderless: frozenset[Partition] = frozenset()
        self._leaving: dict[int, bool] = {}  # by index; True: attempts that are sealed end, too

    # Partitions leave

    def is_leaving(self, index: int) -> bool:
        return index in self._leaving

    def leave_out(self, index: int, *, at_once: bool) -> None:
        """Drop a partition from all groups; those that are sealed keep it unless `at_once`.

        A group that is being committed keeps it in any case, until that has ended.
        """
        self._leaving[index] = at_once or self._leaving.get(index, False)
        self.look()

    def became_unreachable(self, member: GroupMember, error: str, now: float) -> None:
        """Leave a partition of which nothing was heard out of new groups for a while."""
        partition = member.line.partition
        pause = round(self._ends.became_unreachable(partition, now), 3)
        self._note_error(error, now, retries=1)
        log.warning("range_silent", partition=str(partition), error=error, retry_in_seconds=pause)
        self.leave_out(member.place, at_once=False)

    def leaders_away(self, partitions: Collection[Partition], now: float) -> None:
        """Show in the figures which partitions the driver has not heard of for a while."""
        if self._leaderless != partitions and partitions:
            others = f" and {len(partitions) - 1} more" if len(partitions) > 1 else ""
            self._note_error(f"no answer from the leader of {min(partitions)}{others}", now)
        self._leaderless = frozenset(partitions)

    def look(self) -> None:
        """Drop partitions that can leave now, and abandon attempts that are of no use."""
        for index, at_once in list(self._leaving.items()):
            waits_for = {GroupPhase.COMMITTING} | ({GroupPhase.PROCESSED} if not at_once else set())
            with_it = [group for group in self.groups if group.has(index)]
            # Only the lowest is waited for: those after it may be what waits for this partition.
            if not with_it or with_it[0].phase not in waits_for:
                del self._leaving[index]
                self.groups.drop(index)
        for running in self.running.values():
            if not self._is_live(running):
                self._submissions.cancel(running.number, running.attempt)
        for processed in list(self.processed.values()):
            if not self._is_live(processed):
                del self.processed[processed.number]
                self._discard(processed)
        # Not before a group is done: one that is sealed may fail again, if a sink lost its files.
        is_heard = not self._ends.has_unreachable and not self._leaderless
        if is_heard and not any(group.failures for group in self.groups):
            self.apart.failing_since = None

    def _is_live(self, attempt: Attempt) -> bool:
        return self.groups.is_live(attempt.number, attempt.attempt)

    def _discard(self, attempt: Attempt) -> None:
        for work in attempt.works.values():
            self._buffers[work.sink].discard(work)
        attempt.results, attempt.works = (), {}

    # Attempts run

    def run(self, now: float) -> bool:
        """Run every group whose plan is stored; True if there was one.

        Raises SinkFailed, and any error that is no fault of a table or a folder.
        """
        moved = False
        while (group := self.groups.next_run(now)) is not None:
            moved = True
            try:
                begun = self._begin(group)
            except SinkFailed:
                raise
            except (OSError, SinkError) as error:  # the table, or the folder, may be away
                self._fail(group.number, group.attempt, error, now)
                continue
            self.running[begun.number, begun.attempt] = begun
            self._submissions.submit(begun.number, begun.attempt, begun.tasks)
            log.debug("range_group_runs", **begun.log_fields(), tasks=len(begun.tasks))
        return moved

    def _begin(self, group: TransactionGroup) -> Attempt:
        works = {name: each.begin(self._folder.path) for name, each in self._buffers.items()}
        stagers = {name: work.stager for name, work in works.items()}
        settings = replace(self._settings, references=self._folder.tables())
        ranges = [self._range_of(group, each) for each in group.members]
        patience = max(group.patience, *(each.patience for each in ranges))
        slots = deal(ranges, self._executors.slots)
        tasks = [Task(settings, tuple(its), stagers, patience) for its in slots]
        return Attempt(group.number, group.attempt, group.members, tasks, works)

    def _range_of(self, group: TransactionGroup, member: GroupMember) -> TaskRange:
        index, line, txid = member
        covers = line.transaction_of(txid).range
        return TaskRange(
            line.partition,
            line.position_of(txid),
            covers.end,
            frozenset(name for name in self._buffers if txid <= line.skips.get(name, 0)),
            {offset: dict(by) for offset, by in group.refused.get(index, {}).items()},
            covers.leader_epoch,
            self._ends.patience(line.partition),
        )

    def _ended(self, ended: TasksEnded, now: float) -> None:
        """Seal and stage the ranges of an attempt whose tasks have ended, or schedule another."""
        attempt = self.running.pop((ended.number, ended.attempt))
        failures = [each for each in ended.results if isinstance(each, TaskFailed)]
        attempt.results = tuple(each for each in ended.results if isinstance(each, TaskDone))
        for name, work in attempt.works.items():
            work.made = tuple(s for done in attempt.results for s in done.staged.get(name, ()))
        if self._is_live(attempt) and not failures and ended.error is None:
            self._seal(attempt)
            return
        self._discard(attempt)
        if self._is_live(attempt):
            self._give_up(attempt, failures, ended.error, now)

    def _give_up(
        self, attempt: Attempt, failures: list[TaskFailed], error: Exception | None, now: float
    ) -> None:
        """Schedule another attempt, without the partitions that are silent or cannot be read."""
        if isinstance(error, ServiceError):
            raise error
        for failure in failures:
            if failure.partition is None and not failure.silent:
                raise TaskError(failure.error_class, failure.error)
        silent = {partition: each.error for each in failures for partition in each.silent}
        if silent and not self._ends.available:  # the pauses of each would outlast the outage
            error = KafkaUnavailable("a task", next(iter(silent.values())))
        if error is not None:
            self._fail(attempt.number, attempt.attempt, error, now)
            silent = {
                member.line.partition: f"no answer from the leader of {member.line.partition}"
                for member in attempt.members
                if self._ends.is_unreachable(member.line.partition)
            }
        unreadable = {each.partition: each for each in failures if each.partition is not None}
        for member in attempt.members:
            partition = member.line.partition
            if partition in silent:
                self.became_unreachable(member, silent[partition], now)
            if partition in unreadable:
                self._recover(attempt, member, unreadable[partition])

    def _recover(self, attempt: Attempt, member: GroupMember, failure: TaskFailed) -> None:
        """Have a partition recovered that cannot be read on; the others go on without it."""
        index, line, txid = member
        begins = line.position_of(line.committed + 1)
        # What is sealed is committed before: the epoch of its records counts, too.
        epoch = later_epoch(begins.leader_epoch, line.position_of(txid).leader_epoch)
        ranges = (each for task in attempt.tasks for each in task.ranges)
        read_from = next(e.position for e in ranges if e.partition == line.partition)
        error = partition_error(
            line.partition, failure, read_from, replace(begins, leader_epoch=epoch)
        )
        self._assignment.fail(line.partition, error)
        self.leave_out(index, at_once=False)

    def _seal(self, attempt: Attempt) -> None:
        """Seal the ranges, and stage the rows.

        A log that did not give the records of a sealed range again, or was cut off, shows here.
        """
        reads = [each for done in attempt.results for each in done.ranges]
        self.groups.ran(attempt.number, attempt.attempt, reads)
        for member in attempt.members:
            differs = member.line.replay_error(log_moved=False)
            if differs is not None:
                self._assignment.halt(member.line.partition, differs)
                self.leave_out(member.place, at_once=True)
        self.look()
        if not self._is_live(attempt):
            self._discard(attempt)
            return
        self.processed[attempt.number] = attempt
        for member in attempt.members:
            self._ends.heard(member.line.partition)
        for name, work in attempt.works.items():
            shares = tuple(
                m.share(self._assignment.at(m.place).epoch, work.rows_of(str(m.line.partition)))
                for m in attempt.members
                if m.txid > m.line.skips.get(name, 0)
            )
            self._buffers[name].stage(work, shares)

    def _fail(self, number: int, attempt: int, error: Exception, now: float) -> None:
        group = self.groups.of(number)
        is_late = isinstance(error, SparkTimeout)
        if group is None or not self.groups.failed(number, attempt, now, took_too_long=is_late):
            return
        said = f"{type(error).__name__}: {error}"[:500]
        if is_late:
            said += "; raise [spark] job_deadline_seconds: the range stays as it is"
        self._note_error(said, now, retries=1)
        log.warning(
            "range_group_failed",
            group=number,
            attempt=attempt,
            error=said,
            retry_in_seconds=round(group.again_at - now, 3),
        )
        if is_late:
            log.info("range_group_given_longer", group=number, times=group.patience)
        self.look()

    def _note_error(self, error: str, now: float, retries: int = 0) -> None:
        self.apart.retries += retries
        self.apart.last_error = error
        if self.apart.failing_since is None:
            self.apart.failing_since = now

    # Sinks stage and commit

    def handle(self, done: TasksEnded | Done, now: float) -> None:
        """Raises TaskError if no other attempt would help, and other errors that end the run."""
        if isinstance(done, TasksEnded):
            self._ended(done, now)
        elif isinstance(done, BatchStaged):
            work = self._buffers[done.sink].staged(done)
            if work is None:
                return
            attempt = self._attempt_of(work)
            if done.error is not None:
                self._fail(attempt.number, attempt.attempt, done.error, now)
            elif done.staged is not None and done.staged.rejected:
                self._reject(attempt, work, done.staged.rejected, now)
        else:
            attempt = self._attempt_of(self._buffers[done.sink].committed(done))
            if isinstance(done.error, SinkFenced):
                attempt.fenced[done.error.line] = str(done.error)
            attempt.commits_under_way -= 1
            self._end_if_committed(attempt, now)

    def _attempt_of(self, work: RangeWork) -> Attempt:
        return next(e for e in self.processed.values() if work in e.works.values())

    def _reject(
        self, attempt: Attempt, work: RangeWork, rejected: Mapping[int, str], now: float
    ) -> None:
        """Run a group again without the rows that a sink rejects; its tasks send the letters."""
        indexes = {str(member.line.partition): member.place for member in attempt.members}
        found: dict[tuple[int, int], dict[int, str]] = {}
        for row, reason in rejected.items():
            line, offset, which = work.sources[row]
            found.setdefault((indexes[line], offset), {})[which] = reason
        group = self.groups.of(attempt.number)
        known = {} if group is None else group.refused
        refused: dict[int, dict[int, dict[str, Reasons]]] = {}
        for (index, offset), reasons in found.items():
            before = known.get(index, {}).get(offset, {}).get(work.sink)
            refused.setdefault(index, {})[offset] = {work.sink: again(before, reasons)}
        self._buffers[work.sink].rows_rejected += len(rejected)
        self.groups.refuse(attempt.number, refused)
        self.groups.failed(attempt.number, attempt.attempt, now)
        fields = attempt.log_fields()
        log.info("range_rows_refused", **fields, sink=work.sink, rows=len(rejected))
        self.look()

    def commit_next(self, now: float) -> bool:
        """Commit the lowest group, if every sink has staged it and its seals are stored."""
        lowest = next(iter(self.groups), None)
        ready = None if lowest is None else self.processed.get(lowest.number)
        if ready is None or not all(work.is_staged for work in ready.works.values()):
            return False
        if self.groups.next_commit() is None:
            return False
        for name, work in ready.works.items():
            if not work.is_done:
                ready.commits_under_way += 1
                self._buffers[name].commit(work)
        self._end_if_committed(ready, now)
        return True

    def _end_if_committed(self, attempt: Attempt, now: float) -> None:
        if attempt.commits_under_way:
            return
        if not all(work.is_done for work in attempt.works.values()):
            self._go_on_without_fenced(attempt, now)
            return
        del self.processed[attempt.number]
        for member, covers in self.groups.done(attempt.number):
            # A partition that was lost during the commit is committed, too, but not ours.
            manager = self._assignment.at(member.place).manager
            if manager is not None and manager.delivery is member.line:
                self._assignment.passed(member.place, covers)
        for done in attempt.results:
            self.counters.add(done.counters)
            self.recent_failures += (replace(each, at=now) for each in done.recent_failures)
            self.apart.retried += done.retried
            self.apart.dead_letters_refused += done.dead_letters_refused
        log.debug("range_group_committed", **attempt.log_fields())

    def _go_on_without_fenced(self, attempt: Attempt, now: float) -> None:
        """Run a group again without the lines that have a later owner, as a sink has found."""
        self.groups.not_done(attempt.number)
        for name, work in attempt.works.items():
            for member in attempt.members if work.is_done else ():
                member.line.is_in(name, member.txid)
        for member in attempt.members:
            partition = member.line.partition
            found = attempt.fenced.get(str(partition))
            if found is not None:
                fenced = Fenced(partition, found)
                self._assignment.refuse(partition, fenced, index=member.place)
                self.leave_out(member.place, at_once=True)
        self.groups.failed(attempt.number, attempt.attempt, now)  # if none was its member
        self.look()


def partition_error(
    partition: Partition, failure: TaskFailed, position: Position, begins: Position
) -> KafkaError:
    """Return the error of a partition whose range a task could not read from `position`.

    `begins` is where its lowest open range does. A log that was cut off behind that place has
    good records there still: they are to be read before the cut.
    """
    if failure.error_class == TopicMissing.__name__:
        return TopicMissing(partition.topic)
    if failure.error_class == CorruptRecord.__name__:
        return CorruptRecord(partition, position.offset, failure.error)
    cut, read_in, known = failure.diverged_at, position.leader_epoch, begins.leader_epoch
    if cut is not None and cut > begins.offset:
        cut = None
    if read_in is not None and known is not None and read_in < known:
        cut = None  # what was read up to `begins` meanwhile was written behind the cut
    return OffsetOutOfRange(partition, position.offset, failure.error, cut)
