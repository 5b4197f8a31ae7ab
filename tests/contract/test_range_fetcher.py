"""A fetcher of ranges keeps its word over the client in memory and over Kafka's."""

from typing import Any

import pytest

from partition.records import Partition, Position
from service.spark_engine.range_fetcher import RangeFetcher
from service.spark_engine.task import TaskRange
from tests.support.kafka import KafkaWorld, Reading, numbers
from transactions.transaction import RangeDigest


class Ranges:
    """Ranges read one after the other, by one client."""

    def __init__(self, world: Any) -> None:
        self.fetcher: Any = RangeFetcher(world.fetcher())
        self.reading = Reading(self.fetcher)

    def read(self, *ranges: tuple[Partition, int, int], max_records: int = 1000) -> None:
        wanted = [TaskRange(place, Position(first), end) for place, first, end in ranges]
        self.fetcher.begin(wanted)
        self.reading = Reading(self.fetcher)
        self.reading.until(
            lambda: self.reading.ends == {place: end for place, _first, end in ranges}, max_records
        )

    def digest(self, place: Partition) -> tuple[int, str]:
        """What is to be told of what was read of a partition."""
        digest = RangeDigest()
        for message in self.reading.messages.get(place, []):
            digest.add([message.offset()], [len(message)])  # type: ignore[arg-type]
        return digest.count, digest.hex()


def test_ranges_come_one_after_the_other_whole_and_to_their_ends(world: Any) -> None:
    topic = world.topic(2)
    a, b = Partition(topic, 0), Partition(topic, 1)
    for place in (a, b):
        world.append(place, numbers(3000))
    ranges = Ranges(world)
    for first, end in ((0, 1), (1, 1200), (1200, 2999), (2999, 3000)):
        ranges.read((a, first, end), (b, first, end))
        for place, read in zip((a, b), ranges.fetcher.read(), strict=True):
            assert ranges.reading.offsets(place) == list(range(first, end))
            assert (read.partition, read.count, read.digest) == (place, *ranges.digest(place))
            assert read.leader_epoch == 0


def test_ranges_may_begin_anywhere_and_partitions_come_and_go(world: Any) -> None:
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
            assert ranges.reading.offsets(place) == list(range(first, end))


@pytest.mark.integration
def test_ranges_may_end_at_the_markers_of_transactions(real: KafkaWorld) -> None:
    """Promise 11: a range of nothing but markers and aborted records is read, too."""
    a = Partition(real.topic(), 0)
    real.transaction(a, numbers(3), commit=True)  # 0 to 2, and a marker at 3
    real.transaction(a, numbers(3), commit=False)  # 4 to 6, and a marker at 7
    ranges = Ranges(real)
    for first, end, offsets in ((0, 3, [0, 1, 2]), (3, 5, []), (5, 8, [])):
        ranges.read((a, first, end))
        assert ranges.reading.offsets(a) == offsets
    real.append(a, numbers(1))
    ranges.read((a, 8, 9))
    assert ranges.reading.offsets(a) == [8]
    ranges.read((a, 2, 9))
    assert ranges.reading.offsets(a) == [2, 8]
    assert ranges.fetcher.read()[0].count == 2
