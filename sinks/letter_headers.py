"""The headers of dead letters, and of records that were sent again. Pure.

Names that begin with `headrace.` are ours. A letter has its record's own headers first and then
`TOPIC` and what follows it, so what an outsider puts into a record is never taken for our word.
"""

from collections.abc import Iterable
from typing import TypeAlias

Header: TypeAlias = tuple[str, bytes | None]

TOPIC = "headrace.topic"  # the first of the headers that say what happened
VALUE_SIZE = "headrace.value_size"  # only if the value was left out
VALUE_SHA256 = "headrace.value_sha256"
KEY_SIZE = "headrace.key_size"  # only if the key was left out, too
KEY_SHA256 = "headrace.key_sha256"
HEADERS_ERROR = "headrace.headers_error"  # only if the record's headers could not be read

# What a record has that was sent again.
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

_LONGEST = 300  # bytes; Kafka's names have up to 249


def replay_headers(headers: Iterable[Header]) -> list[Header]:
    """Those that say where a record came from first and how often it was sent again.

    Each once, the last of its name; what is too long to be ours is left out.
    """
    found = dict(headers)
    kept = [(name, found[name]) for name in REPLAY_HEADERS if name in found]
    return [(name, value) for name, value in kept if value is not None and len(value) <= _LONGEST]


def without_replay_headers(headers: Iterable[Header]) -> list[Header]:
    """All others, in their order."""
    return [header for header in headers if header[0] not in REPLAY_HEADERS]
