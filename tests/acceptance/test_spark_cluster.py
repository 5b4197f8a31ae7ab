"""The spark engine on a standalone cluster: an executor is lost, a task runs twice at once."""

import os
import signal
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.acceptance import processes
from tests.acceptance.harness import Run
from tests.acceptance.trial import Trial
from tests.faults.judge import GOOD
from tests.faults.sink_crashes import RECORDS, SECONDS, CrashPipeline
from tests.support.spark import SparkMaster, SparkWorker

pytestmark = pytest.mark.timeout(600)

TOPOLOGIES = "tests.acceptance.crashing"

TROUBLE = (1, RECORDS[1] // 2)  # is tried again and again, until the test lets it pass


class OnLocalhost(SparkWorker):
    """A worker that calls the same address otherwise: Spark tries no task twice on one host."""

    def _command(self) -> list[str]:
        command = super()._command()
        command[command.index("--host") + 1] = "localhost"
        return command


@pytest.fixture
def master(tmp_path):
    server = SparkMaster(tmp_path / "master")
    try:
        server.open()
        yield server
    finally:
        server.close()


@pytest.fixture
def workers(master, tmp_path):
    """Two, with a core each, so that each has an executor of one task at a time."""
    servers = [
        SparkWorker(tmp_path / "worker-1", master, cores=1),
        OnLocalhost(tmp_path / "worker-2", master, cores=1),
    ]
    try:
        with ThreadPoolExecutor() as pool:
            list(pool.map(SparkWorker.open, servers))
        yield servers
    finally:
        for server in servers:
            server.close()


def start(trial: Trial, master: SparkMaster, **conf: str) -> tuple[CrashPipeline, Run]:
    """Run the topology with two tables on the cluster; one record is tried again and again."""
    pipeline = CrashPipeline(
        trial,
        "delta",
        "own",
        engine="spark",
        conf={
            "spark.master": master.url,
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.executor.memory": "512m",
            # Executors load the same classes as drivers (tests/spark_classes.py).
            "spark.executor.extraJavaOptions": os.environ.get("SPARK_SUBMIT_OPTS", ""),
            **conf,
        },
    )
    pipeline.publish(trouble=[TROUBLE])
    return pipeline, pipeline.start("transactional")


def tries(trial: Trial) -> dict[str, int]:
    return {each.name: each.read_bytes().count(b"\n") for each in trial.folder.glob("tries-*")}


def finish(pipeline: CrashPipeline, run: Run, trial: Trial) -> None:
    trial.open()
    assert run.wait(SECONDS) == 0, run.tail()
    assert pipeline.verdict(at_end=True) == GOOD
    assert not run.events("spark_restarted")


@pytest.mark.acceptance
@pytest.mark.nightly
def test_killed_executor_loses_and_repeats_no_row(trial, master, workers):
    """Promises 3, 14 and 15: the driver goes on, as the same process with the same Spark.

    Its rows take both ways: executors write the files of one table, and hand over the rows of the
    other, which only the driver can write. The executor dies in the middle of a range.
    """
    pipeline, run = start(trial, master)
    run.until("a task is at it", lambda: trial.notes("tries"), SECONDS)
    [name] = tries(trial)
    python = int(name.rpartition("-")[2])
    of_workers = {pid for worker in workers for pid in processes.java_children(worker.pid)}
    [executor] = of_workers.intersection(processes.ancestors(python))
    os.kill(executor, signal.SIGKILL)
    run.until("another process is at it", lambda: len(tries(trial)) > 1, SECONDS)
    finish(pipeline, run, trial)
    assert not run.events("spark_restarted")


@pytest.mark.faults
@pytest.mark.usefixtures("workers")
def test_speculative_task_writes_every_row_once(trial, master):
    """Promises 3 and 14: executors write the files of one table, the driver commits another's."""
    conf = {
        "spark.speculation": "true",
        "spark.speculation.interval": "100ms",
        "spark.speculation.multiplier": "1.1",
        "spark.speculation.quantile": "0.1",
    }
    pipeline, run = start(trial, master, **conf)
    run.until("another process is at it", lambda: len(tries(trial)) == 2, SECONDS)
    before = tries(trial)
    run.until(
        "both are at it",
        lambda: all(tries(trial)[each] > count for each, count in before.items()),
        SECONDS,
    )
    finish(pipeline, run, trial)
    assert not run.events("range_group_given_longer")
