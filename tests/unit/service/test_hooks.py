"""Hooks, and bolts that are told of partitions."""

import pytest

from headrace import AdvancedBolt, Hooks, Topology, bolt
from headrace.sinks import MemoryDeadLetters, MemorySink
from headrace.testing import topology_test
from tests.worlds.noting import drawn


class Notes(Hooks):
    def __init__(self):
        self.events = []

    def started(self):
        self.events.append("start")

    def stopped(self):
        self.events.append("stop")

    def partition_assigned(self, topic, partition):
        self.events.append(f"+{topic}{partition}")

    def partition_revoked(self, topic, partition):
        self.events.append(f"-{topic}{partition}")


class Noting(AdvancedBolt):
    def __init__(self):
        self.events = []

    def process(self, tuple_, collector, /):
        self.events.append(tuple_.value)
        collector.ack(tuple_)

    partition_assigned = Notes.partition_assigned
    partition_revoked = Notes.partition_revoked


def test_every_partition_is_told_once_when_it_comes_and_once_when_it_goes():
    notes, noting = Notes(), Noting()
    topology = Topology("hooked")
    topology.hooks(notes)
    topology.source("in").then(bolt(lambda record: f"{record.topic}{record.partition}")).then(
        noting
    ).into(MemorySink("out"))
    topology.dead_letters.into(MemoryDeadLetters())
    with topology_test(topology) as kit:
        kit.send(b"1").send(b"2", partition=1).send(b"3").advance(30)
        assert notes.events == ["start", "+in0", "+in1"]
        assert noting.events == ["+in0", "in0", "+in1", "in1", "in0"]
    assert notes.events[3:-1] == ["-in1", "-in0"] or notes.events[3:-1] == ["-in0", "-in1"]
    assert notes.events[-1] == "stop"
    assert sorted(noting.events[-2:]) == ["-in0", "-in1"]


def test_a_hook_that_cannot_start_ends_the_start():
    class Broken(Hooks):
        def started(self):
            raise ConnectionError("no database")

    topology = drawn(lambda s: s.into(MemorySink("out")))
    topology.hooks(Broken())
    with pytest.raises(ConnectionError, match="no database"):
        topology_test(topology).__enter__()
