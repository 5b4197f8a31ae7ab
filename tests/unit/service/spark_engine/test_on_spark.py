from collections import Counter
from dataclasses import replace
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from headrace import InvalidTopology, SinkFailed, reference
from headrace.sinks import MemorySink
from partition.errors import CorruptRecord, OffsetOutOfRange, TopicMissing
from partition.records import Partition, Position
from service.app import run_pipeline
from service.config.settings import load
from service.errors import TaskError
from service.pipeline.loop import Pipeline
from service.pipeline.trees import OutcomeCounters
from service.spark_engine.attempts import partition_error
from service.spark_engine.cluster import OnSpark, SharedFolder, Submissions
from service.spark_engine.engine import SparkEngine
from service.spark_engine.range_buffer import RangeBuffer
from service.spark_engine.task import Task, TaskDone, TaskFailed, encode
from service.wiring import wire
from sinks.errors import SparkDied, TaskRaised
from sinks.writer import SinkWriter
from tests.support.bolts import new_topology
from tests.support.patience import seconds, until
from tests.support.spark_engine import text
from tests.support.spark_tasks import SETTINGS, ranged
from topology.steps import SinkStep

ONE = Partition("t", 0)
CONFIG = {"kafka": {"bootstrap.servers": "-"}, "zookeeper": {"hosts": "-"}}
DONE = TaskDone((), {}, OutcomeCounters(), 0)


@pytest.fixture
def on_spark(monkeypatch):
    """Executors whose jobs are `run`, a function of a job's name, tasks and deadline."""

    def make(run, **options):
        def run_tasks(_driver, tasks, _run, **how):
            return run(how["group"], tasks, how["deadline_seconds"])

        monkeypatch.setattr("service.spark_engine.cluster.run_tasks", run_tasks)
        driver = Mock(parallelism=4)
        return OnSpark(driver, **options), driver

    return make


def task(stagers=None):
    return Task(SETTINGS, (ranged(0, 5),), stagers or {})


def test_results_keep_order_and_slots_follow_executors(on_spark):
    failed = TaskFailed("no", "BoltError")

    def run(name, tasks, deadline_seconds):
        assert (name, len(tasks), deadline_seconds) == ("ranges-1-1", 2, 80.0)
        return [encode(DONE), encode(failed)]

    executors, driver = on_spark(run, job_deadline_seconds=20.0)
    executors.open()
    assert executors.slots == 4
    driver.parallelism = 8
    tasks = [task(), replace(task(), patience=4)]
    assert executors.run("ranges-1-1", tasks) == [DONE, failed]
    assert executors.slots == 8
    executors.cancel("ranges-1-1")
    driver.cancel.assert_called_once_with("ranges-1-1")


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (TaskRaised("g", "ModuleNotFoundError: No module named 'x'"), TaskError),
        (TaskRaised("g", "DeadLettersUnavailable: not now"), TaskRaised),
        (SparkDied("g", "why"), SparkDied),
    ],
)
def test_import_error_on_an_executor_ends_the_run(on_spark, error, raised):
    with pytest.raises(raised, match=r"ModuleNotFoundError: No module named 'x'|not now|why"):
        on_spark(Mock(side_effect=error))[0].run("g", [task()])


def test_no_secret_is_in_what_is_said_of_a_task():
    settings = replace(SETTINGS, kafka={"sasl.password": "hush-hush"})
    told = repr(settings) + repr(Task(settings, (ranged(0, 5),), {}))
    assert "hush-hush" not in told
    assert "TaskRange" in told


def test_a_task_that_cannot_be_sent_ends_the_run(on_spark):
    executors, _driver = on_spark(pytest.fail)
    with pytest.raises(TaskError, match="it cannot be sent"):
        executors.run("g", [task({"sink": lambda group: group})])


def test_exit_in_a_run_is_reported():
    heard = []
    submissions = Submissions(Mock(**{"run.side_effect": SystemExit(3)}), heard.append)
    submissions.submit(1, 1, [task()])
    until("the condition", lambda: bool(heard))
    assert submissions.stop(5.0)
    assert "SystemExit(3)" in str(heard[0].error)


