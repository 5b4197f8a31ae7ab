"""Fetching from Kafka: librdkafka's consumer with a manual assignment and no membership.

The hot path touches a record only through C-level loops (`map` over the message's own
methods into numpy arrays), because one Python-level step per record would cost as much
as reading it.
"""

import contextlib
import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Sized
from itertools import filterfalse, pairwise
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import structlog
from confluent_kafka import Consumer, KafkaException, Message, ThrottleEvent, TopicPartition
from confluent_kafka import KafkaError as Code

from partition.errors import KafkaError, KafkaFailed, PartitionError, TopicMissing
from partition.interfaces import Fetched
from partition.kafka.librdkafka import (
    ALL_DOWN,
    CLOSE_SECONDS,
    EOF,
    MISSING,
    OUT_OF_RANGE,
    UNREADABLE,
    Availability,
    KafkaLog,
    OpenTransactions,
    Scalar,
    close_client,
    code_of,
    consumer_properties,
    failure_of,
    is_refused,
    open_client,
    partition_in,
    refusal,
    truncation,
)
from partition.records import Chunk, Offsets, Partition, Position, epoch_runs, other_bytes

log = structlog.get_logger()

_STATISTICS_MS = 2000
_HEAR_SECONDS = 1.0  # the catalogue has just had an answer, so this is the rare case
_MOST_SEATS = 4  # how often a partition is assigned anew before its error is believed
_TOPIC_SHIFT = 32

_error = Message.error
_offset: Callable[[Message], Any] = Message.offset
_number: Callable[[Message], Any] = Message.partition
_topic: Callable[[Message], Any] = Message.topic
_key: Callable[[Message], Any] = Message.key
_epoch: Callable[[Message], Any] = Message.leader_epoch


