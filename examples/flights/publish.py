"""Puts the flights into a Kafka topic, with a few malformed records among them on purpose.

python -m examples.flights.publish 127.0.0.1:9092 flights
"""

import sys
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

import pyarrow as pa
from confluent_kafka import KafkaError, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from examples.flights import tables
from examples.flights.malformed import Row, damaged, encode

PARTITIONS = 4
MALFORMED = 50
TIMEOUT_SECONDS = 60.0
_ROWS_AT_ONCE = 10_000


@dataclass(frozen=True, slots=True)
class Published:
    """What one call put into the topic."""

    total: int
    malformed: int
    per_partition: dict[int, int]


class Outgoing(NamedTuple):
    """One message on its way."""

    partition: int
    key: bytes
    value: bytes | None
    timestamp_ms: int


class NotPublished(Exception):
    """The broker did not take every record."""

    def __init__(self, failed: int, first: str) -> None:
        super().__init__(f"{failed} records were not published; the first because: {first}")
        self.failed = failed


def publish(
    bootstrap: str,
    topic: str,
    *,
    progress: Callable[[int, int], None] | None = None,
    limit: int | None = None,
    repeat: int = 1,
    malformed: int = MALFORMED,
) -> Published:
    """Create the topic if there is none and append every flight, in the order of the CSV.

    `limit` takes only the first flights; `repeat` publishes them, and the malformed ones,
    so many times. `progress` is told the records handed over so far and their total.
    Returns when the broker has all of them. Raises NotPublished if it did not take them,
    KafkaException if it cannot be reached.
    """
    create_topic(bootstrap, topic)
    flights = tables.flights().slice(0, limit)
    total = (flights.num_rows + malformed) * repeat
    errors: list[KafkaError] = []
    producer = _producer(bootstrap, errors)
    per_partition: Counter[int] = Counter()
    for chunk in _chunks(flights, malformed, repeat):
        _produce(producer, topic, chunk)
        per_partition.update(message.partition for message in chunk)
        if progress:
            progress(per_partition.total(), total)
        if errors:
            break
    left = producer.flush(TIMEOUT_SECONDS)
    if left or errors:
        first = errors[0].str() if errors else f"no answer in {TIMEOUT_SECONDS:g} seconds"
        raise NotPublished(left + len(errors), first)
    return Published(total, malformed * repeat, dict(sorted(per_partition.items())))


def create_topic(bootstrap: str, topic: str) -> None:
    """Create the topic, unless it exists. Raises KafkaException.

    Its records are kept for good: they are dated 2013, so a topic with Kafka's usual
    retention of seven days would delete them at once.
    """
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 3})
    existing = admin.list_topics(timeout=TIMEOUT_SECONDS).topics
    if topic not in existing:
        new = NewTopic(topic, PARTITIONS, 1, config={"retention.ms": "-1"})
        admin.create_topics([new])[topic].result(TIMEOUT_SECONDS)


def messages(flights: pa.Table, malformed: int = MALFORMED) -> Iterator[Outgoing]:
    """Each flight as a message, keyed by its carrier and dated with its scheduled hour.

    The malformed ones stand among them at even distances, over all partitions in turn;
    each is a damaged copy of the flight it stands before. The same call always gives the
    same messages.
    """
    places = [number * flights.num_rows // malformed for number in range(malformed)]
    damage_at = Counter(places)
    number = 0
    for index, (row, timestamp_ms) in enumerate(_rows(flights)):
        for _ in range(damage_at.get(index, 0)):
            key = f"malformed-{number}".encode()
            yield Outgoing(number % PARTITIONS, key, damaged(row, number), timestamp_ms)
            number += 1
        key = row["carrier"].encode()
        yield Outgoing(partition_of(key), key, encode(row), timestamp_ms)


def partition_of(key: bytes) -> int:
    """Where a key belongs, as librdkafka's own partitioner would have it."""
    return zlib.crc32(key) % PARTITIONS


def _rows(flights: pa.Table) -> "Iterator[tuple[Row, int]]":
    for batch in flights.to_batches(max_chunksize=_ROWS_AT_ONCE):
        hours = batch.column("time_hour").cast(pa.timestamp("ms", tz="UTC"))
        yield from zip(batch.to_pylist(), hours.cast(pa.int64()).to_pylist(), strict=True)


def _chunks(flights: pa.Table, malformed: int, repeat: int) -> Iterator[list[Outgoing]]:
    for _ in range(repeat):
        left = messages(flights, malformed)
        while chunk := list(islice(left, _ROWS_AT_ONCE)):
            yield chunk


def _producer(bootstrap: str, errors: list[KafkaError]) -> Producer:
    def told(error: KafkaError | None, _message: object) -> None:
        if error is not None:
            errors.append(error)

    return Producer(
        {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "compression.type": "lz4",
            "linger.ms": 50,
            "batch.size": 1_000_000,
            "delivery.report.only.error": True,  # no call back for each of 336,776 successes
            "on_delivery": told,
            "log_level": 3,
        }
    )


def _produce(producer: Producer, topic: str, chunk: list[Outgoing]) -> None:
    for partition, key, value, timestamp_ms in chunk:
        while True:
            try:
                producer.produce(topic, value, key, partition, timestamp=timestamp_ms)
                break
            except BufferError:  # the producer's queue is full: let it send some
                producer.poll(0.1)
    producer.poll(0)


def _main() -> None:
    if len(sys.argv) != 3:  # noqa: PLR2004  # the two arguments and the program itself
        raise SystemExit("usage: python -m examples.flights.publish BOOTSTRAP TOPIC")
    published = publish(sys.argv[1], sys.argv[2])
    print(f"{published.total:,} records, {published.malformed} of them malformed on purpose")
    for partition, count in published.per_partition.items():
        print(f"  partition {partition}: {count:,}")


if __name__ == "__main__":
    _main()
