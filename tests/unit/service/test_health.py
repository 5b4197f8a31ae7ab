"""Health: live says whether a restart would help, ready whether work gets done (O04)."""

from dataclasses import replace

import pytest

from headrace.testing import topology_test
from partition.records import Partition
from service.observability.health import STALLED_SECONDS, Health, HealthCheck
from service.observability.snapshot import ExecutorCounters, SinkStatistics
from tests.support.service import snapshot as snapshot_of_test
from tests.support.service import topology
from topology.workers.runners import RunnerStatistics


@pytest.fixture(scope="module")
def snapshot():
    with topology_test(topology()) as test:
        test.send(b"1")
        return snapshot_of_test(test)


def health(snapshot, now=100.5):
    return HealthCheck(lambda: snapshot, clock=lambda: now)


FAILING = SinkStatistics("t", 0, 0, 9, 3, 99.0, "disk full")
APART = ExecutorCounters(failing_since=99.0, last_error="SparkDied: gone")
STARTING = Health(ok=False, problems=("starting",))


def test_loop_is_judged_by_its_last_turn(snapshot):
    none = health(None)
    assert (none.live(), none.startup(), none.ready()) == (Health(ok=True), STARTING, STARTING)
    turning = health(snapshot, now=100 + STALLED_SECONDS)
    assert (turning.live(), turning.ready()) == (Health(ok=True), Health(ok=True))
    still = health(replace(snapshot, kafka_available=False), now=100 + STALLED_SECONDS + 1)
    assert still.startup() == Health(ok=True)
    assert (still.live().ok, still.ready().ok) == (False, False)
    assert still.live().problems == ("the loop has stood still for 61 s",)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"kafka_available": False}, "Kafka is away"),
        ({"store_available": False}, "ZooKeeper is away"),
        ({"kafka_available": False, "store_available": False}, "Kafka is away, ZooKeeper is away"),
        ({"settled": False}, "partitions are still to be opened"),
        ({"halted": {Partition("t", 3): "it is corrupt"}}, "t[3] is halted: it is corrupt"),
        ({"sinks": (FAILING,)}, "sink 't' is failing: disk full"),
        ({"dead_letters_waiting_seconds": 12.3}, "dead letters wait for their topic, for 12 s now"),
        ({"apart": APART}, "ranges fail on Spark: SparkDied: gone"),
    ],
)
def test_missing_server_is_not_ready_but_live(snapshot, change, problem):
    check = health(replace(snapshot, **change))
    assert check.live().ok
    assert (check.ready().ok, ", ".join(check.ready().problems)) == (False, problem)


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
