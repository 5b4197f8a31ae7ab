"""Messages of the dead-letter topic: dead letters, notices, and the marks of operators. Pure.

Nothing that a record brings is trusted. A dead letter's facts are the headers from the last
`headrace.topic` on, which the sink wrote behind the record's own. A mark says what became of a
dead letter and stands behind it in the same partition; its last header is `headrace.mark`, which
a dead letter's last header never is.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple, TypeAlias

import msgspec

from service.dead_letters.printable import utc_text
from sinks.kafka import dead_letter_sink as sink
from topology.record import HeadersUnreadable, Message, headers_of

MarkKind: TypeAlias = Literal["replayed", "dropped"]

MARK = "headrace.mark"

_NUMBER = re.compile(r"-?\d{1,18}")
_NO_TIME = -1  # Kafka's own value
_LONGEST_MARK = 16_384  # bytes; ours are far below it


class DeadLetterId(NamedTuple):
    """The position of a message in the dead-letter topic."""

    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.partition}:{self.offset}"


class RecordOrigin(NamedTuple):
    """The position of a record in its topic, and the record's timestamp."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int = _NO_TIME

    def __str__(self) -> str:
        return f"{self.topic}[{self.partition}]@{self.offset}"


class RecordContent(NamedTuple):
    """The part of a record that a replay sends. `headers` are none of ours."""

    key: bytes | None
    value: bytes | None
    headers: tuple[sink.Header, ...]


class ContentDigest(NamedTuple):
    """Size and SHA-256 of a value or key that the dead letter leaves out."""

    size: int
    sha256: str


class StoredDeadLetter(msgspec.Struct, frozen=True):
    """A dead letter as its topic has it."""

    id: DeadLetterId
    read: RecordOrigin  # the record that the pipeline read
    origin: RecordOrigin  # where that was before its first replay; else the same
    replays: int  # before it failed
    reason: str
    step: str
    attempts: int
    error_class: str
    failed_at_ms: int
    pipeline: str | None  # None in dead letters that older versions wrote
    value_digest: ContentDigest | None  # if the value was left out
    key_digest: ContentDigest | None  # if the key was left out, too
    content: RecordContent | None  # None after `bare`
    value_bytes: int | None  # None: no value
    headers_error: str | None = None  # the reason why the record's headers were left out
    error_at: str | None = None  # file:line of the user's code

    def bare(self) -> "StoredDeadLetter":
        return msgspec.structs.replace(self, content=None)


class StoredNotice(NamedTuple):
    """A range of offsets that was skipped: there is no record to replay."""

    id: DeadLetterId


class ForeignMessage(NamedTuple):
    """A message that Headrace did not write, and the reason."""

    id: DeadLetterId
    reason: str


StoredMessage: TypeAlias = StoredDeadLetter | StoredNotice | ForeignMessage


class Mark(msgspec.Struct, frozen=True, omit_defaults=True):
    """An operator's action on one dead letter of the mark's own partition."""

    letter: int  # its offset
    kind: MarkKind
    at_ms: int
    by: str
    why: str = ""
    to: str = ""  # the replayed record: orders[0]@991

    def __str__(self) -> str:
        where = f" as {self.to}" if self.to else ""
        why = f": {self.why}" if self.why else ""
        return f"{self.kind}{where} on {utc_text(self.at_ms)} by {self.by}{why}"


Marks: TypeAlias = Mapping[DeadLetterId, Sequence[Mark]]  # in order; none for an open dead letter


class _NotANumber(Exception):
    """A header that should hold a number does not."""


def read_message(message: Message) -> StoredMessage:
    """Parse any message but a mark; never raises for its content."""
    place = DeadLetterId(message.partition(), message.offset())
    headers = _headers_in(message)
    first = max((i for i, (name, _) in enumerate(headers) if name == sink.TOPIC), default=None)
    if first is None:
        return ForeignMessage(place, f"it has no header '{sink.TOPIC}'")
    facts = dict(headers[first:])
    if "headrace.noticed_at_ms" in facts:
        return StoredNotice(place)
    try:
        return _dead_letter(message, place, facts, headers[:first])
    except _NotANumber as error:
        return ForeignMessage(place, str(error))


def content_of(message: Message) -> RecordContent:
    own = tuple(sink.without_replay_headers(_headers_in(message)))
    return RecordContent(message.key(), message.value(), own)


