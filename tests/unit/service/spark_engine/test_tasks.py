import asyncio
from collections import Counter
from itertools import chain, repeat
from typing import Any
from unittest.mock import DEFAULT, Mock

import numpy as np
import pytest

from headrace import SKIP, Record, Reject, bolt
from partition.manager import InFlightLimits
from partition.records import Partition, Position
from service.spark_engine.task import EVERY_ROW, TaskRange
from sinks.writer import WriteRetries
from tests.support.spark_tasks import (
    TaskWorld,
    digest_of,
    numbers,
    ranged,
    rows_in,
    text,
    texts,
)
from topology.bolt import Bolt

ONE, TWO = Partition("t", 0), Partition("t", 1)


def all_ranges(world, rng):
    """Run tasks of ranges of any length, of any of the partitions, to the ends of the logs."""
    log, at = world.tasks.log, {ONE: 0, TWO: 0}
    ends = {place: log.log_range(place)[1] for place in at}
    while at != ends:
        to = {
            place: min(end, at[place] + int(rng.integers(1, 100)))
            for place, end in ends.items()
            if at[place] < end and rng.random() < 0.8
        }
        ranges = [TaskRange(place, Position(at[place]), end) for place, end in to.items()]
        few, chunk = int(rng.integers(1, 70)), int(rng.integers(1, 50))
        yield (done := world.done(*ranges, fetch_records=few, chunk_records=chunk))
        for read in done.ranges:
            place = read.partition
            assert (read.count, read.digest) == digest_of(log, place, at[place], to[place])
        at |= to


@pytest.mark.parametrize("seed", range(8))
def test_whatever_bolts_do_each_record_is_staged_filtered_or_buried_once(seed):
    """Promise 4: one failed row of a record leaves none of it behind.

    However ranges are cut, and wherever the logs have gaps.
    """
    rng, tries = np.random.default_rng(seed), Counter[str]()
    fate = dict(zip(texts(400), rng.choice(["row", "skip", "bad", "moody"], 400), strict=True))

    @bolt
    async def looks_up(record: Record) -> Any:
        value = text(record)
        tries[value] += 1
        await asyncio.sleep(float(rng.random()) / 5_000)
        if fate[value] == "moody" and tries[value] < 3:
            raise OSError("not now")
        if fate[value] == "bad":
            raise Reject("bad")
        return SKIP if fate[value] == "skip" else value

    @bolt
    def spreads(value: str) -> Any:
        yield f"{value} a"
        if fate[value] == "moody" and tries[value] == 2:
            tries[value] += 1
            raise OSError("not yet")
        yield f"{value} b"

    world = TaskWorld(looks_up, spreads, partitions=2, batch_rows=int(rng.integers(10, 100)))
    log, sent = world.tasks.log, {ONE: list[str](), TWO: list[str]()}
    for value in fate:
        place = ONE if rng.random() < 0.5 else TWO
        if rng.random() < 0.2:
            log.append_gap(place, int(rng.integers(1, 4)))
        log.append(place, value.encode())
        sent[place].append(value)
    dones = list(all_ranges(world, rng))
    rows = [row for done in dones for row in rows_in(done.staged["rows"])]
    for values in sent.values():
        written = [f"{v} {half}" for v in values if fate[v] in ("row", "moody") for half in "ab"]
        assert [row for row in rows if row.split()[0] in values] == written
    buried = [(letter.record.value or b"").decode() for letter in world.letters.letters]
    assert sorted(buried) == sorted(value for value in fate if fate[value] == "bad")
    counts = Counter(fate.values())
    assert sum(d.counters.written for d in dones) == counts["row"] + counts["moody"]
    assert sum(d.counters.filtered for d in dones) == counts["skip"]
    assert sum(d.counters.dead_lettered for d in dones) == counts["bad"]


def test_a_sink_that_has_a_range_gets_none_of_its_rows():
    world = TaskWorld(text, partitions=2, sinks=("one", "two"))
    world.send(5, 5)
    done = world.done(ranged(0, 5, 0, skips=frozenset({"one"})), ranged(0, 5, 1))
    assert sorted(rows_in(done.staged["one"])) == texts(5)
    assert len(rows_in(done.staged["two"])) == done.counters.written == 10


def test_of_a_record_with_many_rows_only_those_that_were_refused_are_left_out():
    """Promise 13: a record has one letter, with the last of its refused rows' reasons."""

    @bolt
    def thrice(record: Record) -> Any:
        for index in range(3):
            yield f"{text(record)}.{index}"

    world = TaskWorld(thrice)
    world.tasks.send(*numbers(5))
    refused = {
        0: {"rows": {0: "first", 2: "last"}},
        1: {"rows": {1: "middle", 9: "gone"}},
        2: {"rows": {EVERY_ROW: "all"}},
    }
    world.stagers["rows"].unfit.append("3.1")
    done = world.done(ranged(0, 5, refused=refused))
    left = ["0.1", "1.0", "1.2", "3.0", "3.2", "4.0", "4.1", "4.2"]
    assert rows_in(done.staged["rows"]) == left
    letters = {text(letter.record): letter.reason for letter in world.letters.letters}
    assert letters == {"0": "first", "1": "middle", "2": "all", "3": "unfit"}
    assert (done.counters.written, done.counters.dead_lettered) == (1, 4)


