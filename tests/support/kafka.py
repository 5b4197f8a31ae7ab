"""Kafka, real and in memory, behind the same few verbs, for the fetcher's and catalogue's tests."""

import random
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaError as Code
from confluent_kafka import KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions

from partition.errors import KafkaError
from partition.interfaces import Catalogue, Fetched, Fetcher, Log
from partition.kafka.kafka_catalogue import KafkaCatalogue
from partition.kafka.kafka_fetcher import KafkaFetcher
from partition.memory.ports import MemoryCatalogue, MemoryFetcher
from partition.records import Chunk, Partition, Position
from service.devservers.servers import EmbeddedKafka
from tests.support.faulty_kafka import FaultyLog
from tests.support.patience import Limit, seconds, until

SECONDS = seconds(30.0)
Headers = Sequence[tuple[str, bytes | None]]
# The client hears of a topic's end and a new beginning soon.
BRISK = {
    "topic.metadata.refresh.interval.ms": 500,
    "topic.metadata.propagation.max.ms": 500,
    "statistics.interval.ms": 500,
}


class LogWorld:
    topic: Callable[..., str]
    fetcher: Callable[..., Any]
    catalogue: Callable[..., Any]
    append: Callable[..., None]

    def __init__(self) -> None:
        self.opened: list[Any] = []

    def keep(self, made: Any) -> Any:
        self.opened.append(made)
        made.open()
        return made

    def close(self) -> None:
        for each in self.opened:
            each.close()

    def log(self, partition: Partition) -> Log:
        if not hasattr(self, "_asking"):
            self._asking: Catalogue = self.catalogue()
        return self._asking.log(partition).result(SECONDS)

    def filled(self, count: int) -> Partition:
        partition = Partition(self.topic(), 0)
        self.append(partition, numbers(count))
        return partition

    def reading(
        self, positions: Mapping[Partition, int | Position], **properties: Any
    ) -> "Reading":
        reading = Reading(self.fetcher(**properties))
        reading.add(positions)
        return reading


class MemoryLogWorld(LogWorld):
    def __init__(self) -> None:
        super().__init__()
        self.memory = FaultyLog()
        self.made = 0

    def topic(self, partitions: int = 1) -> str:
        self.made += 1
        self.memory.create_topic(f"t-{self.made}", partitions)
        return f"t-{self.made}"

    def fetcher(self) -> Any:
        return self.keep(MemoryFetcher(self.memory))

    def catalogue(self) -> Any:
        return self.keep(MemoryCatalogue(self.memory))

    def append(self, partition: Partition, values: Sequence[bytes]) -> None:
        for value in values:
            self.memory.append(partition, value)

    def append_one(
        self,
        partition: Partition,
        value: bytes | None,
        key: bytes | None,
        headers: Headers,
        ms: int,
    ) -> None:
        self.memory.append(partition, value, key=key, headers=headers, timestamp_ms=ms)

    def gap(self, partition: Partition) -> int:
        self.memory.append_gap(partition)
        return self.memory.log_range(partition)[1]

    def delete_before(self, partition: Partition, offset: int) -> None:
        self.memory.delete_before(partition, offset)

    def delete_topic(self, topic: str) -> None:
        self.memory.delete_topic(topic)

    def recreate_topic(self, topic: str, partitions: int = 1) -> None:
        self.memory.recreate_topic(topic, partitions)

    def add_partitions(self, topic: str, count: int) -> None:
        self.memory.add_partitions(topic, count)

    def corrupt(self, partition: Partition, offset: int, value: bytes) -> None:
        self.memory.corrupt(partition, offset)

    def truncate(self, cuts: Mapping[Partition, int]) -> None:
        for partition, end in cuts.items():
            self.memory.truncate(partition, end)


class TellingFetcher(KafkaFetcher):
    """Keeps its client's last statistics, for whoever looks for the reason of a failure."""

    told = ""

    def _on_statistics(self, statistics: str) -> None:
        self.told = statistics
        super()._on_statistics(statistics)

    def __str__(self) -> str:
        return f"unchecked {self._unchecked}, paused {self._paused}, statistics {self.told}"


