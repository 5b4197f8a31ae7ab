"""Publishes many small records quickly."""

from collections.abc import Callable, Sequence

from confluent_kafka import KafkaError, Producer

from service.devservers.servers import EmbeddedKafka

PARTITIONS = 4
_AT_ONCE = 10_000
_QUEUE = 1_000_000
_FLUSH_SECONDS = 60.0


class Sender:
    """Sends lists of at most 10,000 records to a topic: to its partitions in turn, in order.

    Record n goes to partition n % partitions. Raises SystemExit if the broker does not take them
    all; after `flush` it has.
    """

    def __init__(
        self, address: str, topic: str, partitions: int = PARTITIONS, *, linger_ms: int = 50
    ) -> None:
        self._topic = topic
        self._partitions = partitions
        self._sent = 0
        self._failed = failed = list[KafkaError]()

        def told(error: KafkaError | None, _message: object) -> None:
            if error is not None:
                failed.append(error)  # a method would keep the client, and so us, alive

        self._producer = Producer(
            {
                "bootstrap.servers": address,
                "enable.idempotence": True,
                "compression.type": "lz4",
                "linger.ms": linger_ms,
                "batch.size": 1_000_000,
                "queue.buffering.max.messages": _QUEUE,
                "delivery.report.only.error": True,
                "on_delivery": told,
                "log_level": 3,
            }
        )

    def send(self, values: Sequence[bytes]) -> None:
        """Send the next records, when there is room."""
        while len(self._producer) > _QUEUE - _AT_ONCE:  # what did not fit would be out of order
            self._producer.poll(0.05)
        taken = 0
        for place in range(min(self._partitions, len(values))):
            # The partition of the whole call counts; one that a message names is ignored.
            part = [{"value": value} for value in values[place :: self._partitions]]
            number = (self._sent + place) % self._partitions
            taken += self._producer.produce_batch(self._topic, part, number)
        self._sent += len(values)
        self._producer.poll(0)
        self._check(left=len(values) - taken)

    def flush(self) -> None:
        """Wait until the broker has everything."""
        self._check(left=self._producer.flush(_FLUSH_SECONDS))

    def _check(self, *, left: int) -> None:
        if left or self._failed:
            raise SystemExit(
                f"{self._topic}: the broker did not take all records: {self._failed[:1]}"
            )


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
    sender = Sender(kafka.address, topic, partitions)
    for first in range(0, records, _AT_ONCE):
        end = min(first + _AT_ONCE, records)
        sender.send([value_of(number) for number in range(first, end)])
        if progress:
            progress(end, records)
    sender.flush()
