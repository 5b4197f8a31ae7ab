"""One suite for every Fetcher: the one in memory and the one on Kafka.

What goes wrong is in `test_fetcher_losses.py` and `test_fetcher_outages.py`, what is
librdkafka's alone in `test_fetcher_client.py` and `test_fetcher_events.py`.
"""

import time

import pytest

from partition.interfaces import Fetched
from partition.records import Chunk, Partition, Position
from tests.support.kafka import SECONDS, Reading, numbers


def test_records_come_in_order_and_the_end_is_told(world):
    a = world.filled(2500)
    reading = world.reading({a: 0})
    reading.until(lambda: a in reading.ends)
    assert reading.offsets(a) == list(range(2500))
    assert reading.values(a) == numbers(2500)
    assert reading.ends == {a: 2500}
    assert reading.fetcher.available
    world.append(a, numbers(1))
    reading.until(lambda: reading.ends[a] == 2501)


def test_a_call_returns_as_soon_as_there_is_something(world):
    a = world.filled(3)
    reading = world.reading({a: 0})
    started = time.monotonic()
    while not reading.messages:
        reading.take(reading.fetcher.fetch(1000, SECONDS))
    assert time.monotonic() - started < SECONDS / 2


def test_an_idle_call_waits_its_time_and_gives_nothing(world):
    a = Partition(world.topic(), 0)
    reading = world.reading({a: 0})
    reading.until(lambda: a in reading.ends)
    started = time.monotonic()
    assert reading.fetcher.fetch(100, 0.3) == Fetched()
    assert time.monotonic() - started >= 0.25


def test_no_call_gives_more_than_it_was_asked_for(world):
    a, b = (Partition(world.topic(), 0), Partition(world.topic(), 0))
    world.append(a, numbers(50))
    world.append(b, numbers(50))
    reading = world.reading({a: 0, b: 0})
    fetcher = reading.fetcher
    while len(reading.offsets(a)) + len(reading.offsets(b)) < 100:
        fetched = fetcher.fetch(7, 0.1)
        assert sum(len(chunk) for chunk in fetched.chunks) <= 7
        reading.take(fetched)
    assert reading.offsets(a) == reading.offsets(b) == list(range(50))


def test_partitions_of_several_topics_are_kept_apart(world):
    """Storm 25: a partition is its topic and its number, never one of them alone."""
    one, two = world.topic(2), world.topic(2)
    places = [Partition(one, 0), Partition(one, 1), Partition(two, 0), Partition(two, 1)]
    for start, place in enumerate(places):
        world.append(place, numbers(300, 1000 * start))
    reading = Reading(world.fetcher())
    reading.add(dict.fromkeys(places, 0))
    reading.until(lambda: len(reading.ends) == 4)
    for start, place in enumerate(places):
        assert reading.values(place) == numbers(300, 1000 * start)
        assert reading.ends[place] == 300


def test_a_gap_at_the_logs_end_is_passed_by_the_end(world):
    """Promise 11: gaps never block the last completed offset, also when no record follows them.

    Storm 20: what was used up without a record never stops the offset.
    """
    a = world.filled(2)
    end = world.gap(a)
    reading = world.reading({a: 0})
    reading.until(lambda: reading.ends.get(a) == end)
    assert max(reading.offsets(a)) < end - 1
    world.append(a, numbers(1))
    reading.until(lambda: reading.ends.get(a) == end + 1)
    assert reading.offsets(a)[-1] == end


def test_a_record_keeps_everything(world):
    """Faults K12: no key, no value and empty bytes arrive distinct, with headers and times."""
    a = Partition(world.topic(), 0)
    world.append_one(a, None, None, [], 1_700_000_000_123)
    world.append_one(a, b"", b"", [("h", b"1"), ("h", None), ("i", b"")], 1_700_000_000_456)
    reading = world.reading({a: 0})
    reading.until(lambda: a in reading.ends)
    first, second = reading.messages[a]
    assert (first.value(), first.key(), first.headers(), len(first)) == (None, None, None, 0)
    assert (second.value(), second.key()) == (b"", b"")
    assert second.headers() == [("h", b"1"), ("h", None), ("i", b"")]
    assert first.timestamp() == (1, 1_700_000_000_123)
    assert second.timestamp() == (1, 1_700_000_000_456)
    assert first.error() is None


def test_pausing_loses_and_repeats_nothing(world):
    topic = world.topic(2)
    a, b = Partition(topic, 0), Partition(topic, 1)
    world.append(a, numbers(4000))
    world.append(b, numbers(4000))
    reading = world.reading({a: 0, b: 0})
    fetcher = reading.fetcher
    for turn in range(30):
        paused = (a, b)[turn % 2]
        fetcher.pause(paused)
        before = len(reading.offsets(paused))
        for _ in range(3):
            reading.take(fetcher.fetch(101, 0.02))
        assert len(reading.offsets(paused)) == before
        fetcher.resume(paused)
        reading.take(fetcher.fetch(57, 0.02))
    reading.until(lambda: reading.ends.keys() == {a, b})
    assert reading.offsets(a) == list(range(4000))
    assert reading.offsets(b) == list(range(4000))


