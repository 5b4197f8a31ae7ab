"""One replica's heartbeat, and the nodes that replicas and operators share. No I/O.

Below `<root>/<pipeline>`, beside the topics; "@" cannot stand in a topic's name:

    @replicas/<name>  a member; it ends with the member's session
    @plan             who may hold which partition; written by the leader
    @control          requests of operators

Each is a JSON object with a "version". A later version is not guessed at.

Heartbeats are generators of requests, as in `partition.offsets`. They guarantee, whatever is
lost or late:

- A name belongs to the process that registered under it last. A process that was replaced ends.
- A report is written before anything is read: a member that applies a plan has reported what it
  held before.
- Registering sets the members' parent, and the leader writes a plan only if that is unchanged
  since before it read the members. So no member that it has not seen can have read an older plan.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Annotated, TypeVar

import msgspec
import structlog

from partition.errors import ReplicaReplaced, StoreCorrupt, StoreError
from partition.offsets.requests import (
    ANY_VERSION,
    RETRY_SECONDS,
    CreateNode,
    DeleteNode,
    NodeChanged,
    NodeExists,
    Operation,
    Pause,
    ReplyLost,
    SetNode,
    Steps,
    Write,
    ZNode,
    children,
    read,
    through_sessions,
)
from partition.offsets.znode import MAX_BYTES, parse, shown
from partition.records import Partition
from partition.replicas.balance import (
    SINGLY,
    Control,
    Copartitions,
    Leaving,
    Member,
    Natural,
    Plan,
    by_topic,
    from_topics,
    next_plan,
)

log = structlog.get_logger()

VERSION = 1
MAX_NAME = 200
_NAME = re.compile(rf"[A-Za-z0-9._-]{{1,{MAX_NAME}}}")
_NUMBER = re.compile(r"[1-9][0-9]{0,18}")

_Topics = dict[str, str]  # a topic's partitions as ranges


class _Version(msgspec.Struct):
    version: Natural


class _Member(msgspec.Struct):
    version: Natural
    process: str
    seen: Natural
    holds: _Topics
    host: str = ""
    since_ms: Natural = 0
    headrace: str = ""


class _Plan(msgspec.Struct):
    version: Natural
    number: Annotated[int, msgspec.Meta(ge=1, le=2**63 - 1)]
    leader: str
    owners: dict[str, _Topics]
    leaving: dict[str, dict[str, _Topics]]  # by replica, then by the number of the plan
    rebalanced: Natural = 0


R = TypeVar("R")
T = TypeVar("T", _Member, _Plan, Control)


def check_name(name: str) -> str:
    if name in {".", ".."} or not _NAME.fullmatch(name):
        raise ValueError(
            f'{name!r} is no name of a replica, expected 1 to {MAX_NAME} of A-Z a-z 0-9 "." "_" '
            '"-", but not "." or ".."'
        )
    return name


def replicas_path(root: str, pipeline: str) -> str:
    return f"{root.rstrip('/')}/{pipeline}/@replicas"


def replica_path(root: str, pipeline: str, name: str) -> str:
    return f"{replicas_path(root, pipeline)}/{name}"


def plan_path(root: str, pipeline: str) -> str:
    return f"{root.rstrip('/')}/{pipeline}/@plan"


def control_path(root: str, pipeline: str) -> str:
    return f"{root.rstrip('/')}/{pipeline}/@control"


def encode_member(member: Member) -> bytes:
    holds, host = by_topic(member.holds), member.host
    since_ms, headrace = member.since_ms, member.headrace
    found = _Member(VERSION, member.process, member.seen, holds, host, since_ms, headrace)
    return msgspec.json.encode(found)


def decode_member(path: str, data: bytes, joined: int) -> Member:
    name = path.rpartition("/")[2]

    def member(found: _Member) -> Member:
        holds, host = from_topics(found.holds), found.host
        since_ms, headrace = found.since_ms, found.headrace
        return Member(name, found.process, joined, found.seen, holds, host, since_ms, headrace)

    return _decode(path, data, _Member, "a replica", member)


def encode_plan(plan: Plan) -> bytes:
    owners: dict[str, list[Partition]] = {}
    for partition, name in plan.owners.items():
        owners.setdefault(name, []).append(partition)
    leaving: dict[tuple[str, int], list[Partition]] = {}
    for partition, left in plan.leaving.items():
        leaving.setdefault((left.name, left.number), []).append(partition)
    revoked: dict[str, dict[str, _Topics]] = {}
    for name, number in sorted(leaving):
        revoked.setdefault(name, {})[str(number)] = by_topic(leaving[name, number])
    owned = {name: by_topic(owners[name]) for name in sorted(owners)}
    found = _Plan(VERSION, plan.number, plan.leader, owned, revoked, plan.rebalanced)
    return msgspec.json.encode(found)


def decode_plan(path: str, data: bytes) -> Plan:
    return _decode(path, data, _Plan, "a plan", _plan)


def _plan(found: _Plan) -> Plan:
    owners: dict[Partition, str] = {}
    leaving: dict[Partition, Leaving] = {}
    for name, topics in found.owners.items():
        for partition in from_topics(topics):
            if partition in owners:
                raise ValueError(f"{partition} has two owners")
            owners[partition] = name
    for name, by_number in found.leaving.items():
        for number, topics in by_number.items():
            left = Leaving(name, _number(number))
            for partition in from_topics(topics):
                if partition in owners or partition in leaving:
                    raise ValueError(f"{partition} stands there twice")
                leaving[partition] = left
    return Plan(found.number, found.leader, owners, leaving, found.rebalanced)


def encode_control(control: Control) -> bytes:
    facts = asdict(control)
    facts["drained"] = dict(sorted(facts["drained"].items()))
    return msgspec.json.encode({"version": VERSION, **facts})


def decode_control(path: str, data: bytes | None) -> Control:
    """Decode the requests of operators; a missing or empty node has none."""
    what = "what operators ask for"
    return _decode(path, data, Control, what, lambda found: found) if data else Control()


def _decode(path: str, data: bytes, kind: type[T], what: str, make: Callable[[T], R]) -> R:
    """Return what `make` makes of a stored form; the ValueErrors of it are StoreCorrupt too."""
    needed = f'a JSON object that says {what}, of "version" 1 to {VERSION},'
    version = parse(path, data, _Version, needed).version
    if version > VERSION:
        found = f'"version" {version}, which a later version of this package wrote,'
        raise StoreCorrupt(path, f"{found} in {shown(data)}", needed)
    try:
        return make(parse(path, data, kind, needed))
    except ValueError as error:
        raise StoreCorrupt(path, f"{error} in {shown(data)}", needed) from error


def _number(text: str) -> int:
    if not _NUMBER.fullmatch(text):
        raise ValueError(f"{text[:30]!r} is no number of a plan")
    return int(text)


@dataclass(frozen=True, slots=True)
class Report:
    """The partitions that this replica holds, and the newest plan that it has applied."""

    holds: frozenset[Partition]
    seen: int
    partitions: frozenset[Partition] | None  # all that exist; None: not known yet


@dataclass(frozen=True, slots=True)
class GroupView:
    """The result of a heartbeat.

    If this replica `leads`, `members` are all reports, in the order of joining; else only names.
    """

    plan: Plan | None
    control: Control
    members: tuple[Member, ...]
    leads: bool


class Heartbeats:
    """One process's heartbeats. The caller runs one generator at a time, to its end.

    `me.process` was never used before. Raises ValueError for a bad name, see `check_name`.
    """

    def __init__(
        self, root: str, pipeline: str, me: Member, copartitions: Copartitions = SINGLY
    ) -> None:
        self._me = me
        self._copartitions = copartitions
        self._members_at = replicas_path(root, pipeline)
        self._path = self._at(check_name(me.name))
        self._plan_at = plan_path(root, pipeline)
        self._control_at = control_path(root, pipeline)
        self._was_registered = False
        self._created: int | None = None  # the creation stamp of our last node
        self._leader: tuple[str, int] | None = None  # its name, and its node's creation stamp

    def beat(self, report: Report) -> Steps[GroupView]:
        """Register if need be, report, and read or make the plan; again if the session ends.

        Raises ReplicaReplaced, StoreCorrupt.
        """
        return through_sessions(partial(self._beat, report))

    def _beat(self, report: Report) -> Steps[GroupView]:
        yield from self._register(report)
        plan, version = yield from self._plan()
        found = yield from read(self._control_at)
        control = decode_control(self._control_at, found and found.data)
        if (yield from self._leader_stays()):
            return GroupView(plan, control, _named((yield from self._names())), leads=False)
        # Read the parent first: whoever registers from now on makes the plan's write fail.
        parent = yield from read(self._members_at)
        stats: dict[str, ZNode] = {}
        for name in (yield from self._names()):
            stat = yield from read(self._at(name))
            if stat is not None:  # else it has just left
                stats[name] = stat
        leader = min(stats, key=lambda name: stats[name].created, default=None)
        self._leader = None if leader is None else (leader, stats[leader].created)
        if parent is None or leader != self._me.name or not stats[leader].is_ours:
            return GroupView(plan, control, _named(stats), leads=False)
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
            plan = yield from self._publish(new, version, parent.version)
        return GroupView(plan, control, members, leads=True)

    def _register(self, report: Report) -> Steps[None]:
        """Write until our node is read back with this report. Raises ReplicaReplaced."""
        data = encode_member(replace(self._me, seen=report.seen, holds=report.holds))
        while True:
            found = yield from read(self._path)
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
                operations.append(CreateNode(self._path, data, ends_with_session=True))
            if (yield from _written(*operations)):
                self._was_registered = True

    def _parent(self) -> Steps[Operation]:
        while (yield from read(self._members_at)) is None:
            yield from _written(CreateNode(self._members_at, b""))
        return SetNode(self._members_at, b"", ANY_VERSION)

    def _check_not_replaced(self, found: ZNode) -> None:
        """Raise if a node that is not of our session means that another process replaced us.

        Our own node of an ended session may still exist for a moment. Another's that existed
        before we registered is a predecessor's, whose session need not be waited for. One that
        was created after ours is a successor's, also if our session has ended: a process that was
        frozen must not drive out the one that took its place.
        """
        if not self._was_registered or found.created == self._created:
            return
        try:
            other = decode_member(self._path, found.data, found.created).process
        except StoreCorrupt:
            other = "of which nothing can be read"
        raise ReplicaReplaced(self._me.name, other)

    def _plan(self) -> Steps[tuple[Plan | None, int | None]]:
        found = yield from read(self._plan_at)
        return (decode_plan(self._plan_at, found.data), found.version) if found else (None, None)

    def _publish(self, plan: Plan, version: int | None, parent: int) -> Steps[Plan | None]:
        data = encode_plan(plan)
        if len(data) > MAX_BYTES:
            raise StoreError(
                f"{self._plan_at} would be {len(data)} bytes, more than ZooKeeper's {MAX_BYTES}"
            )
        write: Operation = CreateNode(self._plan_at, data)
        if version is not None:
            write = SetNode(self._plan_at, data, version)
        if not (yield from _written(SetNode(self._members_at, b"", parent), write)):
            return (yield from self._plan())[0]
        log.info(
            "plan_written",
            number=plan.number,
            replicas=len(set(plan.owners.values())),
            partitions=len(plan.owners),
            leaving=len(plan.leaving),
        )
        return plan

    def _leader_stays(self) -> Steps[bool]:
        """Whether another led at the last beat and still does: nobody can join before it."""
        if self._leader is None or self._leader[0] == self._me.name:
            return False
        found = yield from read(self._at(self._leader[0]))
        return found is not None and found.created == self._leader[1]

    def _names(self) -> Steps[list[str]]:
        return (yield from children(self._members_at)) or []

    def _at(self, name: str) -> str:
        return f"{self._members_at}/{name}"


def _written(*operations: Operation) -> Steps[bool]:
    """Write once; False if it was refused, or nobody knows."""
    try:
        yield Write(operations)
    except ReplyLost:
        yield Pause(RETRY_SECONDS)
        return False
    except (NodeChanged, NodeExists):
        return False
    return True


def _named(names: Iterable[str]) -> tuple[Member, ...]:
    return tuple(Member(name) for name in sorted(names))
