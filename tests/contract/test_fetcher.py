"""One suite for every Fetcher: the one in memory and the one on Kafka."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from partition.chunk import Chunk, Partition
from partition.errors import (
    KafkaFailed,
    KafkaUnavailable,
    OffsetOutOfRange,
    PartitionError,
    TopicMissing,
)
from partition.fetcher import Fetched, Fetcher
from partition.kafka import KafkaFetcher
from partition.kafka_properties import FORCED
from partition.memory import MemoryFetcher, MemoryLog
from service.embedded.kafka import EmbeddedKafka

SECONDS = 30.0
Headers = Sequence[tuple[str, bytes | None]]


class MemoryWorld:
    def __init__(self) -> None:
        self.log = MemoryLog()
        self.fetchers: list[Fetcher] = []
        self.made = 0

    def topic(self, partitions: int = 1) -> str:
        self.made += 1
        self.log.create_topic(f"t-{self.made}", partitions)
        return f"t-{self.made}"

    def fetcher(self) -> Fetcher:
        self.fetchers.append(MemoryFetcher(self.log))
        self.fetchers[-1].open()
        return self.fetchers[-1]

    def append(self, partition: Partition, values: Sequence[bytes]) -> None:
        for value in values:
            self.log.append(partition, value)

    def append_one(
        self,
        partition: Partition,
        value: bytes | None,
        key: bytes | None,
        headers: Headers,
        ms: int,
    ) -> None:
        self.log.append(partition, value, key=key, headers=headers, timestamp_ms=ms)

    def gap(self, partition: Partition) -> int:
        self.log.append_gap(partition)
        return self.log.log_range(partition)[1]

    def delete_before(self, partition: Partition, offset: int) -> None:
        self.log.delete_before(partition, offset)

    def close(self) -> None:
        for fetcher in self.fetchers:
            fetcher.close()


class KafkaWorld:
    def __init__(self, kafka: EmbeddedKafka, topic: Callable[..., str]) -> None:
        self.kafka = kafka
        self.topic = topic
        self.fetchers: list[Fetcher] = []
        self.properties: Mapping[str, Any] = {"bootstrap.servers": kafka.address}

    def fetcher(self, **properties: Any) -> KafkaFetcher:
        fetcher = KafkaFetcher({**self.properties, **properties})
        self.fetchers.append(fetcher)
        fetcher.open()
        return fetcher

    def append(self, partition: Partition, values: Sequence[bytes]) -> None:
        producer = Producer({**self.properties, "linger.ms": 20})
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
        end = self.fetcher().log_range(partition)[1]
        self.transaction(partition, [b"committed"], commit=True)
        return end + 2

    def transaction(self, partition: Partition, values: Sequence[bytes], *, commit: bool) -> None:
        producer = Producer({**self.properties, "transactional.id": f"x-{partition.topic}"})
        producer.init_transactions(SECONDS)
        producer.begin_transaction()
        for value in values:
            producer.produce(partition.topic, value, partition=partition.number)
        producer.flush(SECONDS)
        if commit:
            producer.commit_transaction(SECONDS)
        else:
            producer.abort_transaction(SECONDS)

    def delete_before(self, partition: Partition, offset: int) -> None:
        place = TopicPartition(partition.topic, partition.number, offset)
        admin = AdminClient(dict(self.properties))  # must outlive the answer
        admin.delete_records([place])[place].result(SECONDS)

    def close(self) -> None:
        for fetcher in self.fetchers:
            fetcher.close()


@pytest.fixture(params=["memory", pytest.param("kafka", marks=pytest.mark.integration)])
def world(request: pytest.FixtureRequest) -> Iterator[Any]:
    if request.param == "memory":
        made: Any = MemoryWorld()
    else:
        made = KafkaWorld(request.getfixturevalue("kafka"), request.getfixturevalue("topic"))
    yield made
    made.close()


@pytest.fixture
def real(kafka: EmbeddedKafka, topic: Callable[..., str]) -> Iterator[KafkaWorld]:
    made = KafkaWorld(kafka, topic)
    yield made
    made.close()


class Reading:
    """What a fetcher has given, checked for order on the way."""

    def __init__(self, fetcher: Fetcher) -> None:
        self.fetcher = fetcher
        self.messages: dict[Partition, list[Any]] = {}
        self.ends: dict[Partition, int] = {}

    def take(self, fetched: Fetched) -> None:
        assert len({chunk.partition for chunk in fetched.chunks}) == len(fetched.chunks)
        for chunk in fetched.chunks:
            assert len(chunk.offsets) == len(chunk.messages)
            assert [m.offset() for m in chunk.messages] == chunk.offsets.tolist()
            assert {(m.topic(), m.partition()) for m in chunk.messages} == {chunk.partition}
            self.messages.setdefault(chunk.partition, []).extend(chunk.messages)
        for partition, end in fetched.ends.items():
            assert end > max(self.offsets(partition), default=-1)
        self.ends.update(fetched.ends)

    def offsets(self, partition: Partition) -> list[int]:
        return [message.offset() for message in self.messages.get(partition, [])]

    def values(self, partition: Partition) -> list[Any]:
        return [message.value() for message in self.messages.get(partition, [])]

    def until(self, done: Callable[[], bool], max_records: int = 1000) -> None:
        end = time.monotonic() + SECONDS
        while not done():
            assert time.monotonic() < end, f"only {self.messages.keys()}, ends {self.ends}"
            self.take(self.fetcher.fetch(max_records, 0.1))


def values(count: int, start: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(start, start + count)]


def wait_for(fetcher: Fetcher, what: type[PartitionError]) -> PartitionError:
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        try:
            fetcher.fetch(100, 0.1)
        except what as error:
            return error
    raise AssertionError(f"{what} was not raised")


def test_partitions_are_listed_in_order(world: Any) -> None:
    topic = world.topic(12)
    assert world.fetcher().partitions(topic) == [Partition(topic, n) for n in range(12)]


def test_a_topic_that_does_not_exist_is_named(world: Any) -> None:
    with pytest.raises(TopicMissing, match="no-such-topic"):
        world.fetcher().partitions("no-such-topic")


def test_the_logs_range_gives_the_offsets_to_start_from(world: Any) -> None:
    a = Partition(world.topic(), 0)
    fetcher = world.fetcher()
    assert fetcher.log_range(a) == (0, 0)
    world.append(a, values(5))
    world.delete_before(a, 2)
    assert fetcher.log_range(a) == (2, 5)
    assert fetcher.start_offset(a, "earliest") == 2
    assert fetcher.start_offset(a, "latest") == 5


def test_records_come_in_order_and_the_end_is_told(world: Any) -> None:
    a = Partition(world.topic(), 0)
    world.append(a, values(2500))
    reading = Reading(world.fetcher())
    reading.fetcher.assign({a: 0})
    reading.until(lambda: a in reading.ends)
    assert reading.offsets(a) == list(range(2500))
    assert reading.values(a) == values(2500)
    assert reading.ends == {a: 2500}
    assert reading.fetcher.available
    world.append(a, values(1))
    reading.until(lambda: reading.ends[a] == 2501)


def test_a_call_returns_as_soon_as_there_is_something(world: Any) -> None:
    a = Partition(world.topic(), 0)
    world.append(a, values(3))
    reading = Reading(world.fetcher())
    reading.fetcher.assign({a: 0})
    started = time.monotonic()
    while not reading.messages:
        reading.take(reading.fetcher.fetch(1000, SECONDS))
    assert time.monotonic() - started < SECONDS / 2


def test_no_call_gives_more_than_it_was_asked_for(world: Any) -> None:
    a, b = (Partition(world.topic(), 0), Partition(world.topic(), 0))
    world.append(a, values(50))
    world.append(b, values(50))
    fetcher = world.fetcher()
    fetcher.assign({a: 0, b: 0})
    reading = Reading(fetcher)
    while len(reading.offsets(a)) + len(reading.offsets(b)) < 100:
        fetched = fetcher.fetch(7, 0.1)
        assert sum(len(chunk) for chunk in fetched.chunks) <= 7
        reading.take(fetched)
    assert reading.offsets(a) == reading.offsets(b) == list(range(50))


def test_partitions_of_several_topics_are_kept_apart(world: Any) -> None:
    one, two = world.topic(2), world.topic(2)
    places = [Partition(one, 0), Partition(one, 1), Partition(two, 0), Partition(two, 1)]
    for start, place in enumerate(places):
        world.append(place, values(300, 1000 * start))
    reading = Reading(world.fetcher())
    reading.fetcher.assign(dict.fromkeys(places, 0))
    reading.until(lambda: len(reading.ends) == 4)
    for start, place in enumerate(places):
        assert reading.values(place) == values(300, 1000 * start)
        assert reading.ends[place] == 300


def test_reading_starts_at_the_position_given(world: Any) -> None:
    a = Partition(world.topic(), 0)
    world.append(a, values(10))
    reading = Reading(world.fetcher())
    reading.fetcher.assign({a: 6})
    reading.until(lambda: a in reading.ends)
    assert reading.offsets(a) == [6, 7, 8, 9]


def test_a_gap_at_the_logs_end_is_passed_by_the_end(world: Any) -> None:
    """Promise 11: gaps never block the frontier, also when no record follows them."""
    a = Partition(world.topic(), 0)
    world.append(a, values(2))
    end = world.gap(a)
    reading = Reading(world.fetcher())
    reading.fetcher.assign({a: 0})
    reading.until(lambda: reading.ends.get(a) == end)
    assert max(reading.offsets(a)) < end - 1
    world.append(a, values(1))
    reading.until(lambda: reading.ends.get(a) == end + 1)
    assert reading.offsets(a)[-1] == end


def test_an_empty_log_has_an_end(world: Any) -> None:
    a = Partition(world.topic(), 0)
    reading = Reading(world.fetcher())
    reading.fetcher.assign({a: 0})
    reading.until(lambda: reading.ends == {a: 0})


@pytest.mark.parametrize("position", [1, 900])
def test_a_position_that_the_log_does_not_hold_is_an_error(world: Any, position: int) -> None:
    """Promise 12: out of range is told, never resolved by skipping."""
    a, b = Partition(world.topic(), 0), Partition(world.topic(), 0)
    world.append(a, values(10))
    world.append(b, values(10))
    world.delete_before(a, 4)
    reading = Reading(world.fetcher())
    reading.fetcher.assign({a: position, b: 0})
    raised: list[OffsetOutOfRange] = []
    end = time.monotonic() + SECONDS
    while (not raised or b not in reading.ends) and time.monotonic() < end:
        try:
            reading.take(reading.fetcher.fetch(100, 0.1))
        except OffsetOutOfRange as error:
            raised.append(error)
    assert (raised[0].partition, raised[0].offset) == (a, position)
    assert reading.offsets(b) == list(range(10))
    assert reading.offsets(a) == []
    reading.fetcher.assign({a: 4, b: 10})
    reading.until(lambda: a in reading.ends)
    assert reading.offsets(a) == list(range(4, 10))


def test_a_record_keeps_everything(world: Any) -> None:
    a = Partition(world.topic(), 0)
    world.append_one(a, None, None, [], 1_700_000_000_123)
    world.append_one(a, b"", b"", [("h", b"1"), ("h", None), ("i", b"")], 1_700_000_000_456)
    reading = Reading(world.fetcher())
    reading.fetcher.assign({a: 0})
    reading.until(lambda: a in reading.ends)
    first, second = reading.messages[a]
    assert (first.value(), first.key(), first.headers(), len(first)) == (None, None, None, 0)
    assert (second.value(), second.key()) == (b"", b"")
    assert second.headers() == [("h", b"1"), ("h", None), ("i", b"")]
    assert first.timestamp() == (1, 1_700_000_000_123)
    assert second.timestamp() == (1, 1_700_000_000_456)
    assert first.error() is None


def test_pausing_loses_and_repeats_nothing(world: Any) -> None:
    topic = world.topic(2)
    a, b = Partition(topic, 0), Partition(topic, 1)
    world.append(a, values(4000))
    world.append(b, values(4000))
    fetcher = world.fetcher()
    fetcher.assign({a: 0, b: 0})
    reading = Reading(fetcher)
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


def test_a_new_assignment_drops_what_was_fetched_for_the_old_one(world: Any) -> None:
    topic = world.topic(2)
    a, b = Partition(topic, 0), Partition(topic, 1)
    c = Partition(world.topic(), 0)
    for place in (a, b, c):
        world.append(place, values(3000))
    fetcher = world.fetcher()
    fetcher.assign({a: 0, b: 0})
    reading = Reading(fetcher)
    reading.until(lambda: a in reading.messages or b in reading.messages, max_records=10)
    for positions in ({a: 2000}, {a: 5, c: 1000}, {a: 1500, b: 2500}, {c: 0}, {a: 0}):
        fetcher.assign(positions)
        reading = Reading(fetcher)
        reading.until(lambda: bool(reading.messages), max_records=10)  # noqa: B023
        for place, found in reading.messages.items():
            start = positions[place]
            assert reading.offsets(place) == list(range(start, start + len(found)))
    reading.until(lambda: a in reading.ends)
    assert reading.offsets(a) == list(range(3000))


def test_a_new_assignment_is_not_paused(world: Any) -> None:
    a = Partition(world.topic(), 0)
    world.append(a, values(3))
    fetcher = world.fetcher()
    fetcher.assign({a: 0})
    fetcher.pause(a)
    fetcher.assign({a: 0})
    reading = Reading(fetcher)
    reading.until(lambda: a in reading.ends)
    assert reading.offsets(a) == [0, 1, 2]


def test_without_an_assignment_nothing_comes(world: Any) -> None:
    a = Partition(world.topic(), 0)
    world.append(a, values(3))
    fetcher = world.fetcher()
    fetcher.assign({a: 0})
    fetcher.assign({})
    assert fetcher.fetch(10, 0.05) == Fetched()
    fetcher.close()
    fetcher.close()


@pytest.mark.integration
def test_markers_of_committed_and_aborted_transactions_are_passed(real: KafkaWorld) -> None:
    """Promise 11: the end lies past the markers, so the lag can reach zero."""
    a = Partition(real.topic(), 0)
    real.transaction(a, values(5), commit=True)
    real.transaction(a, values(5), commit=False)
    fetcher = real.fetcher()
    reading = Reading(fetcher)
    fetcher.assign({a: 0})
    reading.until(lambda: reading.ends.get(a) == 12)
    assert reading.offsets(a) == [0, 1, 2, 3, 4]
    assert fetcher.log_range(a) == (0, 12)
    real.transaction(a, values(2), commit=True)
    reading.until(lambda: reading.ends.get(a) == 15)
    assert reading.offsets(a)[5:] == [12, 13]


@pytest.mark.parametrize("key", FORCED)
def test_a_property_that_the_promises_rest_on_cannot_be_set(key: str) -> None:
    fetcher = KafkaFetcher({"bootstrap.servers": "127.0.0.1:1", key: "true"})
    with pytest.raises(KafkaFailed, match=key):
        fetcher.open()


def test_an_unknown_property_is_named() -> None:
    with pytest.raises(KafkaFailed, match=r"no\.such\.property"):
        KafkaFetcher({"bootstrap.servers": "127.0.0.1:1", "no.such.property": 1}).open()


@pytest.fixture
def own_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedKafka]:
    """A broker of the test's own, to be stopped; its topic is `t`."""
    server = EmbeddedKafka(tmp_path_factory.mktemp("kafka"))
    server.open()
    try:
        server.create_topic("t", 1)
        yield server
    finally:
        server.close()


