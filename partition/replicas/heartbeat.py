"""One replica's heartbeat, and the nodes that replicas and operators share. No I/O."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, TypeVar, cast

import msgspec
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
    Reply,
    Request,
    SessionEnded,
    SetNode,
    Steps,
    Write,
    ZNode,
)
from partition.offsets.znode import MAX_BYTES, said, shown
from partition.records import Partition
from partition.replicas.plan import (
    SINGLY,
    Control,
    Copartitions,
    Leaving,
    Member,
    Note,
    Plan,
    by_topic,
    from_topics,
    next_plan,
)

VERSION = 1
MAX_NAME = 200
_NAME = re.compile(rf"[A-Za-z0-9._-]{{1,{MAX_NAME}}}")
_NUMBER = re.compile(r"[1-9][0-9]{0,18}")

_Natural = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
_Topics = dict[str, str]  # a topic's partitions as ranges


class _Version(msgspec.Struct):
    version: _Natural


class _Member(msgspec.Struct):
    version: _Natural
    process: str
    seen: _Natural
    holds: _Topics
    host: str = ""
    since_ms: _Natural = 0
    headrace: str = ""


class _Plan(msgspec.Struct):
    version: _Natural
    number: Annotated[int, msgspec.Meta(ge=1, le=2**63 - 1)]
    leader: str
    owners: dict[str, _Topics]
    leaving: dict[str, dict[str, _Topics]]  # by replica, then by the number of the plan
    rebalanced: _Natural = 0


class _Note(msgspec.Struct):
    by: str
    why: str
    at_ms: _Natural


class _Control(msgspec.Struct):
    version: _Natural
    paused: _Note | None = None
    drained: dict[str, _Note] = {}
    rebalance: _Natural = 0


T = TypeVar("T", _Member, _Plan, _Control)


def check_name(name: str) -> str:
    """Return a replica's name if it may be one. Raises ValueError, which says what may."""
    if name in {".", ".."} or not _NAME.fullmatch(name):
        raise ValueError(
            f'{name!r} is no name of a replica; 1 to {MAX_NAME} characters of A-Z a-z 0-9 "." "_" '
            '"-" are allowed, but not "." or ".."'
        )
    return name


def replicas_path(root: str, pipeline: str) -> str:
    """Return the path of the node below which the members are."""
    return f"{root.rstrip('/')}/{pipeline}/@replicas"


def replica_path(root: str, pipeline: str, name: str) -> str:
    """Return a member's path."""
    return f"{replicas_path(root, pipeline)}/{name}"


def plan_path(root: str, pipeline: str) -> str:
    """Return the plan's path."""
    return f"{root.rstrip('/')}/{pipeline}/@plan"


def control_path(root: str, pipeline: str) -> str:
    """Return the path of what operators ask for."""
    return f"{root.rstrip('/')}/{pipeline}/@control"


def encode_member(member: Member) -> bytes:
    """Return a member's bytes; the path says its name, the server when it joined."""
    return msgspec.json.encode(
        _Member(
            VERSION,
            member.process,
            member.seen,
            by_topic(member.holds),
            member.host,
            member.since_ms,
            member.headrace,
        )
    )


def decode_member(path: str, data: bytes, joined: int) -> Member:
    """Read a member that joined then. Raises StoreCorrupt, which names the path."""
    found = _decode(path, data, _Member, "a replica")
    try:
        holds = from_topics(found.holds)
    except ValueError as error:
        raise _corrupt(path, f"holds: {error}", data, "a replica") from error
    return Member(
        path.rpartition("/")[2],
        found.process,
        joined,
        found.seen,
        holds,
        found.host,
        found.since_ms,
        found.headrace,
    )


