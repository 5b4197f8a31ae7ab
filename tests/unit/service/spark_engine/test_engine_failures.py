import re
import threading
from collections import Counter
from concurrent.futures import Future
from pathlib import Path
from unittest.mock import Mock

import pytest
from structlog.testing import capture_logs

from partition.errors import PartitionError
from partition.interfaces import Log
from partition.recovery import StartPolicy
from service.errors import TaskError
from service.spark_engine import planner
from service.spark_engine.task import TaskDone, TaskFailed
from sinks.errors import SparkTimeout
from tests.support.patience import until
from tests.support.spark_engine import (
    ONE,
    PATIENCE_SECONDS,
    TWO,
    ApartSink,
    Driving,
    HereExecutors,
    HereSink,
    values,
)
from topology.errors import SinkBusy, SinkFailed
from topology.sink import Fence
from transactions.groups import RangePolicy
from transactions.transaction import RangeRead

ALL, PAIRS = RangePolicy(100, 0.01), RangePolicy(5, 0.01, 2)
SKIP = StartPolicy(on_data_loss="skip")


def test_a_run_that_fails_is_run_again_and_so_are_those_behind_it(tmp_path):
    """Promise 15. What the stale attempt has staged is discarded."""
    here = HereSink()
    with Driving(tmp_path, sinks=[ApartSink(), here], ranges=PAIRS) as drives:
        drives.fail()
        drives.hold(10, runs=2)
        drives.go(lambda: drives.figures.failing_since is not None)
        assert drives.figures.last_error == "OSError: the executor is gone"
        drives.finish()
        assert (drives.figures.failing_since, drives.figures.retries) == (None, 1)
        assert drives.apart.rows == here.rows == values("a", 10)
        assert sorted(drives.executors.names[2:]) == ["ranges-1-2", "ranges-2-2"]
        drives.until(lambda: not list(tmp_path.glob("*/files/*")))


BROKEN = TaskFailed("it is broken", "BoltError")
ELSEWHERE = SinkFailed("executors and driver must share the folder of the table")


@pytest.mark.parametrize(
    ("where", "what", "error", "match"),
    [
        ("run", Mock(return_value=[BROKEN]), TaskError, "BoltError: it is broken"),
        ("run", TaskError("ModuleNotFoundError", "No module named 'x'"), TaskError, "named 'x'"),
        ("stager", AttributeError("no attribute 'files'"), AttributeError, "files"),
        ("commit", SystemExit(1), SinkFailed, "SystemExit"),
        ("commit", SinkFailed("the table is gone"), SinkFailed, "the table is gone"),
        ("joined", ELSEWHERE, SinkFailed, "must share the folder of the table"),
    ],
)
def test_errors_that_cannot_heal_end_the_run(tmp_path, where, what, error, match):
    with Driving(tmp_path) as drives:
        broken = drives.executors if where == "run" else drives.apart
        setattr(broken, where, Mock(side_effect=what))
        drives.fill(1)
        with pytest.raises(error, match=match):
            drives.finish()
        assert (drives.stored_at(ONE), drives.apart.rows) == (0, [])


@pytest.mark.parametrize("error", [OSError("the log cannot be read"), SinkBusy(0.1)])
def test_stager_is_asked_again_after_a_passing_error(tmp_path, error):
    with Driving(tmp_path) as drives:
        drives.apart.stager = Mock(side_effect=[error, drives.apart.stager()])
        drives.fill(1)
        drives.finish()
        assert (drives.apart.rows, drives.figures.retries) == (["a0"], 1)


def unreadable(task):
    return TaskFailed("expired, or cut off", "OffsetOutOfRange", task.ranges[0].partition)


def test_lasting_trouble_halts_one_partition_only(tmp_path):
    with Driving(tmp_path) as drives:

        def fails(task):
            drives.executors.answers.append(fails)
            return unreadable(task) if task.ranges[0].partition == TWO else None

        drives.executors.answers = [fails]
        drives.fill(b=1)
        drives.until(lambda: TWO in drives.reader.assignment.halted)
        drives.fill(1)
        drives.until(lambda: drives.stored_at(ONE) == 1)
        assert drives.apart.rows == ["a0"]


def test_records_that_expired_before_they_ran_are_skipped_by_policy(tmp_path):
    """Promise 12."""
    with Driving(tmp_path, start=SKIP, partitions=1) as drives:
        drives.hold(10)
        drives.log.delete_before(ONE, 6)
        drives.executors.answers = [unreadable]
        drives.go()
        assert drives.apart.rows == ["a6", "a7", "a8", "a9"]
        assert next(drives.reader.statistics(0.0)).lost == {"expired": 6}


