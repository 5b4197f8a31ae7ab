"""The spark engine in memory: what fails, what is lost, and what a restart finds."""

import re
import threading
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from headrace import Topology
from headrace.sinks import MemoryDeadLetters
from partition.errors import PartitionError
from partition.interfaces import Log
from partition.recovery import StartPolicy
from service.errors import TaskError
from service.spark_engine import planner
from service.spark_engine.task import Task, TaskDone, TaskFailed
from sinks.errors import SparkTimeout
from tests.support.faulty_kafka import FaultyLog
from tests.support.faulty_store import FaultyStore
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
from topology.sink import Fence, Staged
from transactions.groups import RangePolicy
from transactions.transaction import RangeRead


class Crash(Exception):
    """The process ends here."""


class CrashesAt:
    """Raises the first time that a place is passed."""

    def __init__(self, place: str) -> None:
        self.place = place
        self.passed = False

    def __call__(self, place: str) -> None:
        if place == self.place and not self.passed:
            self.passed = True
            raise Crash(place)


def test_a_run_that_fails_is_run_again_and_so_are_those_behind_it(tmp_path: Path) -> None:
    """Promise 15."""
    apart = ApartSink()
    with Driving(tmp_path, sinks=[apart], ranges=RangePolicy(5, 0.01, 2)) as drives:
        drives.executors.errors["ranges-1-1"] = OSError("the executor is gone")
        drives.executors.gate.clear()
        drives.send(*values("a", 10))
        drives.until(lambda: len(drives.executors.names) == 2)
        drives.executors.gate.set()
        drives.until(lambda: drives.figures.failing_since is not None)
        assert drives.figures.last_error == "OSError: the executor is gone"
        drives.finish()
        assert (drives.figures.failing_since, drives.figures.retries) == (None, 1)
        assert apart.rows == values("a", 10)
        assert sorted(drives.executors.names[2:]) == ["ranges-1-2", "ranges-2-2"]


class Wrong(ApartSink):
    """Has a mistake, exits in a commit, or cannot commit."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how

    def stager(self) -> Any:
        if self.how == "stager":
            raise AttributeError("no attribute 'files'")
        return super().stager()

    def commit(self, staged: Staged) -> None:
        raise SystemExit(1) if self.how == "exit" else SinkFailed("the table is gone")


@pytest.mark.parametrize(
    ("how", "error", "match"),
    [
        ("failed task", TaskError, "BoltError: it is broken"),
        ("no module", TaskError, "No module named 'x'"),
        ("stager", AttributeError, "files"),
        ("exit", SinkFailed, "SystemExit"),
        ("commit", SinkFailed, "the table is gone"),
    ],
)
def test_errors_that_cannot_heal_end_the_run(
    tmp_path: Path, how: str, error: type[Exception], match: str
) -> None:
    with Driving(tmp_path, sinks=[Wrong(how)]) as drives:
        if how == "failed task":
            drives.executors.answers = [lambda _task: TaskFailed("it is broken", "BoltError")]
        if how == "no module":
            missing = TaskError("ModuleNotFoundError", "No module named 'x'")
            drives.executors.errors["ranges-1-1"] = missing
        drives.send("a0")
        with pytest.raises(error, match=match):
            drives.finish()
        assert drives.stored_at(ONE) == 0


@pytest.mark.parametrize("error", [OSError("the log cannot be read"), SinkBusy(0.1)])
def test_stager_is_asked_again_after_a_passing_error(tmp_path: Path, error: Exception) -> None:
    class Away(ApartSink):
        away = True

        def stager(self) -> Any:
            if self.away:
                self.away = False
                raise error
            return super().stager()

    away = Away()
    with Driving(tmp_path, sinks=[away]) as drives:
        drives.send("a0")
        drives.finish()
        assert away.rows == ["a0"]
        assert drives.figures.retries == 1


def test_lasting_trouble_halts_one_partition_only(tmp_path: Path) -> None:
    apart = ApartSink()
    with Driving(tmp_path, sinks=[apart]) as drives:

        def fails(task: Task) -> TaskFailed | None:
            drives.executors.answers.append(fails)
            if any(each.partition == TWO for each in task.ranges):
                return TaskFailed("it is not there", "OffsetOutOfRange", TWO)
            return None

        drives.executors.answers = [fails]
        drives.send("b0", partition=1)
        drives.until(lambda: TWO in drives.reader.assignment.halted)
        drives.send("a0")
        drives.until(lambda: drives.stored_at(ONE) == 1)
        assert apart.rows == ["a0"]


def test_records_that_expired_before_they_ran_are_skipped_by_policy(tmp_path: Path) -> None:
    """Promise 12."""
    apart = ApartSink()
    with Driving(
        tmp_path, sinks=[apart], start=StartPolicy(on_data_loss="skip"), partitions=1
    ) as drives:
        drives.executors.gate.clear()
        drives.send(*values("a", 10))
        drives.until(lambda: len(drives.executors.names) == 1)

        def fails(_task: Task) -> TaskFailed:
            return TaskFailed("expired", "OffsetOutOfRange", ONE)

        drives.log.delete_before(ONE, 6)
        drives.executors.answers = [fails]
        drives.executors.gate.set()
        drives.finish()
        assert apart.rows == ["a6", "a7", "a8", "a9"]
        lost = next(drives.reader.statistics(0.0)).lost
        assert lost == {"expired": 6}


def test_log_cut_off_and_partly_rewritten_is_read_from_the_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Promise 12. Simulated seed 211: the log's end is not where the log was cut off."""
    monkeypatch.setattr(planner, "_SHORT_SECONDS", 0.05)
    apart = ApartSink()
    skip = StartPolicy(on_data_loss="skip")
    with Driving(tmp_path, sinks=[apart], start=skip) as drives:
        drives.send(*values("a", 10))
        drives.finish()
        drives.log.truncate(ONE, 4)
        drives.send(*values("b", 3))
        drives.until(lambda: len(apart.rows) == 13)
        assert sorted(apart.rows) == [*values("a", 10), *values("b", 3)]
        drives.finish()
        assert drives.stored_at(ONE) == 7


