"""Committed offsets told to Kafka's consumer group too, for tools that watch lag."""

from collections.abc import Mapping, Sequence

from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka import KafkaError as Code

from partition.kafka.complaints import Complaints
from partition.kafka.errors import code_of
from partition.records import Partition, Position


class GroupMirror:
    """One commit at a time, and the newest positions next: an outage piles nothing up.

    The owner thread calls everything; `answered` is the consumer's `on_commit`.
    """

    def __init__(self, complaints: Complaints) -> None:
        self.failures = 0  # commits that were refused or not answered, each partition counted
        self._complaints = complaints
        self._next: dict[Partition, Position] = {}
        self._under_way = False

    @property
    def due(self) -> bool:
        """Whether something waits, and nothing is under way."""
        return bool(self._next) and not self._under_way

    def put(self, consumer: Consumer, positions: Mapping[Partition, Position]) -> None:
        """Commit these, now or when the commit that is under way has been answered."""
        self._next.update(positions)
        if self.due:
            self.send(consumer)

    def send(self, consumer: Consumer) -> None:
        """Commit what waits, whatever is under way."""
        if not self._next:
            return
        positions, self._next = self._next, {}
        try:
            consumer.commit(offsets=[place(p, at) for p, at in positions.items()])
        except KafkaException as error:
            self._failed(code_of(error), len(positions))
        else:
            self._under_way = True

    def answered(self, error: Code | None, places: Sequence[TopicPartition]) -> None:
        """Take a commit's outcome; what waits is `due` then."""
        self._under_way = False
        if error is not None:
            self._failed(error, len(places))
            return
        refused = [each.error for each in places if each.error is not None]
        if refused:
            self._failed(refused[0], len(refused))

    def _failed(self, error: Code, partitions: int) -> None:
        self.failures += partitions
        self._complaints.warn("kafka_mirror_failed", error.name(), error.str())


def place(partition: Partition, position: Position) -> TopicPartition:
    """Return a position as the client takes it."""
    if position.leader_epoch is None:
        return TopicPartition(partition.topic, partition.number, position.offset)
    return TopicPartition(
        partition.topic,
        partition.number,
        position.offset,
        leader_epoch=position.leader_epoch,
    )
