"""A fetcher on a log in memory, for the test kit and for tests.

It keeps the promises that Kafka keeps through this room: one contract suite runs against
both (`tests/contract`). Its counterparts are `partition.memory.catalogue` and
`partition.memory.store`.
"""

import time
from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np

from partition.errors import CorruptRecord, KafkaError, OffsetOutOfRange, TopicMissing
from partition.interfaces import Fetched
from partition.memory.log import MemoryLog, MemoryMessage
from partition.records import Chunk, Partition, Position, epoch_runs, other_bytes


class MemoryFetcher:
    """A `Fetcher` on a MemoryLog."""

    def __init__(self, log: MemoryLog, *, waits: bool = True) -> None:
        """Without `waits` it takes what is there: nothing comes by itself."""
        self._log = log
        self._waits = waits
        self._next: dict[Partition, Position] = {}
        self._ends: dict[Partition, int] = {}  # the log ends told already
        self._ranges: dict[Partition, tuple[int, int]] = {}
        self._failed: set[Partition] = set()  # told, and not removed since
        self._paused: set[Partition] = set()

    @property
    def available(self) -> bool:
        """Whether the log is there."""
        return not self._log.away

    @property
    def mirror_failures(self) -> int:
        """None: the log takes them all."""
        return 0

    def open(self) -> None:
        """Do nothing: the log is there."""

    def close(self) -> None:
        """Read nothing any more."""
        self.remove(list(self._next))

    def add(self, positions: Mapping[Partition, Position]) -> None:
        """Read these partitions too; see `Fetcher.add`."""
        self.remove(positions)
        self._next.update(positions)

    def remove(self, partitions: Iterable[Partition]) -> None:
        """Read these partitions no more."""
        for partition in partitions:
            self._next.pop(partition, None)
            self._ends.pop(partition, None)
            self._ranges.pop(partition, None)
            self._failed.discard(partition)
            self._paused.discard(partition)

    def pause(self, partition: Partition) -> None:
        """Stop delivering a partition's records."""
        if partition in self._next:
            self._paused.add(partition)

    def resume(self, partition: Partition) -> None:
        """Deliver them again."""
        self._paused.discard(partition)

    def log_range(self, partition: Partition) -> tuple[int, int] | None:
        """Return the log's first offset and its end as of the last fetch."""
        return self._ranges.get(partition)

    def transaction_wait_seconds(self, partition: Partition) -> float:
        """Nothing has transactions here."""
        del partition
        return 0.0

    def mirror(self, positions: Mapping[Partition, Position]) -> None:
        """Note the positions in the log's `mirrored`."""
        self._log.mirrored.update(positions)

    def fetch(self, max_records: int, timeout_seconds: float) -> Fetched:
        """Return records as soon as there are some; see `Fetcher.fetch`."""
        end = time.monotonic() + (timeout_seconds if self._waits else 0.0)
        with self._log.changed:
            while True:
                fetched = Fetched() if self._log.away else self._take(max_records)
                if fetched.chunks or fetched.ends or fetched.failures:
                    return fetched
                remaining = end - time.monotonic()
                if remaining <= 0:
                    return fetched
                self._log.changed.wait(remaining)

    def _take(self, max_records: int) -> Fetched:
        fetched = Fetched()
        reading = [p for p in self._next if p not in self._paused and p not in self._failed]
        for partition in reading:
            failure = self._lost(partition)
            if failure is None:
                max_records -= self._read(partition, max_records, fetched)
                failure = self._unreadable(partition)
            if failure is not None:
                fetched.failures[partition] = failure
                self._failed.add(partition)
            if max_records <= 0:
                break
        # The next call begins with another partition.
        for partition in [chunk.partition for chunk in fetched.chunks]:
            self._next[partition] = self._next.pop(partition)
        return fetched

    def _read(self, partition: Partition, max_records: int, fetched: Fetched) -> int:
        """Read what is good; return how many records that were."""
        position = self._next[partition]
        log_end = self._log.log_range(partition)[1]
        messages = self._log.read(partition, position.offset, max_records)
        bad = self._log.first_corrupt(partition, position.offset)
        if bad is not None:
            messages = [message for message in messages if message.offset_ < bad]
        if messages:
            offsets = np.fromiter((m.offset_ for m in messages), np.int64, len(messages))
            epochs = epoch_runs(messages, offsets, MemoryMessage.leader_epoch)
            others = other_bytes(messages, MemoryMessage.key)
            chunk = Chunk(partition, offsets, list(messages), epochs, other_bytes=others)
            fetched.chunks.append(chunk)
            position = replace(
                position, offset=messages[-1].offset_ + 1, leader_epoch=messages[-1].epoch_
            )
        rest = self._log.read(partition, position.offset, 1)
        if not rest and self._ends.get(partition) != log_end:
            fetched.ends[partition] = self._ends[partition] = log_end
            position = replace(position, offset=log_end)
        self._next[partition] = position
        return len(messages)

    def _lost(self, partition: Partition) -> KafkaError | None:
        """Say why a partition cannot be read on."""
        position = self._next[partition]
        try:
            start, end = self._ranges[partition] = self._log.log_range(partition)
        except TopicMissing as error:
            return error
        if position.leader_epoch is not None:
            epoch_end = self._log.epoch_end(partition, position.leader_epoch)
            if epoch_end is None or position.offset > epoch_end:
                reason = f"the log was cut off; epoch {position.leader_epoch} ends at {epoch_end}"
                return OffsetOutOfRange(partition, position.offset, reason, epoch_end)
        if not start <= position.offset <= end:
            return OffsetOutOfRange(partition, position.offset, f"it has {start}..{end}")
        return None

    def _unreadable(self, partition: Partition) -> KafkaError | None:
        offset = self._next[partition].offset
        found = self._log.read(partition, offset, 1)
        if found and found[0].offset_ == self._log.first_corrupt(partition, offset):
            return CorruptRecord(partition, offset, "it was made so")
        return None