def test_what_was_fetched_for_a_removed_partition_is_never_delivered(world):
    """Storm 32: an offset that was passed, or is not to be read any more, never comes again.

    Faults K14: a removed partition's records are dropped, also when it is added again.
    """
    topic = world.topic(2)
    a, b = Partition(topic, 0), Partition(topic, 1)
    c = Partition(world.topic(), 0)
    for place in (a, b, c):
        world.append(place, numbers(3000))
    reading = world.reading({a: 0, b: 0})
    reading.until(lambda: a in reading.messages or b in reading.messages, max_records=10)
    turns: list[dict[Partition, int]] = [{a: 2000}, {a: 5, c: 1000}, {a: 1500, b: 2500}, {c: 0}]
    for positions in [*turns, {a: 0}]:
        reading.fetcher.remove([a, b, c])
        fresh = Reading(reading.fetcher)
        fresh.add(positions)
        fresh.until(lambda: bool(fresh.messages), max_records=10)  # noqa: B023
        for place, found in fresh.messages.items():
            start = positions[place]
            assert fresh.offsets(place) == list(range(start, start + len(found)))
    fresh.until(lambda: a in fresh.ends)
    assert fresh.offsets(a) == list(range(3000))


def test_a_partition_that_is_added_again_is_not_paused(world):
    a = world.filled(3)
    reading = world.reading({a: 0})
    reading.fetcher.pause(a)
    reading.again({a: 0})
    reading.until(lambda: a in reading.ends)
    assert reading.offsets(a) == [0, 1, 2]


def test_without_partitions_nothing_comes(world):
    a = world.filled(3)
    fetcher = world.fetcher()
    fetcher.add({a: Position(0)})
    fetcher.remove([a])
    assert fetcher.fetch(10, 0.05) == Fetched()
    fetcher.close()
    fetcher.close()


def test_the_logs_range_is_known_from_fetching(world):
    """Storm 54: offset 0 is a place like any other, and an empty log is 0 to 0."""
    topic = world.topic(2)
    a, b = Partition(topic, 0), Partition(topic, 1)
    world.append(a, numbers(5))
    reading = Reading(world.fetcher())
    assert reading.fetcher.log_range(a) is None
    reading.add({a: 0, b: 0})
    reading.until(lambda: reading.ends == {a: 5, b: 0})
    assert reading.offsets(a)[0] == 0
    assert reading.fetcher.log_range(a) == (0, 5)
    assert reading.fetcher.log_range(b) == (0, 0)
    world.delete_before(a, 2)
    world.append(a, numbers(1))
    reading.until(lambda: reading.fetcher.log_range(a) == (2, 6))
    reading.fetcher.remove([a])
    assert reading.fetcher.log_range(a) is None


@pytest.mark.integration
def test_markers_of_committed_and_aborted_transactions_are_passed(real):
    """Promise 11: the end lies past the markers, so the lag can reach zero.

    Faults K08: after 5 committed and 5 aborted records the last message is 4, the end is 12.
    """
    a = Partition(real.topic(), 0)
    real.transaction(a, numbers(5), commit=True)
    real.transaction(a, numbers(5), commit=False)
    reading = real.reading({a: 0})
    reading.until(lambda: reading.ends.get(a) == 12)
    assert reading.offsets(a) == [0, 1, 2, 3, 4]
    assert reading.fetcher.log_range(a) == (0, 12)
    assert (real.log(a).start, real.log(a).end) == (0, 12)
    real.transaction(a, numbers(2), commit=True)
    reading.until(lambda: reading.ends.get(a) == 15)
    assert reading.offsets(a)[5:] == [12, 13]


@pytest.mark.integration
def test_an_open_transaction_is_the_end_until_it_is_over(real):
    """Faults K13: readers stop before it; the cached end lies behind it, so it shows as lag."""
    a = real.filled(3)
    producer = real.begin(a, numbers(2))
    real.append(a, numbers(1))
    reading = real.reading({a: 0})
    reading.until(lambda: reading.ends.get(a) == 3)
    assert reading.offsets(a) == [0, 1, 2]
    assert reading.fetcher.log_range(a) == (0, 6)
    assert real.log(a).end == 3
    producer.commit_transaction(SECONDS)
    reading.until(lambda: reading.ends.get(a) == 7)
    assert reading.offsets(a) == [0, 1, 2, 3, 4, 5]


def test_chunks_know_how_much_keys_and_headers_hold(world):
    a = Partition(world.topic(), 0)
    for key in (None, b"", b"four", b"larger" * 100):
        world.append_one(a, b"v", key, [("name", b"123456"), ("none", None)], 1_700_000_000_000)
    fetcher = world.fetcher()
    fetcher.add({a: Position(0)})
    chunks: list[Chunk] = []
    while sum(map(len, chunks)) < 4:
        chunks += fetcher.fetch(10, 1.0).chunks
    assert sum(chunk.other_bytes for chunk in chunks) == 604 + 4 * 14
