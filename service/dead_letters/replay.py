"""Select dead letters, replay their records, or drop them.

A replay or drop is one transaction with its marks: a crash leaves a dead letter sent and marked,
or neither. Whoever begins later fences whoever is still at it and reads the marks after that, so
two operators do not replay one dead letter twice. A record cannot go round in circles: each replay
counts its replays, also as a dead letter of another pipeline, and `max_replays` ends it.
"""

import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import chain
from typing import Any, Literal, NamedTuple, TypeAlias

from partition.flow_control import Throttle
from partition.replicas.balance import Note
from service.dead_letters import stored
from service.dead_letters.topic_reader import DeadLetterTopic
from service.errors import ServiceError
from sinks.kafka.client import (
    CommitUnknown,
    NotAccepted,
    ProducerFenced,
    RecordMetadata,
    TransactionalProducer,
)
from sinks.kafka.messages import OutgoingMessage

Outcome: TypeAlias = Literal["to_replay", "to_drop", "replayed", "dropped", "refused", "failed"]

_MOST = 500  # dead letters in a transaction; consumers of the topics wait behind it
_MOST_BYTES = 8_000_000
_UNCLEAR = "Kafka has not answered; whether it was done, `headrace dead-letters list --all` says"

_ID = re.compile(r"(\d{1,9}):(\d{1,18})")
_OFFSETS = re.compile(r"(\d{1,18})(?:-(\d{1,18}))?")
_MILLISECONDS = re.compile(r"\d{1,15}")
_AGE = re.compile(r"(\d{1,6})([smhd])")
_UNIT_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


class ConcurrentOperator(ServiceError):
    """Somebody else has begun to replay or drop dead letters of the same topic."""

    def __init__(self, topic: str, done: int) -> None:
        super().__init__(
            f"another replay or drop of dead letters in '{topic}' has begun and goes on instead "
            f"of this one, which has done {done}. List them, then go on."
        )


@dataclass(frozen=True, slots=True)
class Filters:
    """Conditions on a dead letter; None always holds."""

    topic: str | None = None  # of its record
    partition: int | None = None
    offsets: tuple[int, int] | None = None  # first and last
    step: str | None = None
    error: str | None = None  # the error's class, or a part of the reason, in any case
    since_ms: int | None = None  # when it failed
    until_ms: int | None = None
    pipeline: str | None = None

    def match(self, letter: stored.StoredDeadLetter) -> bool:
        return (
            self.pipeline in (None, letter.pipeline)
            and self.step in (None, letter.step)
            and (self.since_ms is None or letter.failed_at_ms >= self.since_ms)
            and (self.until_ms is None or letter.failed_at_ms < self.until_ms)
            and (
                self.error in (None, letter.error_class)
                or str(self.error).casefold() in letter.reason.casefold()
            )
            # Operators may know a replayed record by either of its positions.
            and (self._match_record(letter.origin) or self._match_record(letter.read))
        )

    def _match_record(self, record: stored.RecordOrigin) -> bool:
        first, last = self.offsets or (record.offset, record.offset)
        return (
            self.topic in (None, record.topic)
            and self.partition in (None, record.partition)
            and first <= record.offset <= last
        )


@dataclass(frozen=True, slots=True)
class Selection:
    """The dead letters at `ids`, or else those that match the filters.

    Without a filter for the pipeline, a dead letter must be of the topic's own, or name none.
    """

    filters: Filters = field(default_factory=Filters)
    ids: tuple[stored.DeadLetterId, ...] = ()
    all: bool = False  # also those that were replayed or dropped


@dataclass(slots=True)
class Skipped:
    """Messages that were read and not selected, by reason."""

    dealt_with: int = 0
    of_others: int = 0  # of other pipelines
    notices: int = 0
    unreadable: int = 0


class ReplayRequest(NamedTuple):
    max_replays: int = 1
    again: bool = False  # also dead letters that were replayed or dropped
    to: str | None = None  # another topic, whose partitions are chosen by key
    per_second: float | None = None


