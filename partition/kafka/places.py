"""Where each partition is read on, and records made into chunks by it."""

from collections.abc import Callable, Iterable, Mapping, Sized
from itertools import pairwise
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from confluent_kafka import Message

from partition.records import Chunk, Offsets, Partition, Position, epoch_runs, other_bytes

_TOPIC_SHIFT = 32

_offset: Callable[[Message], Any] = Message.offset
_number: Callable[[Message], Any] = Message.partition
_topic: Callable[[Message], Any] = Message.topic
_key: Callable[[Message], Any] = Message.key
_epoch: Callable[[Message], Any] = Message.leader_epoch


class Places:
    """The partitions that are read. Records of others, and those seen already, are dropped."""

    def __init__(self) -> None:
        self.next: dict[Partition, int] = {}
        self._epochs: dict[Partition, int] = {}  # of the record before
        self._topics: dict[str, int] = {}  # every topic ever read, and its place
        self._keys: dict[int, Partition] = {}

    def position(self, partition: Partition) -> Position:
        """Where a partition is read on."""
        return Position(self.next[partition], self._epochs.get(partition))

    def add(self, positions: Mapping[Partition, Position]) -> None:
        """Read these partitions too."""
        for partition, position in positions.items():
            self.next[partition] = position.offset
            self._topics.setdefault(partition.topic, len(self._topics))
            self._keys[self._key(partition)] = partition
            if position.leader_epoch is not None:
                self._epochs[partition] = position.leader_epoch

    def drop(self, partitions: Iterable[Partition]) -> None:
        """Read these no more."""
        for partition in partitions:
            del self.next[partition], self._keys[self._key(partition)]
            self._epochs.pop(partition, None)

    def clear(self) -> None:
        """Read nothing."""
        self.drop(list(self.next))

    def pass_ends(self, ends: Mapping[Partition, int]) -> dict[Partition, int]:
        """Move on to the log ends that were reached; return those that are news."""
        ends = {partition: end for partition, end in ends.items() if end >= self.next[partition]}
        self.next.update(ends)
        return ends

    def chunks(self, messages: list[Message]) -> list[Chunk]:
        """Make chunks, one per partition; `messages` is not empty and holds no events."""
        count = len(messages)
        offsets = np.fromiter(map(_offset, messages), np.int64, count)
        keys = np.fromiter(map(_number, messages), np.int64, count)
        if len(self._topics) > 1:
            places = map(self._topics.__getitem__, map(_topic, messages))
            keys += np.fromiter(places, np.int64, count) << _TOPIC_SHIFT
        if keys[0] == keys[-1] and (keys == keys[0]).all():
            chunk = self._chunk(int(keys[0]), offsets, messages)
            return [] if chunk is None else [chunk]
        chunks = []
        for key, slices in runs_by_key(keys).items():
            own = messages[slices[0]]
            for each in slices[1:]:
                own += messages[each]
            chunk = self._chunk(key, np.concatenate([offsets[each] for each in slices]), own)
            if chunk is not None:
                chunks.append(chunk)
        return chunks

    def _chunk(self, key: int, offsets: Offsets, messages: list[Message]) -> Chunk | None:
        """Make a chunk of what belongs to the assignment and was not delivered before."""
        partition = self._keys.get(key)
        if partition is None:
            return None
        position = self.next[partition]
        if offsets[0] < position or not (offsets[1:] > offsets[:-1]).all():
            kept = unseen(offsets, position)
            if not len(kept):
                return None
            offsets = offsets[kept]
            messages = [messages[place] for place in kept.tolist()]
        self.next[partition] = int(offsets[-1]) + 1
        epochs = epoch_runs(messages, offsets, _epoch)
        if epochs:
            self._epochs[partition] = epochs[-1][1]
        sized = cast("list[Sized]", messages)
        return Chunk(partition, offsets, sized, epochs, other_bytes=other_bytes(messages, _key))

    def _key(self, partition: Partition) -> int:
        return (self._topics[partition.topic] << _TOPIC_SHIFT) + partition.number


def runs_by_key(keys: npt.NDArray[np.int64]) -> dict[int, list[slice]]:
    """Return where each key's runs of neighbours lie, in order; `keys` is not empty."""
    starts = [0, *(np.flatnonzero(keys[1:] != keys[:-1]) + 1).tolist(), len(keys)]
    runs: dict[int, list[slice]] = {}
    for start, end in pairwise(starts):
        runs.setdefault(int(keys[start]), []).append(slice(start, end))
    return runs


def unseen(offsets: Offsets, position: int) -> npt.NDArray[np.intp]:
    """Return the places of the offsets that lie at or after `position` and all before them."""
    highest = np.maximum.accumulate(np.concatenate(([position - 1], offsets[:-1])))
    return np.flatnonzero(offsets > highest)
