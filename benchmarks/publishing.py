"""Publishes many small records quickly."""

from collections.abc import Callable, Iterator
from typing import Any

from confluent_kafka import KafkaError, Producer

from service.embedded.kafka import EmbeddedKafka

PARTITIONS = 4
_AT_ONCE = 10_000
_QUEUE = 1_000_000
_FLUSH_SECONDS = 60.0


def publish(
    kafka: EmbeddedKafka,
    topic: str,
    value_of: Callable[[int], bytes],
    records: int,
    *,
    partitions: int = PARTITIONS,
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Create the topic and put `value_of(0)`, `value_of(1)`, … into its partitions in turn.

    Record n is in partition n % partitions, at offset n // partitions. Raises SystemExit if
    the broker does not take them all.
    """
    kafka.create_topic(topic, partitions)
    failed: list[KafkaError] = []

    def told(error: KafkaError | None, _message: object) -> None:
        if error is not None:
            failed.append(error)

    producer = Producer(
        {
            "bootstrap.servers": kafka.address,
            "enable.idempotence": True,
            "compression.type": "lz4",
            "linger.ms": 50,
            "batch.size": 1_000_000,
            "queue.buffering.max.messages": _QUEUE,
            "delivery.report.only.error": True,
            "on_delivery": told,
            "log_level": 3,
        }
    )
    taken, batch = 0, list[dict[str, Any]]()
    for done, batch in _batches(value_of, records, partitions):
        while len(producer) > _QUEUE - _AT_ONCE:  # what did not fit would come out of order
            producer.poll(0.05)
        taken = producer.produce_batch(topic, batch)
        if taken < len(batch) or failed:
            break
        producer.poll(0)
        if progress:
            progress(done, records)
    if producer.flush(_FLUSH_SECONDS) or failed or taken < len(batch):
        raise SystemExit(f"{topic}: the broker did not take all of {records} records: {failed[:1]}")


def _batches(
    value_of: Callable[[int], bytes], records: int, partitions: int
) -> Iterator[tuple[int, list[dict[str, Any]]]]:
    for first in range(0, records, _AT_ONCE):
        end = min(first + _AT_ONCE, records)
        yield end, [{"value": value_of(n), "partition": n % partitions} for n in range(first, end)]
