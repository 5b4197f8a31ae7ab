"""Attempts to run groups of ranges, from the tasks to the commit in every sink."""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import structlog

from partition.consumer import Consumer
from partition.errors import (
    CorruptRecord,
    Fenced,
    KafkaError,
    KafkaUnavailable,
    OffsetOutOfRange,
    TopicMissing,
)
from partition.records import Partition, Position, later_epoch
from service.engine import Apart
from service.errors import ServiceError, TaskError
from service.pipeline.committers import share_of
from service.pipeline.trees import Tally
from service.spark_engine.cluster import Executors, Submissions, TasksEnded, dealt
from service.spark_engine.planner import Ends, Silences
from service.spark_engine.range_buffer import RangeOutlet, RangeWork, StagedLost, again
from service.spark_engine.task import (
    RangeRead,
    Reasons,
    Task,
    TaskDone,
    TaskFailed,
    TaskRange,
    TaskSettings,
)
from sinks.errors import SparkTimeout
from sinks.writer import BatchCommitted, BatchStaged
from topology.errors import SinkError, SinkFailed, SinkFenced
from topology.sink import Share, Stager
from transactions.groups import GroupPhase, Member, TransactionGroup, TransactionGroups


@dataclass(slots=True, eq=False)
class Try:
    """A try that is under way, or whose rows wait for their commit."""

    number: int  # of the group
    attempt: int
    members: tuple[Member, ...]
    tasks: list[Task]
    stagers: dict[str, tuple[Stager, bool]]  # by sink step, and whether it stages apart
    results: tuple[TaskDone, ...] = ()
    works: dict[str, RangeWork] = field(default_factory=dict)
    fenced: dict[str, str] = field(default_factory=dict)
    """Lines for which a sink has refused the commit, and what it said."""
    waits_for: int = 0  # commits that are under way
    is_given_up: bool = False  # it is running, and nobody wants what comes of it

    @property
    def reads(self) -> list[RangeRead]:
        """What its ranges held."""
        return [each for done in self.results for each in done.ranges]

    def asked_at(self, partition: Partition) -> Position:
        """Where its tasks were to read a partition, as it was known then. Raises KeyError."""
        asked = {each.partition: each.position for task in self.tasks for each in task.ranges}
        return asked[partition]

    @property
    def is_staged(self) -> bool:
        """Whether every sink has it ready for the commit."""
        return bool(self.works) and all(work.is_staged for work in self.works.values())

    @property
    def is_done(self) -> bool:
        """Whether every sink has it."""
        return all(work.is_done for work in self.works.values())


class TryMaker:
    """Makes tasks of groups, and work for sinks of what they bring. The owner calls everything."""

    def __init__(
        self,
        outlets: Iterable[RangeOutlet],
        settings: TaskSettings,
        folder: str | None,
        references: Callable[[], Mapping[str, str]],
        epoch_of: Callable[[int], int],
    ) -> None:
        """`folder` is for rows on their way here; `references` writes tables that are new."""
        self._outlets = list(outlets)
        self._settings = settings
        self._folder = folder
        self._references = references
        self._epoch_of = epoch_of
        self._slots: dict[Partition, int] = {}  # where partitions were last

    def make(self, group: TransactionGroup, slots: int, patience_of: Callable[[int], int]) -> Try:
        """Tasks of a group that is to run now, in so many slots. Raises what the sinks raise.

        `patience_of` has, by place, how much longer than at first silence is waited for.
        """
        stagers = {outlet.name: outlet.stager(self._folder) for outlet in self._outlets}
        settings = replace(self._settings, references=dict(self._references()))
        ranges = [
            replace(self._range_of(group, each), patience=patience_of(each.place))
            for each in group.members
        ]
        patience = max(group.patience, *(each.patience for each in ranges))
        tasks = dealt(ranges, slots, self._slots)
        for slot, its_ranges in enumerate(tasks):
            self._slots.update((each.partition, slot) for each in its_ranges)
        by_sink = {name: stager for name, (stager, _) in stagers.items()}
        return Try(
            group.number,
            group.attempt,
            group.members,
            [
                Task(settings, group.number, tuple(each), by_sink, patience)
                for each in tasks
                if each
            ],
            stagers,
        )

    def _range_of(self, group: TransactionGroup, member: Member) -> TaskRange:
        place, line, txid = member
        skips, covers = line.skips, line.transaction_of(txid).range
        return TaskRange(
            line.partition,
            line.position_of(txid),
            covers.end,
            frozenset(e.name for e in self._outlets if txid <= skips.get(e.name, 0)),
            {offset: dict(by) for offset, by in group.refused.get(place, {}).items()},
            covers.leader_epoch,
        )

    def works(self, ran: Try) -> dict[str, RangeWork]:
        """What the tasks of a try have made for each sink."""
        return {
            outlet.name: RangeWork(
                outlet,
                *ran.stagers[outlet.name],
                tuple(each for done in ran.results for each in done.staged.get(outlet.name, ())),
            )
            for outlet in self._outlets
        }

    def shares(self, ran: Try, work: RangeWork) -> tuple[Share, ...]:
        """What a sink is to have of a try whose ranges are sealed: not what it has already."""
        return tuple(
            self._share(member, work)
            for member in ran.members
            if member.txid > member.line.skips.get(work.outlet.name, 0)
        )

    def _share(self, member: Member, work: RangeWork) -> Share:
        line = str(member.line.partition)
        transaction = member.line.transaction_of(member.txid)
        share = share_of(line, self._epoch_of(member.place), transaction)
        return replace(share, num_rows=work.rows_of(line))


