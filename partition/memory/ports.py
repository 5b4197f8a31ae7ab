"""Kafka and the offset store in memory, for the test kit and for tests.

One contract suite runs against these and the real ones (`tests/contract`).
"""

import threading
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field, replace
from operator import methodcaller
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from partition.errors import (
    KafkaError,
    KafkaFailed,
    KafkaUnavailable,
    OffsetOutOfRange,
    PartitionError,
    StoreUnavailable,
    TopicMissing,
)
from partition.interfaces import Fetched, Log, LogEnd, StoredOffset, Topic
from partition.offsets.holdings import Holdings, NodeNames
from partition.offsets.offset_store import OffsetStore
from partition.offsets.requests import (
    ANY_VERSION,
    CreateNode,
    NodeChanged,
    NodeExists,
    Operation,
    Read,
    Reply,
    Request,
    SetNode,
    Steps,
    Write,
    ZNode,
    missing_parents,
)
from partition.records import Chunk, Partition, Position, epoch_runs, other_bytes

if TYPE_CHECKING:
    from confluent_kafka import Message

Answer = TypeVar("Answer")

_CREATE_TIME = 1  # Kafka's TIMESTAMP_CREATE_TIME

_offset, _key, _leader_epoch = map(methodcaller, ("offset", "key", "leader_epoch"))


@dataclass(slots=True)
class PartitionLog:
    start: int = 0
    end: int = 0
    messages: "list[Message]" = field(default_factory=list)
    epoch: int = 0  # of the leader


class MemoryLog:
    """Topics in memory. Any thread may change them; fetchers that wait are woken."""

    away = False
    """Whether no broker answers."""

    def __init__(self, topics: Mapping[str, int] | None = None) -> None:
        self.changed = threading.Condition()
        self.mirrored: dict[Partition, Position] = {}  # what a consumer group would hold
        self._logs: dict[Partition, PartitionLog] = {}
        self._ids: dict[str, str] = {}
        for topic, partitions in (topics or {}).items():
            self.create_topic(topic, partitions)

    def create_topic(self, topic: str, partitions: int = 1) -> None:
        with self.changed:
            self._ids[topic] = f"{topic}-{len(self._ids) + 1}"
            self.add_partitions(topic, partitions)

    def add_partitions(self, topic: str, count: int = 1) -> None:
        with self.changed:
            present = len(self.partitions(topic))
            for number in range(present, present + count):
                self._logs[Partition(topic, number)] = PartitionLog()
            self.changed.notify_all()

    def append(
        self,
        partition: Partition,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Sequence[tuple[str, bytes | None]] = (),
        timestamp_ms: int = 0,
    ) -> int:
        from confluent_kafka import Message  # noqa: PLC0415 - the test kit is imported without

        with self.changed:
            log = self._logs[partition]
            offset = log.end
            log.messages.append(
                Message(
                    *partition,
                    offset,
                    key,
                    value,
                    list(headers) or None,
                    timestamp=(_CREATE_TIME, timestamp_ms),
                    leader_epoch=log.epoch,
                )
            )
            log.end += 1
            self.changed.notify_all()
            return offset

    def topic(self, name: str) -> Topic:
        with self.changed:
            numbers = tuple(partition.number for partition in self.partitions(name))
            return Topic(name, self._ids[name], numbers)

    def topics(self) -> dict[str, Topic]:
        with self.changed:
            return {name: self.topic(name) for name in sorted(self._ids)}

    def partitions(self, topic: str) -> list[Partition]:
        """Raises TopicMissing."""
        with self.changed:
            if topic not in self._ids:
                raise TopicMissing(topic)
            return sorted(partition for partition in self._logs if partition.topic == topic)

    def log(self, partition: Partition, timestamp_ms: int | None = None) -> Log:
        with self.changed:
            start, end = self.log_range(partition)
            log, at = self._logs[partition], None
            if timestamp_ms is not None:
                young = (_offset(m) for m in log.messages if m.timestamp()[1] >= timestamp_ms)
                at = next(young, end)
            return Log(start, end, self._ids[partition.topic], at, log.epoch)

    def log_range(self, partition: Partition) -> tuple[int, int]:
        with self.changed:
            if partition not in self._logs:
                raise TopicMissing(partition.topic)
            log = self._logs[partition]
            return log.start, log.end

    def read(self, partition: Partition, position: Position, limit: int) -> "list[Message]":
        """Return at most `limit` records from a position on.

        Raises TopicMissing, OffsetOutOfRange.
        """
        with self.changed:
            start, end = self.log_range(partition)
            if not start <= position.offset <= end:
                raise OffsetOutOfRange(partition, position.offset, f"it has {start}..{end}")
            messages = self._logs[partition].messages
            low = bisect_left(messages, position.offset, key=_offset)
            return messages[low : low + limit]


