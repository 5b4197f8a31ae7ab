"""Groups of ranges that are run on executors."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import structlog

from partition.consumer import Consumer
from partition.errors import KafkaUnavailable
from partition.records import later_epoch
from service.errors import ServiceError, TaskError
from service.spark_engine.ends import Ends
from service.spark_engine.in_flight import InFlight
from service.spark_engine.submissions import Executors, Submissions, TasksEnded
from service.spark_engine.task import TaskFailed
from service.spark_engine.tries import Try, TryMaker
from service.spark_engine.troubles import trouble_of
from topology.errors import SinkError, SinkFailed

log = structlog.get_logger()


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