log = structlog.get_logger()


class InFlight:
    """The groups, and a try of each that is not only planned. The owner thread calls everything.

    A try that is of no use any more, as its group is to run again, is let go as soon as that is
    so: what it has made is discarded, and what it still makes is when it ends.
    """

    def __init__(self, groups: TransactionGroups, submissions: Submissions) -> None:
        self.groups = groups
        self.apart = Apart()
        """What failed, for figures."""
        self.running: dict[tuple[int, int], Try] = {}
        """Tries whose end was not heard of, by group and attempt."""
        self.read: dict[int, Try] = {}
        """Tries that wait for their commit, or are committed, by group."""
        self.silences = Silences()
        """Partitions of which nothing could be read, and was not since."""
        self._submissions = submissions
        self._leaderless: frozenset[Partition] = frozenset()
        self._leaving: dict[int, bool] = {}  # by place: whether what is read is given up, too

    def is_leaving(self, place: int) -> bool:
        """Whether a partition is to be left out, and groups still have it."""
        return place in self._leaving

    def holds(self, place: int) -> bool:
        """Whether a group has a partition, or a try that was not heard of ran with it."""
        tries = (*self.running.values(), *self.read.values())
        every = (*self.groups, *tries)
        return place in self._leaving or any(m.place == place for e in every for m in e.members)

    def leave_out(self, place: int, *, at_once: bool) -> None:
        """Let a partition leave all groups; those that are read keep it unless `at_once`.

        What is being committed keeps it in any case, until that has ended.
        """
        self._leaving[place] = at_once or self._leaving.get(place, False)
        self.look()

    def fell_silent(self, member: Member, error: str, now: float) -> None:
        """Leave a partition out, of new groups for a while: nothing was heard of its range.

        That stays planned, and is tried again after a pause.
        """
        pause = self.silences.fell(member.place, now)
        self._note(error, now)
        log.warning(
            "range_silent",
            partition=str(member.line.partition),
            error=error,
            retry_in_seconds=round(pause, 3),
        )
        self.leave_out(member.place, at_once=False)

    def leaders_away(self, partitions: Collection[Partition], now: float) -> None:
        """Learn of which partitions the driver has not heard for a while: health tells of them."""
        if self._leaderless == partitions:
            return
        self._leaderless = frozenset(partitions)
        if partitions:
            others = len(partitions) - 1
            named = f"leaders of {min(partitions)} and {others} more do"
            who = named if others else f"leader of {min(partitions)} does"
            self._tell(f"the {who} not answer", now)

    def look(self) -> None:
        """Let partitions leave that can, and let go of tries that are of no use.

        Nothing fails any more once no group is left that has, and every partition is heard of.
        """
        for place, at_once in list(self._leaving.items()):
            waits_for = {GroupPhase.COMMITTING} | ({GroupPhase.PROCESSED} if not at_once else set())
            with_it = [g for g in self.groups if any(m.place == place for m in g.members)]
            # Only the lowest is waited for: those after it may be what waits for this partition.
            if not with_it or with_it[0].phase not in waits_for:
                del self._leaving[place]
                self.groups.drop(place)
        for running in self.running.values():
            if not running.is_given_up and not self.is_live(running):
                running.is_given_up = True
                self._submissions.cancel(running.number, running.attempt)
        for read in list(self.read.values()):
            if not self.is_live(read):
                del self.read[read.number]
                self.let_go(read)
        # Not before a group is done: one that is read may fail again, where a sink lost its files.
        is_heard = not self.silences and not self._leaderless
        if is_heard and not any(group.failures for group in self.groups):
            self.apart.failing_since = None

    def is_live(self, each: Try) -> bool:
        """Whether a try is of use."""
        return self.groups.is_live(each.number, each.attempt)

    def let_go(self, gone: Try) -> None:
        """Discard what a try has made so far."""
        for work in gone.works.values():
            work.outlet.discard(work)
        gone.results, gone.works = (), {}

    def failed(self, number: int, attempt: int, error: Exception, now: float) -> None:
        """Learn that a try has failed, and another may not: it comes after a pause."""
        group = self.groups.of(number)
        is_late = isinstance(error, SparkTimeout)
        if group is None or not self.groups.failed(number, attempt, now, took_too_long=is_late):
            return
        said = _said(error)
        self._note(said, now)
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

    def _note(self, error: str, now: float) -> None:
        self.apart.retries += 1
        self._tell(error, now)

    def _tell(self, error: str, now: float) -> None:
        self.apart.last_error = error
        if self.apart.failing_since is None:
            self.apart.failing_since = now