class MemoryCatalogue:
    """A `Catalogue` of a MemoryLog; its futures have ended when it returns them."""

    def __init__(self, log: MemoryLog) -> None:
        self._log = log
        self._open = False

    def open(self) -> None:
        self._open = True

    def close(self) -> None:
        self._open = False

    def topics(self) -> Future[Mapping[str, Topic]]:
        return self._ask("for the topics", self._log.topics)

    def topic(self, name: str) -> Future[Topic]:
        return self._ask(f"for topic '{name}'", lambda: self._log.topic(name))

    def log(self, partition: Partition, timestamp_ms: int | None = None) -> Future[Log]:
        what = f"for the offsets of {partition}"
        return self._ask(what, lambda: self._log.log(partition, timestamp_ms))

    def ends(self, partitions: Collection[Partition]) -> Future[Mapping[Partition, LogEnd]]:
        return self._ask("for the ends of the logs", lambda: self._ends(partitions))

    def _ends(self, partitions: Collection[Partition]) -> Mapping[Partition, LogEnd]:
        ends = {}
        for partition in partitions:
            with suppress(PartitionError):
                found = self._log.log(partition)
                ends[partition] = LogEnd(found.end, found.leader_epoch)
        return ends

    def _ask(self, what: str, answer: Callable[[], Answer]) -> Future[Answer]:
        future: Future[Answer] = Future()
        try:
            if not self._open:
                raise KafkaFailed("the catalogue is not open")
            if self._log.away:
                raise KafkaUnavailable(what, "the log is away")
            future.set_result(answer())
        except PartitionError as error:
            future.set_exception(error)
        return future


class MemoryFetcher:
    mirror_failures = 0

    def __init__(self, log: MemoryLog, *, waits: bool = True) -> None:
        """Without `waits`, `fetch` never waits for records."""
        self._log = log
        self._waits = waits
        self._next: dict[Partition, Position] = {}
        self._ends: dict[Partition, int] = {}  # the log ends that were reported
        self._ranges: dict[Partition, tuple[int, int]] = {}
        self._failed: set[Partition] = set()  # reported, and not removed since
        self._paused: set[Partition] = set()

    @property
    def available(self) -> bool:
        return not self._log.away

    def open(self) -> None:
        pass

    def close(self) -> None:
        self.remove(list(self._next))

    def add(self, positions: Mapping[Partition, Position]) -> None:
        self.remove(positions)
        self._next.update(positions)

    def remove(self, partitions: Iterable[Partition]) -> None:
        for partition in partitions:
            self._next.pop(partition, None)
            self._ends.pop(partition, None)
            self._ranges.pop(partition, None)
            self._failed.discard(partition)
            self._paused.discard(partition)

    def pause(self, partition: Partition) -> None:
        if partition in self._next:
            self._paused.add(partition)

    def resume(self, partition: Partition) -> None:
        self._paused.discard(partition)

    def log_range(self, partition: Partition) -> tuple[int, int] | None:
        return self._ranges.get(partition)

    def transaction_wait_seconds(self, partition: Partition) -> float:
        del partition
        return 0.0

    def mirror(self, positions: Mapping[Partition, Position]) -> None:
        self._log.mirrored.update(positions)

    def fetch(self, max_records: int, timeout_seconds: float) -> Fetched:
        fetched = Fetched()

        def has_some() -> bool:
            nonlocal fetched
            fetched = Fetched() if self._log.away else self._take(max_records)
            return bool(fetched.chunks or fetched.ends or fetched.failures)

        with self._log.changed:
            self._log.changed.wait_for(has_some, timeout_seconds if self._waits else 0.0)
        return fetched

    def _take(self, max_records: int) -> Fetched:
        fetched, left = Fetched(), max_records
        for partition in [p for p in self._next if p not in self._paused | self._failed]:
            try:
                self._read(partition, left, fetched)
            except KafkaError as error:
                fetched.failures[partition] = error
                self._failed.add(partition)
            left = max_records - sum(len(chunk.offsets) for chunk in fetched.chunks)
            if left <= 0:
                break
        # The next call begins with another partition.
        for chunk in fetched.chunks:
            self._next[chunk.partition] = self._next.pop(chunk.partition)
        return fetched

    def _read(self, partition: Partition, max_records: int, fetched: Fetched) -> None:
        _, log_end = self._ranges[partition] = self._log.log_range(partition)
        position = self._next[partition]
        messages = self._log.read(partition, position, max_records)
        if messages:
            offsets = np.fromiter(map(_offset, messages), np.int64, len(messages))
            epochs = epoch_runs(messages, offsets, _leader_epoch)
            others = other_bytes(messages, _key)
            fetched.chunks.append(
                Chunk(partition, offsets, list(messages), epochs, other_bytes=others)
            )
            last = messages[-1]
            position = replace(position, offset=_offset(last) + 1, leader_epoch=last.leader_epoch())
            self._next[partition] = position
        if not self._log.read(partition, position, 1) and self._ends.get(partition) != log_end:
            fetched.ends[partition] = self._ends[partition] = log_end
            self._next[partition] = replace(position, offset=log_end)


