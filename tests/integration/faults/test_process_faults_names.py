"""P09: names of servers that do not resolve, at the start and amid a run; on real servers."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from partition.chunk import Partition
from service.embedded.kafka import EmbeddedKafka
from service.embedded.ports import HOST, free_ports
from service.embedded.zookeeper import EmbeddedZooKeeper
from tests.acceptance.harness import Run
from tests.acceptance.processes import until
from tests.acceptance.trial import Trial, places, rows_of
from tests.worlds.fetching import KafkaWorld
from tests.worlds.names import Names
from tests.worlds.probing import problems, ready

pytestmark = pytest.mark.faults

COUNT = 200  # records of each partition, twice
KAFKA, ZOOKEEPER = "kafka.headrace.test", "zookeeper.headrace.test"
SECONDS = 60.0
SESSION_SECONDS = 4.0
MOST_LINES = 20


class Named(EmbeddedKafka):
    """A broker that has a second listener, which it calls by its name."""

    def __init__(self, folder: Path) -> None:
        plain, controller, named = free_ports(3)
        self.named = f"{KAFKA}:{named}"
        common = f"PLAINTEXT://{HOST}:{plain},NAMED://"
        super().__init__(
            folder,
            plain,
            properties={
                "controller.quorum.voters": f"1@{HOST}:{controller}",
                "listeners": f"{common}{HOST}:{named},CONTROLLER://{HOST}:{controller}",
                "advertised.listeners": f"{common}{self.named}",
                "listener.security.protocol.map": (
                    "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,NAMED:PLAINTEXT"
                ),
            },
        )


@pytest.fixture
def names(tmp_path: Path) -> Names:
    made = Names(tmp_path, KAFKA, ZOOKEEPER)
    made.open()
    return made


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Named]:
    server = Named(tmp_path / "kafka")
    try:
        server.open()
        yield server
    finally:
        server.close()


@pytest.fixture
def keeper(tmp_path: Path) -> Iterator[EmbeddedZooKeeper]:
    server = EmbeddedZooKeeper(tmp_path / "zookeeper")
    try:
        server.open()
        yield server
    finally:
        server.close()


@pytest.fixture
def world(broker: Named) -> Iterator[KafkaWorld]:
    made = KafkaWorld(broker, lambda _partitions=1: "")
    yield made
    made.close()


def wait(run: Run, what: str, holds: object) -> None:
    until(what, lambda: holds() or not run.alive, SECONDS, run.tail)  # type: ignore[operator]
    assert run.alive, run.tail()


def start(trial: Trial, broker: Named, keeper: EmbeddedZooKeeper, port: int) -> Run:
    return trial.start(
        "function",
        config={
            "kafka": {"bootstrap.servers": broker.named},
            "zookeeper": {
                "hosts": f"{ZOOKEEPER}:{keeper.port}",
                "session_timeout_seconds": SESSION_SECONDS,
            },
            "http": {"port": port},
        },
    )


@pytest.fixture
def trial(
    broker: Named, keeper: EmbeddedZooKeeper, tmp_path: Path, names: Names
) -> Iterator[Trial]:
    made = Trial(broker, keeper, tmp_path, launch=names.launch)
    yield made
    made.end()


def test_names_that_do_not_resolve_any_more_only_pause_a_run(
    trial: Trial, broker: Named, keeper: EmbeddedZooKeeper, names: Names, world: KafkaWorld
) -> None:
    """Promise 15; Faults P09: both servers restart meanwhile, so both must be found again."""
    port = free_ports(1)[0]
    trial.publish(COUNT, COUNT)
    run = start(trial, broker, keeper, port)
    with trial.watch() as watch:
        wait(run, "all is stored", lambda: trial.stored() == {0: COUNT, 1: COUNT})
        wait(run, "ready", lambda: ready(port))
        names.close()
        for server in (broker, keeper):
            server.close()
            server.open()
        wait(
            run, "both are away",
            lambda: {"Kafka is away", "ZooKeeper is away"} <= set(problems(port)),
        )  # fmt: skip
        wait(run, "Kafka's name is told", lambda: f"resolve '{broker.named}'" in run.errors)
        wait(run, "ZooKeeper's name is told", lambda: ZOOKEEPER in run.errors)
        names.open()
        wait(run, "ready", lambda: ready(port))
        for number in (0, 1):
            more = [b"%d:%d" % (number, offset) for offset in range(COUNT, 2 * COUNT)]
            world.append(Partition(trial.name, number), more)
        wait(run, "all is stored", lambda: trial.stored() == {0: 2 * COUNT, 1: 2 * COUNT})
    assert watch.steps_back == []
    run.send(signal.SIGTERM)
    assert run.wait(SECONDS) == 0, run.tail()
    assert trial.rows() == rows_of(places(2 * COUNT, 2 * COUNT))
    assert trial.letters() == []


def test_names_that_do_not_resolve_at_the_start_are_told(
    trial: Trial, broker: Named, keeper: EmbeddedZooKeeper, names: Names
) -> None:
    """Faults P09: the run ends in time, with the name in its error, and in few other lines."""
    trial.publish(1, 1)
    names.close()
    run = start(trial, broker, keeper, 0)
    assert run.wait(SECONDS) > 0
    assert f"resolve '{broker.named}'" in run.errors.splitlines()[-1]
    assert len(run.events("dead_letter_broker_error")) < MOST_LINES
