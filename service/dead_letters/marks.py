"""What operators have done with letters: marks, which stand behind them in the same partition.

Pure. A mark is a message of the dead-letter topic whose last header is `headrace.mark`; a letter's
last one never is, so no record can make itself a mark.
"""

from typing import Literal, TypeAlias

import msgspec

from service.dead_letters.letter import Place, headers_in
from sinks.kafka.dead_letters import Header
from topology.record import Message

Kind: TypeAlias = Literal["replayed", "dropped"]

MARK = "headrace.mark"

_LONGEST = 16_384  # bytes; ours are far below it


class Mark(msgspec.Struct, frozen=True, omit_defaults=True):
    """What became of one letter of the mark's own partition: who did it, when, and why."""

    letter: int  # its offset
    kind: Kind
    at_ms: int
    by: str
    why: str = ""
    to: str = ""  # where its record stands now, if it was sent again: orders[0]@991


class Marks:
    """The marks of a topic, by letter."""

    def __init__(self) -> None:
        self._by_place: dict[Place, tuple[Mark, ...]] = {}

    def take(self, message: Message) -> bool:
        """Learn of a message if it is a mark; return whether it is."""
        if not is_mark(message):
            return False
        mark = _decode(message.value())
        # What is no mark of ours, or of nothing before it, says nothing.
        if mark is not None and mark.letter < message.offset():
            place = Place(message.partition(), mark.letter)
            self._by_place[place] = (*self._by_place.get(place, ()), mark)
        return True

    def of(self, place: Place) -> tuple[Mark, ...]:
        """What was done with a letter, in order; nothing if it is open."""
        return self._by_place.get(place, ())


def is_mark(message: Message) -> bool:
    """Whether a message is a mark."""
    headers = headers_in(message)
    return len(headers) > 0 and headers[-1][0] == MARK


def encode(mark: Mark) -> tuple[bytes, list[Header]]:
    """Return a mark's value and headers."""
    return msgspec.json.encode(mark), [(MARK, mark.kind.encode())]


def _decode(value: bytes | None) -> Mark | None:
    if value is None or len(value) > _LONGEST:
        return None
    try:
        return msgspec.json.decode(value, type=Mark)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None
