"""Dead letters in a Kafka topic: the original bytes, and headers that say what happened."""

import hashlib
import logging
import time
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import structlog

from sinks.broker_complaints import BrokerComplaints
from sinks.letter_headers import VALUE_SHA256, VALUE_SIZE, Header, replay_headers
from topology.errors import SinkFailed
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

_LONGEST_REASON_BYTES = 2048
_OPEN_SECONDS = 15.0
_ASK_SECONDS = 1.0
_DEFAULTS: dict[str, Scalar] = {
    "linger.ms": 20,
    # Large enough that the broker, which knows the topic's limit, judges a letter's size.
    "message.max.bytes": 100_000_000,
    # Small enough that a batch is too large for the topic only if a single letter is.
    "batch.size": 65_536,
    # A broker that is away is waited for; the owner stops the offset meanwhile.
    "message.timeout.ms": 0,
}
_REQUIRED: dict[str, Scalar] = {"acks": "all", "enable.idempotence": True}


class _Waiting(NamedTuple):
    """A letter that the client had no room for, or gave back."""

    letter: DeadLetter | RangeNotice
    token: int
    by_reference: bool


class KafkaSink(DeadLetterSink):
    """Sends dead letters to a topic; each is told of once all in-sync replicas have it.

    A letter has the record's key, value and headers, followed by `headrace.topic`,
    `.partition`, `.offset`, `.timestamp_ms` (where it came from), `.reason` (at most 2,048
    bytes), `.step`, `.attempts`, `.error_class`, `.failed_at_ms` and `.pipeline`. Where the
    original had such a header already (a letter that failed again), the last one is the newest.
    A letter larger than the topic allows is sent without its value and headers (but for those
    of a replay), with `headrace.value_size` and `headrace.value_sha256` instead; so is one that
    asks for it. A notice has neither key nor value, and the headers `headrace.notice` ("range"),
    `.topic`, `.partition`, `.first_offset`, `.resume_offset`, `.lost`, `.reason`, `.found`,
    `.noticed_at_ms` and `.pipeline`.

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
        return {**kafka, **self._properties}

    def send(self, letter: DeadLetter | RangeNotice, token: int) -> None:
        """Take a letter. Never blocks; a letter the client has no room for waits for `poll`."""
        self._pending += 1
        by_reference = isinstance(letter, DeadLetter) and letter.by_reference
        if self._waiting or not self._produce(letter, token, by_reference=by_reference):
            self._waiting.append(_Waiting(letter, token, by_reference))

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
        while self._waiting:
            first = self._waiting[0]
            if not self._produce(first.letter, first.token, by_reference=first.by_reference):
                return
            self._waiting.popleft()

    def _produce(self, letter: DeadLetter | RangeNotice, token: int, *, by_reference: bool) -> bool:
        """Hand a letter to the client; False when it has no room for it now."""
        from confluent_kafka import KafkaError, KafkaException  # noqa: PLC0415

        if self._producer is None or self._broken is not None:
            return False
        try:
            self._producer.produce(
                self.topic,
                **_content(letter, self._pipeline, by_reference=by_reference),
                on_delivery=partial(self._on_delivery, letter, token, by_reference),
            )
        except BufferError:
            return False
        except KafkaException as error:
            code = error.args[0].code()
            if code == KafkaError.MSG_SIZE_TOO_LARGE and not by_reference:
                return self._produce(letter, token, by_reference=True)
            if code == KafkaError._FATAL:  # noqa: SLF001 - librdkafka's public name for it
                self._broken = _said(error)
                return False
            self._untold.append(Delivered(token, _said(error)))
        return True

    def _on_delivery(
        self,
        letter: DeadLetter | RangeNotice,
        token: int,
        by_reference: bool,
        error: "KafkaError | None",
        _message: "Message",
    ) -> None:
        """The client's word on a letter; called inside `poll`, so on the owner thread."""
        from confluent_kafka import KafkaError  # noqa: PLC0415

        if error is None:
            self._untold.append(Delivered(token, None))
        elif error.code() == KafkaError.MSG_SIZE_TOO_LARGE and not by_reference:
            self._waiting.append(_Waiting(letter, token, by_reference=True))
        elif self._broken is not None or error.fatal() or error.code() == KafkaError._FATAL:  # noqa: SLF001
            self._waiting.append(_Waiting(letter, token, by_reference))
            self._broken = self._broken or error.str()
        else:
            self._untold.append(Delivered(token, error.str()))

    def _mend(self) -> None:
        """Replace a producer that met a fatal error (it will never send again)."""
        from confluent_kafka import Producer  # noqa: PLC0415

        if self._broken is None or self._producer is None:
            return
        log.warning("dead_letter_producer_renewed", topic=self.topic, error=self._broken)
        self._producer.purge()
        self._producer.poll(0)
        self._producer = Producer(self._calling_back(self._conf))
        self._broken = None

    def _calling_back(self, properties: Mapping[str, Scalar]) -> dict[str, Any]:
        return {**properties, "error_cb": self._complaints.take, "logger": _client_log}


def _content(
    letter: DeadLetter | RangeNotice, pipeline: str, *, by_reference: bool
) -> dict[str, Any]:
    """Value, key and headers of the message that a letter or notice becomes."""
    if isinstance(letter, RangeNotice):
        facts = {"notice": "range"} | asdict(letter) | {"pipeline": pipeline}
        return {"value": None, "key": None, "headers": list(_headers(facts).items())}
    record = letter.record
    headers = _facts(letter, pipeline)
    value = record.value
    own: Sequence[Header] = record.headers
    if by_reference:
        payload = value or b""
        headers[VALUE_SIZE] = str(len(payload)).encode()
        headers[VALUE_SHA256] = hashlib.sha256(payload).hexdigest().encode()
        value = None
        own = replay_headers(own)  # or how often it was sent again would be forgotten
    if letter.trace:
        own = (*(each for each in own if not is_of_trace(each[0])), *letter.trace)
    return {"value": value, "key": record.key, "headers": [*own, *headers.items()]}


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


def _bounded(text: str) -> bytes:
    """UTF-8 of at most 2,048 bytes, cut between characters; lone surrogates are escaped."""
    encoded = text.encode(errors="backslashreplace")
    if len(encoded) <= _LONGEST_REASON_BYTES:
        return encoded
    return encoded[:_LONGEST_REASON_BYTES].decode(errors="ignore").encode()


def _said(error: Exception) -> str:
    """The text of a KafkaException's KafkaError, or of any other error."""
    inner = error.args[0] if error.args else error
    text = getattr(inner, "str", None)
    return str(text()) if callable(text) else str(error)
