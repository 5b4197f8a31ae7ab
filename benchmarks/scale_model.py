"""A model of many replicas on one ZooKeeper: discrete events, seeded, no clock and no I/O.

Each replica is what `ZooKeeperStore` is: one thread that has one request under way, a heartbeat
(`partition.replicas.heartbeat`) before all else, then claims (`partition.offsets.offset_nodes`),
then a commit. What a request takes is `scale_ensemble`, what it weighs is `scale_weights`. Kafka
and the sinks answer at once here.
"""

import heapq
import itertools
import math
import random
from collections.abc import Generator
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from benchmarks.scale_ensemble import Ask, Ensemble, Load, ZooKeeper
from benchmarks.scale_weights import Cluster, Weights
from partition.offsets.offset_nodes import MAX_OPERATIONS, MAX_REQUEST_BYTES

OPERATIONS = 2  # of a partition's part in a write: set its node, check the one below
CLAIM_READS = 2  # of those nodes
SMALL_BYTES = 150  # an answer that holds little
CHILD_BYTES = 4  # of each name in a list, beside the name
KILLED_AT = 2.0  # seconds
TURN_SECONDS = 0.02  # after a heartbeat, until the owner thread asks for one that is late


@dataclass(frozen=True, slots=True)
class Design:
    """What a heartbeat asks for."""

    name: str
    plan_always: bool = True  # it reads the plan; else only when its version is another
    names_always: bool = True  # it lists the members; else only when their parent has changed
    syncs_each: bool = True  # each read has a sync of its own; else there is one a heartbeat
    members_one_by_one: bool = True  # else all are asked for before the first answer
    plans_always: bool = True  # the leader makes a plan; else only when something has changed
    plan_by_member: bool = False  # each has a node of its own for its part


AS_BUILT = Design("as built")
SPARING = Design(
    "sparing",
    plan_always=False,
    names_always=False,
    syncs_each=False,
    members_one_by_one=False,
    plans_always=False,
)
SPLIT = replace(SPARING, name="split", plan_by_member=True)


@dataclass(slots=True)
class Found:
    """What a run came to. Of a takeover the loads are those of the busiest second."""

    load: Load = field(default_factory=Load)
    beats: list[float] = field(default_factory=list)  # seconds each
    leader_beats: list[float] = field(default_factory=list)  # of the one that makes the plans
    expired_seconds: float | None = None  # after the kill, when ZooKeeper says so
    planned_seconds: float | None = None  # when a plan without them is written
    claimed_seconds: float | None = None  # when the last of their partitions is another's


_Steps: TypeAlias = Generator[Ask | float, None, None]  # requests, or the second to wake at


def steady(
    cluster: Cluster,
    weights: Weights,
    design: Design,
    zookeeper: ZooKeeper,
    *,
    seconds: int = 10,
    seed: int = 1,
) -> Found:
    """What goes on while nothing happens: every replica beats, and commits all it has."""
    run = _Run(cluster, weights, design, zookeeper, random.Random(seed))  # noqa: S311
    run.go(until=seconds)
    loads = run.ensemble.loads
    run.found.load = sum(loads.values(), Load()) / seconds
    return run.found


def takeover(
    cluster: Cluster,
    weights: Weights,
    design: Design,
    zookeeper: ZooKeeper,
    *,
    killed: int,
    seconds: int = 120,
    seed: int = 1,
) -> Found:
    """What comes of killing so many replicas at once; of several, one is the leader.

    A claim that does not come within `seconds` leaves `claimed_seconds` None.
    """
    run = _Run(cluster, weights, design, zookeeper, random.Random(seed))  # noqa: S311
    run.kill(killed)
    run.go(until=seconds)
    after = [load for at, load in run.ensemble.loads.items() if at >= KILLED_AT]
    columns = zip(
        *([getattr(load, name) for name in Load.__slots__] for load in after), strict=True
    )
    run.found.load = Load(*map(max, columns))
    return run.found


@dataclass(slots=True)
class _Replica:
    index: int
    owned: int
    leader: int = 0  # whom it knows to lead
    seen: int = 1
    reported: int = 1
    to_claim: int = 0


