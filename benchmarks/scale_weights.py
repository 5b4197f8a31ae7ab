"""What partitions and replicas weigh: bytes by the real encoders, seconds by the real code.

The bytes are the same on every machine; the seconds are this one's, of processor time.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from partition.interfaces import StoredOffset
from partition.offsets.znode import (
    OffsetNode,
    TopicNode,
    Writer,
    encode,
    encode_topic,
    incarnation_path,
    node_path,
)
from partition.records import Partition, Position
from partition.replicas.heartbeat import decode_member, decode_plan, encode_member, encode_plan
from partition.replicas.plan import Control, Member, Plan, next_plan

ROOT, PIPELINE = "/headrace", "orders-to-lake"
_PROCESS = "123e4567-e89b-12d3-a456-426614174000"
_TOPIC_ID = "Xq3vX2cJSxGZ0u1mR2Yw8A"
_OFFSET = 1_234_567_890
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Cluster:
    """Replicas that share the partitions of so many topics, evenly."""

    partitions: int
    replicas: int
    topics: int = 1
    beat_seconds: float = 0.5
    commit_seconds: float = 1.0

    @property
    def all_partitions(self) -> list[Partition]:
        """Every partition."""
        share, more = divmod(self.partitions, self.topics)
        return [
            Partition(f"orders-{topic:03d}", number)
            for topic in range(self.topics)
            for number in range(share + (topic < more))
        ]

    @property
    def names(self) -> list[str]:
        """The replicas, as a StatefulSet names its pods."""
        return [f"headrace-{number}" for number in range(self.replicas)]


@dataclass(frozen=True, slots=True)
class Weights:
    """Bytes and seconds of one cluster."""

    name_bytes: float  # a replica's name
    plan_bytes: float
    member_bytes: float  # one member's node
    offset_bytes: float  # one partition's node, with both paths that a write names
    topic_bytes: float  # a topic's node, once all of its partitions are begun
    encode_plan_seconds: float = 0.0
    decode_plan_seconds: float = 0.0
    decode_members_seconds: float = 0.0  # all of them
    next_plan_seconds: float = 0.0  # when nothing changes
    new_plan_seconds: float = 0.0  # when a replica is gone


def weigh(cluster: Cluster, clock: Callable[[], float] = time.process_time) -> Weights:
    """Weigh a cluster whose replicas have shared everything out for the first time."""
    names, partitions = cluster.names, cluster.all_partitions
    plan = next_plan(None, _members(names, {}), partitions, Control())
    if plan is None:
        raise AssertionError("nobody is registered")
    encode_seconds, plan_data = _timed(clock, lambda: encode_plan(plan))
    decode_seconds, _ = _timed(clock, lambda: decode_plan("/plan", plan_data))
    members = _members(names, _held(plan))
    data = [encode_member(member) for member in members]
    members_seconds, members = _timed(
        clock,
        lambda: [
            decode_member(f"/{each.name}", bytes_, each.joined)
            for each, bytes_ in zip(members, data, strict=True)
        ],
    )
    same_seconds, same = _timed(clock, lambda: next_plan(plan, members, partitions, Control()))
    if same is not None:
        raise AssertionError("a plan that is followed is no plan to change")
    new_seconds, _ = _timed(clock, lambda: next_plan(plan, members[:-1], partitions, Control()))
    begun = frozenset(range(-(-cluster.partitions // cluster.topics)))
    return Weights(
        name_bytes=sum(map(len, names)) / len(names),
        plan_bytes=len(plan_data),
        member_bytes=sum(map(len, data)) / len(data),
        offset_bytes=offset_bytes(partitions[-1]),
        topic_bytes=len(encode_topic(TopicNode(begun, len(begun)))),
        encode_plan_seconds=encode_seconds,
        decode_plan_seconds=decode_seconds,
        decode_members_seconds=members_seconds,
        next_plan_seconds=same_seconds,
        new_plan_seconds=new_seconds,
    )


def offset_bytes(partition: Partition) -> int:
    """What a commit sends of one partition, at least once: data, and two paths."""
    position = Position(_OFFSET, 7, _TOPIC_ID)
    node = OffsetNode(
        StoredOffset(position, PIPELINE, PIPELINE, 3), Writer(_PROCESS, 100_000), f"{_PROCESS}-17"
    )
    path = node_path(ROOT, PIPELINE, partition)
    below = incarnation_path(path, f"{_PROCESS}-17")
    return len(encode(partition, node)) + len(path) + len(below)


def _members(names: list[str], held: dict[str, set[Partition]]) -> list[Member]:
    return [
        Member(
            name,
            _PROCESS,
            joined,
            int(bool(held)),
            frozenset(held.get(name, ())),
            host=name,
            since_ms=1_763_900_000_000,
            headrace="1.0.0",
        )
        for joined, name in enumerate(names, 1)
    ]


def _held(plan: Plan) -> dict[str, set[Partition]]:
    held: dict[str, set[Partition]] = {}
    for partition, owner in plan.owners.items():
        held.setdefault(owner, set()).add(partition)
    return held


def _timed(clock: Callable[[], float], work: Callable[[], T]) -> tuple[float, T]:
    started = clock()
    done = work()
    return clock() - started, done