def _said(error: Exception) -> str:
    """An error in one line, and what helps where another try does not."""
    said = f"{type(error).__name__}: {error}"[:500]
    if isinstance(error, SparkTimeout):
        said += "; raise [spark] job_deadline_seconds: the range stays as it is"
    return said


def trouble_of(failure: TaskFailed, position: Position, begins: Position) -> KafkaError:
    """Why nothing more of a partition can be read; its range was asked for at `position`.

    `begins` is where its lowest open range does, and where reading would go on. A log that was
    cut off behind that place has good records there still: they are to be read before the cut.
    """
    partition = failure.partition
    if partition is None:
        raise ValueError(failure.error)
    if failure.error_class == TopicMissing.__name__:
        return TopicMissing(partition.topic)
    if failure.error_class == CorruptRecord.__name__:
        return CorruptRecord(partition, position.offset, failure.error)
    cut = failure.diverged_at
    cut = cut if cut is not None and cut <= begins.offset else None
    if _is_earlier(position.leader_epoch, begins.leader_epoch):
        cut = None  # what was read up to `begins` meanwhile was written behind the cut
    return OffsetOutOfRange(partition, position.offset, failure.error, cut)


def _is_earlier(epoch: int | None, other: int | None) -> bool:
    return epoch is not None and other is not None and epoch < other


