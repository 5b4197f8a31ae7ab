"""Health: live says whether a restart would help, ready whether work gets done (O04)."""

from dataclasses import replace

import pytest

from headrace import Record, Topology, bolt
from headrace.sinks import DiscardSink, MemoryDeadLetters
from headrace.testing import topology_test
from partition.records import Partition
from service.observability.health import STALLED_SECONDS, Health, HealthCheck
from service.observability.snapshot import ExecutorCounters, SinkStatistics, Snapshot
from topology.workers.runners import RunnerStatistics


@bolt
def keep(record: Record) -> int:
    return record.offset


@pytest.fixture
def snapshot() -> Snapshot:
    topology = Topology("health")
    topology.source("health").then(keep).into(DiscardSink())
    topology.dead_letters.into(MemoryDeadLetters())
    with topology_test(topology) as test:
        test.send(b"1")
        return Snapshot(
            taken_at=100.0,
            partitions=tuple(test._reader.statistics(0.0)),
            sinks=(SinkStatistics("discard", 1, 0, 0, 0, None, None),),
            acker=test._pipeline.statistics().acker,
            written=1,
            filtered=0,
            dead_lettered=0,
        )


def health(snapshot: Snapshot | None, now: float = 100.5) -> HealthCheck:
    return HealthCheck(lambda: snapshot, clock=lambda: now)


def test_service_is_live_but_not_ready_before_the_first_turn():
    assert health(None).live() == Health(ok=True)
    assert health(None).startup() == Health(ok=False, problems=("starting",))
    assert health(None).ready() == Health(ok=False, problems=("starting",))


def test_turning_loop_is_live_and_ready(snapshot):
    assert health(snapshot).live().ok
    assert health(snapshot).ready() == Health(ok=True)


def test_started_service_stays_started(snapshot):
    late = health(replace(snapshot, kafka_available=False), now=100 + STALLED_SECONDS + 1)
    assert late.startup() == Health(ok=True)
    assert not late.live().ok


def test_a_loop_that_stands_still_is_neither(snapshot):
    check = health(snapshot, now=100 + STALLED_SECONDS + 1)
    assert not check.live().ok
    assert not check.ready().ok
    assert "61 s" in check.live().problems[0]
    assert health(snapshot, now=100 + STALLED_SECONDS).live().ok


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"kafka_available": False}, "Kafka is away"),
        ({"store_available": False}, "ZooKeeper is away"),
        ({"settled": False}, "partitions are still to be opened"),
        ({"halted": {Partition("t", 3): "it is corrupt"}}, "t[3] is halted: it is corrupt"),
        (
            {"sinks": (SinkStatistics("t", 0, 0, 9, 3, 99.0, "disk full"),)},
            "sink 't' is failing: disk full",
        ),
        (
            {"dead_letters_waiting_seconds": 12.3},
            "dead letters wait for their topic, for 12 s now",
        ),
        (
            {"apart": ExecutorCounters(failing_since=99.0, last_error="SparkDied: gone")},
            "ranges fail on Spark: SparkDied: gone",
        ),
    ],
)
def test_missing_server_is_not_ready_but_live(snapshot, change, problem):
    check = health(replace(snapshot, **change))
    assert check.live().ok
    assert check.ready() == Health(ok=False, problems=(problem,))


def test_bolt_without_free_workers_is_not_live_after_a_minute(snapshot):
    """B02: no thread can be ended from outside, so only a restart helps."""
    some = RunnerStatistics(abandoned=3)
    none = RunnerStatistics(abandoned=4, ended_since=100.0)
    stuck = replace(snapshot, runners={"fine": some, "slow": some + none})
    said = (
        "bolt 'slow' stands still: 7 calls past their time-out have not returned, and no more may "
        "be begun beside them"
    )
    soon, late = (health(replace(stuck, taken_at=now), now) for now in (101.0, 161.0))
    assert soon.live() == Health(ok=True)
    assert soon.ready() == late.live() == late.ready() == Health(ok=False, problems=(said,))
    assert health(replace(snapshot, runners={"fine": some})).ready().ok


def test_all_problems_are_listed(snapshot):
    check = health(replace(snapshot, kafka_available=False, store_available=False))
    assert len(check.ready().problems) == 2