class KafkaFetcher:
    """A `Fetcher` on Kafka. `properties` are librdkafka's, see `consumer_properties`.

    The owner thread calls everything; librdkafka prefetches on threads of its own, at
    most `queued.max.messages.kbytes`. `mirror` commits to the group `group.id`.
    """

    def __init__(self, properties: Mapping[str, Scalar]) -> None:
        self._properties = dict(properties)
        self._log = KafkaLog()
        self._mirror = GroupMirror(self._log)
        self._client: Consumer | None = None
        self._availability = Availability()
        self._transactions = OpenTransactions()
        self._failure: PartitionError | None = None
        self._missing: set[Partition] = set()  # told during the current call
        self._positions = _Positions()
        self._next = self._positions.next
        self._paused: set[Partition] = set()
        self._unchecked: set[Partition] = set()  # whose leader epoch is to be checked by a seek
        self._seated: dict[Partition, int] = {}  # how often each was assigned
        self._heard_of: set[str] = set()  # topics, by this client
        self._ranges: dict[Partition, tuple[int, int]] = {}
        self._failed: set[Partition] = set()  # told, and not removed since

    @property
    def available(self) -> bool:
        return bool(self._availability)

    @property
    def mirror_failures(self) -> int:
        return self._mirror.failures

    @property
    def _consumer(self) -> Consumer:
        if self._client is None:
            raise KafkaFailed("the fetcher is not open")
        return self._client

    def open(self) -> None:
        if self._client is not None:
            return
        properties: dict[str, Any] = consumer_properties(self._properties)
        if not properties.get("statistics.interval.ms"):
            properties["statistics.interval.ms"] = _STATISTICS_MS  # `available` needs them
        properties |= {
            "error_cb": self._on_error,
            "throttle_cb": self._on_throttle,
            "stats_cb": self._on_statistics,
            "on_commit": self._mirror.answered,
        }
        self._client = open_client(Consumer, properties, self._log)
        self._availability.begin(float(properties.get("fetch.wait.max.ms", 500)) / 1000)

    def close(self) -> None:
        client, self._client = self._client, None
        available = self.available
        self._positions.drop(list(self._next))
        known: list[Any] = [self._paused, self._unchecked, self._seated, self._heard_of]
        for each in [*known, self._transactions, self._ranges, self._failed]:
            each.clear()
        if client is None:
            return
        if available:  # without a broker, closing would wait for its answer
            self._mirror.send(client)
        if not close_client(client):
            log.warning("kafka_close_timed_out", seconds=CLOSE_SECONDS)

    def add(self, positions: Mapping[Partition, Position]) -> None:
        self.remove(positions)
        client = self._consumer
        for topic in {partition.topic for partition in positions} - self._heard_of:
            self._request_metadata(client, topic)
        self._positions.add(positions)
        self._seated.update(dict.fromkeys(positions, 1))
        self._assign(client, positions.keys())

    def remove(self, partitions: Iterable[Partition]) -> None:
        partitions = list(partitions)
        self._unassign([partition for partition in partitions if partition in self._next])
        self._failed.difference_update(partitions)
        for partition in partitions:
            self._ranges.pop(partition, None)

    def pause(self, partition: Partition) -> None:
        """Prefetched records are dropped, and fetched again."""
        if partition in self._next:
            self._consumer.pause([TopicPartition(*partition)])
            self._paused.add(partition)

    def resume(self, partition: Partition) -> None:
        if partition in self._paused:
            self._consumer.resume([TopicPartition(*partition)])
            self._paused.discard(partition)

    def _request_metadata(self, client: Consumer, topic: str) -> None:
        """Have the client ask where a topic's leaders are, before it is to read from them.

        Assigned a topic that it has not heard of, it would look for them a second later.
        """
        self._heard_of.add(topic)
        with contextlib.suppress(KafkaException):  # then it asks when it is assigned
            client.list_topics(topic, timeout=_HEAR_SECONDS)

    def _assign(self, client: Consumer, partitions: Collection[Partition]) -> None:
        seats = [self._positions.seat(partition) for partition in partitions]
        if not seats:
            return
        try:
            client.incremental_assign(seats)
        except KafkaException as error:
            raise KafkaFailed(f"Kafka's client cannot read {seats}: {error}") from error
        self._unchecked.update(self._positions.epochs.keys() & set(partitions))
        self._check_epochs(client)

    def _check_epochs(self, client: Consumer) -> None:
        """Have leader epochs checked by a seek.

        The client checks the epoch of an assignment only when it first hears of the partition's
        leader, that of a seek always. A seek is refused while the assignment is under way, and
        repeated with the next fetch.
        """
        for partition in list(self._unchecked):
            try:
                client.seek(self._positions.seat(partition))
            except KafkaException:
                continue
            self._unchecked.discard(partition)

    def _unassign(self, partitions: list[Partition]) -> None:
        if not partitions:
            return
        for partition in partitions:
            self.resume(partition)  # the client would keep it paused when it comes again
            del self._seated[partition]
        self._positions.drop(partitions)
        self._unchecked.difference_update(partitions)
        self._consumer.incremental_unassign([TopicPartition(*each) for each in partitions])

    def log_range(self, partition: Partition) -> tuple[int, int] | None:
        """The end counts records of open transactions too."""
        if partition not in self._next and partition not in self._failed:
            return None
        asked_for = TopicPartition(partition.topic, partition.number)
        try:
            found = self._consumer.get_watermark_offsets(asked_for, cached=True)
        except KafkaException:
            found = None
        if found is not None and min(found) >= 0:  # the client forgets them in an outage
            self._ranges[partition] = found
        return self._ranges.get(partition)

    def transaction_wait_seconds(self, partition: Partition) -> float:
        position = self._next.get(partition)
        if position is None or partition in self._paused:
            return 0.0
        return self._transactions.seconds(partition, position)

    def mirror(self, positions: Mapping[Partition, Position]) -> None:
        self._mirror.put(self._consumer, positions)

    def fetch(self, max_records: int, timeout_seconds: float) -> Fetched:
        self._raise_failure()
        received = self._receive(max_records, timeout_seconds)
        messages = received
        ends: dict[Partition, int] = {}
        stops: dict[Partition, Message] = {}
        events = list(filter(_error, received))
        if events:
            for event in events:
                self._on_event(event, ends, stops)
            if stops:
                messages = _before_stops(received, stops)
            else:
                messages = list(filterfalse(_error, received))
        if self._unchecked:  # these come again after the seek
            unchecked: set[Any] = self._unchecked
            messages = [m for m in messages if (m.topic(), m.partition()) not in unchecked]
        chunks = self._positions.chunks(messages) if messages else []
        ends = self._positions.pass_ends(ends) if ends else ends
        failures = self._failures(stops) if stops or self._missing else {}
        if chunks or ends or failures:
            self._availability.note_records()
            return Fetched(chunks, ends, failures)
        self._raise_failure()
        return Fetched()

    def _receive(self, max_records: int, timeout_seconds: float) -> list[Message]:
        consumer = self._consumer
        if self._unchecked:
            self._check_epochs(consumer)
        if self._mirror.due:
            self._mirror.send(consumer)
        # `consume` waits for the full number or the whole time, so it is given no time to
        # take what is there, and all the time only for a first record.
        messages = consumer.consume(max_records, 0)
        if not messages and timeout_seconds > 0:
            messages = consumer.consume(1, timeout_seconds)
            if messages and max_records > 1:
                messages += consumer.consume(max_records - 1, 0)
        return messages

    def _raise_failure(self) -> None:
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def _on_event(
        self, event: Message, ends: dict[Partition, int], stops: dict[Partition, Message]
    ) -> None:
        error = event.error()
        topic, number = event.topic(), event.partition()
        if error is None:
            return
        if topic is None or number is None:
            self._on_error(error)
            return
        partition = Partition(topic, number)
        if partition not in self._next or partition in stops:
            return
        code = error.code()
        if code == EOF:
            if partition not in self._unchecked:
                ends[partition] = event.offset() or 0
        elif code in OUT_OF_RANGE or code in UNREADABLE or code in MISSING:
            stops[partition] = event
        else:
            self._on_error(error, partition)

    def _failures(self, stops: Mapping[Partition, Message]) -> dict[Partition, KafkaError]:
        """Return what stopped partitions, and unassign them: the client would read on."""
        failures: dict[Partition, KafkaError] = {}
        for partition, event in stops.items():
            error = event.error()
            if error is not None and not self._seat_anew(partition, event, error):
                failures[partition] = failure_of(partition, self._next[partition], error)
        missing, self._missing = self._missing, set()
        for partition in missing & self._next.keys():
            failures[partition] = TopicMissing(partition.topic)
        self._failed.update(failures)
        self._unassign(list(failures))
        return failures

    def _seat_anew(self, partition: Partition, event: Message, error: Code) -> bool:
        """Read on from our position when an error is about another one.

        It may be left over from before the partition was added again (these errors carry no
        version in librdkafka), or lie past a gap at the log's former end.
        """
        if error.code() not in OUT_OF_RANGE:
            return False
        cut = truncation(error.str())
        offset = event.offset() if cut is None else cut.offset
        if offset in (None, self._next[partition]) or self._seated[partition] >= _MOST_SEATS:
            return False
        self._seated[partition] += 1
        self._consumer.incremental_unassign([TopicPartition(*partition)])
        self._assign(self._consumer, [partition])
        return True

    def _on_error(self, error: Code, partition: Partition | None = None) -> None:
        """Handle librdkafka's general errors: during `fetch`, on the owner thread."""
        if is_refused(error):
            what = "to read" if partition is None else f"to read {partition}"
            self._failure = refusal(what, error)
            return
        if error.code() == ALL_DOWN:
            self._availability.lose()
        if error.code() == Code.UNKNOWN_TOPIC_OR_PART:
            missing = partition_in(error.str())
            if missing in self._next:
                self._missing.add(missing)
        self._log.error(error)

    def _on_throttle(self, event: ThrottleEvent) -> None:
        self._availability.throttled(event.broker_name, event.throttle_time)
        if event.throttle_time:
            text = f"{event.broker_name} lets us wait for {event.throttle_time:.1f} s"
            self._log.warn("kafka_throttled", "throttled", text)

    def _on_statistics(self, statistics: str) -> None:
        told = json.loads(statistics)
        self._availability.take(told)
        self._transactions.take(told)


