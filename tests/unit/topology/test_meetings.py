"""Sources that meet in a step which has to see all records of a key."""

import re

import pytest

from headrace import AdvancedBolt, Bolt, Topology, bolt, fields
from headrace.sinks import MemoryDeadLetters, MemorySink


class Keeps(AdvancedBolt):
    def process(self, tuple_, collector):
        collector.ack(tuple_)


class Passes(Bolt):
    def process(self, value):
        return value


@bolt
def passes(value):
    return value


def meetings(topology):
    topology.dead_letters.into(MemoryDeadLetters())
    topology.validate()
    return [[source.label for source in group] for group in topology.meetings()]


def joined(then):
    topology = Topology("t")
    left, right = (topology.source(name).then(passes) for name in ("left", "right"))
    then(left.merge(right)).then(passes).into(MemorySink())
    topology.source("other").then(Keeps).into(MemorySink())
    return meetings(topology)


@pytest.mark.parametrize(
    "then",
    [
        lambda stream: stream.then(Keeps),
        lambda stream: stream.then(passes).then(Keeps),
        lambda stream: stream.keyed_by("user").then(passes),
        lambda stream: stream.then(Passes, tasks=2, grouping=fields("user")),
    ],
)
def test_sources_meet_in_a_step_that_needs_whole_keys(then):
    assert joined(then) == [["left", "right"]]


@pytest.mark.parametrize(
    "then", [lambda stream: stream.then(passes), lambda stream: stream.then(Passes, tasks=2)]
)
def test_sources_that_pass_the_same_steps_do_not_meet(then):
    assert joined(then) == []


def test_groups_that_share_a_source_are_one():
    topology = Topology("t")
    streams = {name: topology.source(name).then(passes) for name in "abcde"}
    for one, two in ("ab", "cd", "bc"):
        streams[one].merge(streams[two]).then(Keeps).into(MemorySink())
    streams["e"].then(Keeps).into(MemorySink())
    assert meetings(topology) == [["a", "b", "c", "d"]]


def test_a_pattern_is_one_source():
    topology = Topology("t")
    topology.source(re.compile("t-.*")).then(Keeps).into(MemorySink())
    assert meetings(topology) == []
