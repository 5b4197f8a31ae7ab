"""The cluster's truth: topics, logs with gaps, leader epochs, truncation, new incarnations."""

from bisect import bisect_left
from dataclasses import dataclass, field

from partition.records import Partition


@dataclass(slots=True, eq=False)
class SimRecord:
    """One record that was ever written, with what became of it. The oracle marks it."""

    partition: Partition
    offset: int
    epoch: int
    topic_id: str
    size: int
    corrupt: bool = False
    rotten: bool = False  # was corrupt once
    done: bool = False  # every row durable, filtered on purpose, or its letter durable
    lost: bool = False  # declared lost by a durable notice, or left out by the start policy
    gone: bool = False  # compacted away

    def __len__(self) -> int:
        return self.size

    @property
    def key_size(self) -> int:
        """Bytes of its key; some have none."""
        return 7 * (self.offset % 4)

    def timestamp(self) -> tuple[int, int]:
        """As confluent_kafka's Message: the producer's time stamp, in milliseconds."""
        return 1, 1_000_000 + self.offset

    @property
    def settled(self) -> bool:
        """Whether an offset may pass it."""
        return self.done or self.lost or self.gone

    def __str__(self) -> str:
        return f"{self.partition}@{self.offset} (epoch {self.epoch}, topic {self.topic_id})"


@dataclass(slots=True)
class SimLog:
    """One partition's log."""

    partition: Partition
    topic_id: str
    added_late: bool = False  # after another partition of its topic was begun
    cut: bool = False  # a leader lacked its end once
    start: int = 0
    end: int = 0
    records: list[SimRecord] = field(default_factory=list)
    epochs: list[tuple[int, int]] = field(default_factory=lambda: [(0, 0)])
    branches: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    history: dict[tuple[int, int], SimRecord] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.branches[0] = list(self.epochs)

    @property
    def epoch(self) -> int:
        """The leader's."""
        return self.epochs[-1][0]

    def append(self, size: int) -> SimRecord:
        """Add a record."""
        record = SimRecord(self.partition, self.end, self.epoch, self.topic_id, size)
        self.records.append(record)
        self.history[record.offset, record.epoch] = record
        self.end += 1
        return record

    def append_gap(self, count: int) -> None:
        """Use up offsets that no reader sees, as transaction markers do."""
        self.end += count

    def compact(self, which: int) -> None:
        """Drop a record, never the last one."""
        if len(self.records) > 1:
            record = self.records.pop(which % (len(self.records) - 1))
            record.gone = True

    def delete_before(self, offset: int) -> None:
        """Drop the beginning, as retention does."""
        self.start = max(self.start, min(offset, self.end))
        self.records = self.records[bisect_left(self.records, self.start, key=_offset) :]

    def elect(self) -> None:
        """A new leader that has everything."""
        self._begin_epoch()

    def truncate(self, offset: int) -> None:
        """A new leader that lacks the end."""
        offset = max(self.start, min(offset, self.end))
        self.cut |= offset < self.end
        self.records = self.records[: bisect_left(self.records, offset, key=_offset)]
        self.end = offset
        self.epochs = [entry for entry in self.epochs if entry[1] < offset] or [(0, 0)]
        self._begin_epoch()

    def _begin_epoch(self) -> None:
        epoch = max(self.branches) + 1
        self.epochs = [*self.epochs, (epoch, self.end)]
        self.branches[epoch] = list(self.epochs)

    def read(self, offset: int, limit: int) -> list[SimRecord]:
        """Records from an offset on."""
        first = bisect_left(self.records, offset, key=_offset)
        return self.records[first : first + limit]

    def end_of_epoch(self, epoch: int) -> int:
        """Where an epoch ends, as OffsetForLeaderEpoch answers (KIP-320).

        Never below the log's start: what retention deletes, the leader's table of epochs
        forgets too, and its first entry then begins where the log does.
        """
        ends = next((first for later, first in self.epochs if later > epoch), self.end)
        return max(self.start, ends)

    def epoch_before(self, offset: int, otherwise: int | None) -> int | None:
        """The epoch in which the offset before was used up, by whatever."""
        owners = [epoch for epoch, first in self.epochs if first < offset]
        return owners[-1] if owners else otherwise

    def branch(self, epoch: int | None, low: int, high: int) -> list[SimRecord]:
        """Records ever written in [low, high), as who knows the log up to `epoch` saw them."""
        table = self.epochs if epoch is None else self.branches.get(epoch, self.epochs)
        found = []
        for offset in range(low, high):
            owner = next((e for e, first in reversed(table) if first <= offset), 0)
            record = self.history.get((offset, owner))
            if record is not None:
                found.append(record)
        return found


def _offset(record: SimRecord) -> int:
    return record.offset


@dataclass(slots=True)
class Cluster:
    """The topics. Logs of topics that were deleted stay in `logs` for the oracle."""

    away: bool = False
    topics: dict[str, str] = field(default_factory=dict)  # the topic's id now, by name
    logs: dict[tuple[str, Partition], SimLog] = field(default_factory=dict)
    created: int = 0

    def create(self, name: str, partitions: int) -> None:
        """Create a topic, or create it again."""
        self.created += 1
        self.topics[name] = f"{name}-{self.created}"
        for _ in range(partitions):
            self.add_partition(name)

    def add_partition(self, name: str, *, late: bool = False) -> Partition:
        """Add a partition to a topic."""
        topic_id = self.topics[name]
        partition = Partition(name, len(self.partitions(name)))
        self.logs[topic_id, partition] = SimLog(partition, topic_id, added_late=late)
        return partition

    def delete(self, name: str) -> None:
        """Delete a topic."""
        self.topics.pop(name, None)

    def partitions(self, name: str) -> list[Partition]:
        """A topic's partitions now."""
        topic_id = self.topics.get(name)
        return [partition for id_, partition in self.logs if id_ == topic_id]

    def log(self, partition: Partition) -> SimLog | None:
        """A partition's log now."""
        return self.logs.get((self.topics.get(partition.topic, ""), partition))

    def between(self, partition: Partition, first: str | None, last: str | None) -> list[SimLog]:
        """A partition's logs of the incarnations after `first` and before `last`."""
        ids = [topic_id for topic_id, known in self.logs if known == partition]
        if first not in ids or last not in ids:
            return []
        return [self.logs[id_, partition] for id_ in ids[ids.index(first) + 1 : ids.index(last)]]

    def live_logs(self) -> list[SimLog]:
        """The logs of the topics that there are."""
        now = set(self.topics.values())
        return [log for (topic_id, _), log in self.logs.items() if topic_id in now]
