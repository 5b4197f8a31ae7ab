"""A task processes its ranges as the local engine does a topic, and keeps what it staged."""

import asyncio
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from headrace import SKIP, Hooks, Record, Reject, Topology, bolt
from headrace.sinks import MemoryDeadLetters, MemorySink
from partition.records import OFFSET_BITS, Partition
from service.spark_engine.range_buffer import EVERY_ROW
from service.spark_engine.task import TaskDone
from service.spark_engine.task_runner import process
from tests.support.spark_tasks import (
    KeepingStager,
    Tasks,
    TaskWorld,
    digest_of,
    numbers,
    opened,
    ranged,
    rows_in,
    text,
    texts,
)


def test_a_range_is_processed_and_nothing_beyond_its_end() -> None:
    world = TaskWorld(text)
    world.tasks.send(*numbers(300))
    done = world.done(ranged(40, 200))
    assert rows_in(done.staged["rows"]) == texts(160, 40)
    (read,) = done.ranges
    assert read.partition == Partition("t", 0)
    assert (read.count, read.digest) == digest_of(world.tasks.log, read.partition, 40, 200)
    assert read.leader_epoch == 0
    assert (done.counters.written, done.counters.filtered, done.counters.dead_lettered) == (
        160,
        0,
        0,
    )
    assert (done.retried, done.dead_letters_refused) == (0, 0)


def test_the_next_range_goes_on_where_the_client_stands() -> None:
    world = TaskWorld(text)
    world.tasks.send(*numbers(1000))
    rows = []
    for first in range(0, 1000, 100):
        rows += rows_in(world.done(ranged(first, first + 100)).staged["rows"])
    assert rows == texts(1000)
    assert world.tasks.inner.added == [Partition("t", 0)]
    assert world.tasks.inner.delivered == 1000


