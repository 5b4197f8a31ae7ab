"""Logs that are not what they were: every loss is told, once, and stops its partition only."""

import pytest

from partition.errors import CorruptRecord, OffsetOutOfRange, TopicMissing
from partition.records import Partition, Position
from tests.support.kafka import Reading, numbers


@pytest.mark.parametrize("position", [1, 900])
def test_a_position_that_the_log_does_not_hold_stops_its_partition(world, position):
    """Promise 12: out of range is told, never resolved by skipping.

    Faults K09: retention or a lost end; the partition is told once and works when it is
    added again (a seek would be refused by librdkafka).
    Storm 15: replaying what was deleted is told, no loop. Storm 18: told once, not with
    every call.
    """
    a, b = Partition(world.topic(), 0), Partition(world.topic(), 0)
    world.append(a, numbers(10))
    world.append(b, numbers(10))
    world.delete_before(a, 4)
    reading = world.reading({a: position, b: 0})
    reading.until(lambda: a in reading.failures and b in reading.ends)
    told = reading.failures[a]
    assert isinstance(told, OffsetOutOfRange)
    assert (told.partition, told.offset, told.diverged_at) == (a, position, None)
    assert reading.offsets(b) == list(range(10))
    world.append(a, numbers(1))
    world.append(b, numbers(1))
    reading.until(lambda: reading.ends[b] == 11)
    assert reading.offsets(a) == []
    reading.again({a: 4})
    reading.until(lambda: a in reading.ends)
    assert reading.offsets(a) == list(range(4, 11))


def test_the_good_records_before_a_corrupt_one_come_first(world):
    """Faults K10: a flipped bit on disk stops its partition only, and is told once.

    It is passed by adding the partition again behind it.
    """
    topic = world.topic(2)
    a, b = Partition(topic, 0), Partition(topic, 1)
    world.append(a, numbers(5))
    world.append(a, [b"spoilt-on-disk"])
    world.append(a, numbers(4))
    world.append(b, numbers(3))
    world.corrupt(a, 5, b"spoilt-on-disk")
    reading = world.reading({a: 0, b: 0})
    reading.until(lambda: a in reading.failures and b in reading.ends)
    assert reading.values(a) == numbers(5)
    told = reading.failures[a]
    assert isinstance(told, CorruptRecord)
    assert (told.partition, told.offset) == (a, 5)
    world.append(b, numbers(3))
    reading.until(lambda: reading.ends[b] == 6)
    reading.again({a: 5})
    reading.until(lambda: a in reading.failures)
    reading.again({a: 6})
    reading.until(lambda: a in reading.ends)
    assert reading.offsets(a) == [6, 7, 8, 9]


def test_a_topic_deleted_while_it_is_read_is_named(world):
    """Faults K05: its partitions stop, and go on once it is there again."""
    topic = world.topic(2)
    a, b, other = Partition(topic, 0), Partition(topic, 1), Partition(world.topic(), 0)
    world.append(a, numbers(3))
    world.append(other, numbers(3))
    reading = world.reading({a: 0, b: 0, other: 0})
    reading.until(lambda: len(reading.ends) == 3)
    world.delete_topic(topic)
    reading.until(lambda: reading.failures.keys() == {a, b})
    for each in (a, b):
        assert isinstance(reading.failures[each], TopicMissing)
        assert topic in str(reading.failures[each])
    world.append(other, numbers(1))
    reading.until(lambda: reading.ends[other] == 4)


def test_a_topic_that_is_there_again_is_read_again(world):
    """Faults K06: a live reader of a topic that was created anew is out of range, or told."""
    a = world.filled(100)
    reading = world.reading({a: 0})
    reading.until(lambda: a in reading.ends)
    world.recreate_topic(a.topic)
    reading.until(lambda: a in reading.failures)
    assert isinstance(reading.failures[a], OffsetOutOfRange | TopicMissing)
    world.append(a, numbers(5))
    reading.again({a: 0})
    reading.until(lambda: a in reading.ends)
    assert reading.values(a) == numbers(5)


def test_a_topic_created_anew_while_nobody_read_is_known_by_its_id_alone(world):
    """Faults K06: fewer records are out of range; with more, only the topic id tells.

    Neither the offset nor the leader epoch shows that a larger one is another log.
    """
    a = world.filled(100)
    stopped = Position(100, 0, world.log(a).topic_id)
    world.recreate_topic(a.topic)
    world.append(a, numbers(50))
    reading = world.reading({a: stopped})
    reading.until(lambda: a in reading.failures)
    assert isinstance(reading.failures[a], OffsetOutOfRange)
    world.append(a, numbers(150, 50))
    reading.again({a: stopped})
    reading.until(lambda: a in reading.ends)
    assert reading.offsets(a) == list(range(100, 200)), "100 records were skipped silently"
    assert world.log(a).topic_id not in (None, stopped.topic_id)


def test_a_log_that_was_cut_off_is_told_by_the_leader_epoch(fragile):
    """Faults K04: an unclean truncation is told, with the offset at which the logs differ.

    Without an epoch the cut records' successors are skipped silently; so the epoch is
    stored. A reader that lives through it knows the epoch from what it read.
    """
    topic = fragile.topic(3)
    cut, live, clean = (Partition(topic, number) for number in range(3))
    for place in (cut, live, clean):
        for start in range(0, 100, 20):
            fragile.append(place, numbers(20, start))
    reading = fragile.reading({live: 0, clean: 0})
    reading.until(lambda: reading.ends == {live: 100, clean: 100})
    fragile.truncate({cut: 60, live: 60})
    for place in (cut, live):
        fragile.append(place, numbers(80, 1000))
    fragile.append(clean, numbers(1))
    reading.until(lambda: live in reading.failures and reading.ends[clean] == 101)
    epoch = reading.epochs[clean][0][1]
    resumed = Reading(fragile.fetcher())
    resumed.add({cut: Position(100, epoch)})
    resumed.until(lambda: cut in resumed.failures)
    for partition, told in [*reading.failures.items(), *resumed.failures.items()]:
        assert isinstance(told, OffsetOutOfRange)
        assert (told.partition, told.offset, told.diverged_at) == (partition, 100, 60)
    resumed.again({cut: Position(60, epoch)})
    resumed.until(lambda: cut in resumed.ends)
    assert resumed.values(cut) == numbers(80, 1000)
    later = resumed.epochs[cut][-1]
    assert later[0] == 60
    assert later[1] > epoch
    resumed.again({cut: Position(140, later[1])})
    resumed.until(lambda: resumed.ends.get(cut) == 140)
    resumed.again({cut: 50})
    resumed.until(lambda: resumed.ends.get(cut) == 140)
    assert resumed.epochs[cut][-2:] == [(50, epoch), (60, later[1])], "one chunk or two"
    resumed.again({cut: 100})
    resumed.until(lambda: resumed.ends.get(cut) == 140)
    assert resumed.values(cut) == numbers(40, 1040), "without an epoch 40 are skipped silently"
    for again in (Position(100, epoch), Position(100, epoch), Position(100, later[1] + 7)):
        resumed.again({cut: again})
        resumed.until(lambda: cut in resumed.failures)
        assert cut not in resumed.messages, "checked each time it is added, not the first alone"
        told = resumed.failures[cut]
        assert isinstance(told, OffsetOutOfRange)
        assert told.diverged_at == (60 if again.leader_epoch == epoch else None)