def encode_plan(plan: Plan) -> bytes:
    """Return a plan's bytes, the same for equal plans."""
    owners: dict[str, list[Partition]] = {}
    for partition, owner in plan.owners.items():
        owners.setdefault(owner, []).append(partition)
    leaving: dict[tuple[str, int], list[Partition]] = {}
    for partition, left in plan.leaving.items():
        leaving.setdefault((left.name, left.number), []).append(partition)
    revoked: dict[str, dict[str, _Topics]] = {}
    for name, number in sorted(leaving):
        revoked.setdefault(name, {})[str(number)] = by_topic(leaving[name, number])
    owned = {name: by_topic(owners[name]) for name in sorted(owners)}
    return msgspec.json.encode(
        _Plan(VERSION, plan.number, plan.leader, owned, revoked, plan.rebalanced)
    )


def decode_plan(path: str, data: bytes) -> Plan:
    """Read a plan. Raises StoreCorrupt, which names the path."""
    found = _decode(path, data, _Plan, "a plan")
    owners: dict[Partition, str] = {}
    leaving: dict[Partition, Leaving] = {}
    try:
        for name, topics in found.owners.items():
            for partition in from_topics(topics):
                if partition in owners:
                    raise ValueError(f"{partition} has two owners")  # noqa: TRY301
                owners[partition] = name
        for name, by_number in found.leaving.items():
            for number, topics in by_number.items():
                left = Leaving(name, _number(number))
                for partition in from_topics(topics):
                    if partition in owners or partition in leaving:
                        raise ValueError(f"{partition} stands there twice")  # noqa: TRY301
                    leaving[partition] = left
    except ValueError as error:
        raise _corrupt(path, str(error), data, "a plan") from error
    return Plan(found.number, found.leader, owners, leaving, found.rebalanced)


def encode_control(control: Control) -> bytes:
    """Return the bytes of what operators ask for."""
    paused = control.paused
    return msgspec.json.encode(
        _Control(
            VERSION,
            None if paused is None else _Note(paused.by, paused.why, paused.at_ms),
            {
                name: _Note(note.by, note.why, note.at_ms)
                for name, note in sorted(control.drained.items())
            },
            control.rebalance,
        )
    )


def decode_control(path: str, data: bytes) -> Control:
    """Read what operators ask for. Raises StoreCorrupt, which names the path."""
    found = _decode(path, data, _Control, "what operators ask for")
    paused = found.paused
    drained: Mapping[str, Note] = {
        name: Note(note.by, note.why, note.at_ms) for name, note in found.drained.items()
    }
    return Control(
        None if paused is None else Note(paused.by, paused.why, paused.at_ms),
        drained,
        found.rebalance,
    )


def _decode(path: str, data: bytes, kind: type[T], what: str) -> T:
    try:
        version = msgspec.json.decode(data, type=_Version).version
        if version <= VERSION:
            return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise _corrupt(path, said(error), data, what) from error
    found = f'"version" {version}, which a later version of this package wrote,'
    raise _corrupt(path, found, data, what)


def _number(text: str) -> int:
    if not _NUMBER.fullmatch(text):
        raise ValueError(f"{text[:30]!r} is no number of a plan")
    return int(text)


def _corrupt(path: str, found: str, data: bytes, what: str) -> StoreCorrupt:
    needed = f'a JSON object that says {what}, of "version" 1 to {VERSION},'
    return StoreCorrupt(path, f"{found} in {shown(data)}", needed)


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

    def _check_not_replaced(self, found: ZNode) -> None:
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

    def _stats(self) -> Steps[dict[str, ZNode]]:
        stats: dict[str, ZNode] = {}
        for name in (yield from self._names()):
            found = yield from self._stat(self._at(name))
            if found is not None:  # else it has just left
                stats[name] = found
        return stats

    def _names(self) -> Steps[list[str]]:
        return cast("list[str] | None", (yield from _asked(Children(self._members_at)))) or []

    def _stat(self, path: str) -> Steps[ZNode | None]:
        return cast("ZNode | None", (yield from _asked(Read(path))))

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
