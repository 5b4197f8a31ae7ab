"""The dead-letter topic, read from outside the service."""

import hashlib
import time
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import Future
from contextlib import closing, contextmanager
from typing import NoReturn, TypeVar, cast

from partition.errors import KafkaUnavailable, OffsetOutOfRange, TopicMissing
from partition.interfaces import Log
from partition.kafka.kafka_catalogue import KafkaCatalogue
from partition.kafka.kafka_fetcher import KafkaFetcher
from partition.records import Partition, Position
from service.dead_letters import stored
from service.errors import ServiceError
from sinks.kafka.client import Cluster, TransactionalProducer
from topology.record import Message
from topology.sink import Scalar

T = TypeVar("T")

_LARGEST_BYTES = 100_000_000  # the broker, which knows the topics' limits, judges
_OPEN_SECONDS = 20  # consumers of the topics wait behind an open transaction
_ASK_SECONDS = 20.0  # above the time-out of Kafka's client
_FETCH_MESSAGES = 1_000
_POLL_SECONDS = 0.2
_PATIENCE_SECONDS = 30.0
_FETCH_WAIT_MS = 50  # the broker's answer at the end of a partition takes as long


class NoSuchDeadLetter(ServiceError):
    """No dead letter stands at a position that was named; nothing was done."""

    def __init__(self, place: stored.DeadLetterId, found: str) -> None:
        super().__init__(f"there is no dead letter at {place}: {found}; nothing was done")


