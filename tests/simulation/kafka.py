"""The Kafka cluster, and a replica's client of it: a fetcher with a prefetch, and a catalogue.

Logs have gaps, leader epochs, truncations and new incarnations.
"""

from bisect import bisect_left
from concurrent.futures import Future
from dataclasses import dataclass, field

import numpy as np

from partition.errors import (
    CorruptRecord,
    KafkaError,
    KafkaUnavailable,
    OffsetOutOfRange,
    PartitionError,
    TopicMissing,
)
from partition.interfaces import Fetched, Log, LogEnd, Topic
from partition.records import Chunk, Partition
from tests.simulation.zookeeper import Message


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

    def __len__(self):
        return self.size

    @property
    def key_size(self):
        return 7 * (self.offset % 4)

    def timestamp(self):
        """As confluent_kafka's Message: the producer's time stamp, in milliseconds."""
        return 1, 1_000_000 + self.offset

    @property
    def settled(self):
        return self.done or self.lost or self.gone

    def __str__(self):
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

    def __post_init__(self):
        self.branches[0] = list(self.epochs)

    @property
    def epoch(self):
        return self.epochs[-1][0]

    def append(self, size):
        record = SimRecord(self.partition, self.end, self.epoch, self.topic_id, size)
        self.records.append(record)
        self.history[record.offset, record.epoch] = record
        self.end += 1
        return record

    def append_gap(self, count):
        self.end += count

    def compact(self, which):
        if len(self.records) > 1:
            record = self.records.pop(which % (len(self.records) - 1))
            record.gone = True

    def delete_before(self, offset):
        self.start = max(self.start, min(offset, self.end))
        self.records = self.records[bisect_left(self.records, self.start, key=_offset) :]

    def elect(self):
        self._begin_epoch()

    def truncate(self, offset):
        offset = max(self.start, min(offset, self.end))
        self.cut |= offset < self.end
        self.records = self.records[: bisect_left(self.records, offset, key=_offset)]
        self.end = offset
        self.epochs = [entry for entry in self.epochs if entry[1] < offset] or [(0, 0)]
        self._begin_epoch()

    def _begin_epoch(self):
        epoch = max(self.branches) + 1
        self.epochs = [*self.epochs, (epoch, self.end)]
        self.branches[epoch] = list(self.epochs)

    def read(self, offset, limit):
        first = bisect_left(self.records, offset, key=_offset)
        return self.records[first : first + limit]

    def end_of_epoch(self, epoch):
        """Where an epoch ends, as OffsetForLeaderEpoch answers (KIP-320).

        Never below the log's start: what retention deletes, the leader's table of epochs
        forgets too, and its first entry then begins where the log does.
        """
        ends = next((first for later, first in self.epochs if later > epoch), self.end)
        return max(self.start, ends)

    def epoch_before(self, offset, otherwise):
        owners = [epoch for epoch, first in self.epochs if first < offset]
        return owners[-1] if owners else otherwise

    def branch(self, epoch, low, high):
        """Records ever written in [low, high), as who knows the log up to `epoch` saw them."""
        table = self.epochs if epoch is None else self.branches.get(epoch, self.epochs)
        found = []
        for offset in range(low, high):
            owner = next((e for e, first in reversed(table) if first <= offset), 0)
            record = self.history.get((offset, owner))
            if record is not None:
                found.append(record)
        return found


def _offset(record):
    return record.offset


