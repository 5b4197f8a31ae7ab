"""Dead letters in a Kafka topic: the original bytes, and headers that say what happened.

Header names that begin with `headrace.` are ours. A letter has its record's own headers first,
then `TOPIC` and what follows it, so nothing that a record brings is taken for our word.
"""

# ruff: noqa: SLF001 - the public codes of KafkaError have such names

import hashlib
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from enum import IntEnum
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import structlog

from topology.errors import SinkFailed
from topology.masking import mask, secrets_in
from topology.record import HeadersUnreadable
from topology.sink import (
    DeadLetter,
    DeadLetterSink,
    Delivered,
    RangeNotice,
    Scalar,
    SinkContext,
    is_of_trace,
)

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message, Producer

log = structlog.get_logger()

Header: TypeAlias = tuple[str, bytes | None]

TOPIC = "headrace.topic"  # the first of the headers that say what happened
REASON = "headrace.reason"
ERROR_AT = "headrace.error_at"  # only if the user's code raised the error
VALUE_SIZE = "headrace.value_size"  # only if the value was left out
VALUE_SHA256 = "headrace.value_sha256"
KEY_SIZE = "headrace.key_size"  # only if the key was left out, too
KEY_SHA256 = "headrace.key_sha256"
HEADERS_ERROR = "headrace.headers_error"  # only if the record's headers could not be read

# The headers of a record that was sent again.
ORIGIN_TOPIC = "headrace.origin.topic"
ORIGIN_PARTITION = "headrace.origin.partition"
ORIGIN_OFFSET = "headrace.origin.offset"
ORIGIN_TIMESTAMP_MS = "headrace.origin.timestamp_ms"
REPLAYS = "headrace.replays"
REPLAYED_FROM = "headrace.replayed_from"
REPLAYED_AT_MS = "headrace.replayed_at_ms"
REPLAY_HEADERS = (
    ORIGIN_TOPIC,
    ORIGIN_PARTITION,
    ORIGIN_OFFSET,
    ORIGIN_TIMESTAMP_MS,
    REPLAYS,
    REPLAYED_FROM,
    REPLAYED_AT_MS,
)

_LONGEST_BYTES = 2048  # of a header
_SHORT_BYTES = 128
_LONGEST_REPLAY_BYTES = 300  # Kafka's names have up to 249
_BATCH_MESSAGES = "batch.num.messages"
_DEFAULTS: dict[str, Scalar] = {
    "linger.ms": 20,
    # Large enough that the broker, which knows the topic's limit, judges a letter's size.
    "message.max.bytes": 100_000_000,
    # A topic with a lower limit gets its messages one by one: see `_may_be_the_batch`.
    "batch.size": 65_536,
    # Wait for a broker that is away; the record's offset is not committed meanwhile.
    "message.timeout.ms": 0,
}
_REQUIRED: dict[str, Scalar] = {"acks": "all", "enable.idempotence": True}
# By its own clock the broker refuses no letter of a process whose clock is wrong.
_SETTINGS = {"message.timestamp.type": "LogAppendTime"}


class _Form(IntEnum):
    """The parts of a dead letter that are sent; one too large for the topic takes the next form."""

    WHOLE = 0
    WITHOUT_VALUE = 1  # nor headers, but for those of a replay
    WITHOUT_KEY = 2
    SHORTEST = 3  # nor with its trace, and the reason is cut


class _Pending(NamedTuple):
    letter: DeadLetter | RangeNotice
    token: int
    form: _Form


