"""What partitions hold between two offsets, read once and in order, for commands."""

import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

from confluent_kafka import Consumer, KafkaException, Message, TopicPartition

from partition.errors import KafkaFailed, KafkaMisconfigured, KafkaUnavailable
from partition.kafka.complaints import Complaints
from partition.kafka.errors import EOF, code_of, failure_of, is_refused
from partition.kafka.properties import Scalar, consumer_properties
from partition.records import Partition

_AT_ONCE = 1_000  # messages
_POLL_SECONDS = 0.2
_PATIENCE_SECONDS = 30.0
_CLOSE_SECONDS = 10.0
_SMALL: Mapping[str, Scalar] = {
    "isolation.level": "read_committed",  # what was aborted has never been there
    "auto.offset.reset": "earliest",  # what has expired meanwhile is passed over
    "queued.max.messages.kbytes": 16_384,
    "fetch.wait.max.ms": 50,
}


class Excerpts:
    """Reads committed messages of any partition, as a member of no group. One thread.

    `properties` are librdkafka's, as the fetcher's. Waits at most `patience_seconds` for the next
    message, then raises KafkaUnavailable.
    """

    def __init__(
        self, properties: Mapping[str, Scalar], *, patience_seconds: float = _PATIENCE_SECONDS
    ) -> None:
        self._properties = dict(properties)
        self._patience_seconds = patience_seconds
        self._complaints = Complaints()
        self._client: Consumer | None = None

    def open(self) -> None:
        """Make the client; brokers are contacted in the background. Raises KafkaMisconfigured."""
        if self._client is not None:
            return
        properties: dict[str, Any] = {
            **consumer_properties(self._properties),
            **_SMALL,
            "error_cb": lambda error: self._complaints.warn(
                "kafka_trouble", error.name(), error.str()
            ),
            "logger": self._complaints,
        }
        try:
            self._client = Consumer(properties)
        except KafkaException as error:
            raise KafkaMisconfigured(code_of(error).str()) from error

    def read(self, partition: Partition, start: int, end: int) -> Iterator[Message]:
        """Read the messages from `start` up to before `end`, in order.

        `end` is one that the log has reached; offsets without a message are passed over, also
        where they have expired. Ends the reading that went before. Raises KafkaUnavailable,
        KafkaFailed, TopicMissing, and CorruptRecord.
        """
        client = self._client
        if client is None:
            raise KafkaFailed("the reader is not open")
        if start >= end:
            return
        client.assign([TopicPartition(partition.topic, partition.number, start)])
        position, heard_at = start, time.monotonic()
        while position < end:
            received = client.consume(_AT_ONCE, _POLL_SECONDS)
            if received:
                heard_at = time.monotonic()
            elif time.monotonic() - heard_at > self._patience_seconds:
                what = f"for {partition} from offset {position} on"
                reason = f"no message in {self._patience_seconds:g} seconds"
                raise KafkaUnavailable(what, reason)
            for message in received:
                told = _told(partition, position, message)
                # The end of a partition is told with the offset behind all that there is.
                position = (message.offset() or 0) + (told is not None)
                if position > end:  # written since it was asked how far the log goes
                    break
                if told is not None and position > start:
                    yield told
        client.unassign()

    def close(self) -> None:
        """Let go of the client, in 10 seconds at most: librdkafka can hang in it. Idempotent."""
        client, self._client = self._client, None
        if client is not None:
            closing = threading.Thread(target=client.close, name="kafka-close", daemon=True)
            closing.start()
            closing.join(_CLOSE_SECONDS)


def _told(partition: Partition, position: int, message: Message) -> Message | None:
    """The message; None at the end of the partition. Raises what it tells of."""
    error = message.error()
    if error is None:
        return message
    if error.code() == EOF:
        return None
    if is_refused(error):
        raise KafkaFailed(f"Kafka refuses to read {partition}: {error.str()} ({error.name()})")
    raise failure_of(partition, position, error)
