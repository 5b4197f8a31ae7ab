"""The dead-letter topic, read from outside the service: letters, and the marks that concern them.

It is read twice, marks first: they stand behind their letters, and are few and small.
"""

import time
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import Future
from typing import NoReturn, TypeAlias, TypeVar, cast

from partition.errors import KafkaUnavailable, OffsetOutOfRange, TopicMissing
from partition.interfaces import Log, Topic
from partition.kafka.kafka_catalogue import KafkaCatalogue
from partition.kafka.kafka_fetcher import KafkaFetcher
from partition.records import Partition, Position
from service.dead_letters.errors import NoSuchLetter
from service.dead_letters.letter import (
    Content,
    Found,
    Letter,
    Origin,
    Other,
    Place,
    content_of,
    read_message,
)
from service.dead_letters.marks import Marks, is_mark
from topology.record import Message
from topology.sink import Scalar

T = TypeVar("T")
Extent: TypeAlias = Mapping[int, Log]  # of each partition, as far as it is read

_ASK_SECONDS = 20.0  # above what Kafka's client takes itself
_AT_ONCE = 1_000  # messages
_POLL_SECONDS = 0.2
_PATIENCE_SECONDS = 30.0
_HELD_BACK_MS = 50  # by the broker, until it tells the end of a partition


class LetterTopic:
    """Reads the topic, and the records of which its letters tell. One thread.

    `properties` are librdkafka's. All of it raises as the catalogue does: KafkaUnavailable,
    KafkaFailed, TopicMissing.
    """

    def __init__(self, name: str, properties: Mapping[str, Scalar]) -> None:
        self.name = name
        # Its ends must be those of committed messages, since these are what is read.
        plain = {key: value for key, value in properties.items() if key != "isolation.level"}
        self._catalogue = KafkaCatalogue(plain)
        self._fetcher = KafkaFetcher({**plain, "fetch.wait.max.ms": _HELD_BACK_MS})

    def open(self) -> None:
        """Make the clients; brokers are contacted in the background. Raises KafkaMisconfigured."""
        self._catalogue.open()
        self._fetcher.open()

    def close(self) -> None:
        """Let go of the clients. Idempotent."""
        self._fetcher.close()
        self._catalogue.close()

    def extent(self) -> Extent:
        """How far the topic reaches now: what is written later is not read."""
        numbers = self.topic(self.name).partitions
        asked = {each: self._catalogue.log(Partition(self.name, each)) for each in numbers}
        return {number: _answer(log) for number, log in asked.items()}

    def topic(self, name: str) -> Topic:
        """A topic of the cluster. Raises TopicMissing."""
        return _answer(self._catalogue.topic(name))

    def partitions(self, name: str) -> tuple[int, ...]:
        """The partitions of a topic; none if there is no such topic."""
        try:
            return self.topic(name).partitions
        except TopicMissing:
            return ()

    def marks(self, extent: Extent, behind: Place | None = None) -> Marks:
        """What was done with letters; `behind` one, only that of its partition is complete."""
        found = Marks()
        for message in self._messages(extent, behind):
            found.take(message)
        return found

    def read(self, extent: Extent) -> Iterator[Found]:
        """Everything but marks, partition by partition, the oldest first."""
        for message in self._messages(extent):
            if not is_mark(message):
                yield read_message(message)

    def some(self, extent: Extent, places: Collection[Place]) -> Iterator[Letter]:
        """The letters at these places, in order; where there is none, nothing comes."""
        wanted = set(places)
        for number in sorted({place.partition for place in wanted}):
            offsets = [place.offset for place in wanted if place.partition == number]
            span = _within(extent.get(number), min(offsets), max(offsets))
            for message in self._messages({number: span}):
                if (number, message.offset()) not in wanted or is_mark(message):
                    continue
                found = read_message(message)
                if isinstance(found, Letter):
                    yield found

    def message(self, extent: Extent, place: Place) -> Message:
        """Whatever stands at a place. Raises NoSuchLetter."""
        log = extent.get(place.partition)
        if log is None:
            raise NoSuchLetter(place, f"'{self.name}' has partitions {sorted(extent)}")
        for message in self._messages({place.partition: _within(log, place.offset, place.offset)}):
            return message
        partition = Partition(self.name, place.partition)
        raise NoSuchLetter(place, _held(partition, log))

    def explain(self, extent: Extent, place: Place) -> NoReturn:
        """Raise NoSuchLetter with what there is instead."""
        message = self.message(extent, place)
        if is_mark(message):
            raise NoSuchLetter(place, "it is a mark, which says what became of another letter")
        found = read_message(message)
        if isinstance(found, Other):
            raise NoSuchLetter(place, found.reason)
        reason = "it is a notice of records that were lost, and there is no record to replay"
        raise NoSuchLetter(place, reason)

    def record(self, origin: Origin) -> Content | str:
        """A record as its own topic has it, or why it is not to be had."""
        partition = Partition(origin.topic, origin.partition)
        if origin.partition not in self.partitions(origin.topic):
            return f"{partition} does not exist any more"
        log = _answer(self._catalogue.log(partition))
        span = _within(log, origin.offset, origin.offset)
        for message in self._read(partition, span.start, span.end):
            return content_of(message)
        return f"{_held(partition, log)}, and not this one"

    def _messages(self, extent: Extent, behind: Place | None = None) -> Iterator[Message]:
        for number, log in sorted(extent.items()):
            start = log.start
            if behind is not None:
                if number != behind.partition:
                    continue
                start = max(start, behind.offset + 1)
            yield from self._read(Partition(self.name, number), start, log.end)

    def _read(self, partition: Partition, start: int, end: int) -> Iterator[Message]:
        """Read committed messages from `start` up to before `end`, in order.

        `end` is one that the log has reached. Offsets without a message are skipped, also where
        they have expired. Raises KafkaUnavailable after 30 s without any progress.
        """
        if start >= end:
            return
        self._fetcher.add({partition: Position(start)})
        heard_at = time.monotonic()
        try:
            while start < end:
                fetched = self._fetcher.fetch(_AT_ONCE, _POLL_SECONDS)
                for chunk in fetched.chunks:
                    for offset, message in zip(chunk.offsets.tolist(), chunk.messages, strict=True):
                        if offset < end:
                            yield cast("Message", message)
                        start = offset + 1
                start = fetched.ends.get(partition, start)
                failure = fetched.failures.get(partition)
                if isinstance(failure, OffsetOutOfRange):
                    start = max(start, _answer(self._catalogue.log(partition)).start)
                    self._fetcher.add({partition: Position(start)})
                elif failure is not None:
                    raise failure
                if fetched.chunks or fetched.ends or failure is not None:
                    heard_at = time.monotonic()
                elif time.monotonic() - heard_at > _PATIENCE_SECONDS:
                    what = f"for {partition} from offset {start} on"
                    raise KafkaUnavailable(what, f"no message in {_PATIENCE_SECONDS:g} seconds")
        finally:
            self._fetcher.remove([partition])


def _within(log: Log | None, first: int, last: int) -> Log:
    """Those of the offsets that a log holds."""
    if log is None:
        return Log(0, 0)
    return Log(max(log.start, first), min(log.end, last + 1))


def _held(partition: Partition, log: Log) -> str:
    if log.start == log.end:
        return f"{partition} is empty"
    return f"{partition} holds offsets {log.start} to {log.end - 1}"


def _answer(asked: "Future[T]") -> T:
    return asked.result(_ASK_SECONDS)