@dataclass(slots=True)
class Cluster:
    """The topics. Logs of topics that were deleted stay in `logs` for the oracle."""

    away: bool = False
    topics: dict[str, str] = field(default_factory=dict)  # the topic's id now, by name
    logs: dict[tuple[str, Partition], SimLog] = field(default_factory=dict)
    created: int = 0

    def create(self, name, partitions):
        self.created += 1
        self.topics[name] = f"{name}-{self.created}"
        for _ in range(partitions):
            self.add_partition(name)

    def add_partition(self, name, *, late=False):
        topic_id = self.topics[name]
        partition = Partition(name, len(self.partitions(name)))
        self.logs[topic_id, partition] = SimLog(partition, topic_id, added_late=late)
        return partition

    def delete(self, name):
        self.topics.pop(name, None)

    def partitions(self, name):
        topic_id = self.topics.get(name)
        return [partition for id_, partition in self.logs if id_ == topic_id]

    def log(self, partition):
        return self.logs.get((self.topics.get(partition.topic, ""), partition))

    def between(self, partition, first, last):
        """A partition's logs of the incarnations after `first` and before `last`."""
        ids = [topic_id for topic_id, known in self.logs if known == partition]
        if first not in ids or last not in ids:
            return []
        return [self.logs[id_, partition] for id_ in ids[ids.index(first) + 1 : ids.index(last)]]

    def live_logs(self):
        now = set(self.topics.values())
        return [log for (topic_id, _), log in self.logs.items() if topic_id in now]


_PREFETCH = 4
LARGEST_DELIVERY = 7  # records of one partition that one call of `fetch` brings


@dataclass(slots=True)
class _Flow:
    """One partition's place in a fetcher. `topic_id` is the one the client found at `add`."""

    offset: int  # the next to prefetch
    epoch: int | None
    topic_id: str
    buffer: list[SimRecord] = field(default_factory=list)
    delivered: list[SimRecord] = field(default_factory=list)  # the last chunk
    end: int | None = None  # the log end that was told last
    failure: KafkaError | None = None
    told: bool = False
    paused: bool = False


class SimFetcher:
    """A `Fetcher`. `dice`, of the tape, decides what a call brings."""

    def __init__(self, cluster, seen):
        self._cluster = cluster
        self._seen = seen
        self._flows = {}
        self.dice = 0
        self.heard = {}  # the topic id that the catalogue told last
        self.read_under = {}  # the newest epoch, by log
        self.mirrored = {}

    @property
    def available(self):
        return not self._cluster.away

    @property
    def mirror_failures(self):
        return 0

    def open(self):
        pass

    def close(self):
        self._flows = {}

    def add(self, positions):
        """See `Fetcher.add`. Like librdkafka, it does not look at the position's topic id.

        A topic that was created again since the catalogue was asked is noticed here: nobody
        could tell it from one that is created again a moment later, while it is read.
        """
        for partition, position in positions.items():
            topic_id = self.heard.get(partition, "")
            self._flows[partition] = _Flow(position.offset, position.leader_epoch, topic_id)

    def reads(self, partition):
        return partition in self._flows

    def remove(self, partitions):
        for partition in partitions:
            self._flows.pop(partition, None)

    def pause(self, partition):
        self._flows[partition].paused = True

    def resume(self, partition):
        self._flows[partition].paused = False

    def log_range(self, partition):
        log = self._cluster.log(partition)
        return None if log is None or partition not in self._flows else (log.start, log.end)

    def transaction_wait_seconds(self, partition):
        del partition
        return 0.0

    def mirror(self, positions):
        self.mirrored |= {partition: position.offset for partition, position in positions.items()}

    def fetch(self, max_records, timeout_seconds):
        fetched = Fetched()
        dice = self.dice
        for partition, flow in self._flows.items():
            if not self._cluster.away and flow.failure is None:
                self._prefetch(partition, flow)
            choice, dice = dice & LARGEST_DELIVERY, dice >> 3
            if flow.paused or flow.told or choice == 0:
                continue
            if choice == 1 and flow.delivered and dice & 1:
                self._seen("duplicate_delivery")
                flow.buffer = flow.delivered + flow.buffer
            self._deliver(fetched, partition, flow, min(max_records, choice))
        return fetched

    def _prefetch(self, partition, flow):
        log = self._cluster.log(partition)
        flow.failure = self._trouble(partition, flow, log)
        if flow.failure is not None or log is None:
            return
        for record in log.read(flow.offset, _PREFETCH - len(flow.buffer)):
            if record.corrupt:
                flow.failure = CorruptRecord(partition, flow.offset)
                return
            flow.buffer.append(record)
            flow.offset, flow.epoch = record.offset + 1, record.epoch
        if not log.read(flow.offset, 1):
            flow.offset, flow.epoch = log.end, log.epoch_before(log.end, flow.epoch)
        self.read_under[log.topic_id, partition] = flow.epoch

    def _trouble(self, partition, flow, log):
        if log is None:
            return TopicMissing(partition.topic)
        if log.topic_id != flow.topic_id:
            return OffsetOutOfRange(partition, flow.offset, "another incarnation")
        if flow.epoch is not None:
            end = log.end_of_epoch(flow.epoch)
            if end < flow.offset and log.epoch > flow.epoch:
                return OffsetOutOfRange(partition, flow.offset, "cut off", diverged_at=end)
        if not log.start <= flow.offset <= log.end:
            return OffsetOutOfRange(partition, flow.offset, f"{log.start} to {log.end}")
        return None

    def _deliver(self, fetched, partition, flow, limit):
        records, flow.buffer = flow.buffer[:limit], flow.buffer[limit:]
        if records:
            flow.delivered = records
            fetched.chunks.append(_chunk(partition, records))
        if flow.buffer:
            return
        if flow.failure is not None:
            flow.told = True
            fetched.failures[partition] = flow.failure
        elif flow.end != flow.offset:
            log = self._cluster.log(partition)
            if not self._cluster.away and log is not None and log.end == flow.offset:
                fetched.ends[partition] = flow.end = flow.offset


