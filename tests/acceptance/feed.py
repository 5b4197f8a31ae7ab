"""Issues the records' ids, and publishes them while replicas come and go."""

import threading
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Self, TypeAlias
from zlib import crc32

from confluent_kafka import KafkaError, Message, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions

from service.devservers.servers import EmbeddedKafka
from tests.acceptance.stored import Part
from tests.support.patience import seconds, until

Ends: TypeAlias = dict[Part, int]  # by partition: so many records of it, from the first on

_PAUSE_SECONDS = 0.05
_FLUSH_SECONDS = seconds(60.0)
_TOPIC_SECONDS = seconds(20.0)


def payload(id_: str) -> int:
    return crc32(id_.encode())


def is_refused(offset: int) -> bool:
    """Whether the fault topologies send a record to the dead letters."""
    return offset % 10 == 7


def row(part: Part, offset: int) -> str:
    id_ = _id(part, offset)
    return f"{id_} {payload(id_)}"


def place(row: str) -> tuple[Part, int]:
    topic, number, offset = row.split(" ", maxsplit=1)[0].split(":")
    return (topic, int(number)), int(offset)


class Feed:
    """Topics of the test's own, and one record more in each partition twenty times a second.

    A record's id names its topic, partition and offset: nobody else publishes there, and the
    broker's answers are compared. `ends` may be read at any time, from any thread.
    """

    def __init__(self, kafka: EmbeddedKafka) -> None:
        self._kafka = kafka
        self._ends: Ends = {}
        self._wrong: list[str] = []
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._producer = Producer(
            {
                "bootstrap.servers": kafka.address,
                "enable.idempotence": True,  # so that an id is its record's place
                "linger.ms": 5,
                "log_level": 3,
            }
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.stop()
        del self._producer  # it would complain of a broker that is gone

    def create(self, topic: str, partitions: int) -> None:
        self._kafka.create_topic(topic, partitions)
        self._add(topic, range(partitions))

    def grow(self, topic: str, partitions: int) -> None:
        admin = AdminClient({"bootstrap.servers": self._kafka.address})
        admin.create_partitions([NewPartitions(topic, partitions)])[topic].result(_TOPIC_SECONDS)
        known = sum(each == topic for each, _ in self.ends())
        self._add(topic, range(known, partitions))

    def publish(self, count: int) -> None:
        """Publish so many records to each partition; return when the broker has them."""
        for _ in range(count):
            self._publish_one_each()
        assert self._producer.flush(_FLUSH_SECONDS) == 0
        assert not self._wrong, self._wrong[0]

    def start(self) -> None:
        self._ended.clear()
        self._thread = threading.Thread(target=self._run, name="feed", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Publish nothing more; return when the broker has everything. Idempotent."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self.publish(0)

    def ends(self) -> Ends:
        with self._lock:
            return dict(self._ends)

    @property
    def parts(self) -> frozenset[Part]:
        return frozenset(self.ends())

    def _add(self, topic: str, numbers: Iterable[int]) -> None:
        wanted = set(numbers)
        until(
            f"the producer knows of {topic}'s partitions",
            lambda: wanted <= set(self._producer.list_topics(topic, 10).topics[topic].partitions),
        )
        with self._lock:
            self._ends |= {(topic, number): 0 for number in sorted(wanted)}

    def _run(self) -> None:
        while not self._ended.wait(_PAUSE_SECONDS):
            self._publish_one_each()

    def _publish_one_each(self) -> None:
        with self._lock:
            for part, offset in self._ends.items():
                topic, number = part
                self._producer.produce(
                    topic,
                    _id(part, offset),
                    partition=number,
                    on_delivery=lambda error, message, at=offset: self._answered(
                        error, message, at
                    ),
                )
                self._ends[part] = offset + 1
        self._producer.poll(0)

    def _answered(self, error: KafkaError | None, message: Message, offset: int) -> None:
        if error is not None or message.offset() != offset:
            where = f"{message.topic()}[{message.partition()}]"
            self._wrong.append(f"{where}: {error or message.offset()} in place of {offset}")


def rows(ends: Mapping[Part, int]) -> Counter[str]:
    return Counter(row(part, offset) for part, end in ends.items() for offset in range(end))


def _id(part: Part, offset: int) -> str:
    topic, number = part
    return f"{topic}:{number}:{offset}"
