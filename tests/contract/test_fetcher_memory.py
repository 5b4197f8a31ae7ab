"""What the Kafka client fetches ahead is bounded in bytes, by what it is told."""

import subprocess
import sys
import textwrap

import pytest
from confluent_kafka import Producer

from tests.support.kafka import KafkaWorld
from tests.support.patience import seconds

pytestmark = pytest.mark.integration
RECORDS, BYTES, PARTITIONS = 25_000, 2048, 8  # 51 MB
READER = """
    import os, sys, time
    from partition.records import Partition
    from partition.kafka.kafka_fetcher import KafkaFetcher
    from partition.records import Position

    def resident():
        with open("/proc/self/statm") as pages:
            return int(pages.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    address, topic, count, kbytes = sys.argv[1:]
    properties = {"bootstrap.servers": address}
    if kbytes != "default":
        properties["queued.max.messages.kbytes"] = int(kbytes)
    fetcher = KafkaFetcher(properties)
    fetcher.open()
    before = resident()
    fetcher.add({Partition(topic, number): Position(0) for number in range(int(count))})
    while not fetcher.fetch(1, 1.0).chunks:
        pass
    grown, steady = 0, 0
    while steady < 10:  # a second in which nothing more was fetched ahead
        time.sleep(0.1)
        now = resident() - before
        steady = steady + 1 if now - grown < 500_000 else 0
        grown = max(grown, now)
    print(grown)
    fetcher.close()
"""


def grown(world: KafkaWorld, topic: str, kbytes: str) -> int:
    """How many bytes a process grows by that reads one record and no more."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(READER), world.kafka.address, topic,
         str(PARTITIONS), kbytes],
        capture_output=True, text=True, timeout=seconds(60), check=True,
    )  # fmt: skip
    return int(done.stdout)


def test_what_is_fetched_ahead_is_bounded_by_its_property(real):
    """Promise 10; Faults section 5: memory of the prefetch follows queued.max.messages.kbytes."""
    topic = real.topic(PARTITIONS)
    producer = Producer({"bootstrap.servers": real.kafka.address, "linger.ms": 50})
    for number in range(RECORDS):
        producer.produce(topic, b"x" * BYTES, partition=number % PARTITIONS)
        if number % 1000 == 0:
            producer.poll(0)
    assert producer.flush(seconds(60)) == 0
    little, much = grown(real, topic, "4096"), grown(real, topic, "65536")
    assert little < 30_000_000
    assert much > little + 20_000_000
    assert much < 100_000_000
    assert grown(real, topic, "default") < 50_000_000
