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
from service.dead_letters.commands import (
    DeadLetterResult,
    Filters,
    Operator,
    ReplayRequest,
    Selection,
    Skipped,
    parse_id,
    parse_offsets,
    parse_time,
    select,
)
from service.dead_letters.commands import drop as drop_dead_letters
from service.dead_letters.commands import replay as replay_dead_letters
from service.dead_letters.messages import DeadLetterId, StoredDeadLetter
from service.dead_letters.topic import DeadLetterTopic
from service.errors import ServiceError
from service.wiring import wire
from sinks.kafka.client import Cluster, TransactionalProducer
from sinks.kafka.dead_letters import KafkaDeadLetters
from topology.sink import Scalar

T = TypeVar("T")
Words = ParamSpec("Words")

_LETTER = "LETTER"
_LARGEST_BYTES = 100_000_000  # the broker, which knows the topics' limits, judges
_OPEN_SECONDS = 20  # consumers of the topics wait behind an open transaction


class NoDeadLetterTopic(ServiceError):
    """The topology's dead letters go to no Kafka topic."""

    def __init__(self, kind: str) -> None:
        super().__init__(
            f"the topology's dead letters go into a {kind}; these commands need a "
            "KafkaDeadLetters, whose topic can be read from outside"
        )


class DeadLettersNotDone(ServiceError):
    """Some dead letters were refused, or could not be replayed or marked."""

    def __init__(self, what: str, not_done: int, letters: int, done: int, reason: str) -> None:
        """`reason` is the first one's."""
        super().__init__(
            f"{not_done} of {letters} dead letters were not {what}, {done} were: {reason}"
        )


class Room(NamedTuple):
    """The dead-letter topic of a topology."""

    pipeline: str
    topic: DeadLetterTopic
    properties: dict[str, Scalar]  # librdkafka's

    @contextmanager
    def producer(self) -> Iterator[TransactionalProducer]:
        """Open a producer, which fences those of the same topic."""
        cluster = Cluster(self.properties, "topic_broker_error", self.topic.name)
        name = f"headrace.dead-letters.{self.topic.name}"
        producer = TransactionalProducer(cluster, name, _LARGEST_BYTES, _OPEN_SECONDS)
        producer.open()
        try:
            yield producer
        finally:
            producer.close()


class Chosen(NamedTuple):
    """Which letters are meant."""

    ids: tuple[DeadLetterId, ...]
    filters: Filters


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
    def operator(self) -> Operator:
        """The author of the marks."""
        return Operator(whoami(), now_ms(), self.why)


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
    is_filtered = filters != Filters()
    found = tuple(_read(_LETTER, parse_id, each) for each in places or ())
    if found and (is_filtered or every):
        message = "either letters or filters are needed, not both"
        raise typer.BadParameter(message, param_hint=_LETTER)
    if every and is_filtered:
        raise typer.BadParameter("it goes with no filter", param_hint="--every")
    if not (found or is_filtered or every):
        message = "which letters? PARTITION:OFFSET of some, a filter, or --every is needed"
        raise typer.BadParameter(message, param_hint=_LETTER)
    return Chosen(found, filters)


def show_list(
    target: str, config: Path | None, filters: Filters, *, every: bool, limit: int, as_json: bool
) -> None:
    """Print the newest letters, and how many there are."""
    with _room(target, config) as room:
        room.topic.refresh()
        listed = _listed(room.topic, Selection(room.pipeline, filters, all=every), limit)
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
    """Print one letter. Raises NoSuchDeadLetter."""
    place = _read(_LETTER, parse_id, text)
    if value_only and sys.stdout.isatty():
        message = "it writes bytes as they are, which a terminal may obey: > FILE or | COMMAND"
        raise typer.BadParameter(message, param_hint="--value-only")
    with _room(target, config) as room:
        topic = room.topic
        topic.refresh(after=place)
        letter = next(topic.some([place]), None)
        if letter is None:
            topic.explain(place)
        content = topic.content(letter)
        marks = topic.marks.get(place, ())
    if value_only:
        if isinstance(content, str):
            raise DeadLettersNotDone("written", 1, 1, 0, content)
        sys.stdout.buffer.write(content.value or b"")
        sys.stdout.buffer.flush()
    elif as_json:
        print_json(letter_facts(letter, content, marks))
    else:
        show_letter(answers(), letter, content, marks, most)


def replay(target: str, config: Path | None, order: Order) -> None:
    """Send records again. Raises DeadLettersNotDone, NoSuchDeadLetter, ConcurrentOperator."""
    request = ReplayRequest(order.max_replays, order.again, order.to, order.per_second)
    with _room(target, config) as room:
        results = replay_dead_letters(
            room.topic,
            Selection(room.pipeline, order.chosen.filters, order.chosen.ids, order.again),
            request,
            order.operator,
            lambda results: _agreed(results, order, "to_replay", "replay"),
            room.producer,
        )
    _tell(room, order, results, "replayed")


def drop(target: str, config: Path | None, order: Order) -> None:
    """Mark letters as dropped. Raises as `replay`."""
    with _room(target, config) as room:
        results = drop_dead_letters(
            room.topic,
            Selection(room.pipeline, order.chosen.filters, order.chosen.ids),
            order.operator,
            lambda results: _agreed(results, order, "to_drop", "drop"),
            room.producer,
        )
    _tell(room, order, results, "dropped")


@contextmanager
def _room(target: str, config: Path | None) -> Iterator[Room]:
    """The topology's dead-letter topic, open. Raises NoDeadLetterTopic."""
    topology = load_topology(target)
    settings = configured(config)
    sink = topology.dead_letters.sink
    if not isinstance(sink, KafkaDeadLetters):
        raise NoDeadLetterTopic(type(sink).__name__)
    pipeline = wire(topology, settings).name
    properties = sink.client_properties(settings.kafka)
    topic = DeadLetterTopic(sink.topic, properties)
    topic.open()
    try:
        yield Room(pipeline, topic, properties)
    finally:
        topic.close()


def _listed(topic: DeadLetterTopic, selection: Selection, limit: int) -> Listed:
    """The newest letters, in memory for so many; the others are counted."""
    skipped, by_error = Skipped(), Counter[tuple[str, str]]()

    def counted() -> Iterator[tuple[int, DeadLetterId, StoredDeadLetter]]:
        for letter in select(topic, selection, skipped):
            by_error[letter.step, letter.error_class] += 1
            yield letter.failed_at_ms, letter.id, letter.bare()

    newest = [each[-1] for each in heapq.nlargest(limit, counted(), key=lambda each: each[:2])]
    marked = [(letter, topic.marks.get(letter.id, ())) for letter in newest]
    return Listed(marked, by_error, skipped)


def _agreed(rows: Sequence[DeadLetterResult], order: Order, outcome: str, verb: str) -> bool:
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


def _tell(room: Room, order: Order, rows: Sequence[DeadLetterResult], done: str) -> None:
    """Print what became of every letter. Raises DeadLettersNotDone if one was not dealt with."""
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
                "letters": {str(row.letter.id): row.as_json() for row in rows},
            }
        )
    else:
        show_rows(answers(), rows)
    if not_done:
        raise DeadLettersNotDone(done, len(not_done), len(rows), count, not_done[0].note)


def _read(hint: str, parse: Callable[Words, T], *words: Words.args, **more: Words.kwargs) -> T:
    """Parse an option's words. Raises typer.BadParameter."""
    try:
        return parse(*words, **more)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=hint) from None
