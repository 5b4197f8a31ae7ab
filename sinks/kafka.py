"""Dead letters in a Kafka topic: the original bytes, and headers that say what happened."""

import hashlib
import logging
import time
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from enum import IntEnum
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import structlog

from sinks.broker_complaints import BrokerComplaints
from sinks.letter_headers import (
    HEADERS_ERROR,
    KEY_SHA256,
    KEY_SIZE,
    VALUE_SHA256,
    VALUE_SIZE,
    Header,
    replay_headers,
)
from topology.errors import SinkFailed
from topology.masking import mask, secrets_in
from topology.record import HeadersUnreadable, Record
from topology.sink import (
    DeadLetter,
    DeadLetterSink,
    Delivered,
    RangeNotice,
    Scalar,
    SinkContext,
)
from topology.traced import is_of_trace

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message, Producer
    from confluent_kafka.admin import AdminClient

log = structlog.get_logger()

_client_log = logging.getLogger("headrace.dead_letters")  # else librdkafka writes to stderr itself

_REASON = "headrace.reason"
_LONGEST_BYTES = 2048  # of a header
_SHORT_BYTES = 128
_BATCH_LETTERS = "batch.num.messages"
_OPEN_SECONDS = 15.0
_ASK_SECONDS = 1.0
_DEFAULTS: dict[str, Scalar] = {
    "linger.ms": 20,
    # Large enough that the broker, which knows the topic's limit, judges a letter's size.
    "message.max.bytes": 100_000_000,
    # A topic that takes less than this gets letters one by one: see `_may_be_the_batch`.
    "batch.size": 65_536,
    # A broker that is away is waited for; the owner stops the offset meanwhile.
    "message.timeout.ms": 0,
}
_REQUIRED: dict[str, Scalar] = {"acks": "all", "enable.idempotence": True}


class _Form(IntEnum):
    """How much of a letter is sent: a topic that it is too large for gets the next form."""

    WHOLE = 0
    WITHOUT_VALUE = 1  # nor headers, but for those of a replay
    WITHOUT_KEY = 2
    SHORTEST = 3  # nor with its trace, and the reason is cut


class _Waiting(NamedTuple):
    """A letter that the client had no room for, or gave back."""

    letter: DeadLetter | RangeNotice
    token: int
    form: _Form


