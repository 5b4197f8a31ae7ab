"""Groups of ranges that were run: each sink makes them ready, then all commit them, in order."""

from collections.abc import Callable, Mapping

import structlog

from partition.consumer import Consumer
from partition.errors import Fenced
from service.pipeline.trees import Tally
from service.spark_engine.in_flight import InFlight
from service.spark_engine.range_outlet import RangeOutlet, RangeWork, StagedLost
from service.spark_engine.refusals import again
from service.spark_engine.runs import facts
from service.spark_engine.task import Reasons
from service.spark_engine.tries import Try, TryMaker
from sinks.writer import BatchCommitted, BatchStaged
from topology.errors import SinkFenced

log = structlog.get_logger()


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
