import logging
import threading
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from structlog.testing import capture_logs

from sinks.errors import SparkDied, SparkStartFailed, SparkTimeout
from sinks.spark import driver as driver_module
from sinks.spark.driver import SparkDriver
from tests.support.patience import seconds, until


class FakeJvm:
    """A JVM that is as it is told to be, and notes what is done to it."""

    def __init__(self):
        self.status = None
        self.process = SimpleNamespace(pid=1, kill=self.kill, poll=lambda: self.status)
        self.how = "well"
        self.groups = []
        self.cancelled = []
        self.cancel = self.cancelled.append
        self.killed, self.stopped = threading.Event(), threading.Event()
        self.release = lambda: None
        context = Mock(defaultParallelism=2)
        context.setJobGroup = lambda group, *_, **_more: self.groups.append(group)
        self.session = SimpleNamespace(sparkContext=context)

    def kill(self):
        self.status = -9
        self.killed.set()

    def state(self, _timeout_seconds):
        return "gone" if self.status is not None else self.how

    def last_words(self):
        return None if self.status is None else f"signal {-self.status}"

    def stop(self, timeout_seconds):
        self.status = -9
        self.stopped.set()


@pytest.fixture
def world(monkeypatch):
    """Every JVM that was started, with which jars and within which time."""
    world = SimpleNamespace(jvms=[], started_with=[], before_start=lambda: None)

    def start(_name, _conf, jars, timeout_seconds):
        world.before_start()
        world.started_with.append((jars, timeout_seconds))
        world.last = FakeJvm()
        world.jvms.append(world.last)
        return world.last

    monkeypatch.setattr(driver_module, "Jvm", SimpleNamespace(start=start))
    monkeypatch.setattr(driver_module, "_GRACE_SECONDS", 0.05)
    return world


@pytest.fixture
def driver(world):
    driver = SparkDriver("test")
    driver.open()
    yield driver
    driver.close()


def well(_session):
    return "done"


def waits(event, error):
    def job(_session):
        assert event.wait(seconds(10))
        raise error

    return job


def started(work, *errors):
    """Do work on a thread; what is returned waits for its end, and tells what it raised."""
    caught = []

    def run():
        try:
            work()
        except errors as error:
            caught.append(str(error))

    thread = threading.Thread(target=run)
    thread.start()

    def end():
        thread.join(seconds(10))
        return caught[0]

    return end


@pytest.mark.parametrize(
    ("how", "logged"),
    [
        ("well", []),
        ("gone", ["spark_died", "spark_restarted"]),
        ("mute", ["spark_killed", "spark_died", "spark_restarted"]),
        ("ended between two jobs", ["spark_died", "spark_restarted"]),
    ],
)
def test_jvm_that_is_of_no_use_is_replaced(driver, world, how, logged):
    """No job fails for a JVM that has ended before it; a job's own error is passed on."""
    first = world.last

    def fails(_session):
        first.how = how
        raise ValueError("no such table")

    with capture_logs() as logs:
        if how == "ended between two jobs":
            first.status = -9
        else:
            with pytest.raises(ValueError if how == "well" else SparkDied, match="no such table"):
                driver.run(fails, group="g")
        assert driver.run(well, group="g") == "done"
    assert [each["event"] for each in logs] == logged
    assert first.killed.is_set() == (how == "mute")
    is_replaced = how != "well"
    assert (first.stopped.is_set(), driver.restarts) == (is_replaced, is_replaced)
    assert driver.parallelism == 2
    assert len(world.jvms) == 1 + is_replaced


def test_one_stopped_context_is_replaced_once(driver, world):
    first, late = world.last, threading.Event()
    slow = waits(late, ValueError("the old context is stopped"))
    ended = started(lambda: driver.run(slow, group="slow"), SparkDied)
    until("it runs", lambda: first.groups)
    first.how = "gone"
    with pytest.raises(SparkDied):
        driver.run(lambda _session: 1 / 0, group="g")
    assert driver.run(well, group="g") == "done"
    late.set()  # its error is of the old JVM, the new one is well
    assert ended()
    assert driver.run(well, group="g") == "done"
    assert len(world.jvms) == 2


