"""The Kafka clients of the sinks: a cluster's topics, a producer, and one with transactions.

This module imports confluent_kafka, so the sinks import it when they open.
"""

# ruff: noqa: SLF001 - the public codes of KafkaError have such names

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

import structlog
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka import Message as Report
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    ConfigResource,
    NewTopic,
)

from sinks.kafka.messages import OutgoingMessage
from topology.errors import SinkError
from topology.sink import Scalar

log = structlog.get_logger()

_client_log = logging.getLogger("headrace.sinks.kafka")  # else librdkafka writes to stderr

_NONE: Mapping[str, Scalar] = {}
_ANSWER_SECONDS = 15.0
# Rejected credentials show within a second; a slow cluster gets more time.
_ASK_SECONDS = (1.0, 2.0, 4.0)
_LOG_SECONDS = 30.0
_SEND_SECONDS = 60  # until a message or a transaction has failed
_INIT_SECONDS = 60.0  # at least until an abandoned transaction of the name has timed out
_FLUSH_SECONDS = 15.0
_ABORT_SECONDS = 10.0
_ROOM_SECONDS = 0.1
_BY_KEY = -1  # librdkafka's name for the partitioner
# A batch exceeds the topic's limit only if a single message does.
_BATCH_BYTES = 262_144


def is_news(record: logging.LogRecord) -> bool:
    """Whether `error_cb` does not hear of a line of librdkafka's log, and it means something."""
    return not record.getMessage().startswith(("ERROR ", "FAIL ", "GETPID "))


_client_log.addFilter(is_news)


