"""Fetching from Kafka: librdkafka's consumer with a manual assignment and no membership.

The hot path touches a record only through C-level loops (`map` over the message's own
methods into numpy arrays), because one Python-level step per record would cost as much
as reading it.
"""

import json
import threading
from collections.abc import Iterable, Mapping
from itertools import filterfalse
from typing import Any

import structlog
from confluent_kafka import Consumer, KafkaException, Message, ThrottleEvent, TopicPartition
from confluent_kafka import KafkaError as Code

from partition.errors import (
    KafkaError,
    KafkaFailed,
    KafkaMisconfigured,
    PartitionError,
    TopicMissing,
)
from partition.interfaces import Fetched
from partition.kafka.availability import Availability
from partition.kafka.complaints import Complaints
from partition.kafka.errors import (
    ALL_DOWN,
    EOF,
    MISSING,
    OUT_OF_RANGE,
    UNREADABLE,
    before_stops,
    code_of,
    failure_of,
    is_refused,
    place_in,
    truncation,
)
from partition.kafka.mirror import GroupMirror
from partition.kafka.places import Places
from partition.kafka.properties import Scalar, consumer_properties
from partition.kafka.seats import Seats
from partition.kafka.transactions import OpenTransactions
from partition.records import Partition, Position

log = structlog.get_logger()

_STATISTICS_MS = 2000
_CLOSE_SECONDS = 10.0

_error = Message.error


