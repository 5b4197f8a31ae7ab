"""Two replicas of a pipeline on the spark engine: one works, the other stands by and takes over."""

import os
import signal
import time
from collections.abc import Callable

import pytest

from tests import spark_classes
from tests.acceptance import processes
from tests.acceptance.harness import Run
from tests.acceptance.replicas import Replicas
from tests.acceptance.trial import Trial

TOPOLOGIES = "tests.faults.topologies"
TOPICS = {"in-a": 2, "in-b": 1}
ACTIVE, STANDBY = "a", "b"


def _kill(run: Run) -> None:
    """The process and its JVM at once, as a machine that is gone."""
    for pid in processes.java_children(run.pid):
        os.kill(pid, signal.SIGKILL)
    run.kill()


def _freeze(run: Run) -> None:
    for pid in (*processes.java_children(run.pid), run.pid):
        processes.freeze(pid)


def _taken_over(trial: Trial, strike: Callable[[Run], None], *, thaws: bool) -> None:
    """Strike the active one amid its transactions; at the end each row is there once."""
    spark_classes.use()
    light = {"JDK_JAVA_OPTIONS": spark_classes.LIGHT}
    with Replicas(trial, "delta", engine="spark", topics=TOPICS) as replicas:
        nodes = replicas.nodes
        replicas.feed.start()
        replicas.start(ACTIVE, environment=light)
        replicas.settle(ACTIVE)
        replicas.start(STANDBY, environment=light)
        replicas.until("the other stands by", lambda: STANDBY in nodes.members)
        replicas.goes_on()
        assert nodes.plan.assigned == dict.fromkeys(replicas.feed.parts, ACTIVE)
        struck = time.monotonic()
        stored = replicas.lose(ACTIVE, strike)
        replicas.taken_over(stored, struck)
        assert nodes.plan.assigned == dict.fromkeys(replicas.feed.parts, STANDBY)
        if thaws:
            run = replicas.runs[ACTIVE]
            for pid in (*processes.java_children(run.pid), run.pid):
                processes.thaw(pid)
            replicas.until("it stands by", lambda: ACTIVE in nodes.members)
        replicas.goes_on()
        replicas.finish()


@pytest.mark.nightly
@pytest.mark.acceptance
def test_standby_finishes_transactions_of_a_killed_coordinator(trial):
    """Promises 9, 14 and 16: its open transactions are replayed exactly, under a higher epoch."""
    _taken_over(trial, _kill, thaws=False)


@pytest.mark.faults
def test_frozen_coordinator_commits_nothing_and_stands_by(trial):
    """Promise 9: what it still sends has no effect, and each row is there once."""
    _taken_over(trial, _freeze, thaws=True)
