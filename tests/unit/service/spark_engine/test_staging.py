"""A task stages what its records come to, batch by batch, and holds no more than it may."""

from typing import Any

import pyarrow as pa
import pytest

from headrace import Record, bolt
from partition.manager import InFlightLimits
from service.spark_engine.task import TaskFailed
from sinks.writer import WriteRetries
from tests.support.spark_tasks import (
    KeepingStager,
    TaskWorld,
    numbers,
    ranged,
    rows_in,
    text,
    texts,
)
from topology.sink import Batch, Staged


@bolt
def thrice(record: Record) -> Any:
    for index in range(3):
        yield f"{text(record)}.{index}"


@bolt(vectorised=True, columns=["offset"])
def offsets(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


def test_of_a_record_with_many_rows_only_those_that_were_refused_are_left_out() -> None:
    """Promise 13: a record has one letter, with the last of its refused rows' reasons."""
    world = TaskWorld(thrice, partitions=2)
    for number in (0, 1):
        world.tasks.send(*numbers(3, 10 * number), partition=number)
    done = world.done(
        ranged(0, 3, 0, refused={1: {"rows": {1: "middle", 9: "gone"}}}),
        ranged(0, 3, 1, refused={1: {"rows": {0: "first", 2: "last"}}, 2: {"rows": {-1: "all"}}}),
    )
    assert sorted(rows_in(done.staged["rows"])) == sorted(
        ["0.0", "0.1", "0.2", "1.0", "1.2", "2.0", "2.1", "2.2", "10.0", "10.1", "10.2", "11.1"]
    )
    letters = {text(letter.record): letter.reason for letter in world.letters.letters}
    assert letters.keys() == {"1", "11", "12"}
    assert (letters["1"], letters["12"]) == ("middle", "all")
    assert (done.counters.written, done.counters.dead_lettered) == (3, 3)


def test_a_task_whose_rows_are_all_refused_makes_no_file() -> None:
    world = TaskWorld(text)
    world.tasks.send(b"x")
    done = world.done(ranged(0, 1, refused={0: {"rows": {0: "no"}}}))
    assert (world.stagers["rows"].groups, done.staged) == ([], {"rows": ()})


class _Weak(KeepingStager):
    """Fails at first, and cannot discard one group."""

    def __init__(self, *errors: Exception) -> None:
        super().__init__()
        self.errors = list(errors)

    def stage(self, group: Batch) -> Staged:
        if self.errors:
            raise self.errors.pop(0)
        return super().stage(group)

    def discard(self, staged: Staged) -> None:
        super().discard(staged)
        if len(self.discarded) == 1:
            raise OSError("busy")


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WriteRetries, "pause_seconds", lambda *_: 0.0)


@pytest.mark.usefixtures("at_once")
def test_what_cannot_be_staged_at_once_is_tried_again() -> None:
    world = TaskWorld(text)
    world.stagers["rows"] = _Weak(OSError("away"), TimeoutError("slow"))
    world.tasks.send(*numbers(5))
    assert rows_in(world.done(ranged(0, 5)).staged["rows"]) == texts(5)


def test_one_group_that_cannot_be_discarded_keeps_no_other() -> None:
    world = TaskWorld(text, batch_rows=5)
    world.stagers["rows"] = stager = _Weak()
    world.tasks.send(*numbers(40))
    world.tasks.log.corrupt(ranged(0, 1).partition, 35)
    assert isinstance(world.run(ranged(0, 40), fetch_records=10), TaskFailed)
    assert len(stager.groups) > 1
    assert len(stager.discarded) == len(stager.groups)


def test_large_records_of_which_few_may_be_in_flight_pass_through() -> None:
    """Promise 10."""
    world = TaskWorld(text, partitions=2)
    large = [value * 400 for value in numbers(60)]
    for number in (0, 1):
        world.tasks.send(*large, partition=number)
    done = world.done(
        ranged(0, 60, 0), ranged(0, 60, 1), limits=InFlightLimits(max_pending_bytes=2_000)
    )
    assert len(rows_in(done.staged["rows"])) == 120
    assert max(group.num_rows for group in world.stagers["rows"].groups) <= 40


def test_a_range_of_which_no_row_comes_passes_through() -> None:
    """Promise 10."""

    @bolt
    def drops(_record: Record) -> Any:
        yield from ()

    world = TaskWorld(drops, partitions=2)
    for number in (0, 1):
        world.tasks.send(*numbers(500), partition=number)
    done = world.done(ranged(0, 500, 0), ranged(0, 500, 1), limits=InFlightLimits(40))
    assert (done.counters.filtered, done.staged) == (1000, {"rows": ()})


def test_rows_behind_a_record_that_is_retried_wait_for_it() -> None:
    tries = 0

    @bolt
    def moody(record: Record) -> str:
        nonlocal tries
        if record.offset == 0 and (tries := tries + 1) < 3:
            raise OSError("not now")
        return text(record)

    world = TaskWorld(moody)
    world.tasks.send(*numbers(900))
    done = world.done(ranged(0, 900), limits=InFlightLimits(60), chunk_records=7)
    assert rows_in(done.staged["rows"]) == texts(900)