class Runs:
    """Has groups run, and judges what comes of it. The owner thread calls everything."""

    def __init__(
        self,
        in_flight: InFlight,
        maker: TryMaker,
        submissions: Submissions,
        executors: Executors,
        reader: Consumer,
        ends: Ends,
        at: Callable[[str], object],
    ) -> None:
        """`at` is told when a run begins, and before its ranges are sealed."""
        self._in_flight = in_flight
        self._maker = maker
        self._submissions = submissions
        self._executors = executors
        self._reader = reader
        self._ends = ends
        self._at = at

    def run(self, now: float) -> bool:
        """Run every group whose plan is stored; True if there was one.

        Raises SinkFailed, and what is no fault of a table or a folder.
        """
        moved = False
        while (group := self._in_flight.groups.next_run(now)) is not None:
            moved = True
            try:
                begun = self._maker.make(
                    group, self._executors.slots, self._in_flight.silences.patience
                )
            except SinkFailed:
                raise
            except (OSError, SinkError) as error:  # the table, or the folder, may be away
                self._in_flight.failed(group.number, group.attempt, error, now)
                continue
            self._at("range_after_plan")
            self._in_flight.running[group.number, group.attempt] = begun
            self._submissions.submit(group.number, group.attempt, begun.tasks)
            log.debug("range_group_runs", **facts(begun), tasks=len(begun.tasks))
        return moved

    def ended(self, ended: TasksEnded, now: float) -> Try | None:
        """Hear what became of a try; the try, if its ranges are sealed and it may be committed.

        Raises TaskError if no other try would help.
        """
        self._submissions.ended(ended.number, ended.attempt)
        ran = self._in_flight.running.pop((ended.number, ended.attempt))
        ran.results = tuple(each for each in ended.results if not isinstance(each, TaskFailed))
        ran.works = self._maker.works(ran)
        failures = [each for each in ended.results if isinstance(each, TaskFailed)]
        if self._in_flight.is_live(ran) and not failures and ended.error is None:
            return self._sealed(ran)
        self._in_flight.let_go(ran)
        if not self._in_flight.is_live(ran):
            return None
        if isinstance(ended.error, ServiceError):
            raise ended.error
        if ended.error is not None:
            self._failed(ran, ended.error, now)
        for failure in failures:
            if failure.partition is None and not failure.silent:
                raise TaskError(failure.error_class, failure.error)
        for failure in failures:
            if failure.silent:
                self._silent(ran, failure, now)
            else:
                self._stopped(ran, failure)
        return None

    def _failed(self, ran: Try, error: Exception, now: float) -> None:
        """A try failed as a whole: it is not for partitions whose leader is away that it may."""
        self._in_flight.failed(ran.number, ran.attempt, error, now)
        for member in ran.members:
            if self._ends.is_silent(member.line.partition):
                said = f"the leader of {member.line.partition} does not answer"
                self._in_flight.fell_silent(member, said, now)

    def _silent(self, ran: Try, failure: TaskFailed, now: float) -> None:
        """Nothing was heard of partitions: the others go on without them, unless all are away."""
        if not self._ends.available:  # the pauses of each would outlast the outage
            self._in_flight.failed(
                ran.number, ran.attempt, KafkaUnavailable("a task", failure.error), now
            )
            return
        for member in ran.members:
            if member.line.partition in failure.silent:
                self._in_flight.fell_silent(member, failure.error, now)

    def _stopped(self, ran: Try, failure: TaskFailed) -> None:
        """A partition cannot be read on as it is: it is mended, and the others go on without it."""
        for place, line, txid in ran.members:
            if line.partition == failure.partition:
                begins = line.position_of(line.committed + 1)
                # What is read is committed before it is mended: what led its records counts, too.
                epoch = later_epoch(begins.leader_epoch, line.position_of(txid).leader_epoch)
                begins = replace(begins, leader_epoch=epoch)
                trouble = trouble_of(failure, ran.asked_at(line.partition), begins)
                self._reader.assignment.fail(line.partition, trouble)
                self._in_flight.leave_out(place, at_once=False)

    def _sealed(self, ran: Try) -> Try | None:
        """Take what the ranges held; None if the log did not give a sealed range's again.

        And if it was cut off below one of them since; what was read of it above goes with it.
        """
        self._at("range_before_seal")
        self._in_flight.groups.ran(ran.number, ran.attempt, ran.reads)
        for member in ran.members:
            differs = member.line.replay_error(log_moved=False)
            if differs is not None:
                self._reader.assignment.halt(member.line.partition, differs)
                self._in_flight.leave_out(member.place, at_once=True)
        self._in_flight.look()
        if self._in_flight.is_live(ran):
            for member in ran.members:
                self._in_flight.silences.heard(member.place)
            return ran
        self._in_flight.let_go(ran)
        return None


def facts(of: Try) -> dict[str, Any]:
    """What the log says of a try."""
    lines = ", ".join(f"{member.line.partition} {member.txid}" for member in of.members)
    return {"group": of.number, "attempt": of.attempt, "lines": lines}


