"""Two producers: one that sends at least once, one that sends in transactions.

Both are given up after any error that is not about a single message; the one that follows knows
what became of what they had sent: nothing (at least once), or what the broker says (transactions).
"""

import time
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from sinks.topic.cluster import Cluster, said
from sinks.topic.messages import Message

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Producer
    from confluent_kafka import Message as Report

_SEND_SECONDS = 60  # a message, or a transaction, that takes longer has failed
_INIT_SECONDS = 60.0  # at least as long as a transaction that has to be waited for
_ROOM_SECONDS = 0.1


class TransactionLost(Exception):
    """What became of it is decided when a producer of the same name has been opened."""


class NotSent(Exception):
    """The broker did not confirm every message; some may be there."""


class PlainProducer:
    """Sends messages at least once, without duplicates of its own making. One thread."""

    def __init__(self, cluster: Cluster, max_bytes: int) -> None:
        self._cluster = cluster
        self._max_bytes = max_bytes
        self._producer: Producer | None = None
        self._errors: list[str] = []

    def send(self, messages: Iterable[Message]) -> None:
        """Return when all in-sync replicas have all of them. Raises NotSent, KafkaException."""
        from confluent_kafka import Producer  # noqa: PLC0415 - see sinks/__init__

        if self._producer is None:
            conf = sending(self._cluster, self._max_bytes)
            self._producer = Producer(conf | {"delivery.report.only.error": True})
        self._errors.clear()
        try:
            _produce(self._producer, messages, on_delivery=self._on_delivery)
            left = self._producer.flush(2 * _SEND_SECONDS)
            if self._errors or left:
                count = len(self._errors) + left
                why = self._errors[0] if self._errors else "no answer"
                raise NotSent(f"{count} messages were not confirmed: {why}")  # noqa: TRY301
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Let go of the producer without waiting."""
        if self._producer is not None:
            let_go(self._producer)
            self._producer = None

    def _on_delivery(self, error: "KafkaError | None", _report: "Report") -> None:
        if error is not None:
            self._errors.append(error.str())


class TransactionalProducer:
    """Sends messages so that all of them become visible, or none. One thread.

    Opening it fences every other one of its name: what that had not committed is aborted, and
    what it was committing has ended (KIP-98).
    """

    def __init__(self, cluster: Cluster, name: str, max_bytes: int) -> None:
        self.name = name
        self.is_lost = False  # after any error: it must be opened anew
        self._cluster = cluster
        self._max_bytes = max_bytes
        self._producer: Producer | None = None

    def open(self) -> None:
        """Fence the others and be ready. Raises KafkaException."""
        from confluent_kafka import Producer  # noqa: PLC0415

        conf = sending(self._cluster, self._max_bytes)
        conf |= {"transactional.id": self.name, "transaction.timeout.ms": _SEND_SECONDS * 1000}
        self._producer = Producer(conf)
        try:
            self._producer.init_transactions(_INIT_SECONDS)
        except BaseException:
            self.close()
            raise

    def commit(self, messages: Iterable[Message]) -> None:
        """Send them in one transaction. Raises TransactionLost, also when it was fenced."""
        from confluent_kafka import KafkaException  # noqa: PLC0415

        if self._producer is None:
            raise TransactionLost(f"producer '{self.name}' is not open")
        try:
            self._producer.begin_transaction()
            _produce(self._producer, messages)
            patiently(self._producer.commit_transaction)
        except KafkaException as error:
            self.close()
            raise TransactionLost(said(error)) from error
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Let go of the producer; a transaction that is open is left to whoever comes next."""
        self.is_lost = True
        if self._producer is not None:
            let_go(self._producer)
            self._producer = None


def sending(cluster: Cluster, max_bytes: int) -> dict[str, Any]:
    """The properties of a producer whose messages have at most so many bytes."""
    conf = cluster.conf(
        acks="all", enable_idempotence=True, message_max_bytes=max(max_bytes, 1_000)
    )
    defaults = {
        "linger.ms": 20,
        # Small enough that a batch is too large for the topic only if a single message is.
        "batch.size": min(max_bytes, 262_144),
        "message.timeout.ms": _SEND_SECONDS * 1000,
    }
    return defaults | conf


def _produce(producer: "Producer", messages: Iterable[Message], **options: Any) -> None:
    for message in messages:
        while True:
            try:
                producer.produce(
                    message.topic,
                    value=message.value,
                    key=message.key,
                    headers=list(message.headers) or None,
                    **options,
                )
            except BufferError:
                producer.poll(_ROOM_SECONDS)
            else:
                break


def patiently(commit: Any) -> None:
    """Call it again as long as it asks for that, which librdkafka says by `retriable`."""
    from confluent_kafka import KafkaException  # noqa: PLC0415

    ends = time.monotonic() + _SEND_SECONDS
    while True:
        try:
            commit(_SEND_SECONDS)
        except KafkaException as error:
            if not error.args[0].retriable() or time.monotonic() > ends:
                raise
        else:
            return


def let_go(producer: "Producer") -> None:
    """Drop what a producer still has to send, without waiting."""
    from confluent_kafka import KafkaException  # noqa: PLC0415

    with suppress(KafkaException):  # that it was fenced is told again, by whatever is called
        producer.purge()
        producer.poll(0)
