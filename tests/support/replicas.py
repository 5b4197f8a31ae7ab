"""Replicas of one pipeline that share a log and a register in memory, turned one by one."""

import random
import time
import uuid
from collections.abc import Callable
from typing import Any

import numpy as np

from headrace import Topology
from partition.assignment import AssignmentPolicy
from partition.consumer import Consumer, ConsumerPolicy, Time
from partition.memory.ports import MemoryCatalogue, MemoryFetcher
from partition.recovery import Ways
from partition.replicas.balance import Member
from partition.replicas.heartbeat import Heartbeats
from service.membership import GroupMembership, MembershipPolicy, copartitions_of
from service.pipeline.build import PipelinePolicy, Ports, build_pipeline
from tests.support.faulty_kafka import FaultyLog
from tests.support.faulty_store import FaultyNodes, FaultyStore


class Replica:
    """One of them. Its clock is what it is told, unless one is given."""

    def __init__(
        self,
        name: str,
        topology: Topology,
        log: FaultyLog,
        nodes: FaultyNodes,
        *,
        consumer: ConsumerPolicy | None = None,
        pipeline: PipelinePolicy | None = None,
        membership: MembershipPolicy | None = None,
        clock: Callable[[], float] | None = None,
        seed: int = 1,
    ) -> None:
        self.name = name
        self.now = 0.0
        self.store = FaultyStore(nodes, clock=clock or time.monotonic)
        clock = clock or (lambda: self.now)
        afresh = AssignmentPolicy(shared=True, discover_interval_seconds=0)

        def make_reader(notify: Any, fences: Any) -> Consumer:
            return Consumer(
                MemoryFetcher(log),
                Ways(self.store, MemoryCatalogue(log), notify, fences),
                [source.topic for source in topology.sources],
                consumer or ConsumerPolicy(afresh, commit_interval_seconds=0),
                random.Random(seed),
                Time(clock, sleep=lambda _: None),
            )

        letters: Any = topology.dead_letters.sink
        self.pipeline = build_pipeline(
            topology,
            Ports(make_reader, letters, np.random.default_rng(seed), clock),
            pipeline or PipelinePolicy(message_timeout_seconds=30.0),
        )
        self.reader = self.pipeline.consumer
        copartitions = copartitions_of(topology)
        me = Member(name, uuid.uuid4().hex)
        self.membership = GroupMembership(
            self.store,
            Heartbeats("/headrace", "memory", me, copartitions),
            self.reader.assignment,
            membership or MembershipPolicy(name, 0.0),
            copartitions,
        )

    def open(self) -> None:
        """Open all. Raises StoreUnavailable."""
        self.reader.open()
        self.pipeline.open()

    def turn(self, now: float, *, flush: bool = True) -> None:
        self.now = now
        self.membership.poll(now)
        self.pipeline.step(flush=flush)

    def close(self) -> None:
        self.pipeline.close(5.0)
        self.reader.close()
