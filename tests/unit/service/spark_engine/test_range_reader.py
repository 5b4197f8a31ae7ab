from dataclasses import replace

import pytest

from partition.records import Partition, Position
from service.spark_engine.range_reader import RangeReader, RangesUnreachable, RangeUnreadable
from service.spark_engine.task import Task, TaskRange
from tests.support.faulty_kafka import FaultyLog
from tests.support.patience import Limit
from tests.support.spark_tasks import SETTINGS, SilentFetcher, digest_of, ranged

A, B = Partition("t", 0), Partition("u", 0)


def of_b(first, end):
    return ranged(first, end, topic="u")


class World:
    def __init__(self, records=100):
        self.log = FaultyLog({"t": 1, "u": 1})
        for partition in (A, B):
            for number in range(records):
                self.log.append(partition, b"%d" % number)
        self.client = SilentFetcher(self.log)
        self.now = 0.0
        self.reader = RangeReader(self.client)
        self.got: dict[Partition, list[int]] = {A: [], B: []}

    def begin(self, *ranges, max_records=7):
        self.got = {A: [], B: []}
        settings = replace(SETTINGS, fetch_records=max_records, chunk_records=max_records)
        self.reader.begin(Task(settings, ranges, {}))

    def take(self, seconds=0.0):
        self.now += seconds
        self.emit()
        self.reader.fetch(self.now, 0.0)
        self.emit()

    def emit(self):
        while (found := self.reader.next_chunk(self.now)) is not None:
            chunk, record_ids = found
            assert [m.offset() for m in chunk.messages] == chunk.offsets.tolist()
            self.got[chunk.partition] += chunk.offsets.tolist()
            self.reader.processed(record_ids)
            for index, end in enumerate(self.reader.processed_to()):
                self.reader.resolve_below(index, end)

    def take_until(self, partition, count, seconds=0.0):
        while len(self.got[partition]) < count:
            self.take(seconds)

    def finish(self):
        limit = Limit(5)
        while not self.reader.has_reached_goals:
            assert not limit.passed
            self.take()
        assert self.reader.has_emitted_goals

    def read(self, *ranges, max_records=7):
        self.begin(*ranges, max_records=max_records)
        self.finish()
        return self.got[A]

    def rewrite(self, first):
        """Cut the log off, and have a new leader write other records."""
        self.log.truncate(A, first)
        for number in range(first, 100):
            self.log.append(A, b"anew, %d" % number)


@pytest.fixture
def world():
    return World()


def made_anew(world):
    world.log.truncate(A, 10)
    world.log.append(A, b"new")


@pytest.mark.parametrize(
    ("before", "change", "after"),
    [
        *((ranged(0, 10), None, ranged(first, 40)) for first in (0, 9, 11)),
        (ranged(0, 10, leader_epoch=0), lambda w: w.rewrite(20), ranged(10, 60, leader_epoch=1)),
        (TaskRange(A, Position(0, None, "one"), 10), made_anew,
         TaskRange(A, Position(10, None, "two"), 11)),
    ],
    ids=["back", "one back", "beyond", "truncated", "topic made anew"],
)  # fmt: skip
def test_range_that_does_not_follow_is_fetched_anew(world, before, change, after):
    world.read(before, max_records=100)
    if change is not None:
        change(world)
    first, end = after.position.offset, after.end
    assert world.read(after) == list(range(first, end))
    (read,) = world.reader.read()
    assert (read.count, read.digest) == digest_of(world.log, A, first, end)
    assert read.leader_epoch == world.log.read(A, Position(end - 1), 1)[0].leader_epoch()
    assert world.client.added == [A, A]


@pytest.mark.parametrize("epochs", [(3, 3, 3), (3, 3, None), (None, 0, 0), (2, 1, 2)])
def test_prefetched_records_serve_ranges_of_their_epoch(world, epochs):
    for number, epoch in enumerate(epochs):
        world.read(ranged(number * 10, number * 10 + 10, leader_epoch=epoch), max_records=100)
    assert (world.client.added, world.client.delivered) == ([A], 100)


def test_leader_epoch_of_a_range_is_that_of_its_last_record(world):
    world.rewrite(20)
    found = []
    for first, end in ((0, 15), (15, 20), (20, 30)):
        world.read(ranged(first, end), max_records=100)
        found += [read.leader_epoch for read in world.reader.read()]
    assert found == [0, 0, 1]
    assert world.client.added == [A]


def test_a_range_ends_behind_a_gap_also_if_nothing_follows():
    """Promise 11."""
    world = World(10)
    world.log.append_gap(A, 5)
    assert world.read(ranged(8, 13)) == [8, 9]
    assert world.read(ranged(13, 15)) == []
    world.log.append_gap(A, 2)
    world.log.append(A, b"x")
    assert world.read(ranged(15, 17)) == []
    assert world.reader.read()[0].leader_epoch is None
    assert world.read(ranged(17, 18)) == [17]
    assert world.client.added == [A]


