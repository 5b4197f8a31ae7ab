"""What a consumer of committed messages gets from a topic."""

from confluent_kafka import OFFSET_BEGINNING, Consumer, IsolationLevel, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from topology.sink import SinkContext


def committed_values(context: SinkContext, topic: str, *, waits: bool = True) -> list[bytes | None]:
    """The values of all messages that are committed, once no transaction is open.

    Without `waits`, of those before the first transaction that is open now.
    """
    return [value for value, *_ in committed_messages(context, topic, waits=waits)]


def committed_messages(
    context: SinkContext, topic: str, *, waits: bool = True
) -> list[tuple[bytes | None, bytes | None, list[tuple[str, bytes]]]]:
    """Value, key and headers of all messages that are committed; see above."""
    level = IsolationLevel.READ_UNCOMMITTED if waits else IsolationLevel.READ_COMMITTED
    admin = AdminClient(dict(context.kafka))
    parts = [
        TopicPartition(topic, each)
        for each in admin.list_topics(timeout=20).topics[topic].partitions
    ]
    ends = {
        part.partition: answer.result(20).offset
        for part, answer in admin.list_offsets(
            dict.fromkeys(parts, OffsetSpec.latest()), isolation_level=level
        ).items()
    }
    consumer = Consumer(
        {
            **context.kafka,
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
                found.append((message.value(), message.key(), message.headers() or []))
            place = message.offset() + (message.error() is None)
            if place >= ends[message.partition()]:
                left.discard(message.partition())
    finally:
        consumer.close()
    return found
