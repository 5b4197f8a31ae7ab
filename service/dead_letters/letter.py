"""A message of the dead-letter topic, read, and a letter's record made anew. Pure.

Nothing that stands in a message is trusted: a letter's facts are the headers from the last
`headrace.topic` on, which the sink has written behind the record's own.
"""

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

import msgspec

from sinks.kafka.dead_letters import (
    HEADERS_ERROR,
    KEY_SHA256,
    KEY_SIZE,
    ORIGIN_OFFSET,
    ORIGIN_PARTITION,
    ORIGIN_TIMESTAMP_MS,
    ORIGIN_TOPIC,
    REPLAYED_AT_MS,
    REPLAYED_FROM,
    REPLAYS,
    TOPIC,
    VALUE_SHA256,
    VALUE_SIZE,
    Header,
    replay_headers,
    without_replay_headers,
)
from topology.record import HeadersUnreadable, Message, headers_of

_NUMBER = re.compile(r"-?\d{1,18}")
_NO_TIME = -1  # as Kafka says it


class Place(NamedTuple):
    """Where a message stands in the dead-letter topic."""

    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.partition}:{self.offset}"


class Origin(NamedTuple):
    """Where a record stood, and the record's own time."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int = _NO_TIME

    def __str__(self) -> str:
        return f"{self.topic}[{self.partition}]@{self.offset}"


class Content(NamedTuple):
    """What is sent again: a record without its place. `headers` are none of ours."""

    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...]


class Reference(NamedTuple):
    """What is known of a value or key that was left out."""

    size: int
    sha256: str


class Letter(msgspec.Struct, frozen=True):
    """A dead letter."""

    place: Place
    read: Origin  # where the pipeline has read the record
    origin: Origin  # where it stood before it was first sent again; else the same
    replays: int  # how often it had been sent again by then
    reason: str
    step: str
    attempts: int
    error_class: str
    failed_at_ms: int
    pipeline: str | None  # None: written before letters told it
    reference: Reference | None  # of a letter without its value
    content: Content | None  # None: left out here, to keep many of them small
    value_bytes: int | None = None  # None: no value
    key_reference: Reference | None = None  # of a letter without its key
    headers_error: str | None = None  # why the record's headers were left out

    def bare(self) -> "Letter":
        """The letter without its content."""
        return msgspec.structs.replace(self, content=None)


class Notice(NamedTuple):
    """A range of offsets that was skipped: no letter, since there is no record."""

    place: Place


class Other(NamedTuple):
    """A message that is none of ours, and why it is no letter."""

    place: Place
    reason: str


Found: TypeAlias = Letter | Notice | Other


class _NoNumber(Exception):
    """A header that should hold a number does not."""


def read_message(message: Message) -> Found:
    """Tell what a message of the dead-letter topic is; never raises for what stands in it."""
    place = Place(message.partition(), message.offset())
    headers = headers_in(message)
    first = _last(headers, TOPIC)
    if first is None:
        return Other(place, f"it has no header '{TOPIC}'")
    facts = dict(headers[first:])
    if "headrace.noticed_at_ms" in facts:
        return Notice(place)
    try:
        return _letter(message, place, facts, headers[:first])
    except _NoNumber as error:
        return Other(place, str(error))


def headers_in(message: Message) -> Sequence[Header]:
    """A message's headers; none if they cannot be read, as then they are none of ours."""
    try:
        return headers_of(message) or ()
    except HeadersUnreadable:
        return ()


def content_of(message: Message) -> Content:
    """What is sent again of a record, as its topic has it."""
    own = tuple(without_replay_headers(headers_in(message)))
    return Content(message.key(), message.value(), own)


def sent_again(
    letter: Letter, content: Content, *, earlier: int, source: str, at_ms: int
) -> list[Header]:
    """The headers with which a letter's record is sent again.

    They are its own, and where it came from first. `source` is the dead-letter topic, `earlier`
    how often it has been sent before.
    """
    origin = letter.origin
    ours = {
        ORIGIN_TOPIC: origin.topic,
        ORIGIN_PARTITION: origin.partition,
        ORIGIN_OFFSET: origin.offset,
        ORIGIN_TIMESTAMP_MS: origin.timestamp_ms,
        REPLAYS: earlier + 1,
        REPLAYED_FROM: f"{source}:{letter.place}",
        REPLAYED_AT_MS: at_ms,
    }
    return [*content.headers, *((name, str(fact).encode()) for name, fact in ours.items())]


def text_of(value: bytes | None) -> str:
    """A header's value as text; what is no UTF-8 is escaped."""
    return (value or b"").decode(errors="backslashreplace")


def _letter(
    message: Message, place: Place, facts: Mapping[str, bytes | None], own: Sequence[Header]
) -> Letter:
    read = Origin(
        text_of(facts[TOPIC]),
        _number(facts, "headrace.partition"),
        _number(facts, "headrace.offset"),
        _number(facts, "headrace.timestamp_ms", least=_NO_TIME),
    )
    origin, replays = _history(own, read)
    value = message.value()
    pipeline = facts.get("headrace.pipeline")
    return Letter(
        place=place,
        read=read,
        origin=origin,
        replays=replays,
        reason=text_of(facts.get("headrace.reason")),
        step=text_of(facts.get("headrace.step")),
        attempts=_number(facts, "headrace.attempts"),
        error_class=text_of(facts.get("headrace.error_class")),
        failed_at_ms=_number(facts, "headrace.failed_at_ms"),
        pipeline=None if pipeline is None else text_of(pipeline),
        reference=_reference(facts, VALUE_SIZE, VALUE_SHA256),
        content=Content(message.key(), value, tuple(without_replay_headers(own))),
        value_bytes=None if value is None else len(value),
        key_reference=_reference(facts, KEY_SIZE, KEY_SHA256),
        headers_error=text_of(facts[HEADERS_ERROR]) if HEADERS_ERROR in facts else None,
    )


def _reference(facts: Mapping[str, bytes | None], size: str, sha256: str) -> Reference | None:
    if sha256 not in facts:
        return None
    return Reference(_number(facts, size), text_of(facts[sha256]))


def _history(own: Sequence[Header], read: Origin) -> tuple[Origin, int]:
    """Where a record came from first, and how often it was sent again; else where it was read."""
    ours = dict(replay_headers(own))
    try:
        origin = Origin(
            text_of(ours[ORIGIN_TOPIC]),
            _number(ours, ORIGIN_PARTITION),
            _number(ours, ORIGIN_OFFSET),
            _number(ours, ORIGIN_TIMESTAMP_MS, least=_NO_TIME),
        )
        return origin, _number(ours, REPLAYS)
    except (KeyError, _NoNumber):  # not all of it, so not from us
        return read, 0


def _number(facts: Mapping[str, bytes | None], name: str, least: int = 0) -> int:
    text = text_of(facts.get(name))
    if not _NUMBER.fullmatch(text) or int(text) < least:
        shown = f"'{text[:50]}'" if name in facts else "missing"
        raise _NoNumber(f"its header '{name}' is {shown}; a number from {least} on is needed")
    return int(text)


def _last(headers: Sequence[Header], name: str) -> int | None:
    places = range(len(headers) - 1, -1, -1)
    return next((index for index in places if headers[index][0] == name), None)
