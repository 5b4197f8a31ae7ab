"""Sends letters' records again, or drops letters, and marks each: both in one transaction.

A crash leaves a letter sent and marked, or neither. Whoever begins later fences whoever is still at
it, and reads the marks after that; so two operators do not send one letter twice.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from partition.flow_control import Throttle
from service.dead_letters.errors import AnotherAtWork
from service.dead_letters.judging import Row
from service.dead_letters.letter import Content, Letter, Place, sent_again
from service.dead_letters.marks import Kind, Mark, encode
from service.dead_letters.planning import View, content_to_send
from sinks.kafka.client import NotAccepted, OutcomeUnknown, ProducerFenced, RecordMetadata
from sinks.kafka.messages import Message

_MOST = 500  # letters in a transaction: who reads their topics waits behind it
_MOST_BYTES = 8_000_000
_UNCLEAR = "Kafka has not answered; whether it was done, `headrace dead-letters list --all` says"


class Atomic(Protocol):
    """A TransactionalProducer that is open."""

    def commit(
        self,
        messages: Sequence[Message],
        then: Callable[[Sequence[RecordMetadata]], Sequence[Message]],
    ) -> None:
        """See TransactionalProducer."""
        ...


class Who(NamedTuple):
    """Whose work it is, for the marks."""

    by: str
    at_ms: int
    why: str = ""


@dataclass(frozen=True, slots=True)
class Piece:
    """A row on its way, and what is sent of it; nothing of one that is dropped."""

    row: Row
    copy: Message | None

    @property
    def size(self) -> int:
        """About how many bytes it has."""
        return 0 if self.copy is None else len(self.copy.key or b"") + len(self.copy.value or b"")


class Sender:
    """Carries out what was planned. One thread; `clock` is monotonic, in seconds.

    `per_second` limits how many records are sent.
    """

    def __init__(
        self,
        view: View,
        producer: Atomic,
        who: Who,
        *,
        per_second: float | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._view = view
        self._producer = producer
        self._who = who
        self._throttle = None if per_second is None else Throttle(per_second)
        self._clock = clock
        self._sleep = sleep
        self._done: dict[Place, Row] = {}

    def replay(self, rows: Sequence[Row]) -> list[Row]:
        """Send what is to be sent; return what became of every row. Raises AnotherAtWork.

        What is not known, or could not be said to Kafka any more, ends it: later rows stay as
        they are.
        """
        wanted = {row.letter.place: row for row in rows if row.outcome == "to_replay"}
        self._carry_out(self._pieces(wanted), "replayed")
        expired = "it is not in the topic any more"
        left = {place: row for place, row in wanted.items() if place not in self._done}
        is_ended = any(row.note.startswith(_UNCLEAR) for row in self._done.values())
        if not is_ended:
            self._done |= {place: row.become("failed", expired) for place, row in left.items()}
        return [self._done.get(row.letter.place, row) for row in rows]

    def drop(self, rows: Sequence[Row]) -> list[Row]:
        """Mark what is to be dropped; as `replay`."""
        self._carry_out((Piece(row, None) for row in rows if row.outcome == "to_drop"), "dropped")
        return [self._done.get(row.letter.place, row) for row in rows]

    def _pieces(self, wanted: dict[Place, Row]) -> Iterator[Piece]:
        """Read the letters once more, now with their values."""
        for letter in self._view.topic.some(self._view.extent, wanted):
            row = wanted[letter.place]
            content = content_to_send(self._view.topic, letter)
            if isinstance(content, str):
                self._done[letter.place] = row.become("failed", content)
            else:
                yield Piece(row, self._copy(row, letter, content))

    def _copy(self, row: Row, letter: Letter, content: Content) -> Message:
        if row.target is None:
            raise AssertionError(letter.place)
        headers = sent_again(
            letter,
            content,
            earlier=row.earlier,
            source=self._view.topic.name,
            at_ms=self._who.at_ms,
        )
        topic, partition = row.target
        return Message(topic, content.value, content.key, headers, partition)

    def _carry_out(self, pieces: Iterator[Piece], kind: Kind) -> None:
        waiting: list[Piece] = []
        room = self._room()
        for piece in pieces:
            waiting.append(piece)
            if len(waiting) >= room or sum(each.size for each in waiting) >= _MOST_BYTES:
                if not self._publish(waiting, kind):
                    return
                waiting, room = [], self._room()
        if waiting:
            self._publish(waiting, kind)

    def _room(self) -> int:
        """How many may be sent now; waits until it is one at least."""
        if self._throttle is None:
            return _MOST
        while True:
            room = min(_MOST, self._throttle.allows(self._clock()))
            if room:
                return room
            self._sleep(self._throttle.seconds_left())

    def _publish(self, pieces: Sequence[Piece], kind: Kind) -> bool:
        """Send some in one transaction; return whether another may follow.

        If the broker takes one of them not, each goes by itself, and that one is told.
        """
        copies = [each.copy for each in pieces if each.copy is not None]
        places: list[str] = []

        def marks(stored: Sequence[RecordMetadata]) -> list[Message]:
            places[:] = _places(pieces, stored)
            return self._marks(pieces, places, kind)

        try:
            self._producer.commit(copies, marks)
        except NotAccepted as error:
            if len(pieces) > 1:
                return all(self._publish([each], kind) for each in pieces)
            row = pieces[0].row
            self._done[row.letter.place] = row.become("failed", f"Kafka refuses it: {error}")
            return True
        except ProducerFenced as error:
            done = sum(row.outcome == kind for row in self._done.values())
            raise AnotherAtWork(self._view.topic.name, done) from error
        except OutcomeUnknown as error:
            for each in pieces:
                note = f"{_UNCLEAR}: {error}"
                self._done[each.row.letter.place] = each.row.become("failed", note)
            return False
        for each, to in zip(pieces, places, strict=True):
            self._done[each.row.letter.place] = each.row.become(kind, to=to)
        if self._throttle is not None:
            self._throttle.take(len(pieces))
        return True

    def _marks(self, pieces: Sequence[Piece], places: Sequence[str], kind: Kind) -> list[Message]:
        marks = []
        for each, to in zip(pieces, places, strict=True):
            for place in (each.row.letter.place, *each.row.twins):
                mark = Mark(place.offset, kind, self._who.at_ms, self._who.by, self._who.why, to)
                value, headers = encode(mark)
                topic = self._view.topic.name
                marks.append(Message(topic, value, None, headers, place.partition))
        return marks


def _places(pieces: Sequence[Piece], stored: Sequence[RecordMetadata]) -> list[str]:
    """Where the records of pieces are stored, for a person; empty if they were not sent."""
    left = iter(stored)
    return [
        f"{each.copy.topic}[{at.partition}]@{at.offset}" if each.copy and (at := next(left)) else ""
        for each in pieces
    ]
