"""Publishes many small records quickly."""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Self

from confluent_kafka import KafkaError, Producer

from benchmarks.child import Job
from benchmarks.orders import Orders
from service.devservers.servers import EmbeddedKafka

PARTITIONS = 4
_AT_ONCE = 10_000
_QUEUE = 1_000_000
_FLUSH_SECONDS = 60.0
_TICK_SECONDS = 0.01
_LINGER_MS = 5
_END_SECONDS = 60.0


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


class Publisher:
    """The process that fills a job's topic, once it is told to. Use it in a `with`."""

    def __init__(self, job: Job, per_second: int) -> None:
        self._job = job
        self._per_second = per_second
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()

    def start(self) -> None:
        if self._process is None:
            job = self._job
            told = [job.kafka, job.topic, str(job.records), str(self._per_second)]
            command = [sys.executable, "-m", "benchmarks.publishing", *told]
            self._process = subprocess.Popen(command, stdout=subprocess.PIPE)

    def check(self) -> None:
        """Raise SystemExit if it has failed, so that nobody waits for records for ever."""
        if self._process is not None and self._process.poll():
            raise SystemExit("the publisher has failed")

    def per_second(self) -> float:
        """The rate that it has kept. Raises SystemExit if it has failed or not begun."""
        if self._process is None:
            raise SystemExit("the publisher was not started")
        self._process.wait(_END_SECONDS)
        self.check()
        assert self._process.stdout is not None  # noqa: S101 - it is a pipe
        seconds: float = json.loads(self._process.stdout.read())["seconds"]
        return self._job.records / seconds


def due(seconds: float, per_second: int, records: int) -> int:
    """Return the number of records due `seconds` after the first."""
    return min(records, 1 + int(seconds * per_second))


def main() -> None:
    kafka, topic, records, per_second = (
        sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]),
    )  # fmt: skip
    orders = Orders()
    sender = Sender(kafka, topic, linger_ms=_LINGER_MS)
    done, began = 0, time.monotonic()
    while done < records:
        end = min(due(time.monotonic() - began, per_second, records), done + _AT_ONCE)
        made_at = time.time_ns() // 1_000_000
        sender.send([orders.value(number, made_at) for number in range(done, end)])
        done = end
        time.sleep(_TICK_SECONDS)
    sender.flush()
    print(json.dumps({"seconds": time.monotonic() - began}))


if __name__ == "__main__":
    main()