class KafkaWorld(LogWorld):
    def __init__(self, kafka: EmbeddedKafka) -> None:
        super().__init__()
        self.kafka = kafka
        self.properties: dict[str, Any] = {"bootstrap.servers": kafka.address}

    def topic(self, partitions: int = 1, config: Mapping[str, str] | None = None) -> str:
        name = f"t-{uuid.uuid4().hex[:12]}"
        self.kafka.create_topic(name, partitions, config=config or {})
        return name

    def fetcher(self, **properties: Any) -> KafkaFetcher:
        return self.keep(TellingFetcher({**self.properties, **BRISK, **properties}))

    def catalogue(self, **options: Any) -> KafkaCatalogue:
        return self.keep(KafkaCatalogue(self.properties, **options))

    def append(self, partition: Partition, values: Sequence[bytes], **properties: Any) -> None:
        producer = Producer({**self.properties, "linger.ms": 20, **properties})
        for count, value in enumerate(values):
            producer.produce(partition.topic, value, partition=partition.number)
            if count % 1000 == 0:
                producer.poll(0)
        assert producer.flush(SECONDS) == 0

    def append_one(
        self,
        partition: Partition,
        value: bytes | None,
        key: bytes | None,
        headers: Headers,
        ms: int,
    ) -> None:
        producer = Producer(self.properties)
        producer.produce(
            partition.topic,
            value,
            key,
            partition=partition.number,
            headers=list(headers),
            timestamp=ms,
        )
        assert producer.flush(SECONDS) == 0

    def gap(self, partition: Partition) -> int:
        """A marker: that of a transaction which committed one record.

        It is written some time after the commit has been answered.
        """
        end = self.log(partition).end
        self.transaction(partition, [b"committed"], commit=True)
        return end + 2

    def transaction(self, partition: Partition, values: Sequence[bytes], *, commit: bool) -> None:
        producer = self.begin(partition, values)
        if commit:
            producer.commit_transaction(SECONDS)
        else:
            producer.abort_transaction(SECONDS)

    def begin(self, partition: Partition, values: Sequence[bytes]) -> Producer:
        producer = Producer({**self.properties, "transactional.id": f"x-{partition.topic}"})
        producer.init_transactions(SECONDS)
        producer.begin_transaction()
        for value in values:
            producer.produce(partition.topic, value, partition=partition.number)
        assert producer.flush(SECONDS) == 0
        return producer

    def admin(self) -> AdminClient:
        return AdminClient(dict(self.properties))

    def delete_before(self, partition: Partition, offset: int) -> None:
        place = TopicPartition(partition.topic, partition.number, offset)
        admin = self.admin()  # must outlive the answer
        admin.delete_records([place])[place].result(SECONDS)

    def delete_topic(self, topic: str) -> None:
        admin = self.admin()
        admin.delete_topics([topic])[topic].result(SECONDS)

    def recreate_topic(self, topic: str, partitions: int = 1) -> None:
        self.delete_topic(topic)
        end = Limit(SECONDS)
        while True:
            try:
                self.kafka.create_topic(topic, partitions)
            except KafkaException:  # its deletion is not everywhere yet
                assert not end.passed
            else:
                return

    def add_partitions(self, topic: str, count: int) -> None:
        admin = self.admin()
        present = len(admin.list_topics(topic, timeout=SECONDS).topics[topic].partitions)
        admin.create_partitions([NewPartitions(topic, present + count)])[topic].result(SECONDS)

    def directory(self, partition: Partition) -> Path:
        return self.kafka.state_dir / "kafka-data" / f"{partition.topic}-{partition.number}"

    def corrupt(self, partition: Partition, offset: int, value: bytes) -> None:
        """Flip a bit of a record's value on the broker's disk; its whole batch is lost by it."""
        with (self.directory(partition) / "00000000000000000000.log").open("r+b") as segment:
            segment.seek(segment.read().index(value))
            segment.write(bytes([value[0] ^ 1]))

    def truncate(self, cuts: Mapping[Partition, int]) -> None:
        """Cut logs off at a batch that begins at the offset, as an unclean election does.

        The broker is stopped for it; its own knowledge of where its epochs begin stays.
        """
        self.kafka.close()
        for partition, end in cuts.items():
            directory = self.directory(partition)
            cut_segment(directory / "00000000000000000000.log", end)
            for path in directory.iterdir():
                if path.suffix in {".index", ".timeindex", ".snapshot", ".txnindex"}:
                    path.unlink()
        self.kafka.open()


def cut_segment(path: Path, end: int) -> None:
    """Drop the batches from an offset on. A batch: base offset (8 bytes), length (4), the rest."""
    data = path.read_bytes()
    at = 0
    while at < len(data) and int.from_bytes(data[at : at + 8], "big") < end:
        at += 12 + int.from_bytes(data[at + 8 : at + 12], "big")
    assert at < len(data), "there is nothing to be cut off"
    path.write_bytes(data[:at])