def test_log_cut_off_and_partly_rewritten_is_read_from_the_cut(tmp_path, monkeypatch):
    """Promise 12. Simulated seed 211: the log's end is not where the log was cut off."""
    monkeypatch.setattr(planner, "_SHORT_SECONDS", 0.05)
    with Driving(tmp_path, start=SKIP) as drives:
        drives.fill(10)
        drives.finish()
        drives.log.truncate(ONE, 4)
        drives.send(*values("b", 3))
        drives.until(lambda: len(drives.apart.rows) == 13)
        assert sorted(drives.apart.rows) == [*values("a", 10), *values("b", 3)]
        drives.finish()
        assert drives.stored_at(ONE) == 7


def test_a_log_that_was_cut_off_within_a_planned_range_is_read_to_its_end(tmp_path):
    """Promise 12."""
    with Driving(tmp_path, partitions=1, ranges=ALL) as drives:
        drives.hold(10)
        drives.log.truncate(ONE, 6)
        drives.executors.answers = [unreadable] * 4
        drives.go()
        assert drives.apart.rows == values("a", 6)
        assert drives.reader.assignment.halted == {}


def test_a_cut_below_what_was_read_after_it_is_no_loss(tmp_path):
    """Promise 14. Simulated seed 102: else what was written behind the cut comes twice."""
    holds = {name: threading.Event() for name in ("ranges-1-1", "ranges-2-1")}

    def held(name, tasks):
        if name in holds and not holds[name].wait(PATIENCE_SECONDS):
            raise TimeoutError
        return HereExecutors.run(drives.executors, name, tasks)

    with Driving(tmp_path, partitions=1, ranges=PAIRS, start=SKIP) as drives:
        drives.executors.run = held
        results = drives.engine._results._queue  # of both in the same turn, in this order
        drives.fill(5)
        drives.until(lambda: len(drives.engine._attempts.running) == 1)
        drives.log.truncate(ONE, 0)
        drives.send(*values("b", 10))
        drives.until(lambda: len(drives.engine._attempts.running) == 2)
        for count, hold in enumerate(holds.values(), 1):
            hold.set()
            until("it ends", lambda count=count: results.qsize() == count, PATIENCE_SECONDS)
        drives.finish()
        assert drives.apart.rows == values("b", 10)


def test_no_range_is_run_while_it_is_found_out_where_its_log_goes_on(tmp_path):
    """Promise 14. Simulated seed 646: what is planned of it is about to be dropped."""
    with Driving(tmp_path, start=SKIP, partitions=1) as drives:
        drives.fail()
        drives.fill(4)
        drives.until(lambda: drives.figures.failing_since is not None)
        drives.log.recreate_topic("t")
        drives.send(*values("b", 6))
        answer, asks = Future[Log](), drives.catalogue.log
        drives.catalogue.log = lambda _partition, _timestamp_ms=None: answer
        drives.reader.assignment._discovery._due = 0.0
        ran = drives.executors.names
        drives.until(lambda: drives.figures.failing_since is None or len(ran) > 1)
        assert ran == ["ranges-1-1"]
        drives.catalogue.log = asks
        answer.set_result(drives.log.log(ONE))
        drives.finish()
        assert drives.apart.rows == values("b", 6)


@pytest.mark.parametrize(
    "place", ["range_after_plan", "range_before_seal", "range_after_seal", "sink_before_commit"]
)
def test_a_restart_runs_again_what_was_open_as_it_was_planned(tmp_path, place):
    """Promise 14."""
    apart, here = ApartSink(), HereSink()
    left = [place]  # it ends where it passes it first; in a sink's thread, the sink cannot go on

    def at(passed):
        if passed in left:
            left.remove(passed)
            raise SinkFailed(f"a crash at {place}")

    with Driving(tmp_path, sinks=[apart, here], ranges=RangePolicy(6, 0.01), at=at) as first:
        first.fill(9, 9)
        with pytest.raises(SinkFailed, match=place):
            first.finish()
        open_before = first.open_of()
    assert open_before
    first.send("a9")
    with first.another() as second:
        second.finish()
        begun = {(e.position.offset, e.end) for t in second.executors.tasks for e in t.ranges}
        assert {(start, end) for start, end, _sealed in open_before} <= begun
    assert Counter(apart.rows) == Counter(here.rows) == Counter(values("a", 10) + values("b", 9))


