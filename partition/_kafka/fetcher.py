"""Fetching from Kafka: librdkafka's consumer with a manual assignment and no group.

The hot path touches a record only through C-level loops (`map` over the message's own
methods into numpy arrays), because one Python-level step per record would cost as much
as reading it.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sized
from typing import Any, cast

import numpy as np
import structlog
from confluent_kafka import Consumer, KafkaException, Message, TopicPartition
from confluent_kafka import KafkaError as Code

from partition.chunk import Chunk, Offsets, Partition
from partition.complaints import Complaints
from partition.errors import (
    CorruptRecord,
    KafkaFailed,
    KafkaMisconfigured,
    KafkaUnavailable,
    OffsetOutOfRange,
    PartitionError,
    TopicMissing,
)
from partition.fetcher import Fetched, StartFrom
from partition.kafka_properties import Scalar, consumer_properties
from partition.runs import runs_by_key, unseen

log = structlog.get_logger()

_ASK_SECONDS = 10.0
_NEW_TOPIC_SECONDS = 3.0  # brokers hear of a new topic one after the other
_RETRY_SECONDS = 0.1
_PROBE_SECONDS = 0.25
_PROBE_INTERVAL_SECONDS = 2.0
_CLOSE_SECONDS = 10.0
_TOPIC_SHIFT = 32

_OUT_OF_RANGE = {Code._AUTO_OFFSET_RESET, Code.OFFSET_OUT_OF_RANGE}  # noqa: SLF001
# Said by the client; when it asks for offsets, also because no broker could be asked.
_UNKNOWN_HERE = {Code._UNKNOWN_TOPIC, Code._UNKNOWN_PARTITION}  # noqa: SLF001
_MISSING = {Code.UNKNOWN_TOPIC_OR_PART, Code.TOPIC_EXCEPTION} | _UNKNOWN_HERE
_REFUSED = {
    Code._AUTHENTICATION,  # noqa: SLF001
    Code._FATAL,  # noqa: SLF001
    Code.SASL_AUTHENTICATION_FAILED,
    Code.TOPIC_AUTHORIZATION_FAILED,
    Code.GROUP_AUTHORIZATION_FAILED,
    Code.CLUSTER_AUTHORIZATION_FAILED,
    Code.UNSUPPORTED_SASL_MECHANISM,
    Code.ILLEGAL_SASL_STATE,
    Code.UNSUPPORTED_VERSION,
}
_EOF = Code._PARTITION_EOF  # noqa: SLF001
_DOWN = Code._ALL_BROKERS_DOWN  # noqa: SLF001
_BAD = {Code._BAD_MSG, Code.INVALID_MSG}  # noqa: SLF001

_error = Message.error
_offset: Callable[[Message], Any] = Message.offset
_number: Callable[[Message], Any] = Message.partition
_topic: Callable[[Message], Any] = Message.topic


class KafkaFetcher:
    """A `Fetcher` on Kafka. `properties` are librdkafka's, see `partition.kafka_properties`.

    The owner thread calls everything; librdkafka prefetches on threads of its own, at
    most `queued.max.messages.kbytes`.
    """

    def __init__(self, properties: Mapping[str, Scalar]) -> None:
        self._properties = dict(properties)
        self._complaints = Complaints()
        self._client: Consumer | None = None
        self._heard = False  # from a broker, ever
        self._outage = False  # told since a broker was last heard
        self._failure: PartitionError | None = None
        self._next: dict[Partition, int] = {}
        self._paused: set[Partition] = set()
        self._topics: dict[str, int] = {}  # every topic ever assigned, and its place
        self._keys: dict[int, Partition] = {}
        self._probe_due = 0.0

    @property
    def available(self) -> bool:
        """Whether a broker answered when one was last heard of."""
        return self._heard and not self._outage

    @property
    def _consumer(self) -> Consumer:
        if self._client is None:
            raise KafkaFailed("the fetcher is not open")
        return self._client

    def open(self) -> None:
        """Make the client; brokers are contacted in the background.

        Raises KafkaMisconfigured for a property that is forced, unknown or of a wrong value.
        """
        if self._client is not None:
            return
        properties = consumer_properties(self._properties)
        try:
            self._client = Consumer(
                {**properties, "error_cb": self._on_error, "logger": self._complaints}
            )
        except KafkaException as error:
            raise KafkaMisconfigured(_text(error)) from error

    def close(self) -> None:
        """Close the client. librdkafka can hang in it, so a helper thread does it."""
        client, self._client = self._client, None
        self._next = {}
        self._keys = {}
        self._heard = False
        if client is None:
            return
        closing = threading.Thread(target=client.close, name="kafka-close", daemon=True)
        closing.start()
        closing.join(_CLOSE_SECONDS)
        if closing.is_alive():
            log.warning("kafka_close_timed_out", seconds=_CLOSE_SECONDS)

    def partitions(self, topic: str) -> list[Partition]:
        """List a topic's partitions in order, those without a leader included.

        Raises TopicMissing, KafkaUnavailable, KafkaFailed.
        """
        return self._find(topic, time.monotonic() + _ASK_SECONDS)

    def _find(self, topic: str, end: float) -> list[Partition]:
        patient_until = time.monotonic() + _NEW_TOPIC_SECONDS
        while True:
            try:
                return self._list(topic, end)
            except TopicMissing:
                if time.monotonic() > patient_until:
                    raise
            time.sleep(_RETRY_SECONDS)

    def _list(self, topic: str, end: float) -> list[Partition]:
        left = max(_RETRY_SECONDS, end - time.monotonic())
        try:
            found = self._consumer.list_topics(topic, timeout=left).topics[topic]
        except KafkaException as error:
            raise self._asked(f"for topic '{topic}'", error.args[0], topic) from error
        if found.error is not None:
            raise self._asked(f"for topic '{topic}'", found.error, topic)
        self._heard, self._outage = True, False
        return [Partition(topic, number) for number in sorted(found.partitions)]

    def log_range(self, partition: Partition) -> tuple[int, int]:
        """Return the log's first offset and the next to be written, asked of the broker."""
        what = f"for the offsets of {partition}"
        place = TopicPartition(partition.topic, partition.number)
        end = time.monotonic() + _ASK_SECONDS
        while True:
            left = max(_RETRY_SECONDS, end - time.monotonic())
            try:
                found = self._consumer.get_watermark_offsets(place, timeout=left, cached=False)
            except KafkaException as error:
                raised = error.args[0]
                if raised.code() not in _UNKNOWN_HERE or left <= _RETRY_SECONDS:
                    raise self._asked(what, raised, "") from error
                self._find(partition.topic, end)  # raises TopicMissing if that is why
                time.sleep(_RETRY_SECONDS)
                continue
            if found is None:
                raise KafkaUnavailable(what, f"no answer in {_ASK_SECONDS:g} seconds")
            self._heard, self._outage = True, False
            return found

    def start_offset(self, partition: Partition, start_from: StartFrom) -> int:
        """Return where a partition without a stored offset starts."""
        start, end = self.log_range(partition)
        return start if start_from == "earliest" else end

    def assign(self, positions: Mapping[Partition, int]) -> None:
        """Read exactly these partitions, each from its offset on; drops what was prefetched."""
        consumer = self._consumer
        for partition in [p for p in self._paused if p in self._next]:
            self.resume(partition)
        self._paused = set()
        self._failure = None
        self._next = dict(positions)
        for partition in positions:
            self._topics.setdefault(partition.topic, len(self._topics))
        self._keys = {self._key(partition): partition for partition in positions}
        consumer.unassign()
        consumer.assign([TopicPartition(p.topic, p.number, at) for p, at in positions.items()])

    def pause(self, partition: Partition) -> None:
        """Stop delivering a partition's records; its prefetched ones are fetched again."""
        self._consumer.pause([TopicPartition(partition.topic, partition.number)])
        self._paused.add(partition)

    def resume(self, partition: Partition) -> None:
        """Deliver a paused partition's records again."""
        self._consumer.resume([TopicPartition(partition.topic, partition.number)])
        self._paused.discard(partition)

    def fetch(self, max_records: int, timeout_seconds: float) -> Fetched:
        """Return records as soon as there are some; see `Fetcher.fetch`."""
        consumer = self._consumer
        self._raise_failure()
        # `consume` waits for the full number or the whole time, so it is given no time to
        # take what is there, and all the time only for a first record.
        messages = consumer.consume(max_records, 0)
        if not messages and timeout_seconds > 0:
            messages = consumer.consume(1, timeout_seconds)
            if messages and max_records > 1:
                messages += consumer.consume(max_records - 1, 0)
        ends: dict[Partition, int] = {}
        if any(map(_error, messages)):
            events = [message for message in messages if message.error() is not None]
            messages = [message for message in messages if message.error() is None]
            for event in events:
                self._on_event(event, ends)
        chunks = self._chunks(messages) if messages else []
        ends = {p: end for p, end in ends.items() if end >= self._next[p]}
        self._next.update(ends)
        if self._outage:
            self._probe()  # records prove nothing: they may have been fetched before it
        if chunks or ends:
            self._heard = True
            return Fetched(chunks, ends)
        self._raise_failure()
        return Fetched()

    def _raise_failure(self) -> None:
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def _chunks(self, messages: list[Message]) -> list[Chunk]:
        count = len(messages)
        offsets = np.fromiter(map(_offset, messages), np.int64, count)
        keys = np.fromiter(map(_number, messages), np.int64, count)
        if len(self._topics) > 1:
            places = map(self._topics.__getitem__, map(_topic, messages))
            keys += np.fromiter(places, np.int64, count) << _TOPIC_SHIFT
        if keys[0] == keys[-1] and (keys == keys[0]).all():
            chunk = self._chunk(int(keys[0]), offsets, messages)
            return [] if chunk is None else [chunk]
        chunks = []
        for key, slices in runs_by_key(keys).items():
            own = messages[slices[0]]
            for each in slices[1:]:
                own += messages[each]
            chunk = self._chunk(key, np.concatenate([offsets[each] for each in slices]), own)
            if chunk is not None:
                chunks.append(chunk)
        return chunks

    def _chunk(self, key: int, offsets: Offsets, messages: list[Message]) -> Chunk | None:
        """Make a chunk of what belongs to the assignment and was not delivered before."""
        partition = self._keys.get(key)
        if partition is None:
            return None
        position = self._next[partition]
        if offsets[0] < position or not (offsets[1:] > offsets[:-1]).all():
            kept = unseen(offsets, position)
            if not len(kept):
                return None
            offsets = offsets[kept]
            messages = [messages[place] for place in kept.tolist()]
        self._next[partition] = int(offsets[-1]) + 1
        return Chunk(partition, offsets, cast("list[Sized]", messages))

    def _key(self, partition: Partition) -> int:
        return (self._topics[partition.topic] << _TOPIC_SHIFT) + partition.number

    def _on_event(self, event: Message, ends: dict[Partition, int]) -> None:
        error = event.error()
        topic, number = event.topic(), event.partition()
        if error is None:
            return
        partition = None if topic is None or number is None else Partition(topic, number)
        if partition is None or partition not in self._next:
            if partition is None:
                self._on_error(error)
            return  # of an assignment that is over
        code = error.code()
        position = self._next[partition]
        if code == _EOF:
            ends[partition] = event.offset() or 0
        elif code in _OUT_OF_RANGE:
            self._failure = OffsetOutOfRange(partition, position, error.str())
        elif code in _BAD:
            self._failure = CorruptRecord(partition, position, error.str())
        elif code in _MISSING:
            self._failure = TopicMissing(partition.topic)
        else:
            self._on_error(error)

    def _on_error(self, error: Code) -> None:
        """Take librdkafka's general errors: during `fetch`, on the owner thread."""
        if error.fatal() or error.code() in _REFUSED:
            self._failure = KafkaFailed(f"Kafka refuses: {error.str()} ({error.name()})")
            return
        if error.code() == _DOWN:
            self._outage = True
        if error.code() == Code.UNKNOWN_TOPIC_OR_PART:
            topic = error.str().partition(" [")[0]  # "topic [partition]: ..."
            if any(topic == partition.topic for partition in self._next):
                self._failure = TopicMissing(topic)
        self._complaints.warn("kafka_trouble", error.name(), error.str())

    def _asked(self, what: str, error: Code, topic: str) -> PartitionError:
        if topic and error.code() in _MISSING:
            return TopicMissing(topic)
        if error.fatal() or error.code() in _REFUSED:
            return KafkaFailed(f"Kafka refuses {what}: {error.str()} ({error.name()})")
        if not self._next:
            self._consumer.poll(0)  # hears why, with nothing assigned that it could return
        failure, self._failure = self._failure, None
        self._outage = True
        return failure or KafkaUnavailable(what, f"{error.str()} ({error.name()})")

    def _probe(self) -> None:
        """Ask whether a broker is back: an idle log's end is told only once."""
        now = time.monotonic()
        if now < self._probe_due or not self._next:
            return
        self._probe_due = now + _PROBE_INTERVAL_SECONDS
        place = next(iter(self._next))
        try:
            self._consumer.get_watermark_offsets(
                TopicPartition(place.topic, place.number), timeout=_PROBE_SECONDS, cached=False
            )
        except KafkaException:
            return
        self._heard, self._outage = True, False


def _text(error: KafkaException) -> str:
    code = error.args[0] if error.args else error
    return code.str() if isinstance(code, Code) else str(code)
