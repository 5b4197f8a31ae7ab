"""P09: the servers' names do not resolve, at the start or amid a run."""

import time

import pytest

from service.devservers.servers import EmbeddedKafka, EmbeddedZooKeeper
from tests.acceptance.replicas import TOPOLOGIES, Replicas
from tests.acceptance.trial import Trial
from tests.faults.judge import Break
from tests.support.limits import Names
from tests.support.patience import until
from tests.support.servers import opened
from tests.support.service import Window

pytestmark = [pytest.mark.integration, pytest.mark.faults]

KAFKA, ZOOKEEPER = "kafka.headrace.test", "zookeeper.headrace.test"
ENDS_SECONDS = 120.0
AWAY_SECONDS = 5.0  # that a server is there whose name is not known


@pytest.fixture(scope="module")
def servers(tmp_path_factory):
    with (
        opened(EmbeddedKafka(tmp_path_factory.mktemp("kafka"))) as kafka,
        opened(EmbeddedZooKeeper(tmp_path_factory.mktemp("zookeeper"))) as zookeeper,
    ):
        yield kafka, zookeeper


@pytest.fixture
def trial(servers, tmp_path):
    made = Trial(*servers, tmp_path, topologies=TOPOLOGIES)
    yield made
    made.end()


@pytest.mark.parametrize("output", ["lines", "messages"])
def test_names_that_are_forgotten_amid_a_run_only_pause_it(trial, output):
    """Both servers start again meanwhile, so that the clients must connect anew."""
    names, window = Names(trial.folder, [KAFKA, ZOOKEEPER]), Window()
    names.know()
    with Replicas(trial, output, topics={"in-a": 3, "in-b": 2}) as replicas:
        replicas.begin("a", environment=_named(trial) | window.environment, prefix=names.prefix)
        before = replicas.stored_of("a")
        names.forget()
        for server in (trial.zookeeper, trial.kafka):
            server.close()
        replicas.until("it says so", lambda: "ZooKeeper is away" in (window.problems() or []))
        for server in (trial.zookeeper, trial.kafka):
            server.open()
        back = time.monotonic()
        until("the names are missed", lambda: time.monotonic() > back + AWAY_SECONDS)
        assert "ZooKeeper is away" in (window.problems() or [])
        a = replicas.runs["a"]
        assert a.alive, a.tail()
        replicas.breaks.append(Break(before, replicas.feed.ends()))  # its session has ended
        names.know()
        replicas.goes_on()
        replicas.until("ready again", lambda: window.problems() == [])
        replicas.finish()


def test_unresolvable_names_end_the_start_with_a_message(trial):
    names = Names(trial.folder, [KAFKA, ZOOKEEPER])
    with Replicas(trial, "lines", topics={"in-a": 1}) as replicas:
        replicas.start("a", environment=_named(trial), prefix=names.prefix)
        a = replicas.runs["a"]
        assert a.wait(ENDS_SECONDS) > 0, a.tail()
        assert KAFKA in a.errors or ZOOKEEPER in a.errors
        assert "Traceback" not in a.errors
        names.know()
        replicas.start("a", environment=_named(trial), prefix=names.prefix)
        replicas.settle("a")
        replicas.finish()


def _named(trial: Trial) -> dict[str, str]:
    return {
        "HEADRACE_KAFKA__BOOTSTRAP_SERVERS": f"{KAFKA}:{trial.kafka.port}",
        "HEADRACE_ZOOKEEPER__HOSTS": f"{ZOOKEEPER}:{trial.zookeeper.port}",
    }
