"""A task processes its ranges as the local engine does a topic, and keeps what it staged."""

import asyncio
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from headrace import SKIP, Record, Reject, bolt
from partition.manager import InFlightLimits
from partition.records import Partition
from service.spark_engine.range_buffer import EVERY_ROW
from tests.support.spark_tasks import (
    TaskWorld,
    digest_of,
    numbers,
    ranged,
    rows_in,
    text,
    texts,
)


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


def test_a_sink_that_has_a_range_gets_none_of_its_rows() -> None:
    world = TaskWorld(text, partitions=2, sinks=("one", "two"))
    world.tasks.send(*numbers(5))
    world.tasks.send(*numbers(5, 100), partition=1)
    done = world.done(ranged(0, 5, 0, skips=frozenset({"one"})), ranged(0, 5, 1))
    assert sorted(rows_in(done.staged["one"])) == texts(5, 100)
    assert len(rows_in(done.staged["two"])) == 10
    assert done.counters.written == 10


def test_rows_refused_at_the_driver_get_dead_letters() -> None:
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
    done = world.done(ranged(0, 2000), limits=InFlightLimits(300))
    assert rows_in(done.staged["rows"]) == texts(2000)
    groups = world.stagers["rows"].groups
    assert len(groups) > 5
    assert max(group.num_rows for group in groups) <= 300


@pytest.mark.parametrize("seed", range(8))
def test_every_record_is_staged_once_however_ranges_are_cut(seed: int) -> None:
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