@pytest.mark.integration
def test_a_broker_that_is_away_gives_nothing_and_raises_nothing(own_broker: EmbeddedKafka) -> None:
    """Promise 15: with Kafka away the service waits, and goes on where it was."""
    own = KafkaWorld(own_broker, lambda: "t")
    a = Partition("t", 0)
    own.append(a, values(3))
    fetcher = own.fetcher(**{"reconnect.backoff.max.ms": 500})
    fetcher.assign({a: 0})
    reading = Reading(fetcher)
    reading.until(lambda: a in reading.ends)
    assert fetcher.available
    own_broker.close()
    reading.until(lambda: not fetcher.available)
    with pytest.raises(KafkaUnavailable):
        fetcher.log_range(a)
    own_broker.open()
    reading.until(lambda: fetcher.available)
    own.append(a, values(3))
    reading.until(lambda: reading.ends[a] == 6)
    assert reading.offsets(a) == list(range(6))
    own.close()


@pytest.mark.integration
def test_records_prefetched_before_an_outage_do_not_hide_it(own_broker: EmbeddedKafka) -> None:
    own = KafkaWorld(own_broker, lambda: "t")
    a = Partition("t", 0)
    own.append(a, values(2000))
    fetcher = own.fetcher(**{"reconnect.backoff.max.ms": 500})
    fetcher.assign({a: 0})
    reading = Reading(fetcher)
    reading.until(lambda: len(reading.offsets(a)) >= 10, max_records=10)
    own_broker.close()
    seen = []

    def has_all() -> bool:
        time.sleep(0.02)  # slowly, so that the outage is noticed amid the records
        seen.append(fetcher.available)
        return len(reading.offsets(a)) == 2000 and not fetcher.available

    reading.until(has_all, max_records=10)
    first = seen.index(False)
    assert not any(seen[first:]), "no record of before the outage says that a broker answers"
    own.close()


