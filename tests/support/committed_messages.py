"""What a consumer of committed messages gets from a topic."""

import time

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, OffsetSpec

from tests.support.patience import Limit, seconds
from topology.sink import SinkContext

_PASSING = (
    KafkaError._NOENT,  # no partition has a leader
    KafkaError.UNKNOWN_LEADER_EPOCH,
    KafkaError.LEADER_NOT_AVAILABLE,
)


def committed_values(
    kafka: str | SinkContext, topic: str, *, waits: bool = True
) -> list[bytes | None]:
    """The values of all messages that are committed, once no transaction is open.

    Without `waits`, of those before the first transaction that is open now.
    """
    return [each.value() for each in committed_messages(kafka, topic, waits=waits)]


def committed_messages(
    kafka: str | SinkContext, topic: str, *, waits: bool = True
) -> list[Message]:
    properties = {"bootstrap.servers": kafka} if isinstance(kafka, str) else dict(kafka.kafka)
    level = IsolationLevel.READ_UNCOMMITTED if waits else IsolationLevel.READ_COMMITTED
    admin = AdminClient(properties)
    parts = [
        TopicPartition(topic, each)
        for each in admin.list_topics(timeout=seconds(20)).topics[topic].partitions
    ]
    ends = _ends(admin, parts, level)
    consumer = Consumer(
        {
            **properties,
            "group.id": "reader",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
            "fetch.wait.max.ms": 50,
        }
    )
    found = []
    try:
        consumer.assign([TopicPartition(topic, p.partition, OFFSET_BEGINNING) for p in parts])
        left = {number for number, end in ends.items() if end}
        while left:
            message = consumer.poll(20)
            assert message is not None, f"nothing more of {left} of {ends}"
            if message.error() is None:
                found.append(message)
            place = message.offset() + (message.error() is None)
            if place >= ends[message.partition()]:
                left.discard(message.partition())
    finally:
        consumer.close()
    return found


def _ends(admin: AdminClient, parts: list[TopicPartition], level: IsolationLevel) -> dict[int, int]:
    """Where each partition ends; a broker that was just started, or thawed, may need time."""
    asked = dict.fromkeys(parts, OffsetSpec.latest())
    limit = Limit(30)
    while True:
        try:
            answers = admin.list_offsets(asked, isolation_level=level).items()
            return {part.partition: answer.result(seconds(20)).offset for part, answer in answers}
        except KafkaException as error:
            if limit.passed or error.args[0].code() not in _PASSING:
                raise
            time.sleep(0.1)
            admin.list_topics(timeout=seconds(20))  # what it knew of the leaders is old
