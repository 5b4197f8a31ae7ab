"""Encode rows as messages, setting apart the rows that cannot be encoded. Pure."""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import msgspec
import pyarrow as pa

from sinks.columns import has_no_number, with_leaves
from topology.sink import NO_TRACES, Piece, RowTraces, is_of_trace
from topology.values import has_part

Headers: TypeAlias = Iterable[tuple[str, str | bytes | None]]
Content: TypeAlias = Callable[[Any], str | bytes | None]

# The overhead of a message: the frame of its batch, lengths, deltas.
_FRAME_BYTES = 128
_HEADER_BYTES = 16
_SHOWN = 200  # characters of an error


class OutgoingMessage(NamedTuple):
    """A message to a topic; without a partition, the key decides."""

    topic: str
    value: str | bytes | None
    key: str | bytes | None = None
    headers: Sequence[tuple[str, str | bytes | None]] = ()
    partition: int | None = None


@dataclass(frozen=True, slots=True)
class Encoded:
    """The messages in the order of their rows, and why each other row was rejected."""

    messages: list[OutgoingMessage]
    rejected: dict[int, str]


def as_json(row: Any) -> bytes:
    """Encode a row as JSON. Raises ValueError for NaN and infinities, and msgspec's errors."""
    encoded = msgspec.json.encode(row)
    # msgspec encodes NaN as null, and searching each row for one costs more than encoding it.
    # `in` takes twice as long as `find`: it first tries whether the bytes are a number.
    if encoded.find(b"null") >= 0 and has_no_number(row):
        raise ValueError("found NaN or an infinity, which JSON has not")
    return encoded


def message_of(
    topic: str,
    value: Content,
    key: Content | None,
    headers: Callable[[Any], Headers] | None,
    row: Any,
) -> OutgoingMessage:
    made_key = None if key is None else key(row)
    made_headers = () if headers is None else tuple(headers(row))
    return OutgoingMessage(topic, value(row), made_key, made_headers)


def encode(
    pieces: Sequence[Piece],
    make: Callable[[Any], OutgoingMessage],
    max_bytes: int,
    traces: RowTraces = NO_TRACES,
) -> Encoded:
    """Encode each row; one that a function or its size rejects harms no other.

    Rows of a RecordBatch are dictionaries, maps in them too; times are cut to microseconds. The
    headers of `traces` are added to their rows' messages, where they fit.
    """
    encoded = Encoded([], {})
    for index, row in enumerate(_rows_of(pieces)):
        try:
            if isinstance(row, _NoRow):
                raise row.reason  # noqa: TRY301
            message = make(row)
            size = _size(message)
        except Exception as error:  # noqa: BLE001 - the user's function may raise anything
            text = str(error)[:_SHOWN]
            encoded.rejected[index] = f"{type(error).__name__}: {text}"
            continue
        if size > max_bytes:
            encoded.rejected[index] = (
                f"a message of {size} bytes; topic '{message.topic}' allows {max_bytes}"
            )
        else:
            encoded.messages.append(message)
    if traces:
        _add_traces(encoded, traces, max_bytes)
    return encoded


class _NoRow(NamedTuple):
    """A row of columns with a value that Python has not."""

    reason: Exception


def _rows_of(pieces: Sequence[Piece]) -> Iterator[Any]:
    for piece in pieces:
        if isinstance(piece, pa.RecordBatch):
            yield from _rows_of_columns(piece)
        else:
            yield from piece


def _rows_of_columns(batch: pa.RecordBatch) -> list[Any]:
    if any(has_part(kind, _has_nanoseconds) for kind in batch.schema.types):
        columns = [
            each.cast(with_leaves(each.type, _in_microseconds), safe=False)
            for each in batch.columns
        ]
        batch = pa.RecordBatch.from_arrays(columns, batch.schema.names)
    try:
        return batch.to_pylist(maps_as_pydicts="strict")
    except Exception as error:  # noqa: BLE001 - a key twice, a time past the year 9999
        if batch.num_rows == 1:
            return [_NoRow(error)]
    middle = batch.num_rows // 2
    return _rows_of_columns(batch.slice(0, middle)) + _rows_of_columns(batch.slice(middle))


def _has_nanoseconds(kind: Any) -> bool:
    return (pa.types.is_timestamp(kind) or pa.types.is_duration(kind)) and bool(kind.unit == "ns")


def _in_microseconds(kind: Any) -> Any:
    if not _has_nanoseconds(kind):
        return kind
    return pa.timestamp("us", kind.tz) if pa.types.is_timestamp(kind) else pa.duration("us")


def _add_traces(encoded: Encoded, traces: RowTraces, max_bytes: int) -> None:
    refused = sorted(encoded.rejected)
    for row, headers in traces.items():
        if row in encoded.rejected:
            continue
        place = row - bisect_left(refused, row)
        message = encoded.messages[place]
        kept = [each for each in message.headers if not is_of_trace(each[0])]
        traced = message._replace(headers=(*kept, *headers))
        if _size(traced) <= max_bytes:
            encoded.messages[place] = traced


def _size(message: OutgoingMessage) -> int:
    """Return the most bytes it takes in the log, uncompressed. Raises TypeError."""
    size = _FRAME_BYTES + _length("value", message.value) + _length("key", message.key)
    for name, value in message.headers:
        size += _HEADER_BYTES + len(name.encode()) + _length(f"header '{name}'", value)
    return size


def _length(what: str, content: object) -> int:
    if content is None:
        return 0
    if isinstance(content, bytes):
        return len(content)
    if isinstance(content, str):
        return len(content.encode())
    message = f"the {what} is a {type(content).__name__}, expected bytes, str or None"
    raise TypeError(message)
