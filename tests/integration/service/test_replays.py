"""Transactions that are open when their process ends, and whose records the log gives no more.

On a real broker and ZooKeeper.
"""

import time
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from headrace import Record, SinkFailed, Topology, bolt
from headrace.sinks import KafkaDeadLetters, MemorySink, Staged
from partition.errors import ReplayDiffers
from service.app import Service
from service.config.settings import load
from service.devservers.servers import EmbeddedKafka, EmbeddedZooKeeper
from service.observability.snapshot import RunSummary
from service.wiring import wire
from tests.support.patience import Limit, seconds

pytestmark = pytest.mark.integration

SECONDS = seconds(30.0)
RECORDS = 10  # published at once
PARTITIONS = 2


@bolt
def text(record: Record) -> str:
    return (record.value or b"").decode()


class Refusing(MemorySink[Any]):
    """Commits nothing while `refuses`, which ends the process; what it has outlives that."""

    refuses = False

    def commit(self, staged: Staged) -> None:
        if self.refuses:
            raise SinkFailed("not today")
        super().commit(staged)


class Place:
    """A topic of two partitions, and processes of one pipeline over it."""

    def __init__(self, kafka: EmbeddedKafka, zookeeper: EmbeddedZooKeeper, topic: str) -> None:
        self.topic = topic
        self.sink = Refusing()
        self._kafka = kafka
        self._zookeeper = zookeeper
        self._root = f"/{uuid.uuid4().hex[:8]}"
        self._admin = AdminClient({"bootstrap.servers": kafka.address})

    def run(self) -> RunSummary:
        topology = Topology("replays", reliability="exactly-once")
        topology.source(self.topic).then(text).into(self.sink, batch_seconds=0.05)
        topology.dead_letters.into(KafkaDeadLetters(f"{self.topic}.dead"))
        config = load(
            None,
            {
                "kafka": {"bootstrap.servers": self._kafka.address},
                "zookeeper": {"hosts": self._zookeeper.address, "root": self._root},
            },
        )
        return Service(wire(topology, config), drain_seconds=10).run(until_caught_up=True)

    def leave_open(self) -> None:
        """Let a process end between the plan of its transactions and their commits."""
        self.sink.refuses = True
        with pytest.raises(SinkFailed, match="not today"):
            self.run()
        self.sink.refuses = False

    def publish(self, partition: int) -> list[str]:
        producer = Producer({"bootstrap.servers": self._kafka.address})
        values = [f"{uuid.uuid4()}" for _ in range(RECORDS)]
        for value in values:
            producer.produce(self.topic, value, partition=partition)
        assert producer.flush(SECONDS) == 0
        return values

    def expire(self, partition: int, before: int) -> None:
        """Delete what lies before an offset, as retention does."""
        place = TopicPartition(self.topic, partition, before)
        self._admin.delete_records([place])[place].result(SECONDS)

    def make_again(self) -> None:
        """Delete the topic and create another of its name."""
        self._admin.delete_topics([self.topic])[self.topic].result(SECONDS)
        deadline = Limit(SECONDS)
        while True:
            try:
                self._kafka.create_topic(self.topic, PARTITIONS)
            except Exception:
                if deadline.passed:
                    raise
                time.sleep(0.1)  # the deletion is carried out in the background
            else:
                return


@pytest.fixture
def place(kafka: EmbeddedKafka, zookeeper: EmbeddedZooKeeper, topic: Callable[..., str]) -> Place:
    return Place(kafka, zookeeper, topic(PARTITIONS))


def test_unreplayable_open_transaction_halts_its_partition(
    place: Place,
) -> None:
    """Promises 12 and 14: it says what differs, and writes nothing of what the log has instead."""
    place.publish(0)
    place.leave_open()
    place.expire(0, RECORDS // 2)
    rows = place.publish(1)
    account = place.run()
    assert list(account.halted) == [f"{place.topic}[0]"], "the other is read on"
    reason = account.halted[f"{place.topic}[0]"]
    assert f"transaction 1 was of offsets 0 to {RECORDS} ({RECORDS} records)" in reason
    assert f"the log holds {RECORDS // 2} to {RECORDS}" in reason
    assert place.sink.rows == rows
    place.publish(1)
    place.leave_open()
    place.make_again()
    for partition in [*range(PARTITIONS)] * 2:  # at least as many as there were
        place.publish(partition)
    with pytest.raises(ReplayDiffers, match=r"transaction \d+ .* deleted and created again"):
        place.run()
    assert place.sink.rows == rows
