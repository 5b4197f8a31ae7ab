"""Rows as messages, setting apart those that give none."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from sinks.rows import rows_of
from topology.sink import Piece

Headers: TypeAlias = Sequence[tuple[str, str | bytes | None]]
Content: TypeAlias = Callable[[Any], str | bytes | None]

# What a message costs beside its bytes: the frame of its batch, lengths, deltas.
_FRAME_BYTES = 128
_HEADER_BYTES = 16
_SHOWN = 200  # characters of an error


class Message(NamedTuple):
    """What is sent to a topic."""

    topic: str
    value: str | bytes | None
    key: str | bytes | None = None
    headers: Headers = ()


@dataclass(frozen=True, slots=True)
class Encoded:
    """The messages in the order of their rows, and why the other rows give none."""

    messages: list[Message]
    rejected: dict[int, str]


class Encoder:
    """Makes messages of rows by the user's functions. Pure, if they are."""

    def __init__(
        self,
        topic: str,
        value: Content,
        key: Content | None,
        headers: Callable[[Any], Headers] | None,
    ) -> None:
        self._topic = topic
        self._value = value
        self._key = key
        self._headers = headers

    def encode(self, pieces: Sequence[Piece], max_bytes: int) -> Encoded:
        """One message per row; a row fails alone, be it by its function or by its size."""
        encoded = Encoded([], {})
        for index, row in enumerate(rows_of(pieces)):
            try:
                message = self._message(row)
                size = _size(message)
            except Exception as error:  # noqa: BLE001 - the user's function may raise anything
                text = str(error)[:_SHOWN]
                encoded.rejected[index] = f"{type(error).__name__}: {text}"
                continue
            if size > max_bytes:
                encoded.rejected[index] = (
                    f"a message of {size} bytes; topic '{self._topic}' allows {max_bytes}"
                )
            else:
                encoded.messages.append(message)
        return encoded

    def _message(self, row: Any) -> Message:
        key = None if self._key is None else self._key(row)
        headers = () if self._headers is None else self._headers(row)
        return Message(self._topic, self._value(row), key, headers)


def _size(message: Message) -> int:
    """Bytes that it takes at most in the log, uncompressed. Raises TypeError."""
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
    message = f"the {what} is a {type(content).__name__}; bytes, str or None is allowed"
    raise TypeError(message)
