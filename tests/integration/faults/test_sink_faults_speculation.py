"""S06: Spark runs a task twice at once, and both are done; the rows of one count."""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from service.devservers.servers import EmbeddedKafka, EmbeddedZooKeeper
from tests.acceptance.crashes import GOOD, RECORDS, SECONDS, TOPOLOGIES, Play
from tests.acceptance.harness import Run
from tests.acceptance.trial import Trial
from tests.support.patience import until
from tests.worlds.spark_cluster import SparkMaster, SparkWorker

pytestmark = [pytest.mark.faults, pytest.mark.timeout(600)]

TROUBLE = (1, RECORDS[1] // 2)  # is tried again and again, until the test lets it pass


class OnLocalhost(SparkWorker):
    """A worker that calls the same address otherwise: Spark tries no task twice on one host."""

    def _command(self) -> list[str]:
        command = super()._command()
        command[command.index("--host") + 1] = "localhost"
        return command


@pytest.fixture
def master(tmp_path: Path) -> Iterator[SparkMaster]:
    server = SparkMaster(tmp_path / "master")
    try:
        server.open()
        yield server
    finally:
        server.close()


@pytest.fixture
def workers(master: SparkMaster, tmp_path: Path) -> Iterator[None]:
    """Two, with a core each, so that each has an executor of one task at a time."""
    servers = [
        SparkWorker(tmp_path / "worker-1", master, cores=1),
        OnLocalhost(tmp_path / "worker-2", master, cores=1),
    ]
    try:
        with ThreadPoolExecutor() as pool:
            list(pool.map(SparkWorker.open, servers))
        yield
    finally:
        for server in servers:
            server.close()


@pytest.fixture
def trial(kafka: EmbeddedKafka, zookeeper: EmbeddedZooKeeper, tmp_path: Path) -> Iterator[Trial]:
    trial = Trial(kafka, zookeeper, tmp_path / "trial", topologies=TOPOLOGIES)
    trial.folder.mkdir()
    yield trial
    trial.end()


def tries(trial: Trial) -> dict[str, int]:
    """How often each process has tried the record that is trouble."""
    return {each.name: each.read_bytes().count(b"\n") for each in trial.folder.glob("tries-*")}


def wait(run: Run, what: str, holds: Callable[[], object]) -> None:
    until(what, lambda: holds() or not run.alive, SECONDS, run.tail)
    assert run.alive, run.tail()


@pytest.mark.usefixtures("workers")
def test_every_row_is_there_once_though_a_task_runs_twice_at_once(
    trial: Trial, master: SparkMaster
) -> None:
    """Promises 3 and 14: executors write the files of one table, the driver commits another's."""
    conf = {
        "spark.master": master.url,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.executor.memory": "512m",
        "spark.executor.extraJavaOptions": os.environ.get("SPARK_SUBMIT_OPTS", ""),
        "spark.speculation": "true",
        "spark.speculation.interval": "100ms",
        "spark.speculation.multiplier": "1.1",
        "spark.speculation.quantile": "0.1",
    }
    play = Play(trial, "delta", "own", engine="spark", conf=conf)
    play.publish(trouble=[TROUBLE])
    run = play.start("transactional")
    wait(run, "another process is at it", lambda: len(tries(trial)) == 2)
    before = tries(trial)
    wait(
        run, "both are at it",
        lambda: all(tries(trial)[each] > count for each, count in before.items()),
    )  # fmt: skip
    trial.open()
    assert run.wait(SECONDS) == 0, run.tail()
    assert play.verdict(at_end=True) == GOOD
    assert not run.events("spark_restarted")
    assert not run.events("range_group_given_longer")