def test_a_log_that_was_cut_off_within_a_planned_range_is_read_to_its_end(tmp_path: Path) -> None:
    """Promise 12."""
    apart = ApartSink()
    with Driving(tmp_path, sinks=[apart], partitions=1, ranges=RangePolicy(100, 0.01)) as drives:
        drives.executors.gate.clear()
        drives.send(*values("a", 10))
        drives.until(lambda: len(drives.executors.names) == 1)
        drives.log.truncate(ONE, 6)

        def fails(_task: Task) -> TaskFailed:
            return TaskFailed("cut off", "OffsetOutOfRange", ONE)

        drives.executors.answers = [fails] * 4
        drives.executors.gate.set()
        drives.finish()
        assert apart.rows == values("a", 6)
        assert drives.reader.assignment.halted == {}


class HeldExecutors(HereExecutors):
    """Runs wait until they are let go, by name."""

    def __init__(self, topology: Topology, log: FaultyLog, letters: MemoryDeadLetters) -> None:
        super().__init__(topology, log, letters)
        self.holds = {name: threading.Event() for name in ("ranges-1-1", "ranges-2-1")}

    def run(self, name: str, tasks: Sequence[Task]) -> list[TaskDone | TaskFailed]:
        """Wait, then run them."""
        if name in self.holds and not self.holds[name].wait(PATIENCE_SECONDS):
            raise TimeoutError
        return super().run(name, tasks)


def test_what_was_read_before_a_cut_does_not_follow_what_was_read_after_it(tmp_path: Path) -> None:
    """Promise 12. Simulated seed 102: else what a later leader wrote there would not be read."""
    apart, two = ApartSink(), RangePolicy(5, 0.01, 2)
    with Driving(
        tmp_path, sinks=[apart], partitions=1, ranges=two, executors=HeldExecutors
    ) as drives:
        holds = drives.executors.holds  # type: ignore[attr-defined]
        drives.send(*values("a", 10))
        holds["ranges-2-1"].set()
        drives.until(lambda: 2 in drives.engine._attempts.processed)
        drives.log.truncate(ONE, 0)
        drives.send(*values("b", 10))
        holds["ranges-1-1"].set()
        drives.finish()
        assert apart.rows == values("b", 10)