def test_held_partition_resumes_where_it_stopped(world):
    world.begin(ranged(0, 60), of_b(0, 60))
    world.take()
    world.reader.hold_back(frozenset({"t"}))
    before = list(world.got[A])
    for _ in range(30):
        world.take(10)  # nothing of it is asked for
    assert world.got == {A: before, B: list(range(60))}
    world.reader.hold_back(frozenset())
    world.finish()
    assert world.got == {A: list(range(60)), B: list(range(60))}


def test_a_client_that_brings_plenty_behind_an_end_is_stopped_for_a_while(monkeypatch):
    """Promise 10."""
    monkeypatch.setattr("service.spark_engine.range_reader._MOST_RECORDS", 20)
    world = World(1000)
    world.read(ranged(0, 5), of_b(0, 1000))
    assert world.client.pauses == [A]
    assert world.client.delivered < 1000 + 5 + 20 + 7
    assert world.read(ranged(5, 1000, 0)) == list(range(5, 1000))
    assert world.client.added == [A, B]


def test_log_shorter_than_its_range_fails_after_a_wait():
    world = World(10)
    world.begin(ranged(0, 12))
    for seconds in (0, 20):
        world.take(seconds)
    for _ in range(2):
        world.log.append(A, b"late")
        world.take(20)
    assert world.reader.has_reached_goals
    world.begin(ranged(12, 13))
    world.take()
    world.take(29)
    with pytest.raises(RangeUnreadable, match="its log ends there") as raised:
        world.take(2)
    assert raised.value.cause.offset == 12


def test_short_log_fails_though_another_range_brings_records():
    world = World(10)
    world.begin(ranged(0, 12), of_b(0, 5), max_records=100)
    for seconds in (0, 10, 10):
        world.log.append(B, b"more")
        world.take(seconds)
    world.log.append(B, b"more")
    with pytest.raises(RangeUnreadable, match="its log ends there"):
        world.take(20)


def test_ranges_of_which_nothing_is_heard_are_given_up_together(world):
    """Promise 10: their leader is gone, and the group must not wait for them for ever."""
    world.client.silent = {A, B}
    world.begin(ranged(0, 10), of_b(0, 10))
    world.take(100)  # nothing was asked for before
    world.take(29)
    said = r"offsets 0 to 10 of t\[0\], 0 to 10 of u\[0\]"
    with pytest.raises(RangesUnreachable, match=said) as raised:
        world.take(1)
    assert raised.value.partitions == (A, B)
    world.reader.close()
    world.client.silent = {B}
    assert world.read(ranged(0, 10)) == list(range(10))


def test_a_range_that_was_silent_before_is_given_longer(world):
    """Of a long stretch of aborted records a client brings nothing, while it reads it."""
    world.client.silent = {A, B}
    world.begin(replace(ranged(0, 10), patience=4), of_b(0, 10))
    world.take()
    with pytest.raises(RangesUnreachable, match=r"for 30 seconds of offsets 0 to 10 of u\[0\]$"):
        world.take(30)
    world.reader.close()
    world.begin(replace(ranged(0, 10), patience=4))
    world.take()
    world.take(119)
    with pytest.raises(RangesUnreachable, match=r"for 120 seconds of offsets 0 to 10 of t\[0\]$"):
        world.take(1)


def test_a_range_that_goes_silent_half_way_is_given_up(world):
    """Promise 10."""
    world.begin(ranged(0, 50), of_b(0, 50))
    world.take_until(A, 20)
    world.client.silent = {A}
    while world.client.delivered < 100 + 20:  # what lies behind the end is brought as well
        world.take(29)
    assert world.got[B] == list(range(50))
    world.take(29)
    with pytest.raises(RangesUnreachable) as raised:
        world.take(30)
    assert raised.value.partitions == (A,)


def test_range_is_not_silent_while_others_have_records():
    world = World(1000)
    world.client.silent = {A}
    world.begin(ranged(0, 50), of_b(0, 1000))
    world.take_until(B, 1000, seconds=30)  # it may be that its records wait behind these
    world.take()
    world.now += 40
    world.client.silent = set()
    world.finish()


def test_a_log_that_seems_to_end_early_and_then_no_broker_answers_is_silent():
    """Promise 10."""
    world = World(10)
    world.begin(ranged(0, 12))
    world.take_until(A, 10)
    world.log.away = True
    world.take()
    with pytest.raises(RangesUnreachable):
        world.take(30)
