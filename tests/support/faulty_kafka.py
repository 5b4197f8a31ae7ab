"""The log in memory, with what befalls one: retention, compaction, elections, bad records."""

from collections import defaultdict

from confluent_kafka import Message

from partition.errors import CorruptRecord, OffsetOutOfRange
from partition.memory.ports import MemoryLog
from partition.records import Partition, Position


class FaultyLog(MemoryLog):
    """A MemoryLog whose topics may be deleted and whose logs may lose records.

    `away` makes everything unanswered.
    """

    def __init__(self, topics: dict[str, int] | None = None) -> None:
        self._created = 0
        self._corrupt: dict[Partition, set[int]] = defaultdict(set)
        # (leader epoch, its first offset), ascending; the last one is the present leader's.
        self._epochs: dict[Partition, list[tuple[int, int]]] = defaultdict(lambda: [(0, 0)])
        super().__init__(topics)

    def create_topic(self, topic: str, partitions: int = 1) -> None:
        """Add an empty topic, with an id that no topic had before."""
        with self.changed:
            super().create_topic(topic, partitions)
            self._created += 1
            self._ids[topic] = f"{topic}-{self._created}"

    def delete_topic(self, topic: str) -> None:
        """Remove a topic and its records. Raises TopicMissing."""
        with self.changed:
            for partition in self.partitions(topic):
                for kept in (self._logs, self._corrupt, self._epochs):
                    kept.pop(partition, None)
            del self._ids[topic]
            self.changed.notify_all()

    def recreate_topic(self, topic: str, partitions: int = 1) -> None:
        """Delete a topic and create it again: empty, with another id. Raises TopicMissing."""
        with self.changed:
            self.delete_topic(topic)
            self.create_topic(topic, partitions)

    def append_gap(self, partition: Partition, count: int = 1) -> None:
        """Use up offsets that no reader sees, as transaction markers do."""
        with self.changed:
            self._logs[partition].end += count
            self.changed.notify_all()

    def delete_before(self, partition: Partition, offset: int) -> None:
        with self.changed:
            log = self._logs[partition]
            log.start = max(log.start, offset)
            log.end = max(log.end, log.start)
            log.messages = [m for m in log.messages if m.offset() >= log.start]
            self._corrupt[partition] = {o for o in self._corrupt[partition] if o >= log.start}

    def delete_record(self, partition: Partition, offset: int) -> None:
        with self.changed:
            log = self._logs[partition]
            log.messages = [m for m in log.messages if m.offset() != offset]
            self._corrupt[partition].discard(offset)

    def corrupt(self, partition: Partition, offset: int) -> None:
        with self.changed:
            self._corrupt[partition].add(offset)

    def mend(self, partition: Partition) -> None:
        with self.changed:
            self._corrupt[partition].clear()

    def elect(self, partition: Partition) -> int:
        """Give a partition a new leader; return its epoch, which later records have."""
        with self.changed:
            log = self._logs[partition]
            log.epoch += 1
            self._epochs[partition].append((log.epoch, log.end))
            return log.epoch

    def truncate(self, partition: Partition, end: int) -> None:
        """Cut the log off, as an unclean election does; what follows has a new epoch."""
        with self.changed:
            log = self._logs[partition]
            log.messages = [m for m in log.messages if m.offset() < end]
            self._corrupt[partition] = {o for o in self._corrupt[partition] if o < end}
            log.end = min(log.end, end)
            log.start = min(log.start, log.end)
            self._epochs[partition] = [each for each in self._epochs[partition] if each[1] < end]
            self.elect(partition)
            self.changed.notify_all()

    def epoch_end(self, partition: Partition, epoch: int) -> int | None:
        """Return where the log goes on under a later epoch, or its end; as KIP-320 asks.

        None when no leader of this log ever had the epoch or a later one.
        """
        with self.changed:
            log = self._logs[partition]
            if epoch > log.epoch:
                return None
            later = (start for each, start in self._epochs[partition] if each > epoch)
            return next(later, log.end)

    def read(self, partition: Partition, position: Position, limit: int) -> list[Message]:
        with self.changed:
            self.log_range(partition)
            if position.leader_epoch is not None:
                end = self.epoch_end(partition, position.leader_epoch)
                if end is None or position.offset > end:
                    reason = f"the log was cut off; epoch {position.leader_epoch} ends at {end}"
                    raise OffsetOutOfRange(partition, position.offset, reason, end)
            messages = super().read(partition, position, limit)
            offsets = [message.offset() for message in messages]
            bad = next((each for each in offsets if each in self._corrupt[partition]), None)
            if bad is not None and bad == offsets[0]:
                raise CorruptRecord(partition, position.offset, "it was made so")
            return messages if bad is None else messages[: offsets.index(bad)]