class _Run:
    """One run; replica 0 has joined first, and all follow plan 1."""

    def __init__(
        self,
        cluster: Cluster,
        weights: Weights,
        design: Design,
        zookeeper: ZooKeeper,
        rng: random.Random,
    ) -> None:
        self.found = Found()
        self.ensemble = Ensemble(zookeeper)
        self._cluster, self._weights, self._design, self._rng = cluster, weights, design, rng
        self._now = 0.0
        self._order = itertools.count()
        self._waiting: list[tuple[float, int, int, _Steps]] = []
        share, more = divmod(cluster.partitions, cluster.replicas)
        self._replicas = [
            _Replica(index, share + (index < more)) for index in range(cluster.replicas)
        ]
        self._everyone = frozenset(range(cluster.replicas))
        self._killed: frozenset[int] = frozenset()
        self._expired_at = math.inf
        self._unclaimed = 0
        self._plan = 1
        self._planned_for = self._everyone
        self._reports = 0  # how often a member's node has changed
        self._looked_at: tuple[frozenset[int], int] | None = None  # by the leader, last
        self._grants: dict[int, int] = {}

    def kill(self, count: int) -> None:
        """Kill so many, at KILLED_AT."""
        first = [0] if count > 1 else []
        others = self._rng.sample(range(1, self._cluster.replicas), count - len(first))
        self._killed = frozenset([*first, *others])
        self._unclaimed = sum(self._replicas[each].owned for each in self._killed)
        heard_at = KILLED_AT - self._rng.uniform(0, self._cluster.beat_seconds)
        phase = self._rng.uniform(0, self.ensemble.can.tick_seconds)
        self._expired_at = self.ensemble.can.expires_at(heard_at, phase)
        self.found.expired_seconds = self._expired_at - KILLED_AT

    def go(self, until: float) -> None:
        """Let it run; a takeover ends when all is claimed."""
        for replica in self._replicas:
            first = self._rng.uniform(0, self._cluster.beat_seconds)
            self._push(first, replica.index, self._life(replica))
        while self._waiting and self._waiting[0][0] < until:
            self._now, _, index, steps = heapq.heappop(self._waiting)
            asked = next(steps, None)
            if isinstance(asked, Ask):
                self._push(self.ensemble.answered_at(self._now, index, asked), index, steps)
            elif asked is not None:
                self._push(asked, index, steps)
            if self._killed and not self._unclaimed:
                return

    def _push(self, at: float, index: int, steps: _Steps) -> None:
        heapq.heappush(self._waiting, (at, next(self._order), index, steps))

    def _life(self, replica: _Replica) -> _Steps:
        beat = self._now
        commit = beat + self._rng.uniform(0, self._cluster.commit_seconds)
        while replica.index not in self._killed or self._now < KILLED_AT:
            if self._now >= beat:
                began = self._now
                yield from self._beat(replica)
                beat = max(began + self._cluster.beat_seconds, self._now + TURN_SECONDS)
                leads = replica.leader == replica.index
                beats = self.found.leader_beats if leads else self.found.beats
                beats.append(self._now - began)
            elif replica.to_claim:
                yield from self._claim(replica)
            elif self._now >= commit:
                commit = self._now + self._cluster.commit_seconds
                yield from self._commit(replica)
            else:
                yield min(beat, commit)

    def _claim(self, replica: _Replica) -> _Steps:
        for _read in range(CLAIM_READS):
            yield Ask(gets=1, sent_bytes=self._weights.offset_bytes, syncs=1)
        size = self._weights.offset_bytes
        yield Ask(writes=1, operations=OPERATIONS, written_bytes=size)
        replica.to_claim -= 1
        replica.owned += 1
        self._unclaimed -= 1
        if not self._unclaimed:
            self.found.claimed_seconds = self._now - KILLED_AT

    def _commit(self, replica: _Replica) -> _Steps:
        size = self._weights.offset_bytes
        most = min(MAX_OPERATIONS // OPERATIONS, int(MAX_REQUEST_BYTES / size))
        for first in range(0, replica.owned, most):
            count = min(most, replica.owned - first)
            yield Ask(writes=1, operations=OPERATIONS * count, written_bytes=count * size)

    def _beat(self, replica: _Replica) -> _Steps:
        weights, index = self._weights, replica.index
        yield self._read(weights.member_bytes, syncs=1)
        if replica.reported != replica.seen:
            yield Ask(writes=1, operations=1, written_bytes=weights.member_bytes)
            yield self._read(weights.member_bytes)
            replica.reported = replica.seen
            self._reports += 1
        plan = self._plan
        yield from self._read_plan(replica)
        yield self._read()  # @control
        lives = True
        if replica.leader != index:
            yield self._read(weights.member_bytes)
            lives = replica.leader in self._members()
        if lives and replica.leader != index:
            yield self._read(self._names_bytes() if self._design.names_always else 0)
        else:
            yield self._read()  # the members' parent
            yield from self._read_members()
            replica.leader = min(self._members())
            if replica.leader == index:
                yield from self._lead()
                plan = self._plan
        if plan > replica.seen:
            replica.to_claim += self._grants[index]
            replica.seen = plan

    def _read(self, size: float = 0, syncs: int | None = None) -> Ask:
        own = int(self._design.syncs_each) if syncs is None else syncs
        return Ask(gets=1, sent_bytes=SMALL_BYTES + size, syncs=own)

    def _read_plan(self, replica: _Replica) -> _Steps:
        weights, plan = self._weights, self._plan
        if not self._design.plan_always:
            yield self._read()  # its version
            if plan == replica.seen:
                return
        is_part = self._design.plan_by_member and replica.leader != replica.index
        part = 1 / self._cluster.replicas if is_part else 1
        yield self._read(weights.plan_bytes * part)
        yield self._now + weights.decode_plan_seconds * part

    def _read_members(self) -> _Steps:
        yield self._read(self._names_bytes())
        count, size = len(self._members()), self._weights.member_bytes
        if self._design.members_one_by_one:
            for _member in range(count):
                yield self._read(size)
        else:
            yield Ask(gets=count, sent_bytes=count * (SMALL_BYTES + size))

    def _lead(self) -> _Steps:
        weights, members = self._weights, self._members()
        state = (members, self._reports)
        if self._design.plans_always or state != self._looked_at:
            self._looked_at = state
            yield self._now + weights.decode_members_seconds + weights.next_plan_seconds
        if members == self._planned_for:
            return
        self._planned_for = members
        yield self._now + weights.new_plan_seconds + weights.encode_plan_seconds
        nodes = len(members) if self._design.plan_by_member else 1
        yield Ask(writes=1, operations=1 + nodes, written_bytes=weights.plan_bytes)
        share, more = divmod(self._cluster.partitions, len(members))
        for place, index in enumerate(sorted(members)):
            self._grants[index] = max(0, share + (place < more) - self._replicas[index].owned)
        self._plan += 1
        self.found.planned_seconds = self._now - KILLED_AT

    def _members(self) -> frozenset[int]:
        return self._everyone - self._killed if self._now >= self._expired_at else self._everyone

    def _names_bytes(self) -> float:
        return len(self._members()) * (CHILD_BYTES + self._weights.name_bytes)
