"""A partition of which nothing can be read is left out of groups, and the others go on."""

import time
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from partition.errors import ReplayDiffers
from partition.memory.ports import MemoryCatalogue
from partition.records import Partition
from service.spark_engine import planner, range_reader
from service.spark_engine.planner import LogEndTracker
from service.spark_engine.range_reader import RangeReader
from service.spark_engine.task import Task, TaskDone, TaskFailed, decode, encode
from service.spark_engine.task_runner import process
from sinks.errors import SparkTimeout
from tests.support.faulty_kafka import FaultyLog
from tests.support.spark_engine import ONE, TWO, ApartSink, Driving, HereExecutors, values
from tests.support.spark_tasks import SilentCatalogue, SilentFetcher
from transactions.groups import RangePolicy


class Reaching(HereExecutors):
    """Executors to which some partitions are silent."""

    silent: Collection[Partition] = ()

    def _answer(self, task: Task) -> TaskDone | TaskFailed:
        reader = RangeReader(SilentFetcher(self._log, self.silent))
        ended: TaskDone | TaskFailed = decode(
            encode(process(task, reader, self._topology, self._letters))
        )
        reader.close()
        return ended


class World(Driving):
    """Two partitions; `to_executors` and `to_driver` are silent to these."""

    executors: Reaching

    def __init__(self, folder: Path, **more: Any) -> None:
        self.apart = ApartSink()
        given = {"sinks": [self.apart], "ranges": RangePolicy(5, 0.01, 2), **more}
        super().__init__(folder, executors=Reaching, **given)
        self.asked = SilentCatalogue(self.log)
        self.asked.open()
        self.ends._questions[0].catalogue = self.asked

    def silence(self, *, executors: Collection[Partition], driver: Collection[Partition]) -> None:
        self.executors.silent, self.asked.silent = executors, driver


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(range_reader, "_SILENT_SECONDS", 0.05)
    monkeypatch.setattr(planner, "_FIRST_SECONDS", 0.05)


def test_a_partition_that_executors_cannot_read_leaves_the_others_alone(tmp_path: Path) -> None:
    """Promise 10."""
    with World(tmp_path) as world, capture_logs() as logged:
        world.silence(executors={TWO}, driver=())
        world.send(*values("a", 10))
        world.send(*values("b", 10), partition=1)
        world.until(lambda: world.stored_at(ONE) == 10)
        assert world.figures.failing_since is not None
        assert "of t[1]" in str(world.figures.last_error)
        assert world.stored_at(TWO) == 0
        open_then = world.open_of(1)
        assert open_then[0][2] is False, "it stays planned"
        world.silence(executors=(), driver=())
        world.finish()
        assert sorted(world.apart.rows) == values("a", 10) + values("b", 10)
        shares = [each for each in world.apart.shares if each[0] == "t[1]"]
        assert shares[0] == ("t[1]", 1, open_then[0][1])
        assert world.figures.failing_since is None
        assert world.reader.assignment.halted == {}
    told = [each for each in logged if each["event"] == "range_silent"]
    assert told[0]["partition"] == "t[1]"
    assert "nothing was heard" in told[0]["error"]
    assert "range_group_failed" not in {each["event"] for each in logged}


def test_nothing_is_planned_or_run_of_a_partition_without_a_leader(tmp_path: Path) -> None:
    """Promise 10."""
    with World(tmp_path) as world:
        world.send("b0", partition=1)
        world.finish()
        world.silence(executors={TWO}, driver={TWO})
        world.send("b1", partition=1)
        world.turn(3)
        for number in range(5):
            world.send(f"a{number}")
            world.until(lambda count=number: world.stored_at(ONE) == count + 1)  # type: ignore[misc]
        assert world.figures.retries == 0
        world.silence(executors=(), driver=())
        world.finish()
        assert world.apart.rows[-1] == "b1"


def test_a_range_that_a_restart_finds_waits_for_a_leader_while_the_others_go_on(
    tmp_path: Path,
) -> None:
    """Promise 10."""
    with World(tmp_path) as first:
        first.silence(executors={TWO}, driver=())
        first.send("b0", "b1", partition=1)
        first.until(lambda: first.open_of(1) == [(0, 2, False)])
    again = World(tmp_path, log=first.log, nodes=first.nodes, letters=first.letters_sink)
    again.silence(executors={TWO}, driver={TWO})
    with again:
        again.send(*values("a", 10))
        again.until(lambda: again.stored_at(ONE) == 10)
        assert again.open_of(1) == [(0, 2, False)]
        again.silence(executors=(), driver=())
        again.finish()
    assert sorted(again.apart.rows) == [*values("a", 10), "b0", "b1"]