def headers_to_send(
    letter: StoredDeadLetter, content: RecordContent, *, earlier: int, source: str, at_ms: int
) -> list[sink.Header]:
    """Return a replay's headers: the record's own, then its first origin.

    `source` is the dead-letter topic, `earlier` counts the replays before this one.
    """
    origin = letter.origin
    ours = {
        sink.ORIGIN_TOPIC: origin.topic,
        sink.ORIGIN_PARTITION: origin.partition,
        sink.ORIGIN_OFFSET: origin.offset,
        sink.ORIGIN_TIMESTAMP_MS: origin.timestamp_ms,
        sink.REPLAYS: earlier + 1,
        sink.REPLAYED_FROM: f"{source}:{letter.id}",
        sink.REPLAYED_AT_MS: at_ms,
    }
    return [*content.headers, *((name, str(fact).encode()) for name, fact in ours.items())]


def is_mark(message: Message) -> bool:
    headers = _headers_in(message)
    return len(headers) > 0 and headers[-1][0] == MARK


def encode_mark(mark: Mark) -> tuple[bytes, list[sink.Header]]:
    return msgspec.json.encode(mark), [(MARK, mark.kind.encode())]


def collect_marks(messages: Iterable[Message]) -> Marks:
    """Return the marks among the messages; ignore those that are invalid or mark nothing."""
    found: dict[DeadLetterId, list[Mark]] = {}
    for message in filter(is_mark, messages):
        mark = _decode_mark(message.value())
        if mark is not None and mark.letter < message.offset():
            found.setdefault(DeadLetterId(message.partition(), mark.letter), []).append(mark)
    return found


def _headers_in(message: Message) -> Sequence[sink.Header]:
    """Return a message's headers; none if they are unreadable, since ours are readable."""
    try:
        return headers_of(message) or ()
    except HeadersUnreadable:
        return ()


def _dead_letter(
    message: Message,
    place: DeadLetterId,
    facts: Mapping[str, bytes | None],
    own: Sequence[sink.Header],
) -> StoredDeadLetter:
    read = RecordOrigin(
        _text(facts[sink.TOPIC]),
        _number(facts, "headrace.partition"),
        _number(facts, "headrace.offset"),
        _number(facts, "headrace.timestamp_ms", least=_NO_TIME),
    )
    origin, replays = _history(own, read)
    value = message.value()
    pipeline = facts.get("headrace.pipeline")
    return StoredDeadLetter(
        id=place,
        read=read,
        origin=origin,
        replays=replays,
        reason=_text(facts.get("headrace.reason")),
        step=_text(facts.get("headrace.step")),
        attempts=_number(facts, "headrace.attempts"),
        error_class=_text(facts.get("headrace.error_class")),
        failed_at_ms=_number(facts, "headrace.failed_at_ms"),
        pipeline=None if pipeline is None else _text(pipeline),
        value_digest=_digest(facts, sink.VALUE_SIZE, sink.VALUE_SHA256),
        key_digest=_digest(facts, sink.KEY_SIZE, sink.KEY_SHA256),
        content=RecordContent(message.key(), value, tuple(sink.without_replay_headers(own))),
        value_bytes=None if value is None else len(value),
        headers_error=_text(facts[sink.HEADERS_ERROR]) if sink.HEADERS_ERROR in facts else None,
        error_at=_text(facts[sink.ERROR_AT]) if sink.ERROR_AT in facts else None,
    )


def _digest(facts: Mapping[str, bytes | None], size: str, sha256: str) -> ContentDigest | None:
    return ContentDigest(_number(facts, size), _text(facts[sha256])) if sha256 in facts else None


def _history(own: Sequence[sink.Header], read: RecordOrigin) -> tuple[RecordOrigin, int]:
    """Return a record's first origin and its replays; an incomplete history is not ours."""
    ours = dict(sink.replay_headers(own))
    try:
        origin = RecordOrigin(
            _text(ours[sink.ORIGIN_TOPIC]),
            _number(ours, sink.ORIGIN_PARTITION),
            _number(ours, sink.ORIGIN_OFFSET),
            _number(ours, sink.ORIGIN_TIMESTAMP_MS, least=_NO_TIME),
        )
        return origin, _number(ours, sink.REPLAYS)
    except (KeyError, _NotANumber):
        return read, 0


def _number(facts: Mapping[str, bytes | None], name: str, least: int = 0) -> int:
    text = _text(facts.get(name))
    if not _NUMBER.fullmatch(text) or int(text) < least:
        found = f"'{text[:50]}'" if name in facts else "nothing"
        raise _NotANumber(f"header '{name}': found {found}, expected an integer >= {least}")
    return int(text)


def _text(value: bytes | None) -> str:
    return (value or b"").decode(errors="backslashreplace")


def _decode_mark(value: bytes | None) -> Mark | None:
    if value is None or len(value) > _LONGEST_MARK:
        return None
    try:
        return msgspec.json.decode(value, type=Mark)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None