class RangeCommits:
    """Brings what tasks have staged into the sinks. The owner thread calls everything.

    Nothing blocks: the sinks' threads report through the engine's queue.
    """

    def __init__(
        self,
        in_flight: InFlight,
        maker: TryMaker,
        reader: Consumer,
        at: Callable[[str], object],
    ) -> None:
        """`at` is told when the seals of a group are stored, and its commit begins."""
        self._in_flight = in_flight
        self._maker = maker
        self._reader = reader
        self._at = at
        self.tally = Tally()

    def stage(self, ran: Try) -> None:
        """Have every sink make a try's rows ready."""
        self._in_flight.read[ran.number] = ran
        for work in ran.works.values():
            work.shares = self._maker.shares(ran, work)
            work.outlet.stage(work)

    def staged(self, outlet: RangeOutlet, done: BatchStaged, now: float) -> None:
        """Hear that a sink has a group ready, or cannot. Raises what ends the run."""
        number = done.batch.sequence
        if done.staged is None:
            work = outlet.ended(number)
            if not isinstance(done.error, StagedLost):
                raise done.error or RuntimeError(outlet.name)
            if work is not None:
                lost = self._try_of(work)
                self._in_flight.failed(lost.number, lost.attempt, done.error, now)
            return
        work = outlet.staged(number, done.staged)
        if work is not None and done.staged.rejected:
            self._refused(work, done.staged.rejected, now)

    def _refused(self, work: RangeWork, rejected: Mapping[int, str], now: float) -> None:
        """A sink does not take some rows: the group runs again without them, and sends letters."""
        ran = self._try_of(work)
        places = {str(member.line.partition): member.place for member in ran.members}
        found: dict[tuple[int, int], dict[int, str]] = {}
        for row, reason in rejected.items():
            line, offset, which = work.origins[row]
            found.setdefault((places[line], offset), {})[which] = reason
        group = self._in_flight.groups.of(ran.number)
        known = {} if group is None else group.refused
        sink = work.outlet.name
        refused: dict[int, dict[int, dict[str, Reasons]]] = {}
        for (place, offset), reasons in found.items():
            before = known.get(place, {}).get(offset, {}).get(sink)
            refused.setdefault(place, {})[offset] = {sink: again(before, reasons)}
        work.outlet.rows_rejected += len(rejected)
        self._in_flight.groups.refuse(ran.number, refused)
        self._in_flight.groups.failed(ran.number, ran.attempt, now)
        log.info("range_rows_refused", **facts(ran), sink=sink, rows=len(rejected))
        self._in_flight.look()

    def commit_next(self) -> bool:
        """Have the lowest group committed, if every sink has it ready and its seals are stored."""
        groups = self._in_flight.groups
        lowest = next(iter(groups), None)
        ready = None if lowest is None else self._in_flight.read.get(lowest.number)
        if ready is None or not ready.is_staged or groups.next_commit() is None:
            return False
        self._at("range_after_seal")
        for work in ready.works.values():
            if not work.is_done:
                ready.waits_for += 1
                work.outlet.commit(work)
        self._end_if_told(ready)
        return True

    def committed(self, outlet: RangeOutlet, done: BatchCommitted, now: float) -> None:
        """Hear what became of a sink's commit. Raises what ends the run."""
        if isinstance(done.error, SinkFenced):
            ended = self._try_of(outlet.not_committed())
            ended.fenced[done.error.line] = str(done.error)
        elif done.error is not None:
            raise done.error
        else:
            ended = self._try_of(outlet.committed(done.seconds))
        ended.waits_for -= 1
        self._end_if_told(ended, now)

    def _try_of(self, work: RangeWork) -> Try:
        return next(e for e in self._in_flight.read.values() if work in e.works.values())

    def _end_if_told(self, ended: Try, now: float = 0.0) -> None:
        """Go on after a commit, once every sink has told what became of it."""
        if ended.waits_for:
            return
        if not ended.is_done:
            self._go_on_without(ended, now)
            return
        del self._in_flight.read[ended.number]
        for member, covers in self._in_flight.groups.done(ended.number):
            # Also of a partition that was lost under this commit: its rows are there.
            manager = self._reader.partition(member.place).manager
            if manager is not None and manager.delivery is member.line:
                self._reader.passed(member.place, covers)
        for each in ended.results:
            self.tally.add(each.tally)
            self.tally.failures.update(each.tally.failures)
            self.tally.letters.update(each.tally.letters)
            self.tally.buried.update(each.tally.buried)
            self._in_flight.apart.retried += each.retried
            self._in_flight.apart.letters_refused += each.letters_refused
        log.debug("range_group_committed", **facts(ended))

    def _go_on_without(self, ended: Try, now: float) -> None:
        """A sink has a later owner of some lines: the group runs again without these."""
        self._in_flight.groups.not_done(ended.number)
        for name, work in ended.works.items():
            for member in ended.members if work.is_done else ():
                member.line.is_in(name, member.txid)
        for member in ended.members:
            partition = member.line.partition
            found = ended.fenced.get(str(partition))
            if found is not None:
                fenced = Fenced(partition, found)
                self._reader.assignment.refuse(partition, fenced, place=member.place)
                self._in_flight.leave_out(member.place, at_once=True)
        self._in_flight.groups.failed(ended.number, ended.attempt, now)  # if none was its member
        self._in_flight.look()