def test_a_cut_below_what_was_read_after_it_is_no_loss(tmp_path: Path) -> None:
    """Promise 14. Simulated seed 102: else what was written behind the cut comes twice."""
    apart, two = ApartSink(), RangePolicy(5, 0.01, 2)
    skip = StartPolicy(on_data_loss="skip")
    with Driving(
        tmp_path, sinks=[apart], partitions=1, ranges=two, start=skip, executors=HeldExecutors
    ) as drives:
        holds = drives.executors.holds  # type: ignore[attr-defined]
        drives.send(*values("a", 5))
        drives.until(lambda: len(drives.engine._attempts.running) == 1)
        drives.log.truncate(ONE, 0)
        drives.send(*values("b", 10))
        drives.until(lambda: len(drives.engine._attempts.running) == 2)
        results = drives.engine._results._queue  # of both in the same turn, in this order
        holds["ranges-1-1"].set()
        until("an end", lambda: results.qsize() == 1, PATIENCE_SECONDS)
        holds["ranges-2-1"].set()
        until("another", lambda: results.qsize() == 2, PATIENCE_SECONDS)
        drives.finish()
        assert apart.rows == values("b", 10)


def test_no_range_is_run_while_it_is_found_out_where_its_log_goes_on(tmp_path: Path) -> None:
    """Promise 14. Simulated seed 646: what is planned of it is about to be dropped."""
    apart = ApartSink()
    policy = StartPolicy(on_data_loss="skip")
    with Driving(tmp_path, sinks=[apart], start=policy, partitions=1) as drives:
        drives.executors.errors["ranges-1-1"] = OSError("the executor is gone")
        drives.send(*values("a", 4))
        drives.until(lambda: drives.figures.failing_since is not None)
        drives.log.recreate_topic("t")
        drives.send(*values("b", 6))
        answer, asks = Future[Log](), drives.catalogue.log
        drives.catalogue.log = lambda _partition, _timestamp_ms=None: answer  # type: ignore[method-assign]
        drives.reader.assignment._discovery._due = 0.0
        ran = drives.executors.names
        drives.until(lambda: drives.figures.failing_since is None or len(ran) > 1)
        assert ran == ["ranges-1-1"]
        drives.catalogue.log = asks  # type: ignore[method-assign]
        answer.set_result(drives.log.log(ONE))
        drives.finish()
        assert apart.rows == values("b", 6)


@pytest.mark.parametrize(
    "place", ["range_after_plan", "range_before_seal", "range_after_seal", "sink_before_commit"]
)
def test_a_restart_runs_again_what_was_open_as_it_was_planned(tmp_path: Path, place: str) -> None:
    """Promise 14."""
    apart, here = ApartSink(), HereSink()
    crashes = CrashesAt(place)
    first = Driving(
        tmp_path, sinks=[apart, here], ranges=RangePolicy(6, 0.01), at=_once(crashes, place)
    )
    with first:
        first.send(*values("a", 9))
        first.send(*values("b", 9), partition=1)
        with pytest.raises((Crash, SinkFailed)):
            first.finish()
        open_before = first.open_of()
    assert open_before
    first.send("a9")
    with first.another() as second:
        second.finish()
        begun = [(e.position.offset, e.end) for t in second.executors.tasks for e in t.ranges]
        assert {(start, end) for start, end, _sealed in open_before} <= set(begun)
    expected = Counter(values("a", 10) + values("b", 9))
    assert Counter(apart.rows) == Counter(here.rows) == expected


def _once(crashes: CrashesAt, place: str) -> Any:
    """In a sink's thread a crash is a sink that cannot go on."""

    def at(passed: str) -> None:
        try:
            crashes(passed)
        except Crash as error:
            if place.startswith("sink"):
                raise SinkFailed(str(error)) from error
            raise

    return at


