"""Which partitions this replica has: it beats, and does what the plan says."""

import math
from concurrent.futures import Future
from dataclasses import dataclass
from functools import cache

import structlog

from partition.assignment import Assignment
from partition.errors import PartitionError, ReplicaReplaced, StoreUnavailable
from partition.replicas.heartbeat import Report, View
from partition.replicas.plan import SINGLY, Copartitions
from partition.replicas.registry import Registry
from service.errors import OneReplicaOnly
from topology.topology import Topology

log = structlog.get_logger()


def copartitions_of(topology: Topology) -> Copartitions:
    """Which topics are co-partitioned: those of sources that meet (`Topology.meetings`)."""
    groups = {source: at for at, group in enumerate(topology.meetings()) for source in group}

    @cache
    def group_of(topic: str) -> int | None:
        try:
            return groups.get(topology.source_of(topic))
        except KeyError:  # a plan may name what is read no more
            return None

    return Copartitions(group_of)


@dataclass(frozen=True, slots=True)
class SharingPolicy:
    """How partitions are shared. Seconds are of the owner's monotonic clock."""

    name: str
    beat_seconds: float = 0.5
    handover_seconds: float = 6.0  # within it a partition is drained, or given up
    suspend_seconds: float = 6.0  # without an answer of ZooKeeper's
    alone: str | None = None  # why there may be no other replica


class Sharing:
    """Keeps one beat outstanding, and tells the assignment what comes of it. The owner calls it.

    A beat registers this replica, says what it holds, and brings the plan; if this replica leads,
    it also makes the plan, and that as soon as it knows of partitions: the only one starts
    without waiting. With others about, nothing is emitted once ZooKeeper has not answered for
    `suspend_seconds`, though the session may live: it is reported ended only when there is a
    connection again, and by then others may have our partitions. A replica that is the only one
    works on inside its windows (promise 15).
    """

    def __init__(
        self,
        registry: Registry,
        assignment: Assignment,
        policy: SharingPolicy,
        copartitions: Copartitions = SINGLY,
    ) -> None:
        self._registry = registry
        self._assignment = assignment
        self._policy = policy
        self._copartitions = copartitions
        self._known = 0  # how many partitions there are, as far as they were checked
        self._beat: Future[View] | None = None
        self._beaten_at = 0.0
        self._due = 0.0
        self._seen = 0
        self._is_suspended = False
        self._trouble: str | None = None
        self.view: View | None = None
        """What the newest beat has brought; None: none has ended yet."""
        self.suspended = 0
        """How often everything was suspended, as ZooKeeper did not answer."""

    def poll(self, now: float) -> None:
        """Look at the beat, send the next one when it is due.

        Raises ReplicaReplaced, and OneReplicaOnly unless this one leads; and CountsDiffer at the
        start, and when a topic has grown.
        """
        if not self._known and self._check():
            self._due = now  # whoever leads plans as soon as it knows of partitions
        if self._beat is not None and self._beat.done():
            beat, self._beat = self._beat, None
            # Beats go before all else: one that takes long leaves as long for claims and commits.
            pause = min(now - self._beaten_at, self._policy.suspend_seconds / 2)
            self._due = max(self._due, now + pause)
            self._take(beat, now)
        if self._beat is None and now >= self._due:
            self._due = now + self._policy.beat_seconds
            self._beaten_at = now
            self._check()
            self._beat = self._registry.beat(
                Report(self._assignment.holds, self._seen, self._assignment.known)
            )
        self._look_at_the_clock(now)

    def _check(self) -> bool:
        """Look at partitions that are new. Raises CountsDiffer; False: there is none yet."""
        known = self._assignment.known or ()
        if len(known) != self._known:
            self._copartitions.check(known)
            self._known = len(known)
        return self._known > 0

    @property
    def is_paused(self) -> bool:
        """Whether an operator has paused the pipeline."""
        return self.view is not None and self.view.control.paused is not None

    @property
    def leads(self) -> bool:
        """Whether this replica made the newest plan, or would."""
        return self.view is not None and self.view.leads

    def _take(self, beat: Future[View], now: float) -> None:
        try:
            view = beat.result()
        except ReplicaReplaced:
            raise
        except StoreUnavailable:  # the run ends
            return
        except PartitionError as error:  # an unreadable node: what we have, we keep
            if str(error) != self._trouble:
                log.warning("replicas_unreadable", error=str(error))
            self._trouble = str(error)
            return
        self._trouble = None
        if self._policy.alone is not None and len(view.members) > 1 and not view.leads:
            raise OneReplicaOnly(self._policy.alone, [member.name for member in view.members])
        was_paused, self.view = self.is_paused, view
        if self.is_paused != was_paused:
            note = view.control.paused
            log.warning(
                "pipeline_paused" if note else "pipeline_resumed",
                by=note.by if note else None,
                why=note.why if note else None,
            )
            self._assignment.pause(is_paused=self.is_paused)
            if note is None:
                self._assignment.suspend()  # offsets may have been moved meanwhile: claimed again
        self._want(view, now)

    def _want(self, view: View, now: float) -> None:
        if view.plan is None or view.plan.number < self._seen:
            return
        partitions = view.plan.of(self._policy.name)
        if view.plan.number != self._seen:
            log.info("plan_followed", number=view.plan.number, partitions=len(partitions))
        self._seen = view.plan.number
        leave_by = now + self._policy.handover_seconds
        self._assignment.want(partitions, planned_at=self._beaten_at, leave_by=leave_by)

    def _look_at_the_clock(self, now: float) -> None:
        """Suspend everything while it is not known whether our session lives."""
        heard_at = self._registry.last_contact
        if heard_at is None:
            return
        is_silent = now - heard_at > self._policy.suspend_seconds
        if is_silent and not self._is_suspended and not self._is_only_one:
            self.suspended += 1
            log.warning("ownership_suspended", silent_seconds=round(now - heard_at, 3))
            self._assignment.suspend()
        self._is_suspended = is_silent
        # Also if we stand still before the next look at the clock.
        self._assignment.trust(
            math.inf if self._is_only_one else heard_at + self._policy.suspend_seconds
        )

    @property
    def _is_only_one(self) -> bool:
        return self.view is not None and len(self.view.members) <= 1
