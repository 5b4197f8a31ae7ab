"""A world's executors: tasks that read logs late, end in vain, run twice, or outlive a driver."""

import random
from dataclasses import dataclass, field

import numpy as np

from partition.errors import CorruptRecord, OffsetOutOfRange, TopicMissing
from partition.records import Partition
from service.pipeline.trees import OutcomeCounters
from service.spark_engine.cluster import TasksEnded
from service.spark_engine.task import Task, TaskDone, TaskFailed
from tests.simulation.kafka import SimRecord
from tests.simulation.spooled import SpooledRun, spool_all
from topology.sink import Share, Staged
from transactions.transaction import RangeDigest, RangeRead

_BAD = 30  # one of so many records gets a letter in place of its rows


@dataclass(slots=True, eq=False)
class TaskRows:
    """What one run of a range has staged for one table."""

    run: "RangeRun"
    table: str
    num_rows: int
    is_discarded: bool = False
    is_landed: bool = False


@dataclass(slots=True, eq=False)
class RangeRun:
    """One run of one range: its records as the log had them then, and under which attempt."""

    life: object
    partition: Partition
    first: int
    end: int
    attempt: int  # of the transaction, as it stood in the node
    records: list[SimRecord]
    number: int
    buried: set[SimRecord] = field(default_factory=set)  # by a bolt: they make no rows
    lettered: set[tuple[SimRecord, str]] = field(default_factory=set)  # for a table's sake

    def spools(self):
        records = [record for record in self.records if record not in self.buried]
        return SpooledRun(self.number, records)


class SimStager:
    """Stages nothing: the tasks of a world know what to make. Tells of what is discarded."""

    def stage(self, group):
        raise NotImplementedError(group)

    def discard(self, staged):
        for part in staged.parts:
            part.is_discarded = True


@dataclass(slots=True, eq=False)
class _Job:
    """A try of a group: its tasks, what each has come to, and under which attempts they run."""

    life: object
    number: int
    attempt: int
    tasks: tuple[Task, ...]
    attempts: dict[Partition, int]
    is_told: bool = False  # of its failure: what still runs of it is a zombie
    is_cancelled: bool = False
    results: dict[int, TaskDone | TaskFailed] = field(default_factory=dict)