class ClientErrorLog:
    """Log a client's errors as one event, each kind at most once in 30 seconds.

    A client that cannot resolve a name reports that a thousand times a second. `refused` is the
    error by which a broker rejected our credentials, `last` the text of the newest error.
    Called by the thread that polls the client.
    """

    def __init__(self, event: str, topic: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._event = event
        self._topic = topic
        self._clock = clock
        self._next: dict[int, float] = {}
        self._suppressed: dict[int, int] = {}
        self.refused: KafkaError | None = None
        self.last = ""

    def take(self, error: KafkaError) -> None:
        kind, now = error.code(), self._clock()
        if kind == KafkaError._AUTHENTICATION:
            self.refused = error
        if kind == KafkaError._ALL_BROKERS_DOWN:  # it says less than the one before
            return
        self.last = error.str()
        if now < self._next.get(kind, 0.0):
            self._suppressed[kind] = self._suppressed.get(kind, 0) + 1
            return
        self._next[kind] = now + _LOG_SECONDS
        suppressed = self._suppressed.pop(kind, 0)
        log.warning(self._event, topic=self._topic, error=error.str(), held_back=suppressed)


class Cluster:
    """The topics of a cluster. `properties` are librdkafka's; `event` names the clients' errors.

    Every method that asks the cluster raises KafkaException when there is no answer.
    """

    def __init__(self, properties: Mapping[str, Scalar], event: str, topic: str) -> None:
        self._properties = properties
        self.errors = ClientErrorLog(event, topic)

    def conf(
        self, defaults: Mapping[str, Scalar] = _NONE, required: Mapping[str, Scalar] = _NONE
    ) -> dict[str, Any]:
        callbacks = {"error_cb": self.errors.take, "logger": _client_log}
        return {**defaults, **self._properties, **required, **callbacks}

    def admin(self) -> AdminClient:
        """Return a client for questions; it must outlive their answers."""
        return AdminClient(self.conf())

    def explain(self, error: Exception) -> str:
        return f"{text_of(error)}{self.errors.last and f' ({self.errors.last})'}"

    def partitions(self, topic: str) -> int:
        """Return how many partitions a topic has, 0 if it does not exist.

        Rejected credentials end it; the client reports them by its callback alone.
        """
        admin, failed = self.admin(), KafkaError(KafkaError._TIMED_OUT)
        for seconds in _ASK_SECONDS:
            try:
                # All topics: a broker may create a topic that it is asked for by name.
                found = admin.list_topics(timeout=seconds).topics.get(topic)
            except KafkaException as error:
                admin.poll(0)
                failed = self.errors.refused or error.args[0]
                if self.errors.refused is not None:
                    break
            else:
                return 0 if found is None else len(found.partitions)
        raise KafkaException(failed)

    def setting(self, topic: str, name: str) -> str:
        asked, admin = ConfigResource(ConfigResource.Type.TOPIC, topic), self.admin()
        answers = admin.describe_configs([asked], request_timeout=_ANSWER_SECONDS)
        return str(answers[asked].result(_ANSWER_SECONDS)[name].value)

    def create(self, topic: str, event: str, config: Mapping[str, str] | None = None) -> None:
        """Create a topic of one partition and log the event; do nothing if it exists."""
        admin = self.admin()
        new = NewTopic(topic, num_partitions=1, replication_factor=-1, config=dict(config or {}))
        created = admin.create_topics(
            [new], operation_timeout=_ANSWER_SECONDS, request_timeout=_ANSWER_SECONDS
        )
        try:
            created[topic].result(_ANSWER_SECONDS)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise
        else:
            log.info(event, topic=topic)


class NotSent(Exception):
    """The broker did not confirm every message; some may be stored."""


class PlainProducer:
    """Send messages at least once, without duplicates from librdkafka's retries. One thread."""

    def __init__(self, cluster: Cluster, max_bytes: int) -> None:
        required: dict[str, Scalar] = {"delivery.report.only.error": True}
        self._conf = _sending(cluster, max_bytes, required)
        self._producer: Producer | None = None

    def send(self, messages: Iterable[OutgoingMessage]) -> None:
        """Return when all in-sync replicas have every message. Raises NotSent, KafkaException."""
        if self._producer is None:
            self._producer = Producer(self._conf)
        errors: list[str] = []

        def on_delivery(error: KafkaError | None, _report: Report) -> None:
            if error is not None:
                errors.append(error.str())

        try:
            for message in messages:
                _produce(self._producer, message, on_delivery=on_delivery)
            left = self._producer.flush(2 * _SEND_SECONDS)
            if errors or left:
                why = errors[0] if errors else "no answer"
                count = len(errors) + left
                raise NotSent(f"{count} messages were not confirmed: {why}")  # noqa: TRY301
        except BaseException:
            self.close()  # the next producer does not retry what this one still holds
            raise

    def close(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            drop(producer)


class RecordMetadata(NamedTuple):
    partition: int
    offset: int


class NotOpened(SinkError):
    """Kafka does not begin transactions now."""


class TransactionFailed(Exception):
    """A transaction was not committed, or it is unknown whether it was."""


class NotAccepted(TransactionFailed):
    """The broker rejected a message. The transaction is aborted, and another may follow."""


class ProducerFenced(TransactionFailed):
    """A newer producer of the same name is open. It has ended the transaction.

    A commit that had begun may have been completed; any other transaction is aborted.
    """


class CommitUnknown(TransactionFailed):
    """No answer to the commit. Opening a producer of the same name decides it."""


class TransactionalProducer:
    """Send messages in transactions. One thread.

    `name` is the `transactional.id`. Opening a producer fences every older one of its name,
    completes the commit that one had begun and aborts any other transaction of its (KIP-98).
    Consumers of a topic wait behind its open transactions, which the broker aborts after
    `timeout_seconds`.
    """

    def __init__(
        self, cluster: Cluster, name: str, max_bytes: int, timeout_seconds: int = _SEND_SECONDS
    ) -> None:
        self.name = name
        self._cluster = cluster
        self._max_bytes = max_bytes
        self._timeout_seconds = timeout_seconds
        self._producer: Producer | None = None

    @property
    def is_open(self) -> bool:
        """Whether it may commit. After ProducerFenced and CommitUnknown it must be reopened."""
        return self._producer is not None

    def open(self) -> None:
        """Fence the others of this name. Raises NotOpened."""
        required: dict[str, Scalar] = {
            "transactional.id": self.name,
            "transaction.timeout.ms": self._timeout_seconds * 1000,
        }
        conf = _sending(self._cluster, self._max_bytes, required, self._timeout_seconds)
        producer = Producer(conf)
        try:
            producer.init_transactions(_INIT_SECONDS)
        except KafkaException as error:
            raise NotOpened(
                f"Kafka begins no transactions of '{self.name}': {self._cluster.explain(error)}. "
                "It needs a broker that answers, and the right to write under that "
                "transactional.id."
            ) from error
        self._producer = producer

    def commit(
        self,
        messages: Iterable[OutgoingMessage],
        then: Callable[[Sequence[RecordMetadata]], Iterable[OutgoingMessage]] | None = None,
    ) -> None:
        """Send messages in one transaction; `then` adds more once their offsets are known.

        Raises TransactionFailed.
        """
        if self._producer is None:
            raise CommitUnknown(f"producer '{self.name}' is not open")
        producer, is_committing = self._producer, False
        try:
            producer.begin_transaction()
            if then is not None:
                messages = then(_stored(producer, messages))
            for message in messages:
                _produce(producer, message)
            is_committing = True
            commit_with_retries(producer.commit_transaction)
        except KafkaException as error:
            code, text = error.args[0], text_of(error)
            if _is_fenced(code):
                self.close()
                raise ProducerFenced(text) from error
            if is_committing and not code.txn_requires_abort():
                self.close()
                raise CommitUnknown(text) from error
            self._abort(producer)
            raise NotAccepted(text) from error
        except BaseException:
            self._abort(producer)
            raise

    def close(self) -> None:
        """Drop the producer; a successor of its name ends a transaction that is still open."""
        producer, self._producer = self._producer, None
        if producer is not None:
            drop(producer)

    def _abort(self, producer: Producer) -> None:
        try:
            producer.purge()
            producer.abort_transaction(_ABORT_SECONDS)
        except KafkaException:
            self.close()


def text_of(error: Exception) -> str:
    """Return the text of a KafkaException's KafkaError, or of any other error."""
    inner = error.args[0] if error.args else error
    return inner.str() if isinstance(inner, KafkaError) else str(error)


def drop(producer: Producer) -> None:
    with suppress(KafkaException):  # a fenced producer raises in every call
        producer.purge()
        producer.poll(0)


def commit_with_retries(commit: Callable[[float], None]) -> None:
    ends = time.monotonic() + _SEND_SECONDS
    while True:
        try:
            commit(_SEND_SECONDS)
        except KafkaException as error:
            if not error.args[0].retriable() or time.monotonic() > ends:
                raise
        else:
            return


def _sending(
    cluster: Cluster,
    max_bytes: int,
    required: Mapping[str, Scalar],
    timeout_seconds: int = _SEND_SECONDS,
) -> dict[str, Any]:
    defaults: dict[str, Scalar] = {
        "linger.ms": 20,
        "batch.size": min(max_bytes, _BATCH_BYTES),
        "message.timeout.ms": timeout_seconds * 1000,
    }
    always: dict[str, Scalar] = {
        "acks": "all",
        "enable.idempotence": True,
        "message.max.bytes": max(max_bytes, 1_000),
    }
    return cluster.conf(defaults, {**always, **required})


def _produce(producer: Producer, message: OutgoingMessage, **options: Any) -> None:
    partition = _BY_KEY if message.partition is None else message.partition
    headers = list(message.headers) or None
    while True:
        try:
            producer.produce(
                message.topic, message.value, message.key, partition, headers=headers, **options
            )
        except BufferError:
            producer.poll(_ROOM_SECONDS)
        else:
            return


def _stored(producer: Producer, messages: Iterable[OutgoingMessage]) -> list[RecordMetadata]:
    stored: dict[int, RecordMetadata] = {}
    errors: list[KafkaError] = []

    def on_delivery(number: int, error: KafkaError | None, report: Report) -> None:
        if error is None:
            stored[number] = RecordMetadata(report.partition() or 0, report.offset() or 0)
        else:
            errors.append(error)

    for number, message in enumerate(messages):
        _produce(producer, message, on_delivery=partial(on_delivery, number))
    left = producer.flush(_FLUSH_SECONDS)
    if left and not errors:
        errors.append(KafkaError(KafkaError._TIMED_OUT, f"{left} messages without an answer"))
    if errors:
        raise KafkaException(errors[0])
    return [stored[number] for number in range(len(stored))]


def _is_fenced(error: KafkaError) -> bool:
    """Whether another producer has taken the name over, or ours is unusable."""
    ended = {
        KafkaError._FENCED,
        KafkaError._FATAL,
        KafkaError.INVALID_PRODUCER_EPOCH,
        KafkaError.INVALID_PRODUCER_ID_MAPPING,
    }
    return error.fatal() or error.code() in ended
