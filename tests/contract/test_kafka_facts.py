"""What a broker and librdkafka's consumer do: the facts that fetching from Kafka rests on.

A version of either that does otherwise fails here, and what rests on it can be looked at.
"""

import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import OFFSET_STORED, Consumer, KafkaError, KafkaException, TopicPartition

from partition.records import Partition
from tests.acceptance import processes
from tests.support.kafka import SECONDS, KafkaWorld, numbers
from tests.support.patience import Limit

pytestmark = pytest.mark.integration

Connect = Callable[..., Consumer]


@pytest.fixture
def connect() -> Iterator[Connect]:
    """`connect(world, properties)` makes a consumer, in a group of its own."""
    clients = []

    def connect(world: KafkaWorld, properties: dict[str, Any] | None = None) -> Consumer:
        group = {"group.id": f"g-{uuid.uuid4().hex[:12]}", "enable.auto.commit": False}
        client = Consumer({**world.properties, **group, **(properties or {})})
        clients.append(client)
        return client

    yield connect
    for client in clients:
        client.close()


def filled(world: KafkaWorld, count: int) -> str:
    """A topic of one partition with so many records."""
    topic = world.topic()
    world.append(Partition(topic, 0), numbers(count))
    return topic


def events(client: Consumer, count: int) -> list[Any]:
    """The next so many messages and errors."""
    found: list[Any] = []
    end = Limit(SECONDS)
    while len(found) < count:
        assert not end.passed, f"only {len(found)} of {count}"
        event = client.poll(0.2)
        if event is not None:
            found.append(event)
    return found


def read(client: Consumer, count: int) -> list[int]:
    """The offsets of the next so many records, none of them an error."""
    found = events(client, count)
    assert [event.error() for event in found] == [None] * count
    return [event.offset() for event in found]


