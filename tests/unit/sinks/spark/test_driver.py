"""The driver's healing, with JVMs that fail as they are told."""

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from sinks.errors import SparkDied, SparkTimeout
from sinks.spark import driver as driver_module
from sinks.spark.driver import SparkDriver
from tests.support.patience import seconds


class Process:
    pid = 1

    def __init__(self) -> None:
        self.status: int | None = None
        self.killed = threading.Event()

    def kill(self) -> None:
        self.status = -9
        self.killed.set()

    def poll(self) -> int | None:
        return self.status


class FakeJvm:
    """A JVM that is as it is told to be, and notes what is done to it."""

    def __init__(self, world: "World", process: Process) -> None:
        self.world, self.process = world, process
        self.how = "well"
        self.groups: list[str] = []
        self.cancelled: list[str] = []
        self.stopped = threading.Event()
        self.session = SimpleNamespace(
            sparkContext=SimpleNamespace(
                defaultParallelism=2,
                setJobGroup=lambda group, _text, *, interruptOnCancel: self.groups.append(group),  # noqa: N803
            )
        )

    def state(self, timeout_seconds: float) -> str:
        del timeout_seconds
        return "gone" if self.process.status is not None else self.how

    def release(self) -> None:
        pass

    def cancel(self, job_group: str) -> None:
        self.cancelled.append(job_group)

    def last_words(self) -> str | None:
        return None if self.process.status is None else f"signal {-self.process.status}"

    def stop(self, timeout_seconds: float) -> None:
        del timeout_seconds
        self.process.status = -9
        self.stopped.set()


class World:
    """Every JVM that was started."""

    def __init__(self) -> None:
        self.jvms: list[FakeJvm] = []
        self.before_start: Callable[[], object] = lambda: None

    def start(
        self, app_name: str, conf: Any, jars: Sequence[str], timeout_seconds: float
    ) -> FakeJvm:
        del app_name, conf, jars, timeout_seconds
        self.before_start()
        return self.made(FakeJvm(self, Process()))

    def made(self, jvm: FakeJvm) -> FakeJvm:
        self.jvms.append(jvm)
        return jvm

    @property
    def last(self) -> FakeJvm:
        return self.jvms[-1]


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    world = World()
    monkeypatch.setattr(driver_module, "Jvm", SimpleNamespace(start=world.start))
    monkeypatch.setattr(driver_module, "_GRACE_SECONDS", 0.05)
    return world


@pytest.fixture
def driver(world: World) -> Iterator[SparkDriver]:
    del world
    driver = SparkDriver("test")
    yield driver
    driver.close()


def well(_session: object) -> str:
    return "done"


def failing(jvm: FakeJvm | None = None, how: str = "well") -> Callable[[object], object]:
    def job(_session: object) -> object:
        if jvm is not None:
            jvm.how = how
        raise ValueError("no such table")

    return job


def started(work: Callable[[], object], *errors: type[Exception]) -> Callable[[], str]:
    """Do work on a thread; what is returned waits for its end, and tells what it raised."""
    caught: list[str] = []

    def run() -> None:
        try:
            work()
        except errors as error:
            caught.append(str(error))

    thread = threading.Thread(target=run)
    thread.start()

    def end() -> str:
        thread.join(seconds(10))
        return caught[0]

    return end


def events(logs: Sequence[Any]) -> list[str]:
    return [each["event"] for each in logs]


def test_error_of_a_job_is_passed_on_while_spark_is_well(driver: SparkDriver, world: World) -> None:
    with pytest.raises(ValueError, match="no such table"):
        driver.run(failing(), group="g")
    assert driver.run(well, group="g") == "done"
    assert len(world.jvms) == 1


def test_stopped_context_costs_its_jvm(driver: SparkDriver, world: World) -> None:
    driver.open()
    first = world.last
    with capture_logs() as logs:
        with pytest.raises(SparkDied, match="no such table"):
            driver.run(failing(first, "gone"), group="g")
        assert driver.run(well, group="g") == "done"
    assert events(logs) == ["spark_died", "spark_restarted"]
    assert first.stopped.is_set()
    assert driver.restarts == 1


def test_one_stopped_context_is_replaced_once(driver: SparkDriver, world: World) -> None:
    driver.open()
    first = world.last
    running, late = threading.Event(), threading.Event()

    def slow(_session: object) -> None:
        running.set()
        late.wait(seconds(10))
        raise ValueError("the old context is stopped")

    ended = started(lambda: driver.run(slow, group="slow"), SparkDied)
    assert running.wait(seconds(10))
    with pytest.raises(SparkDied):
        driver.run(failing(first, "gone"), group="g")
    assert driver.run(well, group="g") == "done"
    second = world.last
    late.set()  # its error is of the old JVM, the new one is well
    assert ended()
    assert driver.run(well, group="g") == "done"
    assert world.last is second


