"""One replica's client of the cluster: its fetcher, with what it prefetched, and its questions."""

from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

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
from partition.records import Chunk, Partition, Position
from tests.simulation.kafka import Cluster, SimLog, SimRecord
from tests.simulation.network import Message, Network

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

    def __init__(self, cluster: Cluster, seen: Callable[[str], None]) -> None:
        self._cluster = cluster
        self._seen = seen
        self._flows: dict[Partition, _Flow] = {}
        self.dice = 0
        self.heard: dict[Partition, str] = {}  # the topic id that the catalogue told last
        self.read_under: dict[tuple[str, Partition], int | None] = {}  # the newest epoch, by log
        self.mirrored: dict[Partition, int] = {}

    @property
    def available(self) -> bool:
        """Whether the cluster answers."""
        return not self._cluster.away

    @property
    def mirror_failures(self) -> int:
        """See `Fetcher.mirror_failures`."""
        return 0

    def open(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Forget everything."""
        self._flows = {}

    def add(self, positions: Mapping[Partition, Position]) -> None:
        """See `Fetcher.add`. Like librdkafka, it does not look at the position's topic id.

        A topic that was created again since the catalogue was asked is noticed here: nobody
        could tell it from one that is created again a moment later, while it is read.
        """
        for partition, position in positions.items():
            topic_id = self.heard.get(partition, "")
            self._flows[partition] = _Flow(position.offset, position.leader_epoch, topic_id)

    def reads(self, partition: Partition) -> bool:
        """Whether a partition was added and not removed."""
        return partition in self._flows

    def remove(self, partitions: Iterable[Partition]) -> None:
        """See `Fetcher.remove`."""
        for partition in partitions:
            self._flows.pop(partition, None)

    def pause(self, partition: Partition) -> None:
        """See `Fetcher.pause`."""
        self._flows[partition].paused = True

    def resume(self, partition: Partition) -> None:
        """See `Fetcher.resume`."""
        self._flows[partition].paused = False

    def log_range(self, partition: Partition) -> tuple[int, int] | None:
        """See `Fetcher.log_range`."""
        log = self._cluster.log(partition)
        return None if log is None or partition not in self._flows else (log.start, log.end)

    def transaction_wait_seconds(self, partition: Partition) -> float:
        """See `Fetcher.transaction_wait_seconds`; nothing has transactions here."""
        del partition
        return 0.0

    def mirror(self, positions: Mapping[Partition, Position]) -> None:
        """See `Fetcher.mirror`."""
        self.mirrored |= {partition: position.offset for partition, position in positions.items()}

    def fetch(self, max_records: int, timeout_seconds: float) -> Fetched:
        """See `Fetcher.fetch`."""
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

    def _prefetch(self, partition: Partition, flow: _Flow) -> None:
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

    def _trouble(self, partition: Partition, flow: _Flow, log: SimLog | None) -> KafkaError | None:
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

    def _deliver(self, fetched: Fetched, partition: Partition, flow: _Flow, limit: int) -> None:
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


def _chunk(partition: Partition, records: list[SimRecord]) -> Chunk:
    epochs: list[tuple[int, int]] = []
    for record in records:
        if not epochs or epochs[-1][1] != record.epoch:
            epochs.append((record.offset, record.epoch))
    offsets = np.array([record.offset for record in records], np.int64)
    keys = sum(record.key_size for record in records)
    return Chunk(partition, offsets, list(records), tuple(epochs), other_bytes=keys)


class SimCatalogue:
    """A `Catalogue` whose questions travel through the network."""

    def __init__(
        self, cluster: Cluster, network: Network, sender: object, fetcher: SimFetcher
    ) -> None:
        self._cluster = cluster
        self._fetcher = fetcher
        self._network = network
        self._sender = sender

    def open(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""

    def topics(self) -> "Future[Mapping[str, Topic]]":
        """See `Catalogue.topics`."""
        return self._ask(lambda: {name: self._topic(name) for name in self._cluster.topics})

    def topic(self, name: str) -> "Future[Topic]":
        """See `Catalogue.topic`."""
        return self._ask(lambda: self._topic(name))

    def log(self, partition: Partition, timestamp_ms: int | None = None) -> "Future[Log]":
        """See `Catalogue.log`."""
        return self._ask(lambda: self._log(partition), partition)

    def ends(self, partitions: Collection[Partition]) -> "Future[Mapping[Partition, LogEnd]]":
        """See `Catalogue.ends`."""
        asked = tuple(partitions)
        return self._ask(lambda: {p: end for p in asked if (end := self._end(p))})

    def _end(self, partition: Partition) -> LogEnd | None:
        log = self._cluster.log(partition)
        return None if log is None else LogEnd(log.end, log.epoch)

    def _topic(self, name: str) -> Topic:
        if name not in self._cluster.topics:
            raise TopicMissing(name)
        numbers = tuple(sorted(p.number for p in self._cluster.partitions(name)))
        return Topic(name, self._cluster.topics[name], numbers)

    def _log(self, partition: Partition) -> Log:
        log = self._cluster.log(partition)
        if log is None:
            raise TopicMissing(partition.topic)
        return Log(log.start, log.end, log.topic_id, leader_epoch=log.epoch)

    def _ask(self, answer: Callable[[], Any], partition: Partition | None = None) -> "Future[Any]":
        future: Future[Any] = Future()

        def execute() -> Any:
            if self._cluster.away:
                return KafkaUnavailable("a question", "it is away")
            try:
                return answer()
            except PartitionError as error:
                return error

        def deliver(reply: Any) -> None:
            if isinstance(reply, Exception):
                future.set_exception(reply)
            else:
                if partition is not None:
                    self._fetcher.heard[partition] = reply.topic_id
                future.set_result(reply)

        def give_up() -> None:
            future.set_exception(KafkaUnavailable("a question", "no reply"))

        self._network.send(Message(self._sender, execute, deliver, give_up))
        return future
