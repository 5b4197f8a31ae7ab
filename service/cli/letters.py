"""`headrace dead-letters`: finds the topic, the letters that are meant, and does what is asked.

Whoever changes something reads twice: once to show what would happen, and once more when nobody
else can change it any longer.
"""

import heapq
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, ParamSpec, TypeVar

import typer
from rich.console import Console

from service.cli.common import (
    answers,
    configured,
    load_topology,
    now_ms,
    print_json,
    whoami,
)
from service.cli.letters_shown import (
    Listed,
    letter_facts,
    show_letter,
    show_letters,
    show_rows,
)
from service.dead_letters.errors import NoLetterTopic, NotDealtWith
from service.dead_letters.judging import Row, Wish
from service.dead_letters.letter import Letter, Place
from service.dead_letters.planning import (
    Passed,
    Selection,
    View,
    content_to_send,
    look,
    plan_drop,
    plan_replay,
)
from service.dead_letters.selection import Filters, parse_offsets, parse_place, parse_time
from service.dead_letters.sending import Sender, Who
from service.dead_letters.topic import LetterTopic
from service.wiring import wire
from sinks.kafka.client import Cluster, TransactionalProducer
from sinks.kafka.dead_letters import KafkaDeadLetters
from topology.sink import Scalar

T = TypeVar("T")
Words = ParamSpec("Words")

_LETTER = "LETTER"
_LARGEST_BYTES = 100_000_000  # the broker, which knows the topics' limits, judges
_OPEN_SECONDS = 20  # consumers of the topics wait behind an open transaction


class Room(NamedTuple):
    """The dead-letter topic of a topology."""

    pipeline: str
    topic: LetterTopic
    properties: dict[str, Scalar]  # librdkafka's

    def producer(self) -> TransactionalProducer:
        """Whoever opens one of the same topic later fences it."""
        cluster = Cluster(self.properties, "topic_broker_error", self.topic.name)
        name = f"headrace.dead-letters.{self.topic.name}"
        return TransactionalProducer(cluster, name, _LARGEST_BYTES, _OPEN_SECONDS)


@dataclass(frozen=True, slots=True)
class Chosen:
    """Which letters are meant."""

    places: tuple[Place, ...]
    filters: Filters

    def selection(self, pipeline: str, *, dealt_with: bool) -> Selection:
        """The same for a pipeline; `dealt_with` ones too, if asked for."""
        return Selection(pipeline, self.filters, self.places, dealt_with)


@dataclass(frozen=True, slots=True)
class Order:
    """What an operator asks for."""

    chosen: Chosen
    why: str
    dry_run: bool
    yes: bool
    as_json: bool
    to: str | None = None
    max_replays: int = 1
    again: bool = False
    per_second: float | None = None

    @property
    def wish(self) -> Wish:
        """How records are to be sent again."""
        return Wish(self.max_replays, self.again, self.to)


def filters_of(
    topic: str | None,
    partition: int | None,
    offsets: str | None,
    step: str | None,
    error: str | None,
    since: str | None,
    until: str | None,
    pipeline: str | None,
) -> Filters:
    """Read the filters. Raises typer.BadParameter."""
    now = now_ms()
    return Filters(
        topic=topic,
        partition=partition,
        offsets=None if offsets is None else _read("--offsets", parse_offsets, offsets),
        step=step,
        error=error,
        since_ms=None if since is None else _read("--since", parse_time, since, now),
        until_ms=None if until is None else _read("--until", parse_time, until, now),
        pipeline=pipeline,
    )


def chosen(places: Sequence[str] | None, filters: Filters, *, every: bool) -> Chosen:
    """Letters by their places, or by filters, or all of them. Raises typer.BadParameter."""
    found = tuple(_read(_LETTER, parse_place, each) for each in places or ())
    if found and (filters.any or every):
        message = "either letters or filters are needed, not both"
        raise typer.BadParameter(message, param_hint=_LETTER)
    if every and filters.any:
        raise typer.BadParameter("it goes with no filter", param_hint="--every")
    if not (found or filters.any or every):
        message = "which letters? PARTITION:OFFSET of some, a filter, or --every is needed"
        raise typer.BadParameter(message, param_hint=_LETTER)
    return Chosen(found, filters)


def show_list(
    target: str, config: Path | None, filters: Filters, *, every: bool, limit: int, as_json: bool
) -> None:
    """Print the newest letters, and how many there are."""
    with _room(target, config) as room:
        view = look(room.topic)
        listed = _listed(view, Selection(room.pipeline, filters, all=every), limit)
    if as_json:
        print_json({"topic": room.topic.name, "pipeline": room.pipeline, **listed.as_json()})
    else:
        show_letters(answers(), room.topic.name, listed)


def show_one(
    target: str,
    config: Path | None,
    text: str,
    most: int,
    *,
    value_only: bool,
    as_json: bool,
) -> None:
    """Print one letter. Raises NoSuchLetter."""
    place = _read(_LETTER, parse_place, text)
    if value_only and sys.stdout.isatty():
        message = "it writes bytes as they are, which a terminal may obey: > FILE or | COMMAND"
        raise typer.BadParameter(message, param_hint="--value-only")
    with _room(target, config) as room:
        topic, extent = room.topic, room.topic.extent()
        letter = next(topic.some(extent, [place]), None)
        if letter is None:
            topic.explain(extent, place)
        content = content_to_send(topic, letter)
        marks = topic.marks(extent, behind=place).of(place)
    if value_only:
        if isinstance(content, str):
            raise NotDealtWith("written", 1, 1, 0, content)
        sys.stdout.buffer.write(content.value or b"")
        sys.stdout.buffer.flush()
    elif as_json:
        print_json(letter_facts(letter, content, marks))
    else:
        show_letter(answers(), letter, content, marks, most)