class KafkaDeadLetters(DeadLetterSink):
    """Send dead letters to a topic and report each once all in-sync replicas have it.

    A dead letter has the record's key, value and headers, followed by headers of ours, which
    docs/how-to/handle-bad-records.md lists; of several with one name (a record that failed again)
    the last one is the newest. A dead letter larger than the topic allows is sent without its value
    and headers (but for those of a replay), with a size and a SHA-256 instead; so is one that asks
    for it. If that is too large, its key is left out in the same way, and at last its reason is
    cut. A notice has neither key nor value: docs/how-to/when-records-are-lost.md.

    `properties` are librdkafka's, laid over those of the service's `[kafka]`.
    """

    def __init__(self, topic: str, *, properties: Mapping[str, Scalar] | None = None) -> None:
        self.name = topic
        self.topic = topic
        self._properties = dict(properties or {})
        self._pipeline = ""
        self._conf: dict[str, Any] = {}
        self._producer: Producer | None = None
        self._unsent: deque[_Pending] = deque()
        self._delivered: list[Delivered] = []
        self._pending = 0
        self._fatal_error: str | None = None
        self._sends_singly = False

    def open(self, context: SinkContext) -> None:
        """Check that the broker answers, and create the topic if it is missing.

        Raises SinkFailed, naming the topic, after 7 seconds without success.
        """
        from confluent_kafka import KafkaException, Producer  # noqa: PLC0415 - see sinks/__init__

        from sinks.kafka.client import Cluster  # noqa: PLC0415

        properties = self.client_properties(context.kafka)
        cluster = Cluster(properties, "dead_letter_broker_error", self.topic)
        self._pipeline = context.pipeline
        self._conf = cluster.conf(_DEFAULTS, _REQUIRED)
        try:
            if not cluster.partitions(self.topic):
                cluster.create(self.topic, "dead_letter_topic_created", _SETTINGS)
            self._producer = Producer(self._conf)
        except (KafkaException, ValueError) as error:
            raise SinkFailed(
                f"dead-letter topic '{self.topic}': {cluster.explain(error)}. It needs a broker "
                "that answers, and the topic or the right to create it."
            ) from error

    def client_properties(self, kafka: Mapping[str, Scalar]) -> dict[str, Scalar]:
        mask.add(secrets_in(self._properties))
        return {**kafka, **self._properties}

    def send(self, letter: DeadLetter | RangeNotice, token: int) -> None:
        self._pending += 1
        by_reference = isinstance(letter, DeadLetter) and letter.by_reference
        if isinstance(letter, DeadLetter):
            letter = replace(letter, error=None)  # its traceback keeps values alive
        new = _Pending(letter, token, _Form.WITHOUT_VALUE if by_reference else _Form.WHOLE)
        if self._unsent or not self._produce(new):
            self._unsent.append(new)

    def poll(self) -> list[Delivered]:
        self._advance(0.0)
        delivered, self._delivered = self._delivered, []
        self._pending -= len(delivered)
        return delivered

    @property
    def pending(self) -> int:
        return self._pending

    def flush(self, timeout_seconds: float) -> None:
        ends = time.monotonic() + timeout_seconds
        while self._producer is not None and self._pending > len(self._delivered):
            left = ends - time.monotonic()
            if left <= 0:
                return
            self._advance(min(left, 0.1))

    def close(self) -> None:
        """Drop the producer without waiting; what is in flight may still arrive."""
        if self._producer is not None:
            self._producer.purge()
            self._producer.poll(0)
            self._producer = None
        self._unsent.clear()

    def _advance(self, timeout_seconds: float) -> None:
        if self._producer is None:
            return
        self._producer.poll(timeout_seconds)
        self._renew_producer()
        while self._unsent and self._produce(self._unsent[0]):
            self._unsent.popleft()

    def _produce(self, sent: _Pending) -> bool:
        """Hand a dead letter to the client; return False while its queue is full."""
        from confluent_kafka import KafkaException  # noqa: PLC0415

        if self._producer is None or self._fatal_error is not None or self._sends_singly:
            return False
        try:
            self._producer.produce(
                self.topic,
                **_content(sent.letter, self._pipeline, sent.form),
                on_delivery=partial(self._on_delivery, sent),
            )
        except BufferError:
            return False
        except KafkaException as error:
            self._on_delivery(sent, error.args[0])
        return True

    def _on_delivery(
        self, sent: _Pending, error: "KafkaError | None", _message: "Message | None" = None
    ) -> None:
        from confluent_kafka import KafkaError  # noqa: PLC0415

        is_too_large = error is not None and error.code() == KafkaError.MSG_SIZE_TOO_LARGE
        if error is None:
            self._delivered.append(Delivered(sent.token, None))
        elif is_too_large and self._may_be_the_batch(sent):
            self._unsent.append(sent)
            self._sends_singly = True
        elif is_too_large and sent.form < _Form.SHORTEST:
            self._unsent.append(sent._replace(form=_Form(sent.form + 1)))
        elif self._fatal_error is not None or error.fatal() or error.code() == KafkaError._FATAL:
            self._unsent.append(sent)
            self._fatal_error = self._fatal_error or error.str()
        else:
            self._delivered.append(Delivered(sent.token, error.str()))

    def _may_be_the_batch(self, sent: _Pending) -> bool:
        """Whether the broker may have rejected a message for the size of its batch."""
        if self._conf.get(_BATCH_MESSAGES) == 1:
            return False
        size = 0
        if isinstance(sent.letter, DeadLetter):
            record = sent.letter.record
            size += len(record.value or b"") if sent.form < _Form.WITHOUT_VALUE else 0
            size += len(record.key or b"") if sent.form < _Form.WITHOUT_KEY else 0
        return size < int(self._conf["batch.size"])

    def _renew_producer(self) -> None:
        from confluent_kafka import Producer  # noqa: PLC0415

        if self._producer is None:
            return
        if self._sends_singly and not len(self._producer):
            log.warning("dead_letters_sent_singly", topic=self.topic)
            self._conf[_BATCH_MESSAGES] = 1
            self._sends_singly = False
        elif self._fatal_error is not None:
            log.warning("dead_letter_producer_renewed", topic=self.topic, error=self._fatal_error)
            self._producer.purge()
            self._producer.poll(0)
            self._fatal_error = None
        else:
            return
        self._producer = Producer(self._conf)