def test_what_one_of_two_sinks_has_is_repeated_for_the_other_alone(tmp_path: Path) -> None:
    """Promise 14."""
    apart, here = ApartSink(), HereSink()
    here.errors = [SinkFailed("not today")]
    with Driving(tmp_path, sinks=[apart, here], ranges=RangePolicy(100, 0.01)) as first:
        first.send(*values("a", 4))
        first.send(*values("b", 4), partition=1)
        with pytest.raises(SinkFailed, match="not today"):
            first.finish()
        first.until(lambda: bool(apart.shares), fetch=False)  # it has a thread of its own
    assert (len(apart.rows), len(here.rows)) == (8, 0)
    with first.another() as second:
        second.finish()
        assert {each.skips for task in second.executors.tasks[:2] for each in task.ranges} == {
            frozenset({"apart"})
        }
    assert sorted(apart.rows) == sorted(here.rows) == sorted(values("a", 4) + values("b", 4))


def test_a_replay_that_differs_halts_the_partition(tmp_path: Path) -> None:
    """Promise 14."""
    apart = ApartSink()
    apart.errors = [SinkFailed("not today")]
    with Driving(tmp_path, sinks=[apart], partitions=1) as first:
        first.send(*values("a", 4))
        with pytest.raises(SinkFailed):
            first.finish()
        assert first.open_of() == [(0, 4, True)]

    def differs(task: Task) -> TaskDone | TaskFailed:
        reads = tuple(RangeRead(e.partition, 3, "0" * 32, None) for e in task.ranges)
        return TaskDone(reads, {}, first.engine.counters, 0)

    with first.another() as second:
        second.executors.answers = [differs]
        with pytest.raises(PartitionError, match=re.escape("offsets 0 to 4 (4 records")):
            second.finish()
    assert apart.rows == []


def test_a_sink_that_has_a_later_owner_takes_the_line_away_and_the_others_go_on(
    tmp_path: Path,
) -> None:
    """Promise 9."""
    apart, here = ApartSink(), HereSink()
    with Driving(tmp_path, sinks=[apart, here], ranges=RangePolicy(100, 0.01)) as drives:
        drives.executors.gate.clear()
        drives.send(*values("a", 3))
        drives.send(*values("b", 3), partition=1)
        drives.until(lambda: len(drives.executors.names) == 1)
        here.fence([Fence("t[1]", 99)])
        drives.executors.gate.set()
        drives.until(lambda: drives.stored_at(ONE) == 3)
        assert TWO in drives.reader.assignment.halted
        assert here.rows == values("a", 3)
        # The other sink had no later owner, so it may have taken both; never one of them twice.
        assert Counter(apart.rows) == Counter(values("a", 3) + values("b", 3))
        drives.send("a3")
        drives.until(lambda: drives.stored_at(ONE) == 4)
        assert here.rows == values("a", 4)


def test_a_partition_that_another_process_takes_leaves_its_groups(tmp_path: Path) -> None:
    """Promise 9."""
    apart = ApartSink()
    with Driving(tmp_path, sinks=[apart], ranges=RangePolicy(100, 0.01)) as drives:
        drives.executors.gate.clear()
        drives.send(*values("a", 3))
        drives.send(*values("b", 3), partition=1)
        drives.until(lambda: len(drives.executors.names) == 1)
        other = FaultyStore(drives.nodes)
        other.open()
        other.claim(TWO).result(1)
        drives.executors.gate.set()
        drives.until(lambda: drives.stored_at(ONE) == 3)
        assert TWO in drives.reader.assignment.halted
        drives.send("a3")
        drives.until(lambda: drives.stored_at(ONE) == 4)
        assert [row for row in apart.rows if row[0] == "a"] == values("a", 4)


def test_a_session_that_ends_is_survived_in_the_middle_of_a_run(tmp_path: Path) -> None:
    """Promise 15."""
    apart = ApartSink()
    with Driving(tmp_path, sinks=[apart]) as drives:
        drives.executors.gate.clear()
        drives.send(*values("a", 3))
        drives.until(lambda: len(drives.executors.names) == 1)
        drives.nodes.end_session()
        drives.executors.gate.set()
        drives.finish()
        assert apart.rows == values("a", 3)


