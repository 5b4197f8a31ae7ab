"""Records as bolts see them, and the signals of bolts: SKIP, To, Reject, Retry."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from numbers import Real
from operator import methodcaller
from typing import Any, Final, Protocol, final

import msgspec

DEFAULT_STREAM = "default"


@final
class Skip:
    """The type of SKIP, its only instance."""

    def __new__(cls) -> "Skip":
        return SKIP if "SKIP" in globals() else super().__new__(cls)

    def __repr__(self) -> str:
        return "SKIP"

    def __reduce__(self) -> str:
        return "SKIP"


SKIP: Final = Skip()
"""Return this to drop a record on purpose: it is counted as filtered and completed."""


@final
@dataclass(frozen=True, slots=True)
class To:
    """Return or yield this to send a value into a named stream of the bolt.

    `then(bolt, streams=("late",))` declares the stream. `task` is for a stream whose next bolt is
    grouped `direct()`.
    """

    stream: str
    value: Any
    task: int | None = None


class Reject(Exception):
    """Raise this for a record that must not be retried: it goes to the dead letters."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class RejectRows(Reject):
    """Raise this in a vectorised bolt to reject some rows, with reasons by row index.

    They go to the dead letters; the bolt is called again with the other rows.
    """

    def __init__(self, reasons: Mapping[int, str]) -> None:
        first = next(iter(reasons.values()), "no row was named")
        super().__init__(first if len(reasons) == 1 else f"{len(reasons)} rows; first: {first}")
        self.reasons = dict(reasons)


class Retry(Exception):
    """Raise this to retry the record, after `after_seconds` (a finite number >= 0) if given.

    It counts against the retry limit like any failure. Raises ValueError.
    """

    def __init__(self, reason: str, *, after_seconds: float | None = None) -> None:
        super().__init__(reason)
        seconds: Any = 0 if after_seconds is None else after_seconds
        if not (isinstance(seconds, Real) and 0 <= float(seconds) < math.inf):
            expected = "a finite number >= 0"
            raise ValueError(f"Retry.after_seconds: found {seconds!r}, expected {expected}")
        self.reason = reason
        self.after_seconds = after_seconds


SIGNALS = frozenset({Reject, RejectRows, Retry, type})
"""Types that are no values: exceptions to raise, and classes."""


_SHOWN_BYTES = 60  # of a name, a key or a value


def encode(value: Any) -> bytes | None:
    """Return a payload: bytes and None as they are, text as UTF-8, anything else as JSON."""
    if value is None or isinstance(value, bytes | bytearray | memoryview):
        return None if value is None else bytes(value)
    return value.encode() if isinstance(value, str) else msgspec.json.encode(value)


def _shown(value: bytes | None, most: int = _SHOWN_BYTES) -> str:
    if value is None or len(value) <= most:
        return repr(value)
    return f"{value[:most]!r}… ({len(value)} bytes)"


# The call is made in C, which checks whether an error was set: see `headers_of`.
_ask_headers = methodcaller("headers")


class HeadersUnreadable(Reject):
    """A name of a record's headers is not UTF-8."""


class Message(Protocol):
    """The part of a message that a Record reads (`confluent_kafka.Message` has it all)."""

    def value(self) -> bytes | None:
        """Return the payload, or None (a tombstone)."""
        ...

    def key(self) -> bytes | None: ...

    def topic(self) -> str: ...

    def partition(self) -> int: ...

    def offset(self) -> int: ...

    def timestamp(self) -> tuple[int, int]:
        """Return the kind of timestamp, and milliseconds since the epoch."""
        ...

    def headers(self) -> list[tuple[str, bytes | None]] | None:
        """Return the headers in order, or None; call `headers_of` instead."""
        ...


