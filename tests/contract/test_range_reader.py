"""A reader of ranges keeps its word over the client in memory and over Kafka's."""

import time
from dataclasses import replace
from typing import Any

import pytest

from partition.records import Partition, Position
from service.spark_engine.range_reader import RangeReader
from service.spark_engine.task import Task, TaskRange
from tests.support.kafka import SECONDS, numbers
from tests.support.patience import until
from tests.support.spark_tasks import SETTINGS
from transactions.transaction import RangeDigest


class Ranges:
    """Ranges read one after the other, by one client; what is read is staged at once."""

    def __init__(self, world: Any) -> None:
        self.reader = RangeReader(world.fetcher())
        self.messages: dict[Partition, list[Any]] = {}

    def read(self, *ranges: tuple[Partition, int, int], max_records: int = 1000) -> None:
        wanted = tuple(TaskRange(place, Position(first), end) for place, first, end in ranges)
        self.messages = {}
        settings = replace(SETTINGS, fetch_records=max_records, chunk_records=max_records)
        self.reader.begin(Task(settings, wanted, {}))
        reached = "the ranges' ends"
        until(reached, lambda: self.reader.has_reached_goals, SECONDS, self.offsets, self.turn)

    def turn(self) -> None:
        while (found := self.reader.next_chunk(0.0)) is not None:
            chunk, record_ids = found
            self.messages.setdefault(chunk.partition, []).extend(chunk.messages)
            self.reader.processed(record_ids)
        for index, end in enumerate(self.reader.processed_to()):
            self.reader.resolve_below(index, end)
        self.reader.fetch(time.monotonic(), 0.01)

    def offsets(self, place: Partition | None = None) -> Any:
        if place is None:
            return {each: self.offsets(each)[-1] for each in self.messages}
        return [message.offset() for message in self.messages.get(place, [])]

    def digest(self, place: Partition) -> tuple[int, str]:
        digest = RangeDigest()
        for message in self.messages.get(place, []):
            digest.add([message.offset()], [len(message)])  # type: ignore[arg-type]
        return digest.count, digest.hex()


def test_ranges_come_one_after_the_other_whole_and_to_their_ends(world):
    topic = world.topic(2)
    a, b = Partition(topic, 0), Partition(topic, 1)
    for place in (a, b):
        world.append(place, numbers(3000))
    ranges = Ranges(world)
    for first, end in ((0, 1), (1, 1200), (1200, 2999), (2999, 3000)):
        ranges.read((a, first, end), (b, first, end))
        for place, read in zip((a, b), ranges.reader.read(), strict=True):
            assert ranges.offsets(place) == list(range(first, end))
            assert (read.partition, read.count, read.digest) == (place, *ranges.digest(place))
            assert read.leader_epoch == 0


def test_ranges_may_begin_anywhere_and_partitions_come_and_go(world):
    topic = world.topic(3)
    places = [Partition(topic, number) for number in range(3)]
    for place in places:
        world.append(place, numbers(2000))
    ranges = Ranges(world)
    turns = [
        [(0, 100, 900), (1, 0, 50)],
        [(0, 900, 1000), (2, 1990, 2000)],
        [(0, 100, 900), (1, 50, 60), (2, 0, 5)],
        [(1, 60, 2000)],
    ]
    for turn in turns:
        asked = [(places[number], first, end) for number, first, end in turn]
        ranges.read(*asked, max_records=333)
        for place, first, end in asked:
            assert ranges.offsets(place) == list(range(first, end))


@pytest.mark.integration
def test_ranges_may_end_at_the_markers_of_transactions(real):
    """Promise 11: a range of nothing but markers and aborted records is read, too."""
    a = Partition(real.topic(), 0)
    real.transaction(a, numbers(3), commit=True)  # 0 to 2, and a marker at 3
    real.transaction(a, numbers(3), commit=False)  # 4 to 6, and a marker at 7
    ranges = Ranges(real)
    for first, end, offsets in ((0, 3, [0, 1, 2]), (3, 5, []), (5, 8, [])):
        ranges.read((a, first, end))
        assert ranges.offsets(a) == offsets
    real.append(a, numbers(1))
    ranges.read((a, 8, 9))
    assert ranges.offsets(a) == [8]
    ranges.read((a, 2, 9))
    assert ranges.offsets(a) == [2, 8]
    assert ranges.reader.read()[0].count == 2