def test_a_task_whose_rows_are_all_refused_makes_no_file():
    world = TaskWorld(text)
    world.tasks.send(b"x")
    done = world.done(ranged(0, 1, refused={0: {"rows": {0: "no"}}}))
    assert (world.stagers["rows"].groups, done.staged) == ([], {"rows": ()})


@bolt
def drops(_record: Record) -> Any:
    yield from ()


@pytest.mark.parametrize(
    ("what", "values", "limits", "most"),
    [
        (text, numbers(1000), InFlightLimits(300), 300),
        (text, [value * 400 for value in numbers(60)], InFlightLimits(max_pending_bytes=2000), 40),
        (drops, numbers(500), InFlightLimits(40), 0),
    ],
    ids=["long", "large records", "no rows"],
)
def test_range_of_any_size_passes_through_in_batches(what, values, limits, most):
    """Promise 10."""
    world = TaskWorld(what, partitions=2, batch_rows=100)
    for number in (0, 1):
        world.tasks.send(*values, partition=number)
    done = world.done(ranged(0, len(values), 0), ranged(0, len(values), 1), limits=limits)
    sent = [value.decode() for value in values]
    assert sorted(rows_in(done.staged["rows"])) == sorted(2 * sent if most else [])
    assert done.counters.filtered == (0 if most else 2 * len(values))
    sizes = [group.num_rows for group in world.stagers["rows"].groups]
    assert max(sizes, default=0) <= most
    assert (len(sizes) > 3) == (most > 0)


def test_what_cannot_be_staged_at_once_is_tried_again(monkeypatch):
    monkeypatch.setattr(WriteRetries, "pause_seconds", lambda *_: 0.0)
    world = TaskWorld(text)
    stager, errors = world.stagers["rows"], [OSError("away"), TimeoutError("slow")]
    stager.stage = Mock(wraps=stager.stage, side_effect=[*errors, DEFAULT])
    world.tasks.send(*numbers(5))
    assert world.rows(ranged(0, 5)) == texts(5)


def test_one_group_that_cannot_be_discarded_keeps_no_other():
    world = TaskWorld(text, batch_rows=5)
    stager = world.stagers["rows"]
    stager.discard = Mock(side_effect=chain([OSError("busy")], repeat(None)))
    world.tasks.send(*numbers(40))
    world.tasks.log.corrupt(ONE, 35)
    world.failed(ranged(0, 40), fetch_records=10)
    assert stager.discard.call_count == len(stager.groups) > 1


def test_a_log_that_lacks_the_range_fails_the_task_and_names_the_partition():
    """Promise 12."""
    world = TaskWorld(text, partitions=2, batch_rows=10)
    world.send(100, 100)
    world.tasks.log.delete_before(TWO, 50)
    failed = world.failed(ranged(0, 100, 0), ranged(10, 100, 1))
    assert (failed.error_class, failed.partition) == ("OffsetOutOfRange", TWO)


def test_where_a_log_was_cut_off_and_written_anew_is_told():
    """Promise 12."""
    world = TaskWorld(text)
    world.tasks.send(*numbers(100))
    world.tasks.log.truncate(ONE, 40)
    world.tasks.send(*numbers(100))
    failed = world.failed(TaskRange(ONE, Position(60, 0), 90))
    assert (failed.partition, failed.error_class) == (ONE, "OffsetOutOfRange")
    assert failed.diverged_at == 40


def test_corrupt_record_fails_the_task_only_within_the_range():
    world = TaskWorld(text)
    world.tasks.send(*numbers(100))
    world.tasks.log.corrupt(ONE, 60)
    assert world.rows(ranged(0, 60)) == texts(60)
    failed = world.failed(ranged(60, 100))
    assert (failed.error_class, failed.partition) == ("CorruptRecord", ONE)


class _Life(Bolt):
    def __init__(self) -> None:
        self.told: list[str] = []
        self.partitions: list[tuple[str, int]] = []

    def open(self) -> None:
        self.told.append("open")

    def process(self, record: Record) -> str:
        assert (record.topic, record.partition) in self.partitions
        return text(record)

    def partition_assigned(self, *place: Any) -> None:
        self.partitions.append(place)

    def partition_revoked(self, *place: Any) -> None:
        self.partitions.remove(place)

    def close(self) -> None:
        assert not self.partitions
        self.told.append("close")


def test_bolts_are_opened_and_closed_with_every_task():
    life = _Life()
    world = TaskWorld(life)
    world.tasks.send(*numbers(20))
    world.done(ranged(0, 10))
    world.done(ranged(10, 20))
    world.tasks.log.delete_before(ONE, 15)
    world.failed(ranged(10, 20))
    assert life.told == ["open", "close"] * 3
    assert world.letters.letters == []


def test_a_bolt_that_does_not_open_fails_the_task_by_name():
    life = _Life()
    life.open = Mock(side_effect=ConnectionError("no such host"), __name__="open")
    world = TaskWorld(life)
    world.tasks.send(b"x")
    failed = world.failed(ranged(0, 1))
    assert (failed.error_class, failed.partition) == ("ConnectionError", None)
    assert "no such host" in failed.error
    assert "bolt '_Life'" in failed.error


def test_a_sink_without_a_stager_is_said():
    world = TaskWorld(text)
    world.stagers = {}
    world.tasks.send(b"x")
    assert "'rows'" in world.failed(ranged(0, 1)).error
