"""A broker that is stopped or frozen: readers wait, know it, and lose nothing."""

import time

import pytest

from partition.records import Partition, Position
from tests.acceptance import processes
from tests.support.kafka import KafkaWorld, Reading, numbers

pytestmark = pytest.mark.integration


def test_a_broker_that_is_away_gives_nothing_and_raises_nothing(own: KafkaWorld) -> None:
    """Promise 15: with Kafka away the service waits, and goes on where it was.

    Faults K01: a restart of the broker repeats nothing.
    """
    a = Partition(own.topic(), 0)
    own.append(a, numbers(3))
    reading = Reading(own.fetcher())
    reading.add({a: 0})
    reading.until(lambda: a in reading.ends)
    assert reading.fetcher.available
    assert reading.fetcher.log_range(a) == (0, 3)
    own.kafka.close()
    reading.until(lambda: not reading.fetcher.available)
    assert reading.fetcher.log_range(a) == (0, 3)
    own.kafka.open()
    reading.until(lambda: reading.fetcher.available)
    own.append(a, numbers(3))
    reading.until(lambda: reading.ends[a] == 6)
    assert reading.offsets(a) == list(range(6))


def test_records_prefetched_before_an_outage_do_not_hide_it(own: KafkaWorld) -> None:
    """What was prefetched is also kept when other partitions are added and removed."""
    topic = own.topic(3)
    a, b, c = (Partition(topic, number) for number in range(3))
    own.append(a, numbers(1000))
    own.append(b, numbers(10))
    reading = Reading(own.fetcher())
    reading.add({a: 0, b: 0})
    reading.until(lambda: len(reading.offsets(a)) >= 10, max_records=10)
    own.kafka.close()
    reading.fetcher.remove([b])
    reading.add({c: 0})
    seen: list[bool] = []

    def has_all() -> bool:
        time.sleep(0.02)  # slowly, so that the outage is noticed amid the records
        seen.append(reading.fetcher.available)
        return len(reading.offsets(a)) == 1000 and not reading.fetcher.available

    reading.until(has_all, max_records=10)
    first = seen.index(False)
    assert not any(seen[first:]), "no record of before the outage says that a broker answers"
    own.kafka.open()
    own.append(c, numbers(1))
    reading.until(lambda: reading.ends.get(c) == 1)


def test_a_frozen_broker_is_noticed_though_the_client_says_nothing(own: KafkaWorld) -> None:
    """Faults K02: a broker that holds its connections and answers nothing is an outage.

    librdkafka tells no error of it; it shows in the statistics as an answer that is owed.
    """
    a = Partition(own.topic(), 0)
    own.append(a, numbers(3))
    fetcher = own.fetcher()
    reading = Reading(fetcher)
    reading.add({a: 0})
    reading.until(lambda: a in reading.ends)
    processes.freeze(own.kafka.pid)
    try:
        reading.until(lambda: not fetcher.available)
    finally:
        processes.thaw(own.kafka.pid)
    reading.until(lambda: fetcher.available)
    own.append(a, numbers(1))
    reading.until(lambda: reading.ends[a] == 4)
    assert reading.offsets(a) == [0, 1, 2, 3]


def test_a_paused_partition_is_no_silence(own: KafkaWorld) -> None:
    a = Partition(own.topic(), 0)
    own.append(a, numbers(3))
    fetcher = own.fetcher(**{"statistics.interval.ms": 200})
    reading = Reading(fetcher)
    reading.add({a: 0})
    reading.until(lambda: a in reading.ends)
    fetcher.pause(a)
    fetcher._availability.patience_seconds = 0.5  # instead of seconds
    reading.quiet(2)
    assert fetcher.available
    fetcher.resume(a)
    reading.quiet(0.5)
    assert fetcher.available


def test_a_mirror_that_nobody_answers_is_counted_and_stops_nothing(own: KafkaWorld) -> None:
    a = Partition(own.topic(), 0)
    own.append(a, numbers(3))
    fetcher = own.fetcher(**{"group.id": f"g-{a.topic}", "socket.timeout.ms": 1000})
    reading = Reading(fetcher)
    reading.add({a: 0})
    reading.until(lambda: a in reading.ends)
    own.kafka.close()
    reading.until(lambda: not fetcher.available)
    for offset in range(100):
        fetcher.mirror({a: Position(offset)})
    reading.until(lambda: fetcher.mirror_failures > 0)
    assert fetcher.mirror_failures < 100, "one commit at a time"