def _before_stops(received: list[Message], stops: Mapping[Partition, Message]) -> list[Message]:
    kept = []
    events = {id(event): partition for partition, event in stops.items()}
    stopped: set[Partition] = set()
    for message in received:
        if message.error() is not None:
            if id(message) in events:
                stopped.add(events[id(message)])
        elif (message.topic(), message.partition()) not in stopped:
            kept.append(message)
    return kept


class _Positions:
    """The positions of the partitions that are read, and chunks of their records.

    Records of other partitions, and those delivered already, are dropped.
    """

    def __init__(self) -> None:
        self.next: dict[Partition, int] = {}
        self.epochs: dict[Partition, int] = {}  # of the record before
        self._topics: dict[str, int] = {}  # every topic ever read, numbered
        self._keys: dict[int, Partition] = {}

    def seat(self, partition: Partition) -> TopicPartition:
        return _seat(partition, Position(self.next[partition], self.epochs.get(partition)))

    def add(self, positions: Mapping[Partition, Position]) -> None:
        for partition, position in positions.items():
            self.next[partition] = position.offset
            self._topics.setdefault(partition.topic, len(self._topics))
            self._keys[self._key(partition)] = partition
            if position.leader_epoch is not None:
                self.epochs[partition] = position.leader_epoch

    def drop(self, partitions: Iterable[Partition]) -> None:
        for partition in partitions:
            del self.next[partition], self._keys[self._key(partition)]
            self.epochs.pop(partition, None)

    def pass_ends(self, ends: Mapping[Partition, int]) -> dict[Partition, int]:
        """Move on to the log ends that were reached; return those that are news."""
        ends = {partition: end for partition, end in ends.items() if end >= self.next[partition]}
        self.next.update(ends)
        return ends

    def chunks(self, messages: list[Message]) -> list[Chunk]:
        """`messages` is not empty and holds no events."""
        count = len(messages)
        offsets = np.fromiter(map(_offset, messages), np.int64, count)
        keys = np.fromiter(map(_number, messages), np.int64, count)
        if len(self._topics) > 1:
            topics = map(self._topics.__getitem__, map(_topic, messages))
            keys += np.fromiter(topics, np.int64, count) << _TOPIC_SHIFT
        if keys[0] == keys[-1] and (keys == keys[0]).all():
            chunk = self._chunk(int(keys[0]), offsets, messages)
            return [] if chunk is None else [chunk]
        chunks = []
        for key, slices in _runs_by_key(keys).items():
            own = messages[slices[0]]
            for each in slices[1:]:
                own += messages[each]
            chunk = self._chunk(key, np.concatenate([offsets[each] for each in slices]), own)
            if chunk is not None:
                chunks.append(chunk)
        return chunks

    def _chunk(self, key: int, offsets: Offsets, messages: list[Message]) -> Chunk | None:
        partition = self._keys.get(key)
        if partition is None:
            return None
        position = self.next[partition]
        if offsets[0] < position or not (offsets[1:] > offsets[:-1]).all():
            kept = _unseen(offsets, position)
            if not len(kept):
                return None
            offsets = offsets[kept]
            messages = [messages[index] for index in kept.tolist()]
        self.next[partition] = int(offsets[-1]) + 1
        epochs = epoch_runs(messages, offsets, _epoch)
        if epochs:
            self.epochs[partition] = epochs[-1][1]
        sized = cast("list[Sized]", messages)
        return Chunk(partition, offsets, sized, epochs, other_bytes=other_bytes(messages, _key))

    def _key(self, partition: Partition) -> int:
        return (self._topics[partition.topic] << _TOPIC_SHIFT) + partition.number