def test_a_partition_without_a_leader_leaves_a_try_that_failed(tmp_path: Path) -> None:
    """Promise 10: also where Spark reads the topic, and does not say which partition it was."""
    with World(tmp_path, ranges=RangePolicy(100, 0.01, 2)) as world:
        world.executors.gate.clear()
        world.executors.errors["ranges-1-1"] = SparkTimeout("ranges-1-1", 300.0)
        world.send(*values("a", 3))
        world.send(*values("b", 3), partition=1)
        world.until(lambda: len(world.executors.names) == 1)
        world.silence(executors={TWO}, driver={TWO})
        world.until(lambda: world.ends.is_unreachable(TWO))
        world.executors.gate.set()
        world.until(lambda: world.stored_at(ONE) == 3)
        assert world.apart.rows == values("a", 3)
        world.silence(executors=(), driver=())
        world.finish()


def test_silence_of_a_lost_partition_is_no_failure(
    tmp_path: Path,
) -> None:
    """Nobody would ever read it here, and health would be bad for ever."""
    with World(tmp_path, ranges=RangePolicy(100, 0.01, 2)) as world:
        world.executors.gate.clear()
        world.send(*values("a", 3))
        world.send(*values("b", 3), partition=1)
        world.until(lambda: len(world.executors.names) == 1)
        (group,) = world.engine._attempts.groups
        (member,) = [each for each in group.members if each.line.partition == TWO]
        world.reader.assignment.halt(TWO, ReplayDiffers(TWO, 1, "these", "others"))
        world.engine._attempts.became_unreachable(member, "nothing was heard", time.monotonic())
        world.executors.gate.set()
        world.until(lambda: world.stored_at(ONE) == 3)
        world.turn()
        assert world.figures.failing_since is None


def test_health_shows_a_partition_without_a_leader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planner, "_SHORT_SECONDS", 0.05)
    with World(tmp_path) as world:
        world.silence(executors=(), driver={TWO})
        world.until(lambda: world.figures.failing_since is not None)
        assert world.figures.last_error == "no answer from the leader of t[1]"
        world.silence(executors=(), driver={ONE, TWO})
        said = "no answer from the leader of t[0] and 1 more"
        world.until(lambda: world.figures.last_error == said)
        world.silence(executors=(), driver=())
        world.until(lambda: world.figures.failing_since is None)
        assert world.figures.retries == 0


def test_patience_grows_with_each_silence_of_a_range(tmp_path: Path) -> None:
    """A client brings nothing of a long stretch of aborted records, and is not stuck."""
    with World(tmp_path) as world:
        world.silence(executors={TWO}, driver=())
        world.send("b0", partition=1)
        world.until(lambda: len(world.executors.tasks) > 1)
        world.silence(executors=(), driver=())
        world.finish()
        first, second = world.executors.tasks[:2]
        assert (first.ranges[0].patience, second.ranges[0].patience) == (1, 2)
        assert (first.patience, second.patience) == (1, 2), "its job has as many times as long"
        world.send("b1", partition=1)
        world.finish()
        assert world.executors.tasks[-1].ranges[0].patience == 1


def test_while_no_broker_answers_a_silent_group_stays_together(tmp_path: Path) -> None:
    """Promise 15: the pauses of single partitions would outlast the outage."""
    with World(tmp_path, ranges=RangePolicy(100, 0.01, 2)) as world, capture_logs() as logged:
        world.executors.gate.clear()
        world.executors.answers = []
        world.send(*values("a", 3))
        world.send(*values("b", 3), partition=1)
        world.until(lambda: len(world.executors.names) == 1)
        world.log.away = True
        world.until(lambda: not world.ends.available)
        world.executors.gate.set()
        world.until(lambda: world.figures.failing_since is not None)
        world.log.away = False
        world.finish()
        assert sorted(world.apart.rows) == values("a", 3) + values("b", 3)
    events = {each["event"] for each in logged}
    assert "range_group_failed" in events
    assert "range_silent" not in events


def test_pauses_grow_up_to_a_limit_and_end_with_a_read() -> None:
    nobody: Any = MemoryCatalogue(FaultyLog({"t": 2}))
    ends, now = LogEndTracker(nobody, 1.0), 100.0
    ends.poll(now, [ONE, TWO])
    pauses = []
    for _ in range(20):
        pauses.append(ends.became_unreachable(TWO, now))
        assert ends.is_out(TWO, now + pauses[-1] - 0.001)
        now += pauses[-1]
        assert not ends.is_out(TWO, now)
    assert pauses[1] == 2 * pauses[0]
    assert pauses[-1] == pauses[-2] == 900.0
    assert (ends.patience(ONE), ends.patience(TWO), ends.has_unreachable) == (1, 8, True)
    ends.heard(TWO)
    assert (ends.patience(TWO), ends.has_unreachable) == (1, False)
    assert ends.became_unreachable(TWO, now) == pauses[0]
    ends.remove([TWO])
    assert (ends.patience(TWO), ends.has_unreachable) == (1, False)
    ends.became_unreachable(TWO, now)
    assert not ends.has_unreachable, "it is not read here"
