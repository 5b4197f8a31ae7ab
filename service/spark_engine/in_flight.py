"""What is in flight: groups of ranges, their tries, and partitions that are to leave them."""

from collections.abc import Collection

import structlog

from partition.records import Partition
from service.engine import Apart
from service.spark_engine.silences import Silences
from service.spark_engine.submissions import Submissions
from service.spark_engine.tries import Try
from sinks.errors import SparkTimeout
from transactions.groups import GroupPhase, Member, TransactionGroups

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
