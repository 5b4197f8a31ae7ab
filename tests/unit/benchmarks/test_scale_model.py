"""The model of scale asks ZooKeeper for what the real code asks for, and its queues are queues."""

from dataclasses import replace
from statistics import median

import pytest

from benchmarks.scale_ensemble import Ask, Ensemble, ZooKeeper
from benchmarks.scale_model import (
    AS_BUILT,
    CLAIM_READS,
    OPERATIONS,
    SPARING,
    SPLIT,
    steady,
    takeover,
)
from benchmarks.scale_weights import Cluster, Weights, weigh
from partition.interfaces import Progress
from partition.offsets.requests import Write
from partition.records import Partition, Position
from partition.replicas.heartbeat import Heartbeats, Report
from partition.replicas.plan import Member
from tests.support.faulty_store import FaultyNodes, FaultyStore

WEIGHTS = Weights(
    name_bytes=10, plan_bytes=4_000, member_bytes=600, offset_bytes=500, topic_bytes=4_000
)
CAN = ZooKeeper()
NONE = Report(frozenset(), 0, None)
ALL = frozenset(Partition("orders", number) for number in range(30))


class CountingNodes(FaultyNodes):
    """Notes what is asked."""

    def __init__(self):
        super().__init__()
        self.asked = []

    def answer(self, request, session=None):
        self.asked.append(request)
        return super().answer(request, session)

    def taken(self):
        """Reads and writes since the last call, and the operations of the writes."""
        asked, self.asked = self.asked, []
        writes = [request for request in asked if isinstance(request, Write)]
        operations = sum(len(write.operations) for write in writes)
        return len(asked) - len(writes), len(writes), operations


def opened(nodes):
    store = FaultyStore(nodes)
    store.open()
    return store


def busy(cluster, design, **more):
    return steady(cluster, WEIGHTS, design, CAN, **more)


def test_a_claim_is_what_the_offset_nodes_ask_for():
    nodes = CountingNodes()
    first, second = opened(nodes), opened(nodes)
    for partition in ALL:
        first.claim(partition).result(0)
        first.begin(partition, Position(0), len(ALL)).result(0)
    one, *others = ALL
    second.claim(one).result(0)  # it reads the topic's node, once
    nodes.taken()
    for partition in others:
        second.claim(partition).result(0)
    assert nodes.taken() == (
        CLAIM_READS * len(others), len(others), OPERATIONS * len(others),
    )  # fmt: skip


def test_a_commit_of_few_partitions_is_one_write_of_two_operations_each():
    nodes = CountingNodes()
    store = opened(nodes)
    for partition in ALL:
        store.claim(partition).result(0)
        store.begin(partition, Position(0), len(ALL)).result(0)
    nodes.taken()
    store.commit({partition: Progress(Position(5)) for partition in ALL}).result(0)
    assert nodes.taken() == (0, 1, OPERATIONS * len(ALL))


def test_heartbeats_are_what_the_replicas_ask_for():
    """Should this fail, the heartbeat has changed: then `_Run._beat` and AS_BUILT must, too."""
    nodes = CountingNodes()
    names = ["a", "b", "c"]
    stores = [opened(nodes) for _ in names]
    beats = [Heartbeats("/headrace", "p", Member(name, name)) for name in names]
    reports = [NONE] * len(names)
    for _turn in range(6):
        for place, store in enumerate(stores):
            nodes.taken()
            view = store.submit(beats[place].beat(reports[place])).result(0)
            last = nodes.taken()
            if place == 0:
                of_leader = last
            seen = 0 if view.plan is None else view.plan.number
            holds = frozenset() if view.plan is None else view.plan.of(names[place])
            reports[place] = Report(holds, seen, ALL)
    assert (of_leader[1], last[1]) == (0, 0)  # nothing is written while nothing changes
    found = busy(Cluster(30, 3, commit_seconds=1e9), AS_BUILT, seconds=100)
    asked = last[0] * len(found.beats) + of_leader[0] * len(found.leader_beats)
    assert found.load.gets * 100 == pytest.approx(asked, abs=30)  # a heartbeat may be half done
    assert found.load.syncs == found.load.gets
    assert found.load.writes == 0


def test_writes_do_not_depend_on_the_number_of_partitions():
    few, many = (busy(Cluster(count, 8), AS_BUILT) for count in (800, 4_000))
    assert few.load.writes == many.load.writes == pytest.approx(8, rel=0.05)
    assert many.load.written_bytes == pytest.approx(5 * few.load.written_bytes)


def test_more_than_five_hundred_partitions_of_one_replica_take_more_writes():
    many = busy(Cluster(8_000, 8), AS_BUILT)
    assert many.load.writes == pytest.approx(16, rel=0.05)


def test_a_sparing_heartbeat_reads_no_plan_that_it_has_read():
    cluster = Cluster(1_000, 8)
    small, large = WEIGHTS, replace(WEIGHTS, plan_bytes=400_000)
    built = [steady(cluster, each, AS_BUILT, CAN).load.sent_bytes for each in (small, large)]
    sparing = [steady(cluster, each, SPARING, CAN).load.sent_bytes for each in (small, large)]
    assert built[1] > 20 * built[0]
    assert sparing[0] == sparing[1] < built[0]


@pytest.mark.parametrize("design", [AS_BUILT, SPARING, SPLIT])
@pytest.mark.parametrize("killed", [1, 4, 7])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_takeover_waits_for_the_session_and_then_claims_all(design, killed, seed):
    found = takeover(Cluster(1_000, 8), WEIGHTS, design, CAN, killed=killed, seed=seed)
    assert CAN.session_seconds - 0.5 <= found.expired_seconds
    assert found.expired_seconds <= CAN.session_seconds + CAN.tick_seconds
    assert found.expired_seconds < found.planned_seconds < found.claimed_seconds
    # Two heartbeats, and the most that one replica claims, one after the other.
    each = -(-1_000 // (8 - killed)) - 125
    assert found.claimed_seconds - found.expired_seconds < 2 * 0.6 + each * 0.005


def test_the_same_seed_gives_the_same_and_another_one_something_else():
    runs = [takeover(Cluster(100, 8), WEIGHTS, AS_BUILT, CAN, killed=3, seed=n) for n in (5, 5, 6)]
    assert runs[0] == runs[1] != runs[2]


def test_heartbeats_wait_for_an_ensemble_that_has_too_much_to_do():
    slow = replace(CAN, sent_bytes_per_second=10_000.0)
    found = steady(Cluster(1_000, 8), WEIGHTS, AS_BUILT, slow)
    assert found.load.servers_busy > 0.9
    assert median(found.beats) > 10 * median(busy(Cluster(1_000, 8), AS_BUILT).beats)


def test_what_is_asked_at_once_is_answered_one_after_the_other():
    can = replace(CAN, servers=1, writes_per_second=10.0, reads_per_second=1.0)
    ensemble = Ensemble(can)
    assert ensemble.answered_at(0.0, 0, Ask(writes=1)) == pytest.approx(0.101)
    assert ensemble.answered_at(0.0, 1, Ask(writes=1)) == pytest.approx(0.201)
    assert ensemble.answered_at(0.0, 2, Ask(gets=1)) == pytest.approx(1.001)  # not behind those
    assert ensemble.loads[0].writes == 2


def test_a_plan_of_many_topics_is_larger():
    one, many = (weigh(Cluster(200, 20, topics)) for topics in (1, 20))
    assert many.plan_bytes > 1.2 * one.plan_bytes
    assert many.topic_bytes < one.topic_bytes