class KafkaFetcher:
    """A `Fetcher` on Kafka. `properties` are librdkafka's, see `partition.kafka.properties`.

    The owner thread calls everything; librdkafka prefetches on threads of its own, at
    most `queued.max.messages.kbytes`. `mirror` commits to the group `group.id`.
    """

    def __init__(self, properties: Mapping[str, Scalar]) -> None:
        self._properties = dict(properties)
        self._complaints = Complaints()
        self._mirror = GroupMirror(self._complaints)
        self._client: Consumer | None = None
        self._availability = Availability()
        self._transactions = OpenTransactions()
        self._failure: PartitionError | None = None
        self._missing: set[Partition] = set()  # told during the current call
        self._places = Places()
        self._next = self._places.next
        self._seats = Seats(self._places)
        self._ranges: dict[Partition, tuple[int, int]] = {}
        self._failed: set[Partition] = set()  # told, and not removed since

    @property
    def available(self) -> bool:
        """Whether a broker answered when one was last heard of.

        A broker that holds its connections and answers nothing is noticed after some
        seconds.
        """
        return bool(self._availability)

    @property
    def mirror_failures(self) -> int:
        """Partitions whose commit to the consumer group failed, since the fetcher was made."""
        return self._mirror.failures

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
        if not properties.get("statistics.interval.ms"):
            properties["statistics.interval.ms"] = _STATISTICS_MS  # `available` lives on them
        try:
            self._client = Consumer(
                {
                    **properties,
                    "error_cb": self._on_error,
                    "throttle_cb": self._on_throttle,
                    "stats_cb": self._on_statistics,
                    "on_commit": self._mirror.answered,
                    "logger": self._complaints,
                }
            )
        except KafkaException as error:
            raise KafkaMisconfigured(code_of(error).str()) from error
        self._availability.begin(float(properties.get("fetch.wait.max.ms", 500)) / 1000)

    def close(self) -> None:
        """Close the client. librdkafka can hang in it, so a helper thread does it."""
        client, self._client = self._client, None
        available = self.available
        self._places.clear()
        self._seats.clear()
        self._transactions.clear()
        self._ranges.clear()
        self._failed.clear()
        if client is None:
            return
        if available:  # without a broker, closing would wait for its answer
            self._mirror.send(client)
        closing = threading.Thread(target=client.close, name="kafka-close", daemon=True)
        closing.start()
        closing.join(_CLOSE_SECONDS)
        if closing.is_alive():
            log.warning("kafka_close_timed_out", seconds=_CLOSE_SECONDS)

    def add(self, positions: Mapping[Partition, Position]) -> None:
        """Read these partitions too, each from its position on; see `Fetcher.add`."""
        self.remove(positions)
        client = self._consumer
        self._places.add(positions)
        self._seats.add(client, positions.keys())

    def remove(self, partitions: Iterable[Partition]) -> None:
        """Read these partitions no more; all others keep what was prefetched."""
        partitions = list(partitions)
        self._let_go([partition for partition in partitions if partition in self._next])
        self._failed.difference_update(partitions)
        for partition in partitions:
            self._ranges.pop(partition, None)

    def _let_go(self, partitions: list[Partition]) -> None:
        if partitions:
            self._places.drop(partitions)
            self._seats.remove(self._consumer, partitions)

    def pause(self, partition: Partition) -> None:
        """Stop delivering a partition's records; its prefetched ones are fetched again."""
        if partition in self._next:
            self._seats.pause(self._consumer, partition)

    def resume(self, partition: Partition) -> None:
        """Deliver a paused partition's records again."""
        if partition in self._next:
            self._seats.resume(self._consumer, partition)

    def log_range(self, partition: Partition) -> tuple[int, int] | None:
        """Return the log's first offset and its end as of the last fetch that was answered.

        The end counts open transactions' records too, which no reader gets yet.
        """
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
        """Say how long an open transaction has held readers up; of a paused partition nothing."""
        position = self._next.get(partition)
        if position is None or self._seats.is_paused(partition):
            return 0.0
        return self._transactions.seconds(partition, position)

    def mirror(self, positions: Mapping[Partition, Position]) -> None:
        """Commit positions to the consumer group too, for lag tools; without waiting."""
        self._mirror.put(self._consumer, positions)

    def fetch(self, max_records: int, timeout_seconds: float) -> Fetched:
        """Return records as soon as there are some; see `Fetcher.fetch`."""
        self._raise_failure()
        received = self._receive(max_records, timeout_seconds)
        messages = received
        ends: dict[Partition, int] = {}
        stops: dict[Partition, Message] = {}
        events = list(filter(_error, received))
        if events:
            for event in events:
                self._on_event(event, ends, stops)
            kept = filterfalse(_error, received)
            messages = before_stops(received, stops) if stops else list(kept)
        if self._seats.unchecked:  # these come again after the seek
            unchecked: set[Any] = self._seats.unchecked
            messages = [m for m in messages if (m.topic(), m.partition()) not in unchecked]
        chunks = self._places.chunks(messages) if messages else []
        ends = self._places.pass_ends(ends) if ends else ends
        failures = self._failures(stops) if stops or self._missing else {}
        if chunks or ends or failures:
            self._availability.hear()
            return Fetched(chunks, ends, failures)
        self._raise_failure()
        return Fetched()

    def _receive(self, max_records: int, timeout_seconds: float) -> list[Message]:
        consumer = self._consumer
        if self._seats.unchecked:
            self._seats.check_epochs(consumer)
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
        """Sort an event among records: a log's end, what stops a partition, or a complaint."""
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
            if partition not in self._seats.unchecked:
                ends[partition] = event.offset() or 0
        elif code in OUT_OF_RANGE or code in UNREADABLE or code in MISSING:
            stops[partition] = event
        else:
            self._on_error(error, partition)

    def _failures(self, stops: Mapping[Partition, Message]) -> dict[Partition, KafkaError]:
        """Say what stopped the partitions, and let go of them, for the client reads on."""
        failures: dict[Partition, KafkaError] = {}
        for partition, event in stops.items():
            error = event.error()
            if error is not None and not self._seat_anew(partition, event, error):
                failures[partition] = failure_of(partition, self._next[partition], error)
        missing, self._missing = self._missing, set()
        for partition in missing & self._next.keys():
            failures[partition] = TopicMissing(partition.topic)
        self._failed.update(failures)
        self._let_go(list(failures))
        return failures

    def _seat_anew(self, partition: Partition, event: Message, error: Code) -> bool:
        """Read on from our own place when an error is about another one.

        It may be left over from before the partition was added again (these errors carry no
        version in librdkafka), or lie past a gap at the log's former end.
        """
        if error.code() not in OUT_OF_RANGE:
            return False
        cut = truncation(error.str())
        offset = event.offset() if cut is None else cut.offset
        if offset in (None, self._next[partition]):
            return False
        return self._seats.renew(self._consumer, partition)

    def _on_error(self, error: Code, place: Partition | None = None) -> None:
        """Take librdkafka's general errors: during `fetch`, on the owner thread."""
        if is_refused(error):
            what = "" if place is None else f" for {place}"
            self._failure = KafkaFailed(f"Kafka refuses{what}: {error.str()} ({error.name()})")
            return
        if error.code() == ALL_DOWN:
            self._availability.lose()
        if error.code() == Code.UNKNOWN_TOPIC_OR_PART:
            told_of = place_in(error.str())
            if told_of in self._next:
                self._missing.add(told_of)
        self._complaints.warn("kafka_trouble", error.name(), error.str())

    def _on_throttle(self, event: ThrottleEvent) -> None:
        """Learn that a quota slows us down, or does no more; during `fetch`."""
        self._availability.throttled(event.broker_name, event.throttle_time)
        if not event.throttle_time:
            return
        text = f"{event.broker_name} lets us wait for {event.throttle_time:.1f} s"
        self._complaints.warn("kafka_throttled", "throttled", text)

    def _on_statistics(self, statistics: str) -> None:
        told = json.loads(statistics)
        self._availability.take(told)
        self._transactions.take(told)
