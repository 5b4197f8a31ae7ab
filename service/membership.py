"""This replica's membership: it sends heartbeats and follows the plan."""

import math
from concurrent.futures import Future
from dataclasses import dataclass
from functools import cache

import structlog

from partition.assignment import Assignment
from partition.errors import PartitionError, ReplicaReplaced, StoreUnavailable
from partition.replicas.balance import SINGLY, Control, Copartitions
from partition.replicas.heartbeat import GroupView, Heartbeats, Report
from partition.zookeeper.zookeeper_store import ZooKeeperStore
from service.errors import OneReplicaOnly
from topology.topology import Topology

log = structlog.get_logger()


def copartitions_of(topology: Topology) -> Copartitions:
    """Return the co-partitioned topics: those of sources that meet (`Topology.meetings`)."""
    groups = {source: at for at, group in enumerate(topology.meetings()) for source in group}

    @cache
    def group_of(topic: str) -> int | None:
        try:
            return groups.get(topology.source_of(topic))
        except KeyError:  # a plan may name topics that are no longer read
            return None

    return Copartitions(group_of)


@dataclass(frozen=True, slots=True)
class MembershipPolicy:
    """Seconds are of the owner's monotonic clock."""

    name: str  # of this replica
    beat_seconds: float = 0.5
    handover_seconds: float = 6.0  # within it a partition is drained, or given up
    suspend_seconds: float = 6.0  # without an answer of ZooKeeper's
    alone: str | None = None  # why there may be no other replica


class GroupMembership:
    """Keep one heartbeat outstanding and apply its result to the assignment.

    The leader plans as soon as it knows of partitions: a single replica starts without waiting.
    With other replicas present, nothing is emitted once ZooKeeper has not answered for
    `suspend_seconds`: the end of a session is reported only on the next connection, and by then
    others may have our partitions. A single replica works on inside its limits (promise 15).
    """

    def __init__(
        self,
        session: ZooKeeperStore,
        heartbeats: Heartbeats,
        assignment: Assignment,
        policy: MembershipPolicy,
        copartitions: Copartitions = SINGLY,
    ) -> None:
        self._session = session
        self._heartbeats = heartbeats
        self._assignment = assignment
        self._policy = policy
        self._copartitions = copartitions
        self._known = 0  # partitions that were checked
        self._beat: Future[GroupView] | None = None
        self._beaten_at = 0.0
        self._due = 0.0
        self._seen = 0
        self._is_suspended = False
        self._trouble: str | None = None
        self.view: GroupView | None = None
        """The newest heartbeat's result; None: none has ended yet."""

    def poll(self, now: float) -> None:
        """Take the heartbeat's result, and send the next one when it is due.

        Raises ReplicaReplaced, OneReplicaOnly unless this one leads, and CountsDiffer.
        """
        if not self._known and self._check():
            self._due = now  # the leader plans as soon as it knows of partitions
        if self._beat is not None and self._beat.done():
            beat, self._beat = self._beat, None
            # Heartbeats precede claims and commits: a slow one leaves as much time for those.
            pause = min(now - self._beaten_at, self._policy.suspend_seconds / 2)
            self._due = max(self._due, now + pause)
            self._take(beat, now)
        if self._beat is None and now >= self._due:
            self._due = now + self._policy.beat_seconds
            self._beaten_at = now
            self._check()
            report = Report(self._assignment.holds, self._seen, self._assignment.known)
            self._beat = self._session.submit(self._heartbeats.beat(report))
        self._look_at_the_clock(now)

    def _check(self) -> bool:
        """Check new partitions; False: there are none yet. Raises CountsDiffer."""
        known = self._assignment.known or ()
        if len(known) != self._known:
            self._copartitions.check(known)
            self._known = len(known)
        return self._known > 0

    def _take(self, beat: Future[GroupView], now: float) -> None:
        try:
            view = beat.result()
        except ReplicaReplaced:
            raise
        except StoreUnavailable:  # the run ends
            return
        except PartitionError as error:  # an unreadable node: keep what we have
            if str(error) != self._trouble:
                log.warning("replicas_unreadable", error=str(error))
            self._trouble = str(error)
            return
        self._trouble = None
        if self._policy.alone is not None and len(view.members) > 1 and not view.leads:
            raise OneReplicaOnly(self._policy.alone, [member.name for member in view.members])
        control, note = view.control, view.control.paused
        before = Control(resumed=control.resumed) if self.view is None else self.view.control
        self.view = view
        if (before.paused is None) != (note is None):
            log.warning(
                "pipeline_paused" if note else "pipeline_resumed",
                by=note.by if note else None,
                why=note.why if note else None,
            )
            self._assignment.is_paused = note is not None
        if note is None and (before.paused is not None or before.resumed != control.resumed):
            self._assignment.suspend()  # offsets may have been moved meanwhile: claim again
        self._want(view, now)

    def _want(self, view: GroupView, now: float) -> None:
        if view.plan is None or view.plan.number < self._seen:
            return
        partitions = view.plan.of(self._policy.name)
        if view.plan.number != self._seen:
            log.info("plan_followed", number=view.plan.number, partitions=len(partitions))
        self._seen = view.plan.number
        leave_by = now + self._policy.handover_seconds
        self._assignment.want(partitions, planned_at=self._beaten_at, leave_by=leave_by)

    def _look_at_the_clock(self, now: float) -> None:
        """Suspend everything while it is unknown whether our session lives."""
        heard_at = self._session.last_contact
        if heard_at is None:
            return
        is_alone = self.view is not None and len(self.view.members) <= 1
        is_unreachable = now - heard_at > self._policy.suspend_seconds
        if is_unreachable and not self._is_suspended and not is_alone:
            log.warning("ownership_suspended", silent_seconds=round(now - heard_at, 3))
            self._assignment.suspend()
        self._is_suspended = is_unreachable
        # Also if this process stands still before the next poll.
        until = math.inf if is_alone else heard_at + self._policy.suspend_seconds
        self._assignment.trusted_until = until