def _chunk(partition, records):
    epochs = []
    for record in records:
        if not epochs or epochs[-1][1] != record.epoch:
            epochs.append((record.offset, record.epoch))
    offsets = np.array([record.offset for record in records], np.int64)
    keys = sum(record.key_size for record in records)
    return Chunk(partition, offsets, list(records), tuple(epochs), other_bytes=keys)


class SimCatalogue:
    """A `Catalogue` whose questions travel through the network."""

    def __init__(self, cluster, network, sender, fetcher):
        self._cluster = cluster
        self._fetcher = fetcher
        self._network = network
        self._sender = sender

    def open(self):
        pass

    def close(self):
        pass

    def topics(self):
        return self._ask(lambda: {name: self._topic(name) for name in self._cluster.topics})

    def topic(self, name):
        return self._ask(lambda: self._topic(name))

    def log(self, partition, timestamp_ms=None):
        return self._ask(lambda: self._log(partition), partition)

    def ends(self, partitions):
        asked = tuple(partitions)
        return self._ask(lambda: {p: end for p in asked if (end := self._end(p))})

    def _end(self, partition):
        log = self._cluster.log(partition)
        return None if log is None else LogEnd(log.end, log.epoch)

    def _topic(self, name):
        if name not in self._cluster.topics:
            raise TopicMissing(name)
        numbers = tuple(sorted(p.number for p in self._cluster.partitions(name)))
        return Topic(name, self._cluster.topics[name], numbers)

    def _log(self, partition):
        log = self._cluster.log(partition)
        if log is None:
            raise TopicMissing(partition.topic)
        return Log(log.start, log.end, log.topic_id, leader_epoch=log.epoch)

    def _ask(self, answer, partition=None):
        future = Future()

        def execute():
            if self._cluster.away:
                return KafkaUnavailable("a question", "it is away")
            try:
                return answer()
            except PartitionError as error:
                return error

        def deliver(reply):
            if isinstance(reply, Exception):
                future.set_exception(reply)
            else:
                if partition is not None:
                    self._fetcher.heard[partition] = reply.topic_id
                future.set_result(reply)

        def give_up():
            future.set_exception(KafkaUnavailable("a question", "no reply"))

        self._network.send(Message(self._sender, execute, deliver, give_up))
        return future