class DeadLetterTopic:
    """Reads the topic as it was at the last `refresh`, and the records behind its dead letters.

    One thread. `pipeline` is the one whose letters are meant unless a filter names another,
    `properties` are librdkafka's. Every method raises as the catalogue does: KafkaUnavailable,
    KafkaFailed, TopicMissing.
    """

    def __init__(self, name: str, pipeline: str, properties: Mapping[str, Scalar]) -> None:
        self.name = name
        self.pipeline = pipeline
        self._properties = properties
        self.marks: stored.Marks = {}
        self._ends: dict[int, Log] = {}
        # The log's end must be the committed one, since only committed messages are read.
        plain = {key: value for key, value in properties.items() if key != "isolation.level"}
        plain["fetch.wait.max.ms"] = _FETCH_WAIT_MS
        self._catalogue = KafkaCatalogue(plain)
        self._fetcher = KafkaFetcher(plain)
        # Records are read while the topic is, and a fetch takes from all partitions of its client.
        self._records = KafkaFetcher(plain)
        self._clients = (self._catalogue, self._fetcher, self._records)

    def open(self) -> None:
        for client in self._clients:
            client.open()

    def close(self) -> None:
        for client in self._clients:
            client.close()

    @contextmanager
    def producer(self) -> Iterator[TransactionalProducer]:
        """Open a producer, which fences those of the same topic."""
        cluster = Cluster(self._properties, "topic_broker_error", self.name)
        name = f"headrace.dead-letters.{self.name}"
        producer = TransactionalProducer(cluster, name, _LARGEST_BYTES, _OPEN_SECONDS)
        producer.open()
        with closing(producer):
            yield producer

    def refresh(self, after: stored.DeadLetterId | None = None) -> None:
        """Fix the topic's end as it is now, and read the marks; only those `after` one if given."""
        numbers = _answer(self._catalogue.topic(self.name)).partitions
        asked = {each: self._catalogue.log(Partition(self.name, each)) for each in numbers}
        self._ends = {number: _answer(log) for number, log in asked.items()}
        read = self._ends
        if after is not None:
            log = read.get(after.partition, Log(0, 0))
            read = {after.partition: Log(max(log.start, after.offset + 1), log.end)}
        self.marks = stored.collect_marks(self._messages(read))

    def partitions(self, name: str) -> tuple[int, ...]:
        """Return the partitions of any topic; none if the topic does not exist."""
        try:
            return _answer(self._catalogue.topic(name)).partitions
        except TopicMissing:
            return ()

    def read(self) -> Iterator[stored.StoredMessage]:
        """Yield everything but marks, partition by partition, the oldest first."""
        for message in self._messages(self._ends):
            if not stored.is_mark(message):
                yield stored.read_message(message)

    def some(self, ids: Collection[stored.DeadLetterId]) -> Iterator[stored.StoredDeadLetter]:
        """Yield the dead letters at these positions, in order; skip those that do not exist."""
        wanted = set(ids)
        for number in sorted({each.partition for each in wanted}):
            offsets = [each.offset for each in wanted if each.partition == number]
            span = _within(self._ends.get(number), min(offsets), max(offsets))
            for message in self._messages({number: span}):
                if (number, message.offset()) in wanted and not stored.is_mark(message):
                    found = stored.read_message(message)
                    if isinstance(found, stored.StoredDeadLetter):
                        yield found

    def explain(self, place: stored.DeadLetterId) -> NoReturn:
        """Raise NoSuchDeadLetter with what stands at a position instead."""
        log = self._ends.get(place.partition)
        if log is None:
            raise NoSuchDeadLetter(place, f"'{self.name}' has partitions {sorted(self._ends)}")
        span = _within(log, place.offset, place.offset)
        message = next(self._messages({place.partition: span}), None)
        if message is None:
            raise NoSuchDeadLetter(place, _extent_text(Partition(self.name, place.partition), log))
        if stored.is_mark(message):
            raise NoSuchDeadLetter(place, "it is a mark, which says what became of another one")
        found = stored.read_message(message)
        if isinstance(found, stored.ForeignMessage):
            raise NoSuchDeadLetter(place, found.reason)
        raise NoSuchDeadLetter(place, "it is a notice of lost records, with nothing to replay")

    def content(self, letter: stored.StoredDeadLetter) -> stored.RecordContent | str:
        """Return what a replay of a dead letter sends, or the reason why it cannot be had.

        A value that was left out is read from the record's own topic, and its SHA-256 checked.
        """
        value, key = letter.value_digest, letter.key_digest
        if value is None:
            if letter.content is None:
                raise AssertionError(letter.id)
            return letter.content
        left_out = f"its key ({key.size:,} bytes) and value" if key else "its value"
        without = f"the dead letter lacks {left_out}, {value.size:,} bytes of {letter.read}"
        if isinstance(found := self._record(letter.read), str):
            return f"{without}; {found}"
        if not _matches(value, found.value) or (key and not _matches(key, found.key)):
            return f"{without}; another record stands there now"
        return found

    def _record(self, origin: stored.RecordOrigin) -> stored.RecordContent | str:
        partition = Partition(origin.topic, origin.partition)
        if origin.partition not in self.partitions(origin.topic):
            return f"{partition} no longer exists"
        log = _answer(self._catalogue.log(partition))
        span = _within(log, origin.offset, origin.offset)
        for message in self._read(self._records, partition, span):
            return stored.content_of(message)
        return f"{_extent_text(partition, log)}, and not this one"

    def _messages(self, extent: Mapping[int, Log]) -> Iterator[Message]:
        for number, log in sorted(extent.items()):
            yield from self._read(self._fetcher, Partition(self.name, number), log)

    def _read(self, fetcher: KafkaFetcher, partition: Partition, log: Log) -> Iterator[Message]:
        """Read the committed messages of `log`, in order; skip offsets without one.

        Raises KafkaUnavailable after 30 s without any progress.
        """
        start, end = log.start, log.end
        if start >= end:
            return
        fetcher.add({partition: Position(start)})
        heard_at = time.monotonic()
        try:
            while start < end:
                fetched = fetcher.fetch(_FETCH_MESSAGES, _POLL_SECONDS)
                for chunk in fetched.chunks:
                    for offset, message in zip(chunk.offsets.tolist(), chunk.messages, strict=True):
                        if offset < end:
                            yield cast("Message", message)
                        start = offset + 1
                start = fetched.ends.get(partition, start)
                failure = fetched.failures.get(partition)
                if isinstance(failure, OffsetOutOfRange):
                    start = max(start, _answer(self._catalogue.log(partition)).start)
                    fetcher.add({partition: Position(start)})
                elif failure is not None:
                    raise failure
                if fetched.chunks or fetched.ends or failure is not None:
                    heard_at = time.monotonic()
                elif time.monotonic() - heard_at > _PATIENCE_SECONDS:
                    what = f"for {partition} from offset {start} on"
                    raise KafkaUnavailable(what, f"no message in {_PATIENCE_SECONDS:g} seconds")
        finally:
            fetcher.remove([partition])


def _within(log: Log | None, first: int, last: int) -> Log:
    return Log(0, 0) if log is None else Log(max(log.start, first), min(log.end, last + 1))


def _extent_text(partition: Partition, log: Log) -> str:
    if log.start == log.end:
        return f"{partition} is empty"
    return f"{partition} holds offsets {log.start} to {log.end - 1}"


def _matches(digest: stored.ContentDigest, content: bytes | None) -> bool:
    return hashlib.sha256(content or b"").hexdigest() == digest.sha256


def _answer(asked: "Future[T]") -> T:
    return asked.result(_ASK_SECONDS)
