"""P07: the wall clock jumps by a year, on and back, under processes that run."""

import time
from itertools import pairwise

import pytest

from partition.records import Partition
from service.observability.health import STALLED_SECONDS
from tests.acceptance import replicas as sharing
from tests.acceptance import trial as alone
from tests.acceptance.harness import Run
from tests.acceptance.replicas import Replicas
from tests.support.clock_shift import WallClock
from tests.support.kafka import KafkaWorld
from tests.support.patience import slack, until
from tests.support.service import Window

pytestmark = [pytest.mark.integration, pytest.mark.faults]

YEAR = 365 * 24 * 3600
JUMPS = (YEAR, -YEAR, 0)  # against the right time, one after the other
RETRY_SECONDS = 0.5
SECONDS = 60.0
LATE_SECONDS = 5.0  # on a busy machine
TRIES = 4  # between two jumps
BACK = 10  # years, one after the other
STILL_SECONDS = 3.0
DISTURBED = (
    "ownership_suspended",
    "zookeeper_session_ended",
    "partition_given_up",
    "partition_failed",
    "partition_halted",
    "plan_written",
)


@pytest.mark.parametrize("output", ["lines", "delta"])  # a broker refuses records of next year
def test_sessions_ignore_the_wall_clock(trial, tmp_path, output):
    """One replica's clock jumps, the other one's does not."""
    clock = WallClock(tmp_path)
    trial.topologies = sharing.TOPOLOGIES
    with Replicas(trial, output, topics={"in-a": 3, "in-b": 2}) as replicas:
        replicas.start("a", environment=clock.environment)
        before = replicas.begin("b")
        sessions = {name: each.session for name, each in replicas.nodes.members.items()}
        disturbed = {name: len(replicas.events(name)) for name in DISTURBED}
        for seconds in JUMPS:
            clock.shift(seconds)
            replicas.goes_on()
            replicas.goes_on()
        assert replicas.nodes.plan.owners == before.owners
        assert {n: each.session for n, each in replicas.nodes.members.items()} == sessions
        assert {name: len(replicas.events(name)) for name in DISTURBED} == disturbed
        replicas.finish()


def test_retries_are_on_time_if_the_wall_clock_jumps(trial, tmp_path):
    """Nothing else moves meanwhile. (Back, librdkafka's waits would last: docs/reliability.md.)"""
    clock, window = WallClock(tmp_path), Window()
    trial.publish(50, trouble=[(0, 20)])
    retries = {"retries": {"initial_seconds": RETRY_SECONDS, "max_seconds": RETRY_SECONDS}}
    environment = clock.environment | window.environment
    run = trial.start("function", config=retries, environment=environment)
    trial.wait_for(run, 49)
    for seconds in (YEAR, 2 * YEAR):
        clock.shift(seconds)
        tried = len(trial.tries((0, 20)))
        until("it is tried", lambda: len(trial.tries((0, 20))) >= tried + TRIES)  # noqa: B023
        assert window.problems() == []
    opened = trial.open()
    trial.wait_for(run, 50)
    assert time.monotonic() - opened < RETRY_SECONDS + slack(LATE_SECONDS)
    run.process.terminate()
    assert run.wait() == 0, run.tail()
    gaps = [after - before for before, after in pairwise(trial.tries((0, 20)))]
    assert min(gaps) > 0.9 * RETRY_SECONDS  # less a turn
    assert max(gaps) < RETRY_SECONDS + slack(LATE_SECONDS)
    begun, draining = _year(run, "service_started"), _year(run, "service_draining")
    assert draining > begun, "the process has not seen its clock jump"
    assert trial.rows() == alone.rows_of(alone.places(50))
    assert trial.letters() == []
    assert trial.stored() == {0: 50}


def test_quiet_service_asks_for_a_restart_after_clock_set_back(kafka, trial, tmp_path):
    """librdkafka waits until a time of day (docs/reliability.md): live says so after a minute."""
    clock, window = WallClock(tmp_path), Window()
    trial.publish(50)
    run = trial.start("function", environment=clock.environment | window.environment)
    until("all is stored", lambda: trial.stored() == {0: 50}, told=run.tail)
    assert window.live() == []
    for years in range(1, BACK + 1):  # a jump between two waits changes nothing
        clock.shift(-years * YEAR)
        if _stands_still(window):
            break
    until("it asks for a restart", window.live, STALLED_SECONDS + SECONDS, run.tail)
    assert "stood still" in window.live()[0]
    assert trial.kill(run) == {0: 50}
    world = KafkaWorld(kafka)
    world.append(Partition(trial.name, 0), [b"0:%d" % offset for offset in range(50, 80)])
    world.close()
    again = trial.start("function", "--until-caught-up", environment=clock.environment)
    assert again.wait() == 0, again.tail()
    assert trial.rows() == alone.rows_of(alone.places(80))
    assert trial.stored() == {0: 80}


def _stands_still(window: Window) -> bool:
    """Whether the loop has not turned for some seconds."""
    ends = time.monotonic() + 3 * STILL_SECONDS
    while time.monotonic() < ends:
        if window.metric("headrace_service_snapshot_age_seconds") > STILL_SECONDS:
            return True
        time.sleep(0.1)
    return False


def _year(run: Run, event: str) -> int:
    return int(run.events(event)[0]["timestamp"][:4])
