"""A standalone cluster whose executor is killed under a job."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from sinks.spark.driver import SparkDriver
from tests.worlds.dying_tasks import EXECUTOR, tripled
from tests.worlds.healing import healing
from tests.worlds.spark_cluster import SparkMaster, SparkWorker

pytestmark = [
    pytest.mark.integration,
    # PySpark leaves the sockets by which it fetched rows to the garbage collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture
def master(tmp_path: Path) -> Iterator[SparkMaster]:
    """A master with one worker."""
    master = SparkMaster(tmp_path / "master")
    worker = SparkWorker(tmp_path / "worker", master)
    try:
        master.open()
        worker.open()
        yield master
    finally:
        worker.close()
        master.close()


def test_an_executor_that_is_lost_costs_only_its_tasks(master: SparkMaster, tmp_path: Path) -> None:
    conf = {
        "spark.master": master.url,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "512m",
        "spark.executor.memory": "512m",
    }
    driver = SparkDriver("test", conf, job_deadline_seconds=120)
    job = tripled(1000, tmp_path / "killed", EXECUTOR)
    try:
        with healing("an executor or a Python worker is lost", driver):
            assert driver.run(job, group="tripled") == [3 * number for number in range(1000)]
        assert (tmp_path / "killed").exists()
        assert (driver.restarts, driver.renewals) == (0, 0)
        executors = (tmp_path / "worker" / "work").glob("app-*/*")
        assert sorted(path.name for path in executors) == ["0", "1"]
    finally:
        driver.close()