@dataclass(slots=True)
class DeadLetterResult:
    """One dead letter, without its content, and what becomes of it."""

    letter: stored.StoredDeadLetter
    outcome: Outcome
    note: str = ""
    topic: str = ""  # where its record is sent
    partition: int | None = None  # None: chosen by the key
    to: str = ""  # where its record was sent
    earlier: int = 0  # replays before this one
    twins: tuple[stored.DeadLetterId, ...] = ()  # other dead letters of the same read of the record

    @property
    def target(self) -> str:
        return self.topic if self.partition is None else f"{self.topic}[{self.partition}]"

    @property
    def ids(self) -> tuple[stored.DeadLetterId, ...]:
        return (self.letter.id, *self.twins)

    def as_json(self) -> dict[str, Any]:
        return {
            "outcome": self.outcome,
            "note": self.note,
            "record": str(self.letter.read),
            "origin": str(self.letter.origin),
            "to": self.to or None,
            "twins": [str(each) for each in self.twins],
        }


Confirm: TypeAlias = Callable[[Sequence[DeadLetterResult]], bool]


def select(
    topic: DeadLetterTopic, selection: Selection, skipped: Skipped | None = None
) -> Iterator[stored.StoredDeadLetter]:
    """Yield the selected dead letters, in order. Raises NoSuchDeadLetter."""
    if selection.ids:
        left = set(selection.ids)
        for letter in topic.some(selection.ids):
            left.discard(letter.id)
            yield letter
        if left:
            topic.explain(min(left))
        return
    filters, skipped = selection.filters, skipped or Skipped()
    for found in topic.read():
        if isinstance(found, stored.StoredNotice):
            skipped.notices += 1
        elif not isinstance(found, stored.StoredDeadLetter):
            skipped.unreadable += 1
        elif filters.pipeline is None and found.pipeline not in (None, topic.pipeline):
            skipped.of_others += 1
        elif filters.match(found):
            if found.id in topic.marks and not selection.all:
                skipped.dealt_with += 1
            else:
                yield found


def replay(
    request: ReplayRequest,
    topic: DeadLetterTopic,
    selection: Selection,
    operator: Note,
    confirm: Confirm,
) -> list[DeadLetterResult]:
    """Send the records of the selected dead letters again. Raises ConcurrentOperator.

    Plans once to `confirm`, and again after the producer has fenced other operators. After an
    unknown outcome the later dead letters stay as they are.
    """

    def plan(selection: Selection) -> list[DeadLetterResult]:
        partitions: dict[str, tuple[int, ...]] = {}
        results: dict[stored.RecordOrigin | stored.DeadLetterId, DeadLetterResult] = {}
        for letter in select(topic, selection):
            name = request.to or letter.read.topic
            if name not in partitions:
                partitions[name] = topic.partitions(name)
            result = _plan_replay(topic, letter, request, partitions[name])
            # A crash may write several dead letters of one read of a record. It is sent once.
            key = letter.read if result.outcome == "to_replay" else letter.id
            first = results.setdefault(key, result)
            if first is not result:
                first.twins += (letter.id,)
        return list(results.values())

    def run(results: Sequence[DeadLetterResult], producer: TransactionalProducer) -> None:
        writer = _MarkedWriter(topic.name, producer, operator, "replayed", request.per_second)
        _send_records(topic, results, writer, operator.at_ms)

    return _run(topic, selection, plan, run, confirm)


def drop(
    topic: DeadLetterTopic, selection: Selection, operator: Note, confirm: Confirm
) -> list[DeadLetterResult]:
    """Mark the selected dead letters as dropped; see `replay`. Raises ConcurrentOperator."""

    def plan(selection: Selection) -> list[DeadLetterResult]:
        results = []
        for letter in select(topic, selection):
            marks = topic.marks.get(letter.id)
            outcome: Outcome = "refused" if marks else "to_drop"
            note = str(marks[-1]) if marks else ""
            results.append(DeadLetterResult(letter.bare(), outcome, note))
        return results

    def run(results: Sequence[DeadLetterResult], producer: TransactionalProducer) -> None:
        writer = _MarkedWriter(topic.name, producer, operator, "dropped")
        wanted = (each for each in results if each.outcome == "to_drop")
        if all(writer.add(each, None) for each in wanted):
            writer.flush()

    return _run(topic, selection, plan, run, confirm)