class SimExecutors:
    """Runs the tries of all processes, one task at a time, as the tape says."""

    def __init__(self, world):
        self._world = world
        self._rng = random.Random(f"executors {world.settings.seed}")
        self._jobs = []
        self._runs = 0
        self._kept = {}

    def kept(self, life, partition, stored):
        run = self._kept.get((life.name, partition, stored.first, stored.attempt))
        return run if run is not None and run.end == stored.end else None

    def submit(self, life, number, attempt, tasks):
        """Take a try. Raises Violation for a range that does not stand in its node."""
        oracle = self._world.transactions  # a RangeOracle
        attempts = {
            each.partition: oracle.submitted(life, each.partition, each.position.offset, each.end)
            for task in tasks
            for each in task.ranges
        }
        self._jobs.append(_Job(life, number, attempt, tuple(tasks), attempts))

    def cancel(self, life, number, attempt):
        for job in self._jobs:
            if job.life is life and (job.number, job.attempt) == (number, attempt):
                job.is_cancelled = True

    def advance(self, which, how):
        """Let one try get a step further: a task runs, runs in vain, or its end is told."""
        world = self._world
        if not self._jobs or world.cluster.away:
            return
        job, how = self._jobs[which % len(self._jobs)], how % 16
        left = [n for n in range(len(job.tasks)) if n not in job.results]
        if job.is_cancelled and how > 2:
            return  # to stop it takes a while, and it may be done before
        if how == 1:
            self._tell(job, RuntimeError("executor lost"))
        elif not left:
            self._end(job)
        elif how == 2:  # its worker dies when it is done, or it runs twice
            world.seen("task_ran_in_vain")
            self._run(job, left[0])
        elif how == 4 and self._rng.randrange(4) == 0:
            if world.files.lose(which):
                world.seen("spooled_rows_lost")
        elif how != 3:
            self._run_one(job, left[0])

    def _run_one(self, job, place):
        if not job.life.alive:
            self._world.seen("task_outlived_its_driver")
        elif job.is_told:
            self._world.seen("task_of_an_older_attempt_ran")
        result, runs = self._run(job, place)
        if result is None:
            return
        job.results[place] = result
        for run in runs:
            self._kept[run.life.name, run.partition, run.first, run.attempt] = run

    def _end(self, job):
        self._jobs.remove(job)
        if not job.is_told:
            self._tell(job, None)

    def _tell(self, job, error):
        """Tell how a try has ended; with an error, its tasks may still be at work."""
        if job.is_told:
            return
        job.is_told = True
        if error is not None:
            self._world.seen("range_group_failed")
        elif job.is_cancelled:
            self._world.seen("try_ended_though_nobody_wanted_it")
        results = tuple(job.results[n] for n in range(len(job.tasks))) if error is None else ()
        if job.life.alive:
            job.life.told(TasksEnded(job.number, job.attempt, results, error))

    def _run(self, job, place):
        """Read a task's ranges as their logs are now, and make their rows.

        None: its letters cannot be sent now, and it is tried again.
        """
        task, runs = job.tasks[place], list[RangeRun]()
        apart = [name for name, stager in task.stagers.items() if isinstance(stager, SimStager)]
        reads, staged = [], {name: list[Staged]() for name in apart}
        counters = OutcomeCounters()
        for each in task.ranges:
            log = self._world.cluster.log(each.partition)
            trouble = _trouble(each, log)
            if trouble is not None or log is None:
                cut_at = trouble.diverged_at if isinstance(trouble, OffsetOutOfRange) else None
                said, kind = str(trouble), type(trouble).__name__
                return TaskFailed(said, kind, each.partition, cut_at), []
            found = log.read(each.position.offset, len(log.records))
            records = [record for record in found if record.offset < each.end]
            self._runs += 1
            run = RangeRun(
                job.life, each.partition, each.position.offset, each.end,
                job.attempts[each.partition], records, self._runs,
            )  # fmt: skip
            runs.append(run)
            reads.append(_read(each.partition, records))
            self._stage(run, each, staged, counters)
            known = log.epoch_before(each.end, each.position.leader_epoch)
            job.life.fetcher.read_under[log.topic_id, each.partition] = known
        spooled = spool_all(
            task, [run.spools() for run in runs], self._world.settings.refuses, self._rng
        )
        if spooled.letters and self._world.letters.away:
            self._world.seen("task_waited_for_its_letters")
            spooled.discard()
            return None, []
        oracle = self._world.transactions
        of = {run.partition: run for run in runs}
        for record, table in dict.fromkeys(spooled.letters):
            oracle.lettered(record, table)
            of[record.partition].lettered.add((record, table))
        made = {name: tuple(those) for name, those in staged.items()} | spooled.staged
        return TaskDone(tuple(reads), made, counters, retried=0), runs

    def _stage(self, run, each, staged, counters):
        for record in run.records:
            if self._rng.randrange(_BAD) == 0:
                run.buried.add(record)
            if record.offset in each.refused or record in run.buried:
                counters.dead_lettered += 1
            else:
                counters.written += 1
        for name, those in staged.items():
            if name in each.skips:
                continue
            num_rows = self._rng.randrange(1 + 2 * len(run.records))
            part = TaskRows(run, name, num_rows)
            share = Share(str(run.partition), 1, 1, 1, run.first, run.end, "", num_rows)
            those.append(Staged((share,), num_rows, (part,)))


def _trouble(each, log):
    partition, position = each.partition, each.position
    if log is None:
        return TopicMissing(partition.topic)
    if position.topic_id not in {None, log.topic_id}:
        return OffsetOutOfRange(partition, position.offset, "another incarnation")
    epoch = position.leader_epoch
    if epoch is not None and log.end_of_epoch(epoch) < position.offset and log.epoch > epoch:
        at = log.end_of_epoch(epoch)
        return OffsetOutOfRange(partition, position.offset, f"cut off at {at}", diverged_at=at)
    if position.offset < log.start or each.end > log.end:
        return OffsetOutOfRange(partition, position.offset, f"{log.start} to {log.end}")
    for record in log.read(position.offset, len(log.records)):
        if record.corrupt and record.offset < each.end:
            return CorruptRecord(partition, record.offset)
    return None


def _read(partition, records):
    digest = RangeDigest()
    offsets = np.array([record.offset for record in records], np.int64)
    digest.add(offsets, np.array([len(record) for record in records], np.int64))
    epoch = records[-1].epoch if records else None
    return RangeRead(partition, len(records), digest.hex(), epoch)


class SimSubmissions:
    """One process's `Submissions`: no thread."""

    slots = 2

    def __init__(self, executors, life):
        self._executors = executors
        self._life = life

    def open(self):
        pass

    def submit(self, number, attempt, tasks):
        self._executors.submit(self._life, number, attempt, tasks)

    def cancel(self, number, attempt):
        self._executors.cancel(self._life, number, attempt)

    def stop(self, timeout_seconds):
        return True