class Record(msgspec.Struct, frozen=True, gc=False, eq=False):
    """One Kafka message: topic, partition, offset, timestamp, key, value, headers.

    Only `value` is stored; the rest is read from the message on access, because most bolts never
    do, and the hot loop builds one record per message.
    """

    value: bytes | None
    message: Any  # a Message; Any, because a protocol would be checked per record

    @classmethod
    def make(
        cls,
        value: Any = None,
        *,
        key: bytes | str | None = None,
        headers: Mapping[str, Any] | Sequence[tuple[str, Any]] = (),
        topic: str = "test",
        partition: int = 0,
        offset: int = 0,
        timestamp_ms: int = 0,
    ) -> "Record":
        """Make a record for a test or a notebook.

        Text is encoded as UTF-8, and whatever is not bytes, text or None as JSON.
        """
        pairs = headers.items() if isinstance(headers, Mapping) else headers
        encoded = [(name, encode(each)) for name, each in pairs]
        body, place = encode(value), (topic, partition, offset)
        return cls(body, HeldMessage(body, encode(key), *place, (1, timestamp_ms), encoded))

    def __repr__(self) -> str:
        place = f"{self.topic}[{self.partition}]@{self.offset}"
        return f"Record({place}, key={_shown(self.key)}, value={_shown(self.value)})"

    def _repr_html_(self) -> str:
        shown = {
            "record": f"{self.topic}[{self.partition}]@{self.offset}",
            "timestamp": f"{self.timestamp_ms} ms",
            "key": _shown(self.key),
            "headers": ", ".join(f"{name}={_shown(each)}" for name, each in self.headers),
            "value": _shown(self.value, 2_000),
        }
        rows = (f"<tr><th>{each}</th><td>{escape(shown[each])}</td></tr>" for each in shown)
        return f"<table>{''.join(rows)}</table>"

    @property
    def key(self) -> bytes | None:
        key: bytes | None = self.message.key()
        return key

    @property
    def topic(self) -> str:
        topic: str = self.message.topic()
        return topic

    @property
    def partition(self) -> int:
        partition: int = self.message.partition()
        return partition

    @property
    def offset(self) -> int:
        offset: int = self.message.offset()
        return offset

    @property
    def timestamp_ms(self) -> int:
        """Milliseconds since the epoch, as the broker or the producer set them."""
        _kind, milliseconds = self.message.timestamp()
        return int(milliseconds)

    @property
    def headers(self) -> tuple[tuple[str, bytes | None], ...]:
        """The headers in order; a name may occur twice.

        Raises HeadersUnreadable, a Reject, when a name is not UTF-8: the client cannot give them.
        """
        return tuple(headers_of(self.message) or ())

    def __reduce__(self) -> Any:
        """Pickle all of it, as the client's own messages cannot be."""
        message = self.message
        try:
            headers: Any = headers_of(message)
        except HeadersUnreadable as error:
            headers = error.with_traceback(None)
        kept = HeldMessage(
            message.value(),
            message.key(),
            message.topic(),
            message.partition(),
            message.offset(),
            message.timestamp(),
            headers,
        )
        return Record, (self.value, kept)


def headers_of(message: Any) -> Sequence[tuple[str, bytes | None]] | None:
    """Return a message's headers in order, or None. Raises HeadersUnreadable.

    Only this and `partition.records` may call a client's `headers()`. For a name that is not
    UTF-8 the client puts a null pointer into the list, which it keeps, and returns the list with
    an error set. Specialised bytecode and a second call do not see the error, and crash.
    """
    try:
        found = _ask_headers(message)
    except (SystemError, UnicodeDecodeError) as error:
        message.set_headers(error)  # in place of the list, at once: other threads may call
        found = error.with_traceback(None)
    if isinstance(found, Exception):
        raise _unreadable(found) from None
    return found  # type: ignore[no-any-return]  # whatever the message has


def _unreadable(error: BaseException | None) -> HeadersUnreadable:
    name = "a name"
    while error is not None:
        if isinstance(error, HeadersUnreadable):
            return HeadersUnreadable(error.reason)
        if isinstance(error, UnicodeDecodeError):
            name = f"the name {error.object[:_SHOWN_BYTES]!r}"
        error = error.__cause__
    return HeadersUnreadable(
        f"the record's headers cannot be read: found {name}, expected UTF-8. "
        "The Kafka client cannot return them: fix the producer, or do not use record.headers"
    )


class HeldMessage(msgspec.Struct, frozen=True, gc=False):
    """A Message with its own values, from another process."""

    value_: bytes | None
    key_: bytes | None
    topic_: str
    partition_: int
    offset_: int
    timestamp_: tuple[int, int]
    headers_: Any  # a list, None, or an error: see headers_of

    def value(self) -> bytes | None:
        return self.value_

    def key(self) -> bytes | None:
        return self.key_

    def topic(self) -> str:
        return self.topic_

    def partition(self) -> int:
        return self.partition_

    def offset(self) -> int:
        return self.offset_

    def timestamp(self) -> tuple[int, int]:
        return self.timestamp_

    def headers(self) -> list[tuple[str, bytes | None]] | None:
        headers: list[tuple[str, bytes | None]] | None = self.headers_
        return headers

    def __len__(self) -> int:
        return len(self.value_ or b"")