def replay_headers(headers: Iterable[Header]) -> list[Header]:
    """Return the headers of a replay, the last of each name; leave out one too long to be ours."""
    found = dict(headers)
    kept = [(name, found[name]) for name in REPLAY_HEADERS if name in found]
    return [
        (name, value)
        for name, value in kept
        if value is not None and len(value) <= _LONGEST_REPLAY_BYTES
    ]


def without_replay_headers(headers: Iterable[Header]) -> list[Header]:
    return [header for header in headers if header[0] not in REPLAY_HEADERS]


def _content(letter: DeadLetter | RangeNotice, pipeline: str, form: _Form) -> dict[str, Any]:
    if isinstance(letter, RangeNotice):
        facts = {"notice": "range"} | asdict(letter) | {"pipeline": pipeline}
        return {"value": None, "key": None, "headers": list(_headers(facts).items())}
    record = letter.record
    headers = _facts(letter, pipeline)
    value, key = record.value, record.key
    own: Sequence[Header] = ()
    try:
        own = record.headers
    except HeadersUnreadable as error:
        headers[HEADERS_ERROR] = _bounded(error.reason)
    if form >= _Form.WITHOUT_VALUE:
        headers[VALUE_SIZE], headers[VALUE_SHA256] = _reference(value)
        value = None
        own = replay_headers(own)  # or how often it was sent again would be forgotten
    if form >= _Form.WITHOUT_KEY and key is not None:
        headers[KEY_SIZE], headers[KEY_SHA256] = _reference(key)
        key = None
    if letter.trace and form < _Form.SHORTEST:
        own = (*(each for each in own if not is_of_trace(each[0])), *letter.trace)
    if form >= _Form.SHORTEST:
        headers[REASON] = _bounded(letter.reason, _SHORT_BYTES)
        headers.pop(ERROR_AT, None)
    return {"value": value, "key": key, "headers": [*own, *headers.items()]}


def _reference(content: bytes | None) -> tuple[bytes, bytes]:
    content = content or b""
    return str(len(content)).encode(), hashlib.sha256(content).hexdigest().encode()


def _facts(letter: DeadLetter, pipeline: str) -> dict[str, bytes]:
    record = letter.record
    facts: dict[str, Any] = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp_ms": record.timestamp_ms,
        "reason": letter.reason,
        "step": letter.step,
        "attempts": letter.attempts,
        "error_class": letter.error_class,
        "failed_at_ms": letter.failed_at_ms,
        "pipeline": pipeline,
    }
    return _headers(facts | ({"error_at": letter.error_at} if letter.error_at else {}))


def _headers(facts: Mapping[str, Any]) -> dict[str, bytes]:
    return {f"headrace.{name}": _bounded(str(fact)) for name, fact in facts.items()}


def _bounded(text: str, longest: int = _LONGEST_BYTES) -> bytes:
    """Encode as UTF-8 and cut between characters; lone surrogates are escaped."""
    encoded = text.encode(errors="backslashreplace")
    if len(encoded) <= longest:
        return encoded
    return encoded[:longest].decode(errors="ignore").encode()
