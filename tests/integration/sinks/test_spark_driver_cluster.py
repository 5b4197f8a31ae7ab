"""A standalone cluster: Python tasks on its executor, which is then killed under a job."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sinks.spark.driver import SparkDriver
from sinks.spark.executors import run_tasks
from sinks.tables import files
from tests.support import spark as task_functions
from tests.support.patience import seconds
from tests.support.spark import SparkMaster, SparkWorker, healing, tripled

pytestmark = [
    pytest.mark.integration,
    pytest.mark.nightly,
    pytest.mark.usefixtures("no_spark"),
    # PySpark leaves the sockets by which it fetched rows to the garbage collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cluster")


@pytest.fixture(scope="module")
def driver(place: Path) -> Iterator[SparkDriver]:
    master = SparkMaster(place / "master")
    worker = SparkWorker(place / "worker", master)
    try:
        master.open()
        worker.open()
        conf = {
            "spark.master": master.url,
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.memory": "512m",
            "spark.executor.memory": "512m",
        }
        driver = SparkDriver("test", conf, job_deadline_seconds=seconds(120))
        try:
            yield driver
        finally:
            driver.close()
    finally:
        worker.close()
        master.close()


def test_executors_import_what_the_driver_does(driver: SparkDriver, place: Path) -> None:
    (found,) = run_tasks(driver, [b""], task_functions.told, group="told")
    imported, folder, path = json.loads(found)
    assert imported == files.__file__
    assert Path(folder).is_relative_to(place / "worker" / "work")  # it is no child of ours
    ours = [str(Path(each).absolute()) for each in sys.path]
    assert [each for each in path if each in ours] == list(dict.fromkeys(ours))
    assert driver.parallelism == 2


def test_an_executor_that_is_lost_costs_only_its_tasks(
    driver: SparkDriver, place: Path, tmp_path: Path
) -> None:
    job = tripled(1000, tmp_path / "killed")
    with healing("an executor or a Python worker is lost", driver):
        assert driver.run(job, group="tripled") == [3 * number for number in range(1000)]
    assert (tmp_path / "killed").exists()
    assert driver.restarts == 0
    executors = (place / "worker" / "work").glob("app-*/*")
    assert sorted(path.name for path in executors) == ["0", "1"]