T = TypeVar("T")


class MemoryNodes:
    """A ZooKeeper's nodes in memory, shared by the stores that are opened on them."""

    def __init__(self) -> None:
        self.nodes: dict[str, ZNode] = {}

    def answer(self, request: Request) -> Reply:
        if isinstance(request, Read):
            return self.nodes.get(request.path)
        if isinstance(request, Write):
            return self.write(request.operations)
        return None  # a pause: time changes nothing here

    def write(self, operations: Sequence[Operation]) -> list[int]:
        before, versions = dict(self.nodes), []
        try:
            for parent in missing_parents(operations):
                names = parent.split("/")
                for count in range(2, len(names) + 1):
                    self.nodes.setdefault("/".join(names[:count]), ZNode(b""))
            for operation in operations:
                self.change(operation)
                versions.append(self.nodes.get(operation.path, ZNode(b"")).version)
        except (NodeExists, NodeChanged):
            self.nodes = before
            raise
        return versions

    def change(self, operation: Operation) -> None:
        path, found = operation.path, self.nodes.get(operation.path)
        if isinstance(operation, CreateNode):
            if found is not None:
                raise NodeExists
            if path.rpartition("/")[0] not in self.nodes:
                raise NodeChanged
            self.nodes[path] = ZNode(operation.data)
        elif found is None:
            raise NodeChanged
        elif isinstance(operation, SetNode):
            if operation.version not in {found.version, ANY_VERSION}:
                raise NodeChanged
            self.nodes[path] = ZNode(operation.data, found.version + 1)


class MemoryStore(OffsetStore):
    """Offsets in MemoryNodes. Its futures have ended when it returns them."""

    available = True
    session = 0

    def __init__(
        self,
        nodes: MemoryNodes | None = None,
        *,
        pipeline: str = "memory",
        topology_id: str = "memory",
        root: str = "/headrace",
    ) -> None:
        super().__init__(NodeNames(root, pipeline, topology_id))
        self._server = nodes or MemoryNodes()
        self._is_open = False

    def open(self) -> None:
        if not self._is_open:
            self._held = Holdings()
        self._is_open = True

    def close(self) -> None:
        self._is_open = False

    def load(self, partition: Partition) -> StoredOffset | None:
        return self._submit(self._load(partition)).result(0)

    def _submit(self, steps: Steps[T], *, claims: Partition | None = None) -> Future[T]:
        del claims
        future: Future[T] = Future()
        reply: Reply | Exception = None
        if not self._is_open:
            future.set_exception(StoreUnavailable("a request", "the store is not open"))
            return future
        try:
            while True:  # not by `run_all`: no reply is waited for, and nothing else runs beside
                request = steps.throw(reply) if isinstance(reply, Exception) else steps.send(reply)
                try:
                    reply = self._server.answer(request)
                except Exception as error:  # noqa: BLE001 - the generator is told, whatever it is
                    reply = error
        except StopIteration as stop:
            future.set_result(stop.value)
        except Exception as error:  # noqa: BLE001 - the future's owner hears of it
            future.set_exception(error)
        return future
