import time
from typing import Any

import pytest
from structlog.testing import capture_logs

from partition.errors import ReplayDiffers
from partition.memory.ports import MemoryCatalogue
from service.spark_engine import planner, range_reader
from service.spark_engine.planner import LogEndTracker
from sinks.errors import SparkTimeout
from tests.support.faulty_kafka import FaultyLog
from tests.support.spark_engine import ONE, TWO, Driving, values
from tests.support.spark_tasks import SilentCatalogue, SilentFetcher
from transactions.groups import RangePolicy


class World(Driving):
    """Two partitions; `to_executors` and `to_driver` are silent to these."""

    def __init__(self, folder, most=5, **more):
        super().__init__(folder, ranges=RangePolicy(most, 0.01, 2), **more)
        self.unheard, self.asked = (), SilentCatalogue(self.log)
        self.executors.fetcher = lambda: SilentFetcher(self.log, self.unheard)
        self.asked.open()
        self.ends._questions[0].catalogue = self.asked

    def silence(self, *, executors, driver):
        self.unheard, self.asked.silent = executors, driver

    def hear(self):
        self.silence(executors=(), driver=())
        self.finish()


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(range_reader, "_SILENT_SECONDS", 0.05)
    monkeypatch.setattr(planner, "_FIRST_SECONDS", 0.05)


def test_a_partition_that_executors_cannot_read_leaves_the_others_alone(tmp_path):
    """Promise 10. Its job has more time with each silence: it may be reading aborted records."""
    with World(tmp_path) as world, capture_logs() as logged:
        world.silence(executors={TWO}, driver=())
        world.fill(10, 10)
        world.until(lambda: world.stored_at(ONE) == 10)
        assert world.figures.failing_since is not None
        assert "of t[1]" in str(world.figures.last_error)
        assert world.stored_at(TWO) == 0
        (_, end, is_sealed) = world.open_of(1)[0]
        assert not is_sealed, "it stays planned"

        def patience():
            """That of the first range, and of its jobs."""
            runs = [(task.ranges[0], task) for task in world.executors.tasks]
            of_two = [(first, task) for first, task in runs if first.partition == TWO]
            return [(r.patience, t.patience) for r, t in of_two if r.position.offset == 0]

        world.until(lambda: len(patience()) > 1)
        world.hear()
        assert sorted(world.apart.rows) == values("a", 10) + values("b", 10)
        shares = [each for each in world.apart.shares if each[0] == "t[1]"]
        assert shares[0] == ("t[1]", 1, end)
        assert world.figures.failing_since is None
        assert world.reader.assignment.halted == {}
        assert patience()[:2] == [(1, 1), (2, 2)]
        world.send("b", partition=1)
        world.finish()
        assert world.executors.tasks[-1].ranges[0].patience == 1
    told = [each for each in logged if each["event"] == "range_silent"]
    assert told[0]["partition"] == "t[1]"
    assert "nothing was heard" in told[0]["error"]
    assert "range_group_failed" not in {each["event"] for each in logged}


def test_nothing_is_planned_or_run_of_a_partition_without_a_leader(tmp_path):
    """Promise 10."""
    with World(tmp_path) as world:
        world.fill(b=1)
        world.finish()
        world.silence(executors={TWO}, driver={TWO})
        world.send("b1", partition=1)
        world.turn(3)
        for number in range(5):
            world.send(f"a{number}")
            world.until(lambda count=number: world.stored_at(ONE) == count + 1)
        assert world.figures.retries == 0
        world.hear()
        assert world.apart.rows[-1] == "b1"


def test_a_range_that_a_restart_finds_waits_for_a_leader_while_the_others_go_on(tmp_path):
    """Promise 10."""
    with World(tmp_path) as first:
        first.silence(executors={TWO}, driver=())
        first.fill(b=2)
        first.until(lambda: first.open_of(1) == [(0, 2, False)])
    again = World(tmp_path, log=first.log, nodes=first.nodes)
    again.silence(executors={TWO}, driver={TWO})
    with again:
        again.fill(10)
        again.until(lambda: again.stored_at(ONE) == 10)
        assert again.open_of(1) == [(0, 2, False)]
        again.hear()
    assert sorted(again.apart.rows) == [*values("a", 10), "b0", "b1"]


def test_a_partition_without_a_leader_leaves_a_try_that_failed(tmp_path):
    """Promise 10: also where Spark reads the topic, and does not say which partition it was."""
    with World(tmp_path, most=100) as world:
        world.executors.errors["ranges-1-1"] = SparkTimeout("ranges-1-1", 300.0)
        world.hold(3, 3)
        world.silence(executors={TWO}, driver={TWO})
        world.until(lambda: world.ends.is_unreachable(TWO))
        world.go(lambda: world.stored_at(ONE) == 3)
        assert world.apart.rows == values("a", 3)
        world.hear()


def test_silence_of_a_lost_partition_is_no_failure(tmp_path):
    """Nobody would ever read it here, and health would be bad for ever."""
    with World(tmp_path, most=100) as world:
        world.hold(3, 3)
        (group,) = world.engine._attempts.groups
        (member,) = [each for each in group.members if each.line.partition == TWO]
        world.reader.assignment.halt(TWO, ReplayDiffers(TWO, 1, "these", "others"))
        world.engine._attempts.became_unreachable(member, "nothing was heard", time.monotonic())
        world.go(lambda: world.stored_at(ONE) == 3)
        world.turn()
        assert world.figures.failing_since is None


def test_health_shows_a_partition_without_a_leader(tmp_path, monkeypatch):
    monkeypatch.setattr(planner, "_SHORT_SECONDS", 0.05)
    with World(tmp_path) as world:
        for silent, others in (({TWO}, "t[1]"), ({ONE, TWO}, "t[0] and 1 more")):
            world.silence(executors=(), driver=silent)
            said = f"no answer from the leader of {others}"
            world.until(lambda said=said: world.figures.last_error == said)
            assert world.figures.failing_since is not None
        world.silence(executors=(), driver=())
        world.until(lambda: world.figures.failing_since is None)
        assert world.figures.retries == 0


def test_while_no_broker_answers_a_silent_group_stays_together(tmp_path):
    """Promise 15: the pauses of single partitions would outlast the outage."""
    with World(tmp_path, most=100) as world, capture_logs() as logged:
        world.hold(3, 3)
        world.log.away = True
        world.until(lambda: not world.ends.available)
        world.go(lambda: world.figures.failing_since is not None)
        world.log.away = False
        world.finish()
        assert sorted(world.apart.rows) == values("a", 3) + values("b", 3)
    events = {each["event"] for each in logged}
    assert "range_group_failed" in events
    assert "range_silent" not in events


def test_pauses_grow_up_to_a_limit_and_end_with_a_read():
    nobody: Any = MemoryCatalogue(FaultyLog({"t": 2}))
    ends, now, pauses = LogEndTracker(nobody, 1.0), 100.0, list[float]()
    ends.poll(now, [ONE, TWO])
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