@pytest.mark.parametrize("how", ["cancel", "stop"])
def test_attempt_is_cancelled_until_its_job_is_known(how, monkeypatch):
    monkeypatch.setattr("service.spark_engine.cluster._AGAIN_SECONDS", 0.005)
    times, cancelled = Counter[str](), Event()

    def run(_name, _tasks):
        assert cancelled.wait(seconds(5.0)), "it goes on running"
        raise OSError("cancelled")

    def cancel(name):
        times[name] += 1
        if times[name] == 4:
            cancelled.set()

    heard = []
    submissions = Submissions(SimpleNamespace(run=run, cancel=cancel), heard.append)
    submissions.submit(1, 1, [task()])
    submissions.cancel(1, 1)  # in vain
    if how == "cancel":
        until("it ends", lambda: heard, turn=lambda: submissions.cancel(1, 1))
        count = times["ranges-1-1"]
        submissions.cancel(1, 1)
        assert times == {"ranges-1-1": count}
    assert submissions.stop(seconds(5.0))
    assert str(heard[0].error) == "cancelled"


@pytest.mark.parametrize(
    ("error_class", "expected"),
    [
        ("TopicMissing", TopicMissing),
        ("CorruptRecord", CorruptRecord),
        ("OffsetOutOfRange", OffsetOutOfRange),
        ("SomethingElse", OffsetOutOfRange),
    ],
)
def test_task_error_becomes_the_fetchers_error(error_class, expected):
    failure = TaskFailed("why", error_class, ONE)
    assert isinstance(partition_error(ONE, failure, Position(7), Position(7)), expected)


@pytest.mark.parametrize(
    ("asked", "known", "begins", "cut"),
    [
        (None, None, 6, 5),
        (None, None, 3, None),
        (0, 1, 7, None),
        (1, 1, 7, 5),
        (1, 0, 7, 5),
        (0, None, 7, 5),
    ],
)
def test_where_a_log_was_cut_off_counts_only_below_what_is_open(asked, known, begins, cut):
    """Promises 12 and 14: else good records below the cut would be passed over.

    Simulated seed 700731: it counts only for the epoch that is known now. If the range before was
    read under a later leader meanwhile, what it held was written behind the cut, and is committed.
    """
    failure = TaskFailed("cut off at 5", "OffsetOutOfRange", ONE, diverged_at=5)
    trouble = partition_error(ONE, failure, Position(7, asked), Position(begins, known))
    assert isinstance(trouble, OffsetOutOfRange)
    assert trouble.diverged_at == cut


def test_last_two_files_of_a_reference_are_kept(tmp_path):
    names, others = reference("names.parquet", key="code"), reference("others.parquet", key="code")
    shared = SharedFolder(tmp_path, [names, others])
    others.load([{"code": "a", "name": "Anna"}])
    made = []
    for name in ("Anna", "Ben", "Cleo", "Dora"):
        names.load([{"code": "a", "name": name}])
        made.append(shared.tables())
    assert [Path(each["names"]).exists() for each in made] == [False, False, True, True]
    assert Path(made[0]["others"]).exists()
    assert len(list(tmp_path.rglob("*.arrow"))) == 3
    shared.close()


def test_a_warehouse_that_is_no_folder_cannot_share_tables():
    with pytest.raises(SinkFailed, match="must be a folder that they share"):
        SharedFolder(None, [reference("t.parquet", key="a")]).open()
    SharedFolder(None, []).open()


def test_a_sink_of_the_drivers_needs_a_folder_for_its_rows():
    topology = exactly_once()
    step = next(each for each in topology.steps() if isinstance(each, SinkStep))
    outlet = RangeBuffer(step, SinkWriter(step.sink, print))
    with pytest.raises(SinkFailed, match="must be a folder, not a URI"):
        outlet.begin(None)
    assert outlet.begin("/somewhere").is_apart is False


def exactly_once():
    topology, stream = new_topology(reliability="exactly-once")
    stream.then(text).into(MemorySink())
    return topology


def test_the_engine_is_chosen_by_the_configuration():
    local = wire(exactly_once(), load(None, CONFIG))
    assert isinstance(local.pipeline, Pipeline)
    assert local.spark is None
    spark = wire(exactly_once(), load(None, {**CONFIG, "pipeline": {"engine": "spark"}}), "m:t")
    assert isinstance(spark.pipeline, SparkEngine)
    assert spark.spark is not None


def test_spark_step_gets_spark_on_the_local_engine():
    topology, stream = new_topology()
    stream.spark(lambda frame: frame).into(MemorySink())
    assert wire(topology, load(None, CONFIG)).spark is not None


def test_topology_without_a_target_is_refused():
    config = load(None, {**CONFIG, "pipeline": {"engine": "spark"}})
    with pytest.raises(InvalidTopology, match='target="module:name"'):
        run_pipeline(exactly_once(), config)
