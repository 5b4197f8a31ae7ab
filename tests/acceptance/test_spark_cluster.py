"""The whole engine on a standalone cluster, where an executor is lost in the middle of the run."""

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from service.devservers.servers import EmbeddedKafka, EmbeddedZooKeeper
from tests.acceptance import processes
from tests.acceptance.crashes import GOOD, RECORDS, SECONDS, TOPOLOGIES, Play
from tests.acceptance.trial import Trial
from tests.support.patience import until
from tests.worlds.spark_cluster import SparkMaster, SparkWorker

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(600)]

TROUBLE = (1, RECORDS[1] // 2)  # is tried again and again, until the test lets it pass


@pytest.fixture
def master(tmp_path: Path) -> Iterator[SparkMaster]:
    server = SparkMaster(tmp_path / "master")
    try:
        server.open()
        yield server
    finally:
        server.close()


@pytest.fixture
def workers(master: SparkMaster, tmp_path: Path) -> Iterator[list[SparkWorker]]:
    """Two, with a core each, so that each has an executor of one task at a time."""
    servers = [SparkWorker(tmp_path / f"worker-{n}", master, cores=1) for n in range(2)]
    try:
        with ThreadPoolExecutor() as pool:
            list(pool.map(SparkWorker.open, servers))
        yield servers
    finally:
        for server in servers:
            server.close()


@pytest.fixture
def trial(kafka: EmbeddedKafka, zookeeper: EmbeddedZooKeeper, tmp_path: Path) -> Iterator[Trial]:
    trial = Trial(kafka, zookeeper, tmp_path / "trial", topologies=TOPOLOGIES)
    trial.folder.mkdir()
    yield trial
    trial.end()


def test_every_row_is_there_once_though_an_executor_of_a_cluster_is_killed(
    trial: Trial, master: SparkMaster, workers: list[SparkWorker]
) -> None:
    """Promises 3, 14 and 15: the driver goes on, as the same process with the same Spark.

    Its rows take both ways: executors write the files of one table, and hand over the rows of the
    other, which only the driver can write. The executor dies in the middle of a range.
    """
    conf = {
        "spark.master": master.url,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.executor.memory": "512m",
        # Executors load the same classes as drivers (tests/spark_classes.py).
        "spark.executor.extraJavaOptions": os.environ.get("SPARK_SUBMIT_OPTS", ""),
    }
    play = Play(trial, "delta", "own", engine="spark", conf=conf)
    play.publish(trouble=[TROUBLE])
    run = play.start("transactional")
    until("a task is at it", lambda: trial.notes("tries") or not run.alive, SECONDS)
    assert run.alive, run.tail()
    [tries] = trial.folder.glob("tries-*")
    python = int(tries.name.rpartition("-")[2])
    of_workers = {pid for worker in workers for pid in processes.java_children(worker.pid)}
    [executor] = of_workers.intersection(processes.ancestors(python))
    os.kill(executor, signal.SIGKILL)
    until(
        "another process is at it",
        lambda: len(list(trial.folder.glob("tries-*"))) > 1 or not run.alive,
        SECONDS,
    )
    assert run.alive, run.tail()
    trial.open()
    assert run.wait(SECONDS) == 0, run.tail()
    assert play.verdict(at_end=True) == GOOD
    assert not run.events("spark_restarted")
    assert not run.events("spark_renewed")
