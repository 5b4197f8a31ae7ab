"""How librdkafka's client is used: its limits, its requests, its properties, its group."""

import json

import pytest
from confluent_kafka import Consumer, TopicPartition

from partition.errors import KafkaFailed
from partition.kafka.kafka_fetcher import KafkaFetcher
from partition.kafka.librdkafka import DEFAULTS, FORCED, consumer_properties
from partition.records import Partition, Position
from tests.support.kafka import SECONDS, Reading, numbers


@pytest.mark.integration
def test_a_record_larger_than_every_limit_of_the_client_still_comes(real):
    """Storm 24: a record larger than what is fetched at once is no silent stall.

    Faults K11: it arrives whole; what to do with it is decided later.
    """
    a = Partition(real.topic(config={"max.message.bytes": "10000000"}), 0)
    sent = [b"small", b"x" * 3_000_000, b"small"]
    real.append(a, sent, **{"message.max.bytes": 10_000_000})
    limits = {
        "message.max.bytes": 1000,
        "fetch.message.max.bytes": 1000,
        "fetch.max.bytes": 1000,
        "max.partition.fetch.bytes": 1000,
        "queued.max.messages.kbytes": 1,
    }
    reading = real.reading({a: 0}, **limits)
    reading.until(lambda: a in reading.ends)
    assert reading.values(a) == sent


class Counted(KafkaFetcher):
    requests = 0

    def _on_statistics(self, statistics: str) -> None:
        super()._on_statistics(statistics)
        brokers = json.loads(statistics)["brokers"].values()
        self.requests = sum(broker["req"].get("Fetch", 0) for broker in brokers)


@pytest.mark.integration
def test_an_idle_log_is_asked_seldom(real):
    """Storm 28: brokers hold a request until there is something, so idling is no flood."""
    a = Partition(real.topic(), 0)
    fetcher = real.keep(Counted({**real.properties, "statistics.interval.ms": 200}))
    reading = Reading(fetcher)
    reading.add({a: 0})
    reading.until(lambda: a in reading.ends and fetcher.requests > 0)
    before = fetcher.requests
    reading.quiet(3)
    assert 1 <= fetcher.requests - before <= 12


@pytest.mark.integration
def test_mirrored_offsets_are_seen_by_other_clients(real):
    topic = real.topic(2)
    a, b = Partition(topic, 0), Partition(topic, 1)
    real.append(a, numbers(10))
    reading = real.reading({a: 0, b: 0}, **{"group.id": f"g-{topic}"})
    fetcher = reading.fetcher
    reading.until(lambda: a in reading.ends)
    other = Consumer({**real.properties, "group.id": f"g-{topic}"})
    places = [TopicPartition(topic, 0), TopicPartition(topic, 1)]

    def committed() -> list[tuple[int, int | None]]:
        return [(each.offset, each.leader_epoch) for each in other.committed(places, SECONDS)]

    for offset in range(1, 6):
        fetcher.mirror({a: Position(offset, 0)})
    fetcher.mirror({b: Position(0)})
    reading.until(lambda: committed() == [(5, 0), (0, None)])
    fetcher.mirror({a: Position(6, 0)})
    fetcher.mirror({a: Position(7, 0)})
    fetcher.close()
    assert committed()[0] == (7, 0), "also the last ones before it was closed"
    assert fetcher.mirror_failures == 0
    other.close()


def test_properties_that_the_promises_rest_on_cannot_be_set():
    assert consumer_properties(dict.fromkeys(FORCED, "true")) == {**DEFAULTS, **FORCED}


def test_an_unknown_property_is_named():
    with pytest.raises(KafkaFailed, match=r"no\.such\.property"):
        KafkaFetcher({"bootstrap.servers": "127.0.0.1:1", "no.such.property": 1}).open()
