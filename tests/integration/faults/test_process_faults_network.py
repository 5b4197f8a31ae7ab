"""P08: a replica's network is cut: it sees ZooKeeper and not Kafka, Kafka and not ZooKeeper, or
neither, or packets pass one way only. The other replica's is whole.
"""

import time

import pytest

from tests.acceptance.replicas import SESSION_SECONDS, Replicas
from tests.faults.judge import Break
from tests.support.network import Apart
from tests.support.patience import slack
from tests.support.service import Window

pytestmark = [pytest.mark.integration, pytest.mark.faults]

TOPOLOGIES = "tests.faults.topologies"

SLACK_SECONDS = 10.0
SILENT_SECONDS = 2 / 3 * SESSION_SECONDS
TOLD_SECONDS = 90.0  # until a broker that answers nothing is noticed, on a busy machine
TOPICS = {"in-a": 3, "in-b": 2}


@pytest.mark.parametrize(
    ("output", "way", "sees_kafka"),
    [
        ("lines", "both", True),
        ("messages", "requests", True),
        ("lines", "replies", True),
        ("messages", "both", False),
    ],
)
def test_replica_cut_off_from_zookeeper_stops_by_its_own_clock(trial, output, way, sees_kafka):
    """It writes nothing after it was taken over, and comes back when the network does."""
    window = Window()
    cut = [trial.zookeeper.port] if sees_kafka else [trial.zookeeper.port, trial.kafka.port]
    with (
        Apart(trial.zookeeper.port, trial.kafka.port) as apart,
        Replicas(trial, output, topics=TOPICS) as replicas,
    ):
        replicas.start("a", environment=window.environment, prefix=apart.prefix)
        replicas.begin("b")
        since = time.monotonic()
        apart.cut(way, *cut)
        stored = replicas.stored_of("a")
        a = replicas.runs["a"]
        replicas.until("it stops", lambda: a.events("ownership_suspended"))
        replicas.breaks.append(Break(stored, replicas.feed.ends()))  # nothing later may repeat
        assert replicas.taken_over(stored, since) < SESSION_SECONDS + slack(SLACK_SECONDS)
        (suspended,) = a.events("ownership_suspended")
        assert SILENT_SECONDS <= suspended["silent_seconds"] < SESSION_SECONDS
        problems = apart.call(window.problems)
        assert "ZooKeeper is away" in problems
        written = _written(replicas)
        replicas.settle("b")
        replicas.goes_on()
        assert _written(replicas) == written, "a zombie writes"
        assert a.alive, a.tail()
        apart.heal()
        plan = replicas.settle("a", "b")
        assert plan.owners["a"]
        replicas.goes_on()
        replicas.until("ready again", lambda: apart.call(window.problems) == [])
        replicas.finish()


@pytest.mark.parametrize(("output", "way"), [("messages", "both"), ("lines", "replies")])
def test_replica_cut_off_from_kafka_waits_and_repeats_nothing(trial, output, way):
    """It lives and beats, so it keeps its partitions; those of the other one go on."""
    window = Window()
    with (
        Apart(trial.zookeeper.port, trial.kafka.port) as apart,
        Replicas(trial, output, topics=TOPICS) as replicas,
    ):
        replicas.start("a", environment=window.environment, prefix=apart.prefix)
        before = replicas.begin("b")
        apart.cut(way, trial.kafka.port)
        replicas.until(
            "it says so",
            lambda: "Kafka is away" in (apart.call(window.problems) or []),
            TOLD_SECONDS,
        )
        name = "headrace_service_kafka_available_state"
        assert apart.call(lambda: window.metric(name)) == 0
        ends = replicas.feed.ends()
        replicas.until(
            "the other one's go on",
            lambda: all(replicas.stored()[part] > ends[part] for part in before.owners["b"]),
        )
        assert all(replicas.stored()[part] < ends[part] for part in before.owners["a"])
        apart.heal()
        replicas.goes_on()
        replicas.until("ready again", lambda: apart.call(window.problems) == [])
        assert replicas.nodes.plan.owners == before.owners
        assert replicas.runs["a"].events("ownership_suspended") == []
        replicas.finish()


def _written(replicas: Replicas) -> int:
    """How many rows the replica in the other network has written; of files, how many."""
    if replicas.output == "lines":
        return replicas.trial.written(replicas.runs["a"])
    return 0  # exactly once, a row of its would be there twice
