"""One replica's heartbeat: registered, its report written, the plan read or made. No I/O.

Generators of requests, as in `partition.offsets`. What is guaranteed, whatever is lost or late:

- A name is the process's that registered under it last. Whoever finds that it was replaced ends.
- A report is written before anything is read: who applies a plan has said what it held before.
- Registering sets the members' parent, and the leader writes a plan only if that is as it was
  before it read the members. So nobody that it has not seen can have read an older plan.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import cast

import structlog

from partition.errors import ReplicaReplaced, StoreCorrupt, StoreError
from partition.offsets.requests import (
    ANY_VERSION,
    Children,
    CreateEphemeral,
    CreateNode,
    DeleteNode,
    NodeChanged,
    NodeExists,
    Operation,
    OutcomeUnknown,
    Pause,
    Read,
    ReadStat,
    Reply,
    Request,
    SessionEnded,
    SetNode,
    Stat,
    Steps,
    Write,
)
from partition.offsets.znode import MAX_BYTES
from partition.records import Partition
from partition.replicas.balance import SINGLY, Copartitions
from partition.replicas.nodes import (
    check_name,
    control_path,
    decode_control,
    decode_member,
    decode_plan,
    encode_member,
    encode_plan,
    plan_path,
    replica_path,
    replicas_path,
)
from partition.replicas.plan import Control, Member, Plan, next_plan

log = structlog.get_logger()

_RETRY_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Mine:
    """Who this replica is. `process` was never used before."""

    name: str
    process: str
    host: str = ""
    since_ms: int = 0
    headrace: str = ""


@dataclass(frozen=True, slots=True)
class Report:
    """What this replica holds, and the number of the newest plan that it has applied."""

    holds: frozenset[Partition]
    seen: int
    partitions: frozenset[Partition] | None  # all that there are; None: not known yet


@dataclass(frozen=True, slots=True)
class View:
    """What a heartbeat brought.

    `members` is what all have reported if this replica `leads`, in the order of joining. Else it
    is their names alone, in order: `process` is "", `joined` and `seen` 0, `holds` empty.
    """

    plan: Plan | None
    control: Control
    members: tuple[Member, ...]
    leads: bool


class Beats:
    """One process's heartbeats. One generator is run to its end after the other.

    Raises ValueError for a name that is none, see `check_name`.
    """

    def __init__(
        self, root: str, pipeline: str, mine: Mine, copartitions: Copartitions = SINGLY
    ) -> None:
        self._root, self._pipeline = root, pipeline
        self._mine = mine
        self._copartitions = copartitions
        self._members_at = replicas_path(root, pipeline)
        self._path = replica_path(root, pipeline, check_name(mine.name))
        self._plan_at = plan_path(root, pipeline)
        self._control_at = control_path(root, pipeline)
        self._was_registered = False
        self._created: int | None = None  # which of the path's nodes was ours last
        self._leader: tuple[str, int] | None = None  # its name, and which node

    def beat(self, report: Report) -> Steps[View]:
        """Register if need be, report, and read or make the plan.

        It begins anew in the next session if one ends. Raises ReplicaReplaced, StoreCorrupt;
        StoreUnavailable and StoreError pass through.
        """
        while True:
            try:
                return (yield from self._beat(report))
            except SessionEnded:
                continue

    def leave(self) -> Steps[None]:
        """Take our node away, unless it is another's; an ended session has done so."""
        try:
            while True:
                found = yield from self._stat(self._path)
                if found is None or not found.is_ours:
                    return
                try:
                    yield Write((DeleteNode(self._path, found.version),))
                except OutcomeUnknown:
                    yield Pause(_RETRY_SECONDS)
                except NodeChanged:
                    pass  # read again
        except SessionEnded:
            pass

    def _beat(self, report: Report) -> Steps[View]:
        yield from self._register(report)
        plan, version = yield from self._plan()
        found = cast("tuple[bytes, int] | None", (yield from _asked(Read(self._control_at))))
        control = decode_control(self._control_at, found[0]) if found and found[0] else Control()
        if (yield from self._leader_stays()):
            return View(plan, control, _named((yield from self._names())), leads=False)
        # First this: whoever registers from now on makes the plan's write fail.
        parent = cast("tuple[bytes, int] | None", (yield from _asked(Read(self._members_at))))
        stats = yield from self._stats()
        leader = min(stats, key=lambda name: stats[name].created, default=None)
        self._leader = None if leader is None else (leader, stats[leader].created)
        if parent is None or leader != self._mine.name or not stats[leader].is_ours:
            return View(plan, control, _named(stats), leads=False)
        members = tuple(
            decode_member(self._at(name), stat.data, stat.created)
            for name, stat in sorted(stats.items(), key=lambda each: each[1].created)
        )
        partitions = report.partitions
        if partitions is None and plan is not None:
            partitions = frozenset({*plan.owners, *plan.leaving})
        new = None
        if partitions is not None:
            new = next_plan(plan, members, partitions, control, self._copartitions)
        if new is not None:
            plan = yield from self._publish(new, version, parent[1])
        return View(plan, control, members, leads=True)

    def _register(self, report: Report) -> Steps[None]:
        """Write until our node is read back as it is to be. Raises ReplicaReplaced."""
        data = self._encoded(report)
        while True:
            found = yield from self._stat(self._path)
            operations: list[Operation] = []
            if found is not None and found.is_ours:
                self._was_registered, self._created = True, found.created
                if found.data == data:
                    return
                # Also if it is not our data: a process that we replaced wrote late.
                operations.append(SetNode(self._path, data, found.version))
            else:
                operations.append((yield from self._parent()))
                if found is not None:
                    self._check_not_replaced(found)
                    operations.append(DeleteNode(self._path, found.version))
                operations.append(CreateEphemeral(self._path, data))
            try:
                yield Write(tuple(operations))
            except OutcomeUnknown:
                yield Pause(_RETRY_SECONDS)
            except (NodeChanged, NodeExists):
                pass  # read again
            else:
                self._was_registered = True

    def _parent(self) -> Steps[Operation]:
        """Return what notes in the members' parent that one registers; make it if need be."""
        while (yield from _asked(Read(self._members_at))) is None:
            try:
                yield Write((CreateNode(self._members_at, b""),))
            except OutcomeUnknown:
                yield Pause(_RETRY_SECONDS)
            except (NodeChanged, NodeExists):
                pass  # read again
        return SetNode(self._members_at, b"", ANY_VERSION)

    def _check_not_replaced(self, found: Stat) -> None:
        """Raise if a node that is not of our session means that somebody came after us.

        Ours of an ended session may be there for a moment yet. Another's that was there before
        we ever were is a predecessor's, whose session need not be waited for. One that came
        after ours is a successor's, also if our session has ended: a process that was frozen
        must not drive out the one that took its place.
        """
        if not self._was_registered or found.created == self._created:
            return
        try:
            other = decode_member(self._path, found.data, found.created).process
        except StoreCorrupt:
            other = "of which nothing can be read"
        raise ReplicaReplaced(self._mine.name, other)

    def _plan(self) -> Steps[tuple[Plan | None, int | None]]:
        """Return the plan and its node's version."""
        found = cast("tuple[bytes, int] | None", (yield from _asked(Read(self._plan_at))))
        return (None, None) if found is None else (decode_plan(self._plan_at, found[0]), found[1])

    def _publish(self, plan: Plan, version: int | None, parent: int) -> Steps[Plan | None]:
        """Write a plan unless another was written, or somebody registered; return what is there."""
        data = encode_plan(plan)
        if len(data) > MAX_BYTES:
            raise StoreError(
                f"{self._plan_at} would be {len(data)} bytes, more than ZooKeeper's {MAX_BYTES}"
            )
        try:
            yield Write(
                (
                    SetNode(self._members_at, b"", parent),
                    CreateNode(self._plan_at, data)
                    if version is None
                    else SetNode(self._plan_at, data, version),
                )
            )
        except OutcomeUnknown:
            yield Pause(_RETRY_SECONDS)
        except (NodeChanged, NodeExists):
            pass  # the next beat sees what is new
        else:
            log.info(
                "plan_written",
                number=plan.number,
                replicas=len(set(plan.owners.values())),
                partitions=len(plan.owners),
                leaving=len(plan.leaving),
            )
            return plan
        return (yield from self._plan())[0]

    def _leader_stays(self) -> Steps[bool]:
        """Whether another led at the last beat and does so yet: nobody can join before it."""
        if self._leader is None or self._leader[0] == self._mine.name:
            return False
        found = yield from self._stat(self._at(self._leader[0]))
        return found is not None and found.created == self._leader[1]

    def _stats(self) -> Steps[dict[str, Stat]]:
        stats: dict[str, Stat] = {}
        for name in (yield from self._names()):
            found = yield from self._stat(self._at(name))
            if found is not None:  # else it has just left
                stats[name] = found
        return stats

    def _names(self) -> Steps[list[str]]:
        return cast("list[str] | None", (yield from _asked(Children(self._members_at)))) or []

    def _stat(self, path: str) -> Steps[Stat | None]:
        return cast("Stat | None", (yield from _asked(ReadStat(path))))

    def _at(self, name: str) -> str:
        return replica_path(self._root, self._pipeline, name)

    def _encoded(self, report: Report) -> bytes:
        mine = self._mine
        member = Member(
            mine.name,
            mine.process,
            0,
            report.seen,
            report.holds,
            mine.host,
            mine.since_ms,
            mine.headrace,
        )
        return encode_member(member)


def _asked(request: Request) -> Steps[Reply]:
    """Ask until there is an answer."""
    while True:
        try:
            return (yield request)
        except OutcomeUnknown:
            yield Pause(_RETRY_SECONDS)


def _named(names: Iterable[str]) -> tuple[Member, ...]:
    return tuple(Member(name, "", 0, 0, frozenset()) for name in sorted(names))