def parse_id(text: str) -> stored.DeadLetterId:
    """Parse PARTITION:OFFSET of the dead-letter topic. Raises ValueError."""
    match = _ID.fullmatch(text)
    if match is None:
        raise ValueError(
            f"found '{text}', expected PARTITION:OFFSET of the dead-letter topic, such as 0:17, "
            "as `headrace dead-letters list` shows it"
        )
    return stored.DeadLetterId(int(match[1]), int(match[2]))


def parse_offsets(text: str) -> tuple[int, int]:
    """Parse A-B, the first and the last offset, or one offset. Raises ValueError."""
    match = _OFFSETS.fullmatch(text)
    if match is not None:
        first, last = int(match[1]), int(match[2] or match[1])
        if first <= last:
            return first, last
    raise ValueError(f"found '{text}', expected A-B, first and last offset, such as 40-90, or one")


def parse_time(text: str, now_ms: int) -> int:
    """Parse an age, milliseconds since 1970 (UTC), or an ISO 8601 date. Raises ValueError."""
    age = _AGE.fullmatch(text)
    if age is not None:
        return now_ms - int(age[1]) * _UNIT_MS[age[2]]
    if _MILLISECONDS.fullmatch(text):
        return int(text)
    try:
        parsed = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(
            f"found '{text}', expected an age (90s, 15m, 2h, 3d), a date and time as "
            "2026-11-23T10:15:00Z (UTC unless it says otherwise), or milliseconds since 1970"
        ) from None
    if parsed.tzinfo is None:
        parsed = parsed.replace(tzinfo=UTC)
    return int(parsed.timestamp() * 1000)


def _run(
    topic: DeadLetterTopic,
    selection: Selection,
    plan: Callable[[Selection], list[DeadLetterResult]],
    run: Callable[[Sequence[DeadLetterResult], TransactionalProducer], None],
    confirm: Confirm,
) -> list[DeadLetterResult]:
    topic.refresh()
    first = plan(selection)
    ids = [each.ids for each in first if each.outcome in ("to_replay", "to_drop")]
    if not ids or not confirm(first):
        return first
    refused = [each for each in first if each.outcome == "refused"]
    with topic.producer() as producer:
        topic.refresh()
        results = plan(replace(selection, ids=tuple(chain.from_iterable(ids))))
        run(results, producer)
    return sorted([*refused, *results], key=lambda each: each.letter.id)


def _send_records(
    topic: DeadLetterTopic, results: Sequence[DeadLetterResult], writer: "_MarkedWriter", at_ms: int
) -> None:
    left = {each.letter.id: each for each in results if each.outcome == "to_replay"}
    for letter in topic.some(tuple(left)):  # once more, now with their values
        result = left.pop(letter.id)
        content = topic.content(letter)
        if isinstance(content, str):
            result.outcome, result.note = "failed", content
            continue
        headers = stored.headers_to_send(
            letter, content, earlier=result.earlier, source=topic.name, at_ms=at_ms
        )
        copy = OutgoingMessage(result.topic, content.value, content.key, headers, result.partition)
        if not writer.add(result, copy):
            return
    if writer.flush():
        for result in left.values():
            result.outcome, result.note = "failed", "it is no longer in the topic"


def _plan_replay(
    topic: DeadLetterTopic,
    letter: stored.StoredDeadLetter,
    request: ReplayRequest,
    partitions: Sequence[int],
) -> DeadLetterResult:
    marks = topic.marks.get(letter.id, ())
    result = DeadLetterResult(
        letter.bare(),
        "to_replay",
        note=f"without its headers: {letter.headers_error}" if letter.headers_error else "",
        topic=request.to or letter.read.topic,
        partition=letter.read.partition if request.to is None else None,
        earlier=letter.replays + sum(mark.kind == "replayed" for mark in marks),
    )
    refusal = _refusal(result, marks, request, partitions)
    if refusal is None and isinstance(content := topic.content(letter), str):
        refusal = content
    if refusal is not None:
        result.outcome, result.note = "refused", refusal
    return result


