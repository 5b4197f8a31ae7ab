"""Which partitions librdkafka's consumer reads, and from where: its manual assignment."""

import contextlib
from collections.abc import Collection, Iterable

from confluent_kafka import Consumer, KafkaException, TopicPartition

from partition.errors import KafkaFailed
from partition.kafka.mirror import place
from partition.kafka.places import Places
from partition.records import Partition

_HEAR_SECONDS = 1.0  # the catalogue has just had an answer, so this is the rare case
_MOST = 4  # how often a partition is sought out anew before its error is believed


class Seats:
    """Seats a client at the `places` of partitions; pauses them and lets go of them.

    The owner thread calls everything, and gives the client that is seated.
    """

    def __init__(self, places: Places) -> None:
        self.unchecked: set[Partition] = set()  # whose leader epoch is to be checked
        self._places = places
        self._count: dict[Partition, int] = {}  # how often each was seated
        self._paused: set[Partition] = set()
        self._heard_of: set[str] = set()  # topics, by this client

    def add(self, client: Consumer, partitions: Collection[Partition]) -> None:
        """Read these too, which have a place. Raises KafkaFailed when the client refuses."""
        for topic in {partition.topic for partition in partitions} - self._heard_of:
            self._hear_of(client, topic)
        self._count.update(dict.fromkeys(partitions, 1))
        self._assign(client, partitions)

    def renew(self, client: Consumer, partition: Partition) -> bool:
        """Seat a partition at its place once more; False if that was done too often."""
        if self._count[partition] >= _MOST:
            return False
        self._count[partition] += 1
        _unassign(client, [partition])
        self._assign(client, [partition])
        return True

    def remove(self, client: Consumer, partitions: Collection[Partition]) -> None:
        """Read these no more."""
        for partition in partitions:
            self.resume(client, partition)  # the client would keep it paused when it comes again
            del self._count[partition]
        self.unchecked.difference_update(partitions)
        _unassign(client, partitions)

    def pause(self, client: Consumer, partition: Partition) -> None:
        """Have nothing of a partition delivered; its prefetched records are dropped."""
        client.pause([TopicPartition(partition.topic, partition.number)])
        self._paused.add(partition)

    def resume(self, client: Consumer, partition: Partition) -> None:
        """Have a paused partition fetched again, from behind the last record delivered."""
        if partition in self._paused:
            client.resume([TopicPartition(partition.topic, partition.number)])
            self._paused.discard(partition)

    def is_paused(self, partition: Partition) -> bool:
        """Whether nothing of a partition is delivered, nor asked for."""
        return partition in self._paused

    def check_epochs(self, client: Consumer) -> None:
        """Have leader epochs checked by a seek.

        An assignment has its epoch checked only when the client first hears of the
        partition's leader, not when it reads the partition again; a seek always has. It
        is refused while the assignment is under way, and tried again with the next fetch.
        """
        for partition in list(self.unchecked):
            try:
                client.seek(place(partition, self._places.position(partition)))
            except KafkaException:
                continue
            self.unchecked.discard(partition)

    def clear(self) -> None:
        """Forget the client and all that it read."""
        self.unchecked.clear()
        self._count.clear()
        self._paused.clear()
        self._heard_of.clear()

    def _hear_of(self, client: Consumer, topic: str) -> None:
        """Have the client ask where a topic's leaders are, before it is to read from them.

        Assigned a topic that it has not heard of, it would look for them a second later.
        """
        self._heard_of.add(topic)
        with contextlib.suppress(KafkaException):  # then it asks by itself
            client.list_topics(topic, timeout=_HEAR_SECONDS)

    def _assign(self, client: Consumer, partitions: Collection[Partition]) -> None:
        places = [place(partition, self._places.position(partition)) for partition in partitions]
        if not places:
            return
        try:
            client.incremental_assign(places)
        except KafkaException as error:
            raise KafkaFailed(f"Kafka's client cannot read {places}: {error}") from error
        self.unchecked.update(
            p for p in partitions if self._places.position(p).leader_epoch is not None
        )
        self.check_epochs(client)


def _unassign(client: Consumer, partitions: Iterable[Partition]) -> None:
    places = [TopicPartition(each.topic, each.number) for each in partitions]
    if places:
        client.incremental_unassign(places)