def test_a_replay_that_differs_halts_the_partition(tmp_path):
    """Promise 14."""
    with Driving(tmp_path, partitions=1) as first:
        first.apart.errors = [SinkFailed("not today")]
        first.fill(4)
        with pytest.raises(SinkFailed):
            first.finish()
        assert first.open_of() == [(0, 4, True)]

    def differs(task):
        reads = tuple(RangeRead(e.partition, 3, "0" * 32, None) for e in task.ranges)
        return TaskDone(reads, {}, first.engine.counters, 0)

    with first.another() as second:
        second.executors.answers = [differs]
        with pytest.raises(PartitionError, match=re.escape("offsets 0 to 4 (4 records")):
            second.finish()
    assert first.apart.rows == []


def test_a_sink_that_has_a_later_owner_takes_the_line_away_and_the_others_go_on(tmp_path):
    """Promise 9."""
    here = HereSink()
    with Driving(tmp_path, sinks=[ApartSink(), here], ranges=ALL) as drives:
        drives.hold(3, 3)
        here.fence([Fence("t[1]", 99)])
        drives.go(lambda: drives.stored_at(ONE) == 3)
        assert TWO in drives.reader.assignment.halted
        assert here.rows == values("a", 3)
        # The other sink had no later owner, so it may have taken both; never one of them twice.
        assert Counter(drives.apart.rows) == Counter(values("a", 3) + values("b", 3))
        drives.send("a3")
        drives.until(lambda: drives.stored_at(ONE) == 4)
        assert here.rows == values("a", 4)


@pytest.mark.parametrize("what", ["store", "Kafka", "session"])
def test_outage_is_survived(tmp_path, what):
    """Promise 15. Nothing runs while the store is away; a session may end amid a run."""
    with Driving(tmp_path) as drives:
        drives.nodes.away, drives.log.away = what == "store", what == "Kafka"
        if what == "session":
            drives.hold(3)
            drives.nodes.end_session()
        else:
            drives.fill(3)
            drives.turn(30)
            drives.until(lambda: drives.ends.available == (what == "store"))
            assert drives.executors.names == []
        drives.nodes.away = drives.log.away = False
        drives.go()
        assert (drives.apart.rows, drives.ends.available) == (values("a", 3), True)


def test_vanished_group_fails_no_more(tmp_path):
    with Driving(tmp_path) as drives:
        for attempt in range(1, 9):
            drives.fail(f"ranges-1-{attempt}")
        drives.fill(b=1)
        drives.until(lambda: drives.figures.failing_since is not None)
        drives.claim(TWO)
        drives.until(lambda: TWO in drives.reader.assignment.halted and drives.engine.is_idle)
        drives.turn()
        assert drives.figures.failing_since is None


def test_group_that_loses_its_files_fails_until_done(tmp_path):
    """That a try of it is sealed says nothing of what the sink finds."""
    removed, since = list[Path](), list[float | None]()

    def at(place):
        if place == "range_before_seal" and len(removed) < 2:
            for file in tmp_path.rglob("*.rows"):
                file.unlink()
                removed.append(file)
        if place == "range_after_seal":
            since.append(drives.figures.failing_since)

    here = HereSink()
    with Driving(tmp_path, sinks=[here], at=at) as drives:
        drives.fill(1)
        drives.until(lambda: drives.figures.failing_since is not None)
        first = drives.figures.failing_since
        drives.finish()
        drives.turn()
        assert (here.rows, drives.figures.retries, since) == (["a0"], 2, [first])
        said = str(drives.figures.last_error)
        assert "must be a folder that executors and driver share" in said
        assert drives.figures.failing_since is None


def test_slow_group_gets_more_time_with_each_attempt(tmp_path):
    """What only is slow ends; and what hangs is not waited for much longer at once."""
    with Driving(tmp_path) as drives, capture_logs() as logged:
        for name in (f"ranges-1-{attempt}" for attempt in range(1, 7)):
            drives.executors.errors[name] = SparkTimeout(name, 300.0)
        drives.fail("ranges-1-2")
        drives.fill(1)
        for attempt in range(1, 8):
            drives.until(lambda attempt=attempt: len(drives.executors.names) == attempt)
            drives.until(lambda: not drives.engine._attempts.running)
            for group in drives.engine._attempts.groups:
                group.again_at = 0.0
        drives.finish()
        drives.send("a1")
        drives.finish()
    assert [task.patience for task in drives.executors.tasks] == [1, 2, 2, 4, 8, 8, 8, 1]
    told = [e["times"] for e in logged if e["event"] == "range_group_given_longer"]
    assert told == [2, 4, 8, 8, 8]
    said = (e["error"] for e in logged if e["event"] == "range_group_failed")
    assert "raise [spark] job_deadline_seconds: the range stays as it is" in next(said)