@pytest.mark.integration
def test_a_topic_deleted_while_it_is_read_is_named(real: KafkaWorld) -> None:
    a = Partition(real.topic(), 0)
    real.append(a, values(3))
    fetcher = real.fetcher(
        **{"topic.metadata.refresh.interval.ms": 500, "topic.metadata.propagation.max.ms": 500}
    )
    fetcher.assign({a: 0})
    reading = Reading(fetcher)
    reading.until(lambda: a in reading.ends)
    admin = AdminClient(dict(real.properties))  # must outlive the answer
    admin.delete_topics([a.topic])[a.topic].result(SECONDS)
    assert a.topic in str(wait_for(fetcher, TopicMissing))


def events(messages: list[Message], fetcher: KafkaFetcher) -> Any:
    class Client(Consumer):
        def consume(self, num_messages: int = 1, timeout: float = -1) -> list[Message]:
            taken, messages[:] = messages[:num_messages], messages[num_messages:]
            return taken

    fetcher._client = Client({"group.id": "x", "bootstrap.servers": "127.0.0.1:1"})


def message(place: Partition, offset: int, error: int | None = None) -> Message:
    return Message(
        topic=place.topic,
        partition=place.number,
        offset=offset,
        value=b"v",
        error=None if error is None else KafkaError(error),
    )