def _runs_by_key(keys: npt.NDArray[np.int64]) -> dict[int, list[slice]]:
    starts = [0, *(np.flatnonzero(keys[1:] != keys[:-1]) + 1).tolist(), len(keys)]
    runs: dict[int, list[slice]] = {}
    for start, end in pairwise(starts):
        runs.setdefault(int(keys[start]), []).append(slice(start, end))
    return runs


def _unseen(offsets: Offsets, position: int) -> npt.NDArray[np.intp]:
    """Return the indices of the offsets that lie at or after `position` and all before them."""
    highest = np.maximum.accumulate(np.concatenate(([position - 1], offsets[:-1])))
    return np.flatnonzero(offsets > highest)


class GroupMirror:
    """Commit offsets to Kafka's consumer group too, for tools that watch lag.

    One commit at a time, and the newest positions next. `answered` is the consumer's `on_commit`.
    """

    def __init__(self, log: KafkaLog) -> None:
        self.failures = 0  # commits that were refused or not answered, each partition counted
        self._log = log
        self._next: dict[Partition, Position] = {}
        self._under_way = False

    @property
    def due(self) -> bool:
        return bool(self._next) and not self._under_way

    def put(self, consumer: Consumer, positions: Mapping[Partition, Position]) -> None:
        self._next.update(positions)
        if self.due:
            self.send(consumer)

    def send(self, consumer: Consumer) -> None:
        if not self._next:
            return
        positions, self._next = self._next, {}
        try:
            consumer.commit(offsets=[_seat(p, at) for p, at in positions.items()])
        except KafkaException as error:
            self._failed(code_of(error), len(positions))
        else:
            self._under_way = True

    def answered(self, error: Code | None, offsets: Sequence[TopicPartition]) -> None:
        self._under_way = False
        if error is not None:
            self._failed(error, len(offsets))
            return
        refused = [each.error for each in offsets if each.error is not None]
        if refused:
            self._failed(refused[0], len(refused))

    def _failed(self, error: Code, partitions: int) -> None:
        self.failures += partitions
        self._log.warn("kafka_mirror_failed", error.name(), error.str())


def _seat(partition: Partition, position: Position) -> TopicPartition:
    offset, epoch = position.offset, position.leader_epoch
    if epoch is None:
        return TopicPartition(partition.topic, partition.number, offset)
    return TopicPartition(partition.topic, partition.number, offset, leader_epoch=epoch)