def is_unreachable(client: Consumer, seconds: float) -> bool:
    """Whether `poll` gives neither record nor error for that long."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if client.poll(0.2) is not None:
            return False
    return True


def seconds_to_close(client: Consumer) -> float:
    start = time.monotonic()
    client.close()
    return time.monotonic() - start


def test_out_of_range_is_told_once_and_only_a_new_assignment_ends_it(
    real: KafkaWorld, connect: Connect
) -> None:
    """Faults section 5: after retention passed, `seek` is refused and `assign` works."""
    topic = filled(real, 10)
    real.delete_before(Partition(topic, 0), 4)
    client = connect(real, {"auto.offset.reset": "error"})
    client.assign([TopicPartition(topic, 0, 1)])
    [told] = events(client, 1)
    assert told.error().code() == KafkaError._AUTO_OFFSET_RESET
    assert (told.topic(), told.partition(), told.offset()) == (topic, 0, 1)
    with pytest.raises(KafkaException) as refused:
        client.seek(TopicPartition(topic, 0, 4))
    assert refused.value.args[0].code() == KafkaError._STATE
    assert is_unreachable(client, 1.0)
    client.assign([TopicPartition(topic, 0, 4)])
    assert read(client, 6) == [4, 5, 6, 7, 8, 9]


def test_a_reset_to_the_earliest_record_is_silent(real: KafkaWorld, connect: Connect) -> None:
    """Faults section 5: three records are skipped, and no event or callback tells it."""
    topic = filled(real, 10)
    real.delete_before(Partition(topic, 0), 4)
    errors: list[KafkaError] = []
    client = connect(real, {"auto.offset.reset": "earliest", "error_cb": errors.append})
    client.assign([TopicPartition(topic, 0, 1)])
    assert read(client, 6) == [4, 5, 6, 7, 8, 9]
    assert errors == []


def test_a_flipped_bit_is_delivered_unless_checksums_are_checked(
    real: KafkaWorld, connect: Connect
) -> None:
    """Faults section 5: `check.crcs` is off by default; on, the same error comes again."""
    topic = filled(real, 5)
    place = Partition(topic, 0)
    real.append(place, [b"spoilt-on-disk"])
    real.append(place, numbers(2))
    real.corrupt(place, 5, b"spoilt-on-disk")
    trusting = connect(real)
    trusting.assign([TopicPartition(topic, 0, 0)])
    found = events(trusting, 8)
    assert [event.error() for event in found] == [None] * 8
    assert found[5].value() == b"rpoilt-on-disk"
    checking = connect(real, {"check.crcs": True})
    checking.assign([TopicPartition(topic, 0, 0)])
    assert read(checking, 5) == [0, 1, 2, 3, 4]
    told = [(event.error().code(), event.offset()) for event in events(checking, 3)]
    assert told == [(KafkaError._BAD_MSG, 5)] * 3


def test_a_partition_whose_on_assign_raised_is_read_all_the_same(
    real: KafkaWorld, connect: Connect
) -> None:
    """Faults section 5: `poll` raises the exception, once; then it reads from the default.

    The call that raises may have taken a record with it, which is never delivered then.
    """
    topic = filled(real, 5)
    client = connect(real, {"auto.offset.reset": "earliest"})
    calls: list[list[TopicPartition]] = []

    def on_assign(_client: Consumer, partitions: list[TopicPartition]) -> None:
        calls.append(partitions)
        raise ValueError("before it could assign offset 3")

    client.subscribe([topic], on_assign=on_assign)
    with pytest.raises(ValueError, match="offset 3"):
        events(client, 1)
    [assigned] = client.assignment()
    assert (assigned.topic, assigned.partition, assigned.offset) == (topic, 0, OFFSET_STORED)
    found = read(client, 1)
    while found[-1] < 4:
        found += read(client, 1)
    assert found in ([0, 1, 2, 3, 4], [1, 2, 3, 4])
    assert len(calls) == 1


def test_a_sought_position_outlives_a_pause(real: KafkaWorld, connect: Connect) -> None:
    """Faults section 5: after `seek`, 10 to 12, nothing while it is paused, then 13."""
    topic = filled(real, 20)
    client = connect(real)
    client.assign([TopicPartition(topic, 0, 0)])
    assert read(client, 2) == [0, 1]
    client.seek(TopicPartition(topic, 0, 10))
    assert read(client, 3) == [10, 11, 12]
    client.pause([TopicPartition(topic, 0)])
    assert is_unreachable(client, 1.0)
    client.resume([TopicPartition(topic, 0)])
    assert read(client, 1) == [13]


def test_a_frozen_broker_is_told_by_nothing(own: KafkaWorld, connect: Connect) -> None:
    """Faults section 5: no event and no `error_cb`, here for 5 s; requests do time out."""
    topic = filled(own, 3)
    place = TopicPartition(topic, 0, 0)
    errors: list[KafkaError] = []
    client = connect(own, {"error_cb": errors.append})
    client.assign([place])
    assert read(client, 3) == [0, 1, 2]
    processes.freeze(own.kafka.pid)
    try:
        assert is_unreachable(client, 5.0)
        assert errors == []
        with pytest.raises(KafkaException) as unanswered:
            client.get_watermark_offsets(place, timeout=0.5)
        assert unanswered.value.args[0].code() == KafkaError._TIMED_OUT
    finally:
        processes.thaw(own.kafka.pid)
    own.append(Partition(topic, 0), numbers(1))
    assert read(client, 1) == [3]


def test_only_a_member_of_a_group_waits_for_a_frozen_broker_when_it_closes(
    own: KafkaWorld, connect: Connect
) -> None:
    """Faults section 5: a subscribed consumer waits 5 s for the answer to its leaving.

    It is the broker that is slow: with one that answers, both are closed at once.
    """
    topic = filled(own, 1)

    def reading() -> tuple[Consumer, Consumer]:
        assigned, subscribed = (
            connect(own, {"auto.offset.reset": "earliest"}),
            connect(own, {"auto.offset.reset": "earliest"}),
        )
        assigned.assign([TopicPartition(topic, 0, 0)])
        subscribed.subscribe([topic])
        assert read(assigned, 1) == read(subscribed, 1) == [0]
        return assigned, subscribed

    for client in reading():
        assert seconds_to_close(client) < 3
    assigned, subscribed = reading()
    processes.freeze(own.kafka.pid)
    try:
        assert seconds_to_close(assigned) < 3
        assert 3 < seconds_to_close(subscribed) < 12
    finally:
        processes.thaw(own.kafka.pid)