def chunks(found: list[Chunk]) -> dict[Partition, list[int]]:
    return {chunk.partition: chunk.offsets.tolist() for chunk in found}


def test_runs_of_one_partition_become_one_chunk_and_stale_records_are_dropped() -> None:
    a, b, gone = Partition("t", 0), Partition("t", 1), Partition("t", 2)
    fetcher = KafkaFetcher({"bootstrap.servers": "127.0.0.1:1"})
    fetcher.open()
    fetcher.assign({a: 5, b: 0})
    order = [(a, 3), (a, 5), (b, 0), (gone, 9), (b, 4), (a, 6), (a, 6), (a, 5), (a, 9), (b, 5)]
    events([message(place, offset) for place, offset in order], fetcher)
    fetched = fetcher.fetch(100, 0)
    assert chunks(fetched.chunks) == {a: [5, 6, 9], b: [0, 4, 5]}
    events([message(a, 9), message(a, 10)], fetcher)
    assert chunks(fetcher.fetch(100, 0).chunks) == {a: [10]}
    fetcher.close()


def test_an_error_among_records_is_raised_after_them() -> None:
    a, b = Partition("t", 0), Partition("t", 1)
    fetcher = KafkaFetcher({"bootstrap.servers": "127.0.0.1:1"})
    fetcher.open()
    fetcher.assign({a: 0, b: 7})
    bad = message(b, -1, KafkaError._BAD_MSG)
    events([message(a, 0), bad, message(a, 1), message(a, 2, KafkaError._PARTITION_EOF)], fetcher)
    fetched = fetcher.fetch(100, 0)
    assert chunks(fetched.chunks) == {a: [0, 1]}
    assert fetched.ends == {a: 2}
    with pytest.raises(PartitionError, match=r"t\[1\] has a corrupt record at or after offset 7"):
        fetcher.fetch(100, 0)
    events([message(b, -1, KafkaError.TOPIC_AUTHORIZATION_FAILED)], fetcher)
    with pytest.raises(KafkaFailed, match="AUTHORIZATION"):
        fetcher.fetch(100, 0)
    fetcher.close()