def test_a_jvm_that_does_not_answer_is_killed_and_replaced(
    driver: SparkDriver, world: World
) -> None:
    driver.open()
    first = world.last
    with capture_logs() as logs:
        with pytest.raises(SparkDied):
            driver.run(failing(first, "mute"), group="g")
        assert driver.run(well, group="g") == "done"
    assert events(logs) == ["spark_killed", "spark_died", "spark_restarted"]
    assert logs[1]["ended"] == "signal 9"
    assert first.process.killed.is_set()
    assert first.stopped.is_set()


def test_a_jvm_that_ended_between_two_jobs_fails_neither(driver: SparkDriver, world: World) -> None:
    driver.open()
    world.last.process.status = -9
    with capture_logs() as logs:
        assert driver.run(well, group="g") == "done"
    assert events(logs) == ["spark_died", "spark_restarted"]
    assert driver.restarts == 1


@pytest.mark.parametrize("given", [0.05, None], ids=["the job's", "the driver's"])
def test_the_deadline_is_the_jobs_own_or_the_drivers(world: World, given: float | None) -> None:
    driver = SparkDriver("test", job_deadline_seconds=3600.0 if given else 0.05)
    driver.open()

    def hang(_session: object) -> None:
        assert world.last.process.killed.wait(seconds(10))
        raise ConnectionRefusedError

    with capture_logs() as logs, pytest.raises(SparkTimeout, match=r"within 0\.05 seconds"):
        driver.run(hang, group="g", deadline_seconds=given)
    assert world.last.cancelled == world.last.groups
    assert events(logs) == ["spark_job_cancelled", "spark_killed", "spark_died"]
    driver.close()


def test_all_jobs_of_a_name_are_cancelled_and_no_others(driver: SparkDriver, world: World) -> None:
    driver.open()
    ended = threading.Event()

    def wait(_session: object) -> None:
        assert ended.wait(seconds(10))
        raise ValueError("cancelled")

    runs = [
        started(lambda group=group: driver.run(wait, group=group), ValueError)  # type: ignore[misc]
        for group in ("g", "g", "h")
    ]
    while len(world.last.groups) < 3:
        ended.wait(0.001)
    driver.cancel("nobody")
    driver.cancel("g")
    while len(world.last.cancelled) < 2:
        ended.wait(0.001)
    ended.set()
    assert [run() for run in runs] == ["cancelled"] * 3
    driver.cancel("h")  # it has ended
    assert sorted(world.last.cancelled) == sorted(g for g in world.last.groups if g[0] == "g")


def test_a_cancel_that_fails_is_logged_and_harms_nobody(driver: SparkDriver, world: World) -> None:
    driver.open()
    asked = threading.Event()

    def refuse(_job_group: str) -> None:
        asked.set()
        raise ConnectionRefusedError("gone")

    world.last.cancel = refuse  # type: ignore[method-assign]

    def cancelled(_session: object) -> str:
        driver.cancel("g")
        assert asked.wait(seconds(10))
        while not logs:
            asked.wait(0.001)
        return "done"

    with capture_logs() as logs:
        assert driver.run(cancelled, group="g") == "done"
    assert events(logs) == ["spark_cancel_failed"]
    assert logs[0]["error"] == "gone"


def test_the_parallelism_is_sparks_own(driver: SparkDriver, world: World) -> None:
    assert driver.parallelism == 2
    assert len(world.jvms) == 1


def test_a_driver_that_is_closed_while_spark_starts_neither_waits_nor_leaves_one(
    world: World,
) -> None:
    """Promise 16: the process ends in time, whatever Spark does."""
    driver = SparkDriver("test")
    starting, may_start = threading.Event(), threading.Event()

    def hang() -> None:
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


def test_py4j_does_not_log_calls_cut_off_by_close(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    driver = SparkDriver("test")
    running = threading.Event()

    def complain() -> None:
        record = logging.LogRecord(
            "root", logging.ERROR, "py4j/java_gateway.py", 1, "Exception while sending command.",
            None, None,
        )  # fmt: skip
        logging.getLogger().handle(record)

    def cut_off(_session: object) -> None:
        running.set()
        assert world.last.stopped.wait(seconds(10))
        complain()
        raise ConnectionResetError

    ended = started(lambda: driver.run(cut_off, group="g"), SparkDied)
    assert running.wait(seconds(10))
    driver.close()
    assert ended()
    assert caplog.records == []
    complain()
    assert [record.message for record in caplog.records] == ["Exception while sending command."]


def test_a_driver_is_opened_with_the_jars_that_are_there_then(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[list[str]] = []

    def start(_name: str, _conf: Any, jars: list[str], timeout_seconds: float) -> FakeJvm:
        given.append(jars)
        assert timeout_seconds == 180.0
        return world.made(FakeJvm(world, Process()))

    monkeypatch.setattr(driver_module, "Jvm", SimpleNamespace(start=start))
    jars = [Path("first.jar")]
    driver = SparkDriver("test", jars=lambda: jars, job_deadline_seconds=1.0)
    driver.open()
    jars.append(Path("second.jar"))
    world.last.process.status = 1
    driver.open()
    assert given == [["first.jar"], ["first.jar", "second.jar"]]
    driver.close()