@pytest.mark.parametrize("given", [0.05, None], ids=["the job's", "the driver's"])
def test_the_deadline_is_the_jobs_own_or_the_drivers(world, given):
    driver = SparkDriver("test", job_deadline_seconds=3600.0 if given else 0.05)
    driver.open()
    hang = waits(world.last.killed, ConnectionRefusedError())
    with capture_logs() as logs, pytest.raises(SparkTimeout, match=r"within 0\.05 seconds"):
        driver.run(hang, group="g", deadline_seconds=given)
    assert world.last.cancelled == world.last.groups
    assert [each["event"] for each in logs] == ["spark_job_cancelled", "spark_killed", "spark_died"]
    driver.close()


def test_all_jobs_of_a_name_are_cancelled_and_no_others(driver, world):
    ended, jvm = threading.Event(), world.last
    wait = waits(ended, ValueError("cancelled"))
    runs = [
        started(lambda group=group: driver.run(wait, group=group), ValueError)
        for group in ("g", "g", "h")
    ]
    until("all run", lambda: len(jvm.groups) == 3)
    driver.cancel("nobody")
    driver.cancel("g")
    until("two are cancelled", lambda: len(jvm.cancelled) == 2)
    ended.set()
    assert [run() for run in runs] == ["cancelled"] * 3
    driver.cancel("h")  # it has ended
    assert sorted(jvm.cancelled) == sorted(g for g in jvm.groups if g[0] == "g")


def test_a_cancel_that_fails_is_logged_and_harms_nobody(driver, world):
    world.last.cancel = Mock(side_effect=ConnectionRefusedError("gone"))

    def cancelled(_session):
        driver.cancel("g")
        until("it is logged", lambda: logs)
        return "done"

    with capture_logs() as logs:
        assert driver.run(cancelled, group="g") == "done"
    assert [(each["event"], each["error"]) for each in logs] == [("spark_cancel_failed", "gone")]


def test_a_driver_that_is_closed_while_spark_starts_neither_waits_nor_leaves_one(world):
    """Promise 16: the process ends in time, whatever Spark does."""
    driver = SparkDriver("test")
    starting, may_start = threading.Event(), threading.Event()

    def hang():
        starting.set()
        may_start.wait(seconds(10))

    world.before_start = hang
    ended = started(driver.open, RuntimeError)
    assert starting.wait(seconds(10))
    driver.close(timeout_seconds=0.01)
    may_start.set()
    assert ended() == "the Spark driver is closed"
    assert world.last.stopped.is_set()
    assert not driver.running


def test_a_job_waits_for_a_spark_that_starts_beside_and_tries_again_if_it_failed(world):
    outcomes = [SparkStartFailed("no memory"), None]
    driver, may_start = SparkDriver("test"), threading.Event()

    def start():
        may_start.wait(seconds(10))
        if (error := outcomes.pop(0)) is not None:
            raise error

    world.before_start = start
    driver.open_beside()
    until("it starts", driver._lock.locked)
    answers = []
    job = threading.Thread(target=lambda: answers.append(driver.run(well, group="g")))
    job.start()
    may_start.set()
    job.join(seconds(10))
    assert answers == ["done"]
    assert len(world.jvms) == 1
    driver.close()


def test_py4j_does_not_log_calls_cut_off_by_close(driver, world, caplog):
    message, jvm = "Exception while sending command.", world.last

    def complain():
        where = ("root", logging.ERROR, "py4j/java_gateway.py", 1)
        logging.getLogger().handle(logging.LogRecord(*where, message, None, None))

    def cut_off(_session):
        assert jvm.stopped.wait(seconds(10))
        complain()
        raise ConnectionResetError

    ended = started(lambda: driver.run(cut_off, group="g"), SparkDied)
    until("it runs", lambda: jvm.groups)
    driver.close()
    assert ended()
    assert caplog.records == []
    complain()
    assert [record.message for record in caplog.records] == [message]


def test_a_driver_is_opened_with_the_jars_that_are_there_then(world):
    jars = [Path("first.jar")]
    driver = SparkDriver("test", jars=lambda: jars, job_deadline_seconds=1.0)
    driver.open()
    jars.append(Path("second.jar"))
    world.last.status = 1
    driver.open()
    assert world.started_with == [(["first.jar"], 180.0), (["first.jar", "second.jar"], 180.0)]
    driver.close()
