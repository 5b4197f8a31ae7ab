"""One replica is a group of one: it plans for itself, and waits for nobody."""

from contextlib import ExitStack

import pytest

from headrace import Topology, bolt
from headrace.sinks import MemoryDeadLetters, MemorySink
from partition.records import Partition
from tests.support.faulty_kafka import FaultyLog
from tests.support.faulty_store import FaultyNodes
from tests.support.replicas import Replica

BEAT_SECONDS = 1000.0  # no test lives to see the second one
PLACES = [Partition("t", number) for number in range(3)]


@bolt
def text(record):
    return record.value.decode()


class Group:
    def __init__(self, closing):
        self.log, self.nodes = FaultyLog({"t": len(PLACES)}), FaultyNodes()
        self.rows, self.closing = MemorySink(), closing

    def start(self, name):
        topology = Topology("texts")
        topology.source("t").then(text).into(self.rows)
        topology.dead_letters.into(MemoryDeadLetters())
        replica = Replica(name, topology, self.log, self.nodes, beat_seconds=BEAT_SECONDS)
        self.closing.callback(replica.close)
        replica.open()
        return replica

    def send(self):
        for place in PLACES:
            self.log.append(place, b"x")


@pytest.fixture
def group():
    with ExitStack() as closing:
        yield Group(closing)


def until(ask, replica):
    """Turn at one and the same moment; AssertionError if it never comes about."""
    for _ in range(100):
        if ask():
            return
        replica.turn(0.0)
    raise AssertionError("it never came about")


def test_one_replica_starts_without_waiting_for_a_beat(group):
    group.send()
    replica = group.start("a")
    until(lambda: len(group.rows.rows) == len(PLACES), replica)
    assert replica.membership.view.leads
    assert replica.reader.assignment.holds == set(PLACES)


def test_second_replica_waits_for_its_share(group):
    first = group.start("a")
    until(lambda: first.reader.assignment.holds == set(PLACES), first)
    second = group.start("b")
    with pytest.raises(AssertionError, match="never came about"):
        until(lambda: second.reader.assignment.holds, second)