def test_ranges_of_several_partitions_keep_their_order_each() -> None:
    world = TaskWorld(text, partitions=3)
    for number in range(3):
        world.tasks.send(*numbers(200, 1000 * number), partition=number)
    done = world.done(*(ranged(10 * n, 150, n) for n in range(3)))
    rows = [int(row) for row in rows_in(done.staged["rows"])]
    for number in range(3):
        own = [row - 1000 * number for row in rows if row // 1000 == number]
        assert own == list(range(10 * number, 150))
    assert [read.count for read in done.ranges] == [150, 140, 130]


def test_a_range_without_a_record_is_done() -> None:
    """Promise 11."""
    world = TaskWorld(text)
    world.tasks.send(b"a")
    world.tasks.log.append_gap(Partition("t", 0), 5)
    world.tasks.send(b"b")
    done = world.done(ranged(1, 6))
    assert [read.count for read in done.ranges] == [0]
    assert done.ranges[0].leader_epoch is None
    assert done.staged == {"rows": ()}
    assert rows_in(world.done(ranged(6, 7)).staged["rows"]) == ["b"]


def test_records_are_retried_buried_and_filtered_as_on_the_local_engine() -> None:
    """Promise 13."""
    tries: dict[str, int] = {}

    @bolt
    def moody(record: Record) -> Any:
        value = text(record)
        tries[value] = tries.get(value, 0) + 1
        if value == "3" and tries[value] < 3:
            raise OSError("not now")
        if value == "5":
            raise Reject("never")
        return SKIP if value == "7" else value

    world = TaskWorld(moody)
    world.tasks.send(*numbers(10))
    done = world.done(ranged(0, 10))
    assert rows_in(done.staged["rows"]) == ["0", "1", "2", "3", "4", "6", "8", "9"]
    assert [letter.reason for letter in world.letters.letters] == ["never"]
    assert (done.counters.written, done.counters.filtered, done.counters.dead_lettered) == (8, 1, 1)
    assert done.retried == 2
    assert done.counters.failures == {"moody": 2}


def test_async_bolts_run_and_rows_come_in_the_records_order() -> None:
    @bolt
    async def late(record: Record) -> str:
        await asyncio.sleep(0.002 if (record.offset or 0) % 2 else 0)
        return text(record)

    world = TaskWorld(late)
    world.tasks.send(*numbers(60))
    assert rows_in(world.done(ranged(0, 60)).staged["rows"]) == texts(60)


def test_columns_are_staged_as_columns() -> None:
    @bolt(vectorised=True, columns=["offset"])
    def offsets(batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch

    world = TaskWorld(offsets)
    world.tasks.send(*numbers(90))
    done = world.done(ranged(5, 77))
    assert [row["offset"] for row in rows_in(done.staged["rows"])] == list(range(5, 77))
    pieces = [piece for group in world.stagers["rows"].groups for piece in group.pieces]
    assert all(isinstance(piece, pa.RecordBatch) for piece in pieces)


def test_each_row_is_told_with_its_records_offset() -> None:
    @bolt
    def twice(record: Record) -> Any:
        yield text(record)
        yield text(record)

    world = TaskWorld(twice, partitions=2)
    for number in (0, 1):
        world.tasks.send(*numbers(30), partition=number)
    world.done(ranged(0, 30, 0), ranged(4, 30, 1))
    for group in world.stagers["rows"].groups:
        rows = [int(row) for piece in group.pieces for row in piece]
        assert group.offsets is not None
        assert group.offsets.tolist() == rows
        assert group.offsets.max() < 1 << OFFSET_BITS


def test_a_sink_that_has_a_range_gets_none_of_its_rows() -> None:
    world = TaskWorld(text, partitions=2, sinks=("one", "two"))
    world.tasks.send(*numbers(5))
    world.tasks.send(*numbers(5, 100), partition=1)
    done = world.done(ranged(0, 5, 0, skips=frozenset({"one"})), ranged(0, 5, 1))
    assert sorted(rows_in(done.staged["one"])) == texts(5, 100)
    assert len(rows_in(done.staged["two"])) == 10
    assert done.counters.written == 10


def test_rows_that_do_not_fit_get_their_letters() -> None:
    world = TaskWorld(text)
    world.stagers["rows"].unfit.append("2")
    world.tasks.send(*numbers(4))
    done = world.done(ranged(0, 4))
    assert rows_in(done.staged["rows"]) == ["0", "1", "3"]
    assert [letter.reason for letter in world.letters.letters] == ["unfit"]
    assert (done.counters.written, done.counters.dead_lettered) == (3, 1)


def test_rows_that_the_driver_was_refused_are_left_out_and_get_their_letters() -> None:
    world = TaskWorld(text, partitions=2, sinks=("one", "two"))
    world.stagers["one"].unfit.append("3")
    for number in (0, 1):
        world.tasks.send(*numbers(5), partition=number)
    refused = {1: {"one": {0: "taken already"}}, 2: {"two": {EVERY_ROW: "too long"}}}
    done = world.done(ranged(0, 5, 0, refused=refused), ranged(0, 2, 1))
    assert sorted(rows_in(done.staged["one"])) == ["0", "0", "1", "2", "4"]
    assert sorted(rows_in(done.staged["two"])) == ["0", "0", "1", "1", "3", "4"]
    letters = {
        letter.record.offset: (letter.step, letter.reason) for letter in world.letters.letters
    }
    assert letters == {1: ("one", "taken already"), 2: ("two", "too long"), 3: ("one", "unfit")}
    assert (done.counters.written, done.counters.dead_lettered) == (4, 3)


def test_a_long_range_streams_through_in_several_groups() -> None:
    """Promise 10."""
    world = TaskWorld(text, batch_rows=100)
    world.tasks.send(*numbers(2000))
    done = world.done(ranged(0, 2000), max_pending=300)
    assert rows_in(done.staged["rows"]) == texts(2000)
    groups = world.stagers["rows"].groups
    assert len(groups) > 5
    assert max(group.num_rows for group in groups) <= 300


@pytest.mark.parametrize("seed", range(8))
def test_however_a_log_is_cut_into_ranges_every_record_is_staged_once(seed: int) -> None:
    rng = np.random.default_rng(seed)
    world = TaskWorld(text, partitions=2, batch_rows=int(rng.integers(5, 60)))
    sent: Mapping[int, list[str]] = {0: [], 1: []}
    for number in (0, 1):
        place = Partition("t", number)
        for _ in range(200):
            if rng.random() < 0.2:
                world.tasks.log.append_gap(place, int(rng.integers(1, 4)))
            value = f"{number}:{world.tasks.log.log_range(place)[1]}"
            sent[number].append(value)
            world.tasks.send(value.encode(), partition=number)
    ends = {n: world.tasks.log.log_range(Partition("t", n))[1] for n in (0, 1)}
    at, rows = {0: 0, 1: 0}, []
    while any(at[n] < ends[n] for n in at):
        chosen = [n for n in at if at[n] < ends[n] and rng.random() < 0.8]
        to = {n: min(ends[n], at[n] + int(rng.integers(1, 90))) for n in chosen}
        if not to:
            continue
        done = world.done(
            *(ranged(at[n], to[n], n) for n in chosen), fetch_records=int(rng.integers(1, 70))
        )
        for read in done.ranges:
            number = read.partition.number
            found = digest_of(world.tasks.log, read.partition, at[number], to[number])
            assert (read.count, read.digest) == found
        rows += rows_in(done.staged["rows"])
        at |= to
    for number in (0, 1):
        assert [row for row in rows if row.startswith(f"{number}:")] == sent[number]


def test_a_topology_of_several_topics_reads_those_that_have_ranges() -> None:
    letters = MemoryDeadLetters()
    topology = Topology("two", reliability="exactly-once")
    for name in ("a", "b"):
        topology.source(name).then(text).into(MemorySink(name), name=name)
    topology.dead_letters.into(letters)
    tasks = Tasks({"a": 1, "b": 1})
    tasks.send(b"x", topic="b")
    stagers = {"a": KeepingStager(), "b": KeepingStager()}
    done = process(
        tasks.task([ranged(0, 1, 0, "b")], stagers), tasks.fetcher, topology, opened(letters)
    )
    assert isinstance(done, TaskDone)
    assert done.staged["a"] == ()
    assert rows_in(done.staged["b"]) == ["x"]


@pytest.mark.parametrize("seed", range(4))
def test_whatever_bolts_do_each_record_is_staged_filtered_or_buried_once(seed: int) -> None:
    """Promise 4: one failed row of a record leaves none of it behind."""
    rng = np.random.default_rng(seed)
    tries: Counter[str] = Counter()
    fate = dict(zip(texts(400), rng.choice(["row", "skip", "bad", "moody"], 400), strict=True))

    @bolt
    async def looks_up(record: Record) -> Any:
        value = text(record)
        tries[value] += 1
        await asyncio.sleep(float(rng.random()) / 500)
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

    world = TaskWorld(looks_up, spreads, batch_rows=int(rng.integers(10, 100)))
    world.tasks.send(*numbers(400))
    dones, at = [], 0
    while at < 400:
        end = min(400, at + int(rng.integers(1, 200)))
        dones.append(world.done(ranged(at, end), chunk_records=int(rng.integers(1, 50))))
        at = end
    rows = [row for done in dones for row in rows_in(done.staged["rows"])]
    assert rows == [f"{v} {half}" for v in fate if fate[v] in ("row", "moody") for half in "ab"]
    buried = [int(letter.record.value or b"") for letter in world.letters.letters]
    assert sorted(buried) == [int(v) for v in fate if fate[v] == "bad"]
    counts = Counter(fate.values())
    assert sum(d.counters.written for d in dones) == counts["row"] + counts["moody"]
    assert sum(d.counters.filtered for d in dones) == counts["skip"]
    assert sum(d.counters.dead_lettered for d in dones) == counts["bad"]


class _Told(Hooks):
    def __init__(self) -> None:
        self.events: list[str] = []

    def started(self) -> None:
        self.events.append("started")

    def partition_assigned(self, topic: str, partition: int) -> None:
        self.events.append(f"{topic}[{partition}]")


def test_hooks_are_the_drivers_and_hear_nothing_of_tasks() -> None:
    world = TaskWorld(text)
    told = _Told()
    world.topology.hooks(told)
    world.tasks.send(*numbers(10))
    assert world.done(ranged(0, 10)).counters.written == 10
    assert not told.events
    assert world.topology.listeners == [told]
