"""What may be done with a letter, and why not: sent again, or dropped. Pure.

A record cannot go round in circles: each time it is sent again it carries how often that was, also
as a letter of another pipeline, and `max_replays` ends it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Literal, NamedTuple, Self, TypeAlias

from service.dead_letters.letter import Letter, Origin, Place
from service.dead_letters.marks import Mark

Outcome: TypeAlias = Literal["replayed", "to_replay", "dropped", "to_drop", "refused", "failed"]

Topics: TypeAlias = Mapping[str, Sequence[int]]  # partitions by topic; none: there is no such topic


class Wish(NamedTuple):
    """How records are to be sent again."""

    max_replays: int = 1
    again: bool = False  # also letters that are dealt with
    to: str | None = None  # another topic; its partitions are chosen by key


class Target(NamedTuple):
    """Where a record is sent."""

    topic: str
    partition: int | None  # None: chosen by the key

    def __str__(self) -> str:
        return self.topic if self.partition is None else f"{self.topic}[{self.partition}]"


@dataclass(frozen=True, slots=True)
class Row:
    """One letter, what becomes of it, and why. `letter` is without its content."""

    letter: Letter
    outcome: Outcome
    note: str = ""
    target: Target | None = None
    to: str = ""  # where its record stands now
    earlier: int = 0  # how often it had been sent before
    twins: tuple[Place, ...] = ()  # other letters of the same reading of the record

    def become(self, outcome: Outcome, note: str | None = None, to: str = "") -> Self:
        """The row after an attempt."""
        return replace(self, outcome=outcome, note=self.note if note is None else note, to=to)

    def as_json(self) -> dict[str, Any]:
        """The row as JSON takes it."""
        return {
            "outcome": self.outcome,
            "note": self.note,
            "record": str(self.letter.read),
            "origin": str(self.letter.origin),
            "to": self.to or None,
            "twins": [str(each) for each in self.twins],
        }


def judge_replay(letter: Letter, marks: Sequence[Mark], wish: Wish, topics: Topics) -> Row:
    """Decide whether a letter's record may be sent again, and where to."""
    target = Target(letter.read.topic, letter.read.partition)
    if wish.to is not None:
        target = Target(wish.to, None)
    earlier = letter.replays + sum(mark.kind == "replayed" for mark in marks)
    note = f"without its headers: {letter.headers_error}" if letter.headers_error else ""
    row = Row(letter.bare(), "to_replay", note, target, earlier=earlier)
    if marks and not wish.again:
        return row.become("refused", f"{in_words(marks[-1])}; --again replays it all the same")
    if earlier >= wish.max_replays:
        how_often = "once" if earlier == 1 else f"{earlier} times"
        note = (
            f"its record was replayed {how_often} already, and --max-replays is "
            f"{wish.max_replays}; if what it failed of is mended, --max-replays {earlier + 1} "
            "replays it once more"
        )
        return row.become("refused", note)
    numbers = topics.get(target.topic) or ()
    if not numbers:
        note = f"topic '{target.topic}' does not exist; --to sends it to another one"
        return row.become("refused", note)
    if target.partition is not None and target.partition not in numbers:
        note = (
            f"{target} does not exist; the topic has partitions {numbers[0]} to {numbers[-1]}; "
            "--to chooses them by key"
        )
        return row.become("refused", note)
    return row


def judge_drop(letter: Letter, marks: Sequence[Mark]) -> Row:
    """Decide whether a letter may be marked as dropped."""
    row = Row(letter.bare(), "to_drop")
    return row.become("refused", in_words(marks[-1])) if marks else row


def without_twins(rows: Sequence[Row]) -> list[Row]:
    """Join the letters of one reading of a record: a crash makes two of them, or more.

    Only what is to be sent; the record goes once, and all its letters are marked.
    """
    kept: dict[Origin | Place, Row] = {}
    for row in rows:
        is_sent = row.outcome == "to_replay"
        key = row.letter.read if is_sent else row.letter.place
        first = kept.get(key)
        if first is None:
            kept[key] = row
        else:
            kept[key] = replace(first, twins=(*first.twins, row.letter.place))
    return list(kept.values())


def in_words(mark: Mark) -> str:
    """What was done with a letter, for a person."""
    where = f" as {mark.to}" if mark.to else ""
    why = f": {mark.why}" if mark.why else ""
    return f"{mark.kind}{where} on {moment(mark.at_ms)} by {mark.by}{why}"


def moment(at_ms: int) -> str:
    """A moment for a person, in UTC; headers may hold any number."""
    try:
        return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (ValueError, OverflowError, OSError):
        return f"{at_ms} ms"