def test_nothing_runs_while_the_store_is_away_and_it_goes_on_after(tmp_path: Path) -> None:
    """Promise 15."""
    apart = ApartSink()
    with Driving(tmp_path, sinks=[apart]) as drives:
        drives.nodes.away = True
        drives.send(*values("a", 3))
        drives.turn(30)
        assert drives.executors.names == []
        drives.nodes.away = False
        drives.finish()
        assert apart.rows == values("a", 3)


def test_a_cluster_that_is_away_is_asked_again(tmp_path: Path) -> None:
    """Promise 15."""
    apart = ApartSink()
    with Driving(tmp_path, sinks=[apart]) as drives:
        drives.log.away = True
        drives.send("a0")
        drives.until(lambda: not drives.ends.available)
        drives.log.away = False
        drives.finish()
        assert drives.ends.available
        assert apart.rows == ["a0"]


def test_a_file_that_the_driver_does_not_see_is_not_committed(tmp_path: Path) -> None:
    """Promise 14: executors on another host have written it to a folder of their own."""

    class Elsewhere(ApartSink):
        def joined(self, shares: Any, staged: Any) -> Any:
            raise SinkFailed("executors and driver must share the folder of the table")

    table = Elsewhere()
    with Driving(tmp_path, sinks=[table]) as drives:
        drives.send("a0")
        with pytest.raises(SinkFailed, match="must share the folder of the table"):
            drives.finish()
    assert table.rows == []


def test_vanished_group_fails_no_more(tmp_path: Path) -> None:
    with Driving(tmp_path, sinks=[ApartSink()]) as drives:
        for attempt in range(1, 9):
            drives.executors.errors[f"ranges-1-{attempt}"] = OSError("the executor is gone")
        drives.send("b0", partition=1)
        drives.until(lambda: drives.figures.failing_since is not None)
        other = FaultyStore(drives.nodes)
        other.open()
        other.claim(TWO).result(1)
        drives.until(lambda: TWO in drives.reader.assignment.halted)
        drives.until(lambda: drives.engine.is_idle)
        drives.turn()
        assert drives.figures.failing_since is None


def test_group_that_loses_its_files_fails_until_done(
    tmp_path: Path,
) -> None:
    """That a try of it is sealed says nothing of what the sink finds."""
    removed: list[Path] = []
    since: list[float | None] = []

    def at(place: str) -> None:
        if place == "range_before_seal" and len(removed) < 2:
            for file in tmp_path.rglob("*.rows"):
                file.unlink()
                removed.append(file)
        if place == "range_after_seal":
            since.append(drives.figures.failing_since)

    here = HereSink()
    with Driving(tmp_path, sinks=[here], at=at) as drives:
        drives.send("a0")
        drives.until(lambda: drives.figures.failing_since is not None)
        first = drives.figures.failing_since
        drives.finish()
        drives.turn()
        assert (here.rows, drives.figures.retries) == (["a0"], 2)
        said = str(drives.figures.last_error)
        assert "must be a folder that executors and driver share" in said
        assert since == [first]
        assert drives.figures.failing_since is None


def test_slow_group_gets_more_time_with_each_attempt(tmp_path: Path) -> None:
    """What only is slow ends; and what hangs is not waited for much longer at once."""
    with Driving(tmp_path, sinks=[ApartSink()]) as drives:
        for attempt in range(1, 7):
            name = f"ranges-1-{attempt}"
            drives.executors.errors[name] = (
                OSError("away") if attempt == 2 else SparkTimeout(name, 300.0)
            )
        drives.send("a0")
        with capture_logs() as logged:
            for attempt in range(1, 8):
                drives.until(lambda attempt=attempt: len(drives.executors.names) == attempt)  # type: ignore[misc]
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


def test_rows_staged_by_a_stale_attempt_are_discarded(tmp_path: Path) -> None:
    here = HereSink()
    with Driving(tmp_path, sinks=[here], ranges=RangePolicy(5, 0.01, 2)) as drives:
        drives.executors.gate.clear()
        drives.send(*values("a", 10))
        drives.until(lambda: len(drives.executors.names) == 2)
        drives.executors.errors["ranges-1-1"] = OSError("lost")
        drives.executors.gate.set()
        drives.finish()
        assert here.rows == values("a", 10)
        drives.until(lambda: not list(tmp_path.glob("*/files/*")))
