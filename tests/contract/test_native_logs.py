"""What a log has become since a range of it was planned is found out, in memory and with Kafka.

Spark's own Kafka source asks for none of it.
"""

from typing import Any

from partition.chunk import Partition
from partition.position import Position
from service.spark_engine.native_logs import NativeLogs
from service.spark_engine.task import TaskFailed, TaskRange
from tests.worlds.fetching import numbers


def planned(world: Any, place: Partition, first: int, end: int) -> TaskRange:
    """A range that is planned now."""
    now = world.log(place)
    position = Position(first, now.leader_epoch, now.topic_id)
    return TaskRange(place, position, end, leader_epoch=now.leader_epoch)


def logs_of(world: Any) -> NativeLogs:
    catalogue = world.catalogue()
    return NativeLogs(lambda: catalogue, world.fetcher)


def test_a_log_that_was_cut_off_and_written_anew_differs_and_one_with_a_new_leader_does_not(
    fragile: Any,
) -> None:
    """Promise 12."""
    topic = fragile.topic(2)
    cut, clean = Partition(topic, 0), Partition(topic, 1)
    for place in (cut, clean):
        for start in range(0, 100, 20):
            fragile.append(place, numbers(20, start))
    logs = logs_of(fragile)
    ranges = [planned(fragile, place, 70, 90) for place in (cut, clean)]
    assert logs.after(ranges, logs.before(ranges)) == {}
    within = [planned(fragile, cut, 40, 90), planned(fragile, clean, 40, 90)]
    at_the_end = [planned(fragile, clean, 100, 100)]
    fragile.truncate({cut: 60})
    fragile.append(cut, numbers(60))
    fragile.append(clean, numbers(1))
    # A client from before the election may ask by the old leader's epoch for some time.
    logs = logs_of(fragile)
    failed = logs.after(ranges, logs.before(ranges))
    assert isinstance(failed, TaskFailed)
    assert (failed.partition, failed.error_class) == (cut, "OffsetOutOfRange")
    assert logs.after(ranges[1:], logs.before(ranges[1:])) == {}
    assert logs.after(at_the_end, logs.before(at_the_end)) == {}
    assert logs.after(within, logs.before(within)) == {cut: fragile.log(cut).leader_epoch}


def test_a_topic_that_was_made_anew_differs(world: Any) -> None:
    """Promise 12."""
    topic = world.topic()
    place = Partition(topic, 0)
    world.append(place, numbers(10))
    logs = logs_of(world)
    ranges = [planned(world, place, 5, 10)]
    assert logs.after(ranges, logs.before(ranges)) == {}
    before = logs.before(ranges)
    world.recreate_topic(topic)
    world.append(place, numbers(20))
    failed = logs.after(ranges, before)
    assert isinstance(failed, TaskFailed)
    assert (failed.partition, failed.error_class) == (place, "OffsetOutOfRange")
    assert "made anew" in failed.error
