"""The nodes that replicas and operators share: where they lie, and what they hold. Pure.

Below `<root>/<pipeline>`, beside the topics; "@" cannot stand in a topic's name:

    @replicas/<name>  a member; it ends with the member's session
    @plan             who may hold which partition; written by the leader
    @control          what operators ask for

Each is a JSON object with a "version". What a later one holds is not guessed.
"""

import re
from collections.abc import Mapping
from typing import Annotated, TypeVar

import msgspec

from partition.errors import StoreCorrupt
from partition.offsets.znode import said, shown
from partition.records import Partition
from partition.replicas.plan import Control, Leaving, Member, Note, Plan
from partition.replicas.ranges import by_topic, from_topics

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
