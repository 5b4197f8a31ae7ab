"""Replicas of one pipeline that share a log and a register in memory, turned one by one."""

import random
import uuid
from typing import Any

import numpy as np

from headrace import Topology
from partition.assignment import AssignmentPolicy
from partition.consumer import Consumer, ConsumerPolicy, Time
from partition.memory.ports import (
    MemoryCatalogue,
    MemoryFetcher,
)
from partition.recovery import Ways
from partition.replicas.heartbeat import Heartbeats
from partition.replicas.plan import Member
from service.membership import GroupMembership, MembershipPolicy, copartitions_of
from service.pipeline.build import PipelinePolicy, Ports, build_pipeline
from tests.support.faulty_kafka import FaultyLog
from tests.support.faulty_store import FaultyNodes, FaultyStore
from topology.sink import DeadLetterSink


class Replica:
    """One of them. Its clock is what it is told."""

    def __init__(
        self,
        name: str,
        topology: Topology,
        log: FaultyLog,
        nodes: FaultyNodes,
        *,
        beat_seconds: float = 0.0,
    ) -> None:
        self.name = name
        self.now = 0.0
        letters_sink: Any = topology.dead_letters.sink
        assert isinstance(letters_sink, DeadLetterSink)
        store = FaultyStore(nodes)

        def make_reader(notify: Any, _fences: Any) -> Consumer:
            return Consumer(
                MemoryFetcher(log),
                Ways(store, MemoryCatalogue(log), notify),
                [source.topic for source in topology.sources],
                ConsumerPolicy(
                    AssignmentPolicy(shared=True, discover_interval_seconds=0),
                    commit_interval_seconds=0,
                ),
                random.Random(1),
                Time(clock=lambda: self.now),
            )

        self.pipeline = build_pipeline(
            topology,
            Ports(make_reader, letters_sink, np.random.default_rng(1), lambda: self.now),
            PipelinePolicy(message_timeout_seconds=30.0),
        )
        self.reader = self.pipeline.consumer
        copartitions = copartitions_of(topology)
        me = Member(name, uuid.uuid4().hex)
        heartbeats = Heartbeats("/headrace", "memory", me, copartitions)
        policy = MembershipPolicy(name, beat_seconds)
        self.membership = GroupMembership(
            store, heartbeats, self.reader.assignment, policy, copartitions
        )

    def open(self) -> None:
        self.reader.open()
        self.pipeline.open()

    def turn(self, now: float) -> None:
        """Turn the loop once, as `Service` does."""
        self.now = now
        self.membership.poll(now)
        self.pipeline.step(flush=True)

    def close(self) -> None:
        self.pipeline.close(5.0)
        self.reader.close()