def replay(target: str, config: Path | None, order: Order) -> None:
    """Send records again. Raises NotDealtWith, NoSuchLetter, AnotherAtWork."""
    with _room(target, config) as room:

        def plan(view: View, meant: Chosen) -> list[Row]:
            selection = meant.selection(room.pipeline, dealt_with=order.again)
            return plan_replay(view, selection, order.wish)

        rows = plan(look(room.topic), order.chosen)
        if _agreed(rows, order, "to_replay", "replay"):
            with _sending(room) as producer:
                view = look(room.topic)
                rows = _anew(rows, plan(view, _places(rows, "to_replay")))
                sender = Sender(view, producer, _who(order), per_second=order.per_second)
                rows = sender.replay(rows)
    _tell(room, order, rows, "replayed")


def drop(target: str, config: Path | None, order: Order) -> None:
    """Mark letters as dropped. Raises NotDealtWith, NoSuchLetter, AnotherAtWork."""
    with _room(target, config) as room:

        def plan(view: View, meant: Chosen) -> list[Row]:
            return plan_drop(view, meant.selection(room.pipeline, dealt_with=False))

        rows = plan(look(room.topic), order.chosen)
        if _agreed(rows, order, "to_drop", "drop"):
            with _sending(room) as producer:
                view = look(room.topic)
                rows = _anew(rows, plan(view, _places(rows, "to_drop")))
                rows = Sender(view, producer, _who(order)).drop(rows)
    _tell(room, order, rows, "dropped")


@contextmanager
def _room(target: str, config: Path | None) -> Iterator[Room]:
    """The topology's dead-letter topic, open. Raises NoLetterTopic."""
    topology = load_topology(target)
    settings = configured(config)
    sink = topology.dead_letters.sink
    if not isinstance(sink, KafkaDeadLetters):
        raise NoLetterTopic(type(sink).__name__)
    pipeline = wire(topology, settings).name
    properties = sink.client_properties(settings.kafka)
    topic = LetterTopic(sink.topic, properties)
    topic.open()
    try:
        yield Room(pipeline, topic, properties)
    finally:
        topic.close()


@contextmanager
def _sending(room: Room) -> Iterator[TransactionalProducer]:
    producer = room.producer()
    producer.open()
    try:
        yield producer
    finally:
        producer.close()


def _listed(view: View, selection: Selection, limit: int) -> Listed:
    """The newest letters, in memory for so many; the others are counted."""
    passed, by_error = Passed(), Counter[tuple[str, str]]()

    def counted() -> Iterator[tuple[int, Place, Letter]]:
        for letter, _ in view.selected(selection, passed):
            by_error[letter.step, letter.error_class] += 1
            yield letter.failed_at_ms, letter.place, letter.bare()

    newest = [each[-1] for each in heapq.nlargest(limit, counted(), key=lambda each: each[:2])]
    marked = [(letter, view.marks.of(letter.place)) for letter in newest]
    return Listed(marked, by_error, passed)


def _agreed(rows: Sequence[Row], order: Order, outcome: str, verb: str) -> bool:
    """Whether there is something to do, and the operator wants it done."""
    count = sum(row.outcome == outcome for row in rows)
    if not count or order.dry_run:
        return False
    if order.yes:
        return True
    if not sys.stdin.isatty():
        message = f"nobody can be asked here: give --yes to {verb} {count} letters, or --dry-run"
        raise typer.BadParameter(message, param_hint="--yes")
    show_rows(Console(stderr=True), rows)
    return typer.confirm(f"{verb} {count} letters?", err=True)


def _places(rows: Sequence[Row], outcome: str) -> Chosen:
    wanted = [row for row in rows if row.outcome == outcome]
    places = [place for row in wanted for place in (row.letter.place, *row.twins)]
    return Chosen(tuple(places), Filters())


def _anew(rows: Sequence[Row], judged: Sequence[Row]) -> list[Row]:
    """What was refused at first, and how the others are judged now."""
    kept = [row for row in rows if row.outcome not in ("to_replay", "to_drop")]
    return sorted([*kept, *judged], key=lambda row: row.letter.place)


def _who(order: Order) -> Who:
    return Who(whoami(), now_ms(), order.why)


def _tell(room: Room, order: Order, rows: Sequence[Row], done: str) -> None:
    """Print what became of every letter. Raises NotDealtWith if one was not dealt with."""
    count = sum(row.outcome == done for row in rows)
    not_done = [row for row in rows if row.outcome in ("refused", "failed")]
    if order.as_json:
        print_json(
            {
                "topic": room.topic.name,
                "pipeline": room.pipeline,
                "dry_run": order.dry_run,
                "why": order.why,
                done: count,
                "refused": len(not_done),
                "letters": {str(row.letter.place): row.as_json() for row in rows},
            }
        )
    else:
        show_rows(answers(), rows)
    if not_done:
        raise NotDealtWith(done, len(not_done), len(rows), count, not_done[0].note)


def _read(hint: str, parse: Callable[Words, T], *words: Words.args, **more: Words.kwargs) -> T:
    """Parse an option's words. Raises typer.BadParameter."""
    try:
        return parse(*words, **more)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=hint) from None