class KafkaDeadLetters(DeadLetterSink):
    """Sends dead letters to a topic; each is told of once all in-sync replicas have it.

    A letter has the record's key, value and headers, followed by `headrace.topic`,
    `.partition`, `.offset`, `.timestamp_ms` (where it came from), `.reason` (at most 2,048
    bytes), `.step`, `.attempts`, `.error_class`, `.failed_at_ms` and `.pipeline`. Where the
    original had such a header already (a letter that failed again), the last one is the newest.
    A letter larger than the topic allows is sent without its value and headers (but for those
    of a replay), with `headrace.value_size` and `headrace.value_sha256` instead; so is one that
    asks for it. If that is too large, its key is left out in the same way (`headrace.key_size`,
    `headrace.key_sha256`), and at last its reason is cut. Headers that cannot be read are left
    out, and `headrace.headers_error` says why. A notice has neither key nor value, and the
    headers `headrace.notice` ("range"), `.topic`, `.partition`, `.first_offset`,
    `.resume_offset`, `.lost`, `.reason`, `.found`, `.noticed_at_ms` and `.pipeline`.

    `properties` are librdkafka's, laid over those of the service's `[kafka]`.
    """

    def __init__(self, topic: str, *, properties: Mapping[str, Scalar] | None = None) -> None:
        self.name = topic
        self.topic = topic
        self._properties = dict(properties or {})
        self._pipeline = ""
        self._conf: dict[str, Scalar] = {}
        self._producer: Producer | None = None
        self._waiting: deque[_Waiting] = deque()
        self._untold: list[Delivered] = []
        self._pending = 0
        self._broken: str | None = None
        self._is_to_send_singly = False
        self._complaints = BrokerComplaints("dead_letter_broker_error", topic)

    def open(self, context: SinkContext) -> None:
        """Check that the broker answers, and create the topic if there is none.

        Raises SinkFailed, naming the topic, when that is not done in 15 seconds.
        """
        from confluent_kafka import KafkaException, Producer  # noqa: PLC0415 - see sinks/__init__
        from confluent_kafka.admin import AdminClient  # noqa: PLC0415

        client = self.client_properties(context.kafka)
        self._pipeline = context.pipeline
        self._conf = {**_DEFAULTS, **client, **_REQUIRED}
        try:
            self._check_topic(AdminClient(self._calling_back(client)))
            self._producer = Producer(self._calling_back(self._conf))
        except (KafkaException, ValueError) as error:
            last = self._complaints.last
            raise SinkFailed(
                f"dead-letter topic '{self.topic}': {_said(error)}{last and f' ({last})'}; "
                "a broker that answers, and the topic or the right to create it, are needed"
            ) from error

    def client_properties(self, kafka: Mapping[str, Scalar]) -> dict[str, Scalar]:
        """What a client of this topic is made with, if `kafka` are the service's."""
        mask.add(secrets_in(self._properties))
        return {**kafka, **self._properties}

    def send(self, letter: DeadLetter | RangeNotice, token: int) -> None:
        """Take a letter. Never blocks; a letter the client has no room for waits for `poll`."""
        self._pending += 1
        by_reference = isinstance(letter, DeadLetter) and letter.by_reference
        new = _Waiting(letter, token, _Form.WITHOUT_VALUE if by_reference else _Form.WHOLE)
        if self._waiting or not self._produce(new):
            self._waiting.append(new)

    def poll(self) -> list[Delivered]:
        """Let the client call back, send what waited, and tell what became of letters."""
        self._advance(0.0)
        told, self._untold = self._untold, []
        self._pending -= len(told)
        return told

    @property
    def pending(self) -> int:
        """Letters sent of which `poll` has not told yet."""
        return self._pending

    def flush(self, timeout_seconds: float) -> None:
        """Wait for the letters on their way; `poll` then tells of them."""
        ends = time.monotonic() + timeout_seconds
        while self._producer is not None and self._pending > len(self._untold):
            left = ends - time.monotonic()
            if left <= 0:
                return
            self._advance(min(left, 0.1))

    def close(self) -> None:
        """Let go of the producer without waiting; letters on their way may still arrive."""
        if self._producer is not None:
            self._producer.purge()
            self._producer.poll(0)
            self._producer = None
        self._waiting.clear()

    def _check_topic(self, admin: "AdminClient") -> None:
        from confluent_kafka import KafkaError, KafkaException  # noqa: PLC0415
        from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]  # noqa: PLC0415

        # Asking for the one topic could make the broker create it with other settings.
        if self.topic in self._topics(admin):
            return
        new = NewTopic(self.topic, num_partitions=1, replication_factor=-1)
        created = admin.create_topics([new], request_timeout=_OPEN_SECONDS)
        try:
            created[self.topic].result(_OPEN_SECONDS)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise
        else:
            log.info("dead_letter_topic_created", topic=self.topic)

    def _topics(self, admin: "AdminClient") -> Collection[str]:
        """Ask for the topics until there is an answer, or refused credentials, or no time left.

        Of credentials the client tells by its callback alone; an answer it would wait for in vain.
        """
        from confluent_kafka import KafkaException  # noqa: PLC0415

        ends = time.monotonic() + _OPEN_SECONDS
        while True:
            try:
                return admin.list_topics(timeout=min(_ASK_SECONDS, _OPEN_SECONDS)).topics
            except KafkaException:
                admin.poll(0)
                if self._complaints.refused is not None:
                    raise KafkaException(self._complaints.refused) from None
                if time.monotonic() > ends:
                    raise

    def _advance(self, timeout_seconds: float) -> None:
        """Let the client call back, and hand it what waited."""
        if self._producer is None:
            return
        self._producer.poll(timeout_seconds)
        self._mend()
        while self._waiting and self._produce(self._waiting[0]):
            self._waiting.popleft()

    def _produce(self, sent: _Waiting) -> bool:
        """Hand a letter to the client; False when it has no room for it now."""
        from confluent_kafka import KafkaError, KafkaException  # noqa: PLC0415

        if self._producer is None or self._broken is not None or self._is_to_send_singly:
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
            code = error.args[0].code()
            if code == KafkaError.MSG_SIZE_TOO_LARGE and sent.form < _Form.SHORTEST:
                return self._produce(sent._replace(form=_Form(sent.form + 1)))
            if code == KafkaError._FATAL:  # noqa: SLF001 - librdkafka's public name for it
                self._broken = _said(error)
                return False
            self._untold.append(Delivered(sent.token, _said(error)))
        return True

    def _on_delivery(self, sent: _Waiting, error: "KafkaError | None", _message: "Message") -> None:
        """The client's word on a letter; called inside `poll`, so on the owner thread."""
        from confluent_kafka import KafkaError  # noqa: PLC0415

        if error is None:
            self._untold.append(Delivered(sent.token, None))
        elif error.code() == KafkaError.MSG_SIZE_TOO_LARGE and self._may_be_the_batch(sent):
            self._waiting.append(sent)
            self._is_to_send_singly = True
        elif error.code() == KafkaError.MSG_SIZE_TOO_LARGE and sent.form < _Form.SHORTEST:
            self._waiting.append(sent._replace(form=_Form(sent.form + 1)))
        elif self._broken is not None or error.fatal() or error.code() == KafkaError._FATAL:  # noqa: SLF001
            self._waiting.append(sent)
            self._broken = self._broken or error.str()
        else:
            self._untold.append(Delivered(sent.token, error.str()))

    def _may_be_the_batch(self, sent: _Waiting) -> bool:
        """Whether a letter was perhaps refused because of others that it was sent with."""
        if self._conf.get(_BATCH_LETTERS) == 1:
            return False
        size = 0
        if isinstance(sent.letter, DeadLetter):
            record = sent.letter.record
            size += len(record.value or b"") if sent.form < _Form.WITHOUT_VALUE else 0
            size += len(record.key or b"") if sent.form < _Form.WITHOUT_KEY else 0
        return size < int(self._conf["batch.size"])

    def _mend(self) -> None:
        """Replace a producer that never will send again, or is to send letters one by one."""
        from confluent_kafka import Producer  # noqa: PLC0415

        if self._is_to_send_singly and self._producer is not None and not len(self._producer):
            log.warning("dead_letters_sent_singly", topic=self.topic)
            self._conf[_BATCH_LETTERS] = 1
            self._producer = Producer(self._calling_back(self._conf))
            self._is_to_send_singly = False
        if self._broken is None or self._producer is None:
            return
        log.warning("dead_letter_producer_renewed", topic=self.topic, error=self._broken)
        self._producer.purge()
        self._producer.poll(0)
        self._producer = Producer(self._calling_back(self._conf))
        self._broken = None

    def _calling_back(self, properties: Mapping[str, Scalar]) -> dict[str, Any]:
        return {**properties, "error_cb": self._complaints.take, "logger": _client_log}


