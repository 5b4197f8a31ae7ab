"""A broker that is stopped or frozen: readers wait, know it, and lose nothing."""

import pytest

from partition.records import Position
from tests.acceptance import processes
from tests.support.kafka import numbers

pytestmark = pytest.mark.integration


def test_a_frozen_broker_is_noticed_though_the_client_says_nothing(own):
    """Faults K02: a broker that holds its connections and answers nothing is an outage.

    librdkafka tells no error of it; it shows in the statistics as an answer that is owed.
    """
    a = own.filled(3)
    reading = own.reading({a: 0})
    fetcher = reading.fetcher
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


def test_a_mirror_that_nobody_answers_is_counted_and_stops_nothing(own):
    a = own.filled(3)
    reading = own.reading({a: 0}, **{"group.id": f"g-{a.topic}", "socket.timeout.ms": 1000})
    fetcher = reading.fetcher
    reading.until(lambda: a in reading.ends)
    own.kafka.close()
    reading.until(lambda: not fetcher.available)
    for offset in range(100):
        fetcher.mirror({a: Position(offset)})
    reading.until(lambda: fetcher.mirror_failures > 0)
    assert fetcher.mirror_failures < 100, "one commit at a time"
