"""Kafka's answers that a topic is unknown: of a broker that has not heard of it, and for good."""

import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import pytest
from confluent_kafka import KafkaError, Producer

from partition.assignment import AssignmentPolicy
from partition.consumer import Consumer, ConsumerPolicy
from partition.errors import TopicMissing
from partition.kafka.kafka_fetcher import KafkaFetcher
from partition.memory.ports import MemoryCatalogue
from partition.records import Partition, offset_of
from partition.recovery import Ways
from tests.support.faulty_kafka import FaultyLog
from tests.support.faulty_store import FaultyStore
from tests.support.kafka import BRISK
from tests.support.mock_kafka import MockKafka

SECONDS = 30.0


class SlowCatalogue(MemoryCatalogue):
    """It takes as long as a request takes; the mocked cluster answers no admin client."""

    def _ask(self, what: str, answer: Callable[[], Any]) -> Future[Any]:
        future: Future[Any] = Future()
        told = super()._ask(what, answer)
        relay = threading.Timer(
            0.05, lambda: told.add_done_callback(lambda _: relayed(told, future))
        )
        relay.start()
        return future


def relayed(told: Future[Any], future: Future[Any]) -> None:
    error = told.exception()
    future.set_result(told.result()) if error is None else future.set_exception(error)


class Reading:
    """A reader of a topic of two partitions, on the real client and a cluster that is told to err.

    What the cluster holds stands in `log`, too, and that is what the catalogue tells.
    """

    def __init__(self, kafka: MockKafka) -> None:
        self.kafka = kafka
        self.log = FaultyLog({"t": 2})
        kafka.create_topic("t", 2)
        self.producer = Producer({"bootstrap.servers": kafka.address, "log_level": 2})
        self.fetcher = KafkaFetcher({"bootstrap.servers": kafka.address, **BRISK})
        self.read: list[int] = []
        done: Future[None] = Future()
        done.set_result(None)
        self.reader = Consumer(
            self.fetcher,
            Ways(FaultyStore(), SlowCatalogue(self.log), lambda _loss: done),
            ["t"],
            ConsumerPolicy(AssignmentPolicy()),
            random.Random(1),
        )
        self.reader.open()

    def send(self, count: int) -> None:
        for number in range(count):
            self.producer.produce("t", b"x", partition=number % 2)
            self.log.append(Partition("t", number % 2), b"x")
        assert self.producer.flush(SECONDS) == 0

    def until(self, ask: Callable[[], bool]) -> None:
        end = time.monotonic() + SECONDS
        while not ask():
            assert time.monotonic() < end, (len(self.read), self.reader.assignment.halted)
            self.reader.poll(now := time.monotonic())
            while (emission := self.reader.next_chunk(now)) is not None:
                self.read += [offset_of(each) for each in emission[1].tolist()]
            self.reader.fetch(now, 0.02)

    @property
    def is_told(self) -> bool:
        return not self.fetcher._next


@pytest.fixture
def reading() -> Iterator[Reading]:
    with MockKafka() as kafka:
        made = Reading(kafka)
        yield made
        made.reader.close()


def test_a_topic_that_is_unknown_for_a_moment_is_read_on(reading: Reading) -> None:
    """Faults K05: and what is in flight of it does not hold it up."""
    reading.send(4)
    reading.until(lambda: len(reading.read) == 4)
    reading.kafka.answer_for("t", KafkaError.UNKNOWN_TOPIC_OR_PART)
    reading.until(lambda: reading.is_told)
    reading.kafka.answer_for("t", 0)
    reading.send(6)
    reading.until(lambda: len(reading.read) == 10)
    assert sorted(reading.read) == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    assert not reading.reader.assignment.halted


def test_a_topic_that_stays_unknown_ends_a_run_that_has_no_other(reading: Reading) -> None:
    reading.send(4)
    reading.until(lambda: len(reading.read) == 4)
    reading.kafka.answer_for("t", KafkaError.UNKNOWN_TOPIC_OR_PART)
    reading.log.delete_topic("t")
    with pytest.raises(TopicMissing):
        reading.until(lambda: False)