def _content(letter: DeadLetter | RangeNotice, pipeline: str, form: _Form) -> dict[str, Any]:
    """Value, key and headers of the message that a letter or notice becomes."""
    if isinstance(letter, RangeNotice):
        facts = {"notice": "range"} | asdict(letter) | {"pipeline": pipeline}
        return {"value": None, "key": None, "headers": list(_headers(facts).items())}
    record = letter.record
    headers = _facts(letter, pipeline)
    value, key = record.value, record.key
    own, unreadable = _own(record)
    if unreadable:
        headers[HEADERS_ERROR] = _bounded(unreadable)
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
        headers[_REASON] = _bounded(letter.reason, _SHORT_BYTES)
    return {"value": value, "key": key, "headers": [*own, *headers.items()]}


def _own(record: Record) -> tuple[Sequence[Header], str]:
    """The record's own headers, or none and why they cannot be read."""
    try:
        return record.headers, ""
    except HeadersUnreadable as error:
        return (), error.reason


def _reference(content: bytes | None) -> tuple[bytes, bytes]:
    """Size and SHA-256 of what is left out."""
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
    return _headers(facts)


def _headers(facts: Mapping[str, Any]) -> dict[str, bytes]:
    return {f"headrace.{name}": _bounded(str(fact)) for name, fact in facts.items()}


def _bounded(text: str, longest: int = _LONGEST_BYTES) -> bytes:
    """UTF-8 of bounded length, cut between characters; lone surrogates are escaped."""
    encoded = text.encode(errors="backslashreplace")
    if len(encoded) <= longest:
        return encoded
    return encoded[:longest].decode(errors="ignore").encode()


def _said(error: Exception) -> str:
    """The text of a KafkaException's KafkaError, or of any other error."""
    inner = error.args[0] if error.args else error
    text = getattr(inner, "str", None)
    return str(text()) if callable(text) else str(error)