class Reading:
    """What a fetcher has given, checked for order on the way."""

    def __init__(self, fetcher: Fetcher) -> None:
        self.fetcher = fetcher
        self.messages: dict[Partition, list[Any]] = {}
        self.epochs: dict[Partition, list[tuple[int, int]]] = {}
        self.ends: dict[Partition, int] = {}
        self.failures: dict[Partition, KafkaError] = {}

    def add(self, positions: Mapping[Partition, int | Position]) -> None:
        for partition in positions:
            self.failures.pop(partition, None)
        self.fetcher.add(
            {p: Position(at) if isinstance(at, int) else at for p, at in positions.items()}
        )

    def again(self, positions: Mapping[Partition, int | Position]) -> None:
        self.fetcher.remove(positions)
        for partition in positions:
            self.messages.pop(partition, None)
            self.ends.pop(partition, None)
        self.add(positions)

    def take(self, fetched: Fetched) -> None:
        assert len({chunk.partition for chunk in fetched.chunks}) == len(fetched.chunks)
        for chunk in fetched.chunks:
            self._take_chunk(chunk)
        for partition, end in fetched.ends.items():
            assert partition not in self.failures
            assert end > max(self.offsets(partition), default=-1)
        assert not fetched.failures.keys() & self.failures.keys(), "a failure is told once"
        self.ends.update(fetched.ends)
        self.failures.update(fetched.failures)

    def _take_chunk(self, chunk: Chunk) -> None:
        messages: list[Any] = list(chunk.messages)
        assert chunk.partition not in self.failures
        assert len(chunk.offsets) == len(messages)
        assert [m.offset() for m in messages] == chunk.offsets.tolist()
        assert {(m.topic(), m.partition()) for m in messages} == {chunk.partition}
        epochs = dict(chunk.leader_epochs)
        assert next(iter(epochs)) == chunk.offsets[0]
        for first, epoch in chunk.leader_epochs:
            at = chunk.offsets.tolist().index(first)
            assert messages[at].leader_epoch() == epoch
            assert at == 0 or messages[at - 1].leader_epoch() < epoch
        self.epochs.setdefault(chunk.partition, []).extend(chunk.leader_epochs)
        self.messages.setdefault(chunk.partition, []).extend(messages)

    def offsets(self, partition: Partition) -> list[int]:
        return [message.offset() for message in self.messages.get(partition, [])]

    def values(self, partition: Partition) -> list[Any]:
        return [message.value() for message in self.messages.get(partition, [])]

    def until(self, done: Callable[[], bool], max_records: int = 1000) -> None:
        until(
            "the condition", done, SECONDS,
            lambda: f"{[*self.messages]}, ends {self.ends}, failed {self.failures}, {self.fetcher}",
            lambda: self.take(self.fetcher.fetch(max_records, 0.1)),
        )  # fmt: skip

    def quiet(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.take(self.fetcher.fetch(1000, 0.1))


def numbers(count: int, start: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(start, start + count)]


class FakeClient:
    """Delivers each partition's offsets in order, as librdkafka does, from where it is seated."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self.next: dict[tuple[str, int], int] = {}
        self.paused: set[tuple[str, int]] = set()
        self.refused_seeks = 0

    def incremental_assign(self, seats: Sequence[TopicPartition]) -> None:
        self.next |= {(seat.topic, seat.partition): seat.offset for seat in seats}

    def incremental_unassign(self, seats: Sequence[TopicPartition]) -> None:
        for seat in seats:
            del self.next[seat.topic, seat.partition]

    def pause(self, seats: Sequence[TopicPartition]) -> None:
        self.paused |= {(seat.topic, seat.partition) for seat in seats}

    def resume(self, seats: Sequence[TopicPartition]) -> None:
        self.paused -= {(seat.topic, seat.partition) for seat in seats}

    def seek(self, seat: TopicPartition) -> None:
        if self.refused_seeks:
            self.refused_seeks -= 1
            raise KafkaException(Code(Code._STATE))
        self.next[seat.topic, seat.partition] = seat.offset

    def list_topics(self, *_asked: Any, **_limits: Any) -> Any:
        raise KafkaException(Code(Code._TRANSPORT))  # as it does after a while

    def close(self) -> None:
        pass

    def consume(self, num_messages: int, _timeout: float) -> list[Message]:
        messages: list[Message] = []
        places = [place for place in self.next if place not in self.paused]
        while places and len(messages) < num_messages and self._rng.random() < 0.97:
            place = self._rng.choice(places)
            for _ in range(min(num_messages - len(messages), self._rng.randint(1, 5))):
                offset = self.next[place]
                messages.append(Message(*place, offset, value=b"x"))
                self.next[place] += 1
        return messages


def fetcher_on(client: Any) -> KafkaFetcher:
    fetcher = KafkaFetcher({})
    fetcher._client = client
    return fetcher