def _refusal(
    result: DeadLetterResult,
    marks: Sequence[stored.Mark],
    request: ReplayRequest,
    partitions: Sequence[int],
) -> str | None:
    if marks and not request.again:
        return f"{marks[-1]}; --again replays it all the same"
    if result.earlier >= request.max_replays:
        count = "once" if result.earlier == 1 else f"{result.earlier} times"
        return (
            f"its record was replayed {count} already, and --max-replays is "
            f"{request.max_replays}; if the cause is fixed, --max-replays {result.earlier + 1} "
            "replays it once more"
        )
    if not partitions:
        return f"topic '{result.topic}' does not exist; --to sends it to another one"
    if result.partition is not None and result.partition not in partitions:
        return (
            f"{result.target} does not exist; the topic has partitions {partitions[0]} to "
            f"{partitions[-1]}; --to chooses them by key"
        )
    return None


class _MarkedWriter:
    """Writes records and the marks of their dead letters, some hundred in a transaction."""

    def __init__(
        self,
        topic: str,
        producer: TransactionalProducer,
        operator: Note,
        kind: stored.MarkKind,
        per_second: float | None = None,
    ) -> None:
        self._topic = topic
        self._producer = producer
        self._operator = operator
        self._kind: stored.MarkKind = kind
        self._throttle = None if per_second is None else Throttle(per_second)
        self._waiting: list[tuple[DeadLetterResult, OutgoingMessage | None]] = []
        self._bytes = 0
        self._room = 0
        self._done = 0

    def add(self, result: DeadLetterResult, copy: OutgoingMessage | None) -> bool:
        """Take a dead letter and what is sent of it; return False after an unknown outcome."""
        if not self._waiting:
            self._room = self._await_room()
        self._waiting.append((result, copy))
        if copy is not None:
            self._bytes += len(copy.key or b"") + len(copy.value or b"")
        is_full = len(self._waiting) >= self._room or self._bytes >= _MOST_BYTES
        return self.flush() if is_full else True

    def flush(self) -> bool:
        batch, self._waiting, self._bytes = self._waiting, [], 0
        return not batch or self._commit(batch)

    def _await_room(self) -> int:
        while self._throttle is not None:
            room = self._throttle.allows(time.monotonic())
            if room:
                return min(_MOST, room)
            time.sleep(self._throttle.seconds_left())
        return _MOST

    def _commit(self, batch: Sequence[tuple[DeadLetterResult, OutgoingMessage | None]]) -> bool:
        """Commit a batch; if the broker rejects one of its messages, each dead letter alone."""
        sent: list[str] = []

        def marks(written: Sequence[RecordMetadata]) -> list[OutgoingMessage]:
            positions = iter(written)
            for _, copy in batch:
                at = None if copy is None else next(positions)
                sent.append(f"{copy.topic}[{at.partition}]@{at.offset}" if copy and at else "")
            pairs = zip(batch, sent, strict=True)
            return [self._mark(each, to) for (result, _), to in pairs for each in result.ids]

        try:
            self._producer.commit([copy for _, copy in batch if copy is not None], marks)
        except NotAccepted as error:
            if len(batch) > 1:
                return all(self._commit([each]) for each in batch)
            result = batch[0][0]
            # Where the records were stored, so that their marks were due, it is a mark.
            what = f"its mark in '{self._topic}', so it was not {self._kind}" if sent else "it"
            result.outcome, result.note = "failed", f"Kafka rejects {what}: {error}"
            return True
        except ProducerFenced as error:
            raise ConcurrentOperator(self._topic, self._done) from error
        except CommitUnknown as error:
            for result, _ in batch:
                result.outcome, result.note = "failed", f"{_UNCLEAR}: {error}"
            return False
        for (result, _), to in zip(batch, sent, strict=True):
            result.outcome, result.to = self._kind, to
        self._done += len(batch)
        if self._throttle is not None:
            self._throttle.take(len(batch))
        return True

    def _mark(self, each: stored.DeadLetterId, to: str) -> OutgoingMessage:
        by = self._operator
        mark = stored.Mark(each.offset, self._kind, by.at_ms, by.by, by.why, to)
        value, headers = stored.encode_mark(mark)
        return OutgoingMessage(self._topic, value, None, headers, each.partition)
