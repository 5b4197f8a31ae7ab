"""Watches the offsets in ZooKeeper: whether one passes a record that has not ended."""

import time
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import msgspec

from benchmarks.job import Job
from partition.offsets.znode import node_path
from partition.records import Partition
from partition.zookeeper.zookeeper_editor import ZooKeeperEditor
from service.zookeeper_config import ZooKeeperConfig


@dataclass(frozen=True, slots=True)
class Look:
    """A stored offset, and the monotonic second by which it was there."""

    partition: int
    offset: int
    at: float


class _Node(msgspec.Struct):
    offset: int


class Watch:
    """Reads a job's stored offsets whenever it is called. Use it in a `with`.

    `looks` are what it saw.
    """

    def __init__(self, zookeeper: str, partitions: int) -> None:
        self._reader = ZooKeeperEditor(zookeeper)
        self._partitions = range(partitions)
        self._root = ZooKeeperConfig(hosts=zookeeper).root
        self.looks: list[Look] = []

    def __enter__(self) -> Self:
        """Connect. Raises StoreUnavailable."""
        self._reader.open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Disconnect."""
        self._reader.close()

    def __call__(self, job: Job) -> None:
        """Look once. Raises StoreUnavailable."""
        for number in self._partitions:
            path = node_path(self._root, job.pipeline, Partition(job.topic, number))
            found = self._reader.get(path)
            if found is not None:
                offset = msgspec.json.decode(found.data, type=_Node).offset
                self.looks.append(Look(number, offset, time.monotonic()))


Ended = tuple[int, int, float]  # partition, offset, and the monotonic second when it ended


def passed(looks: list[Look], ended: list[Ended]) -> list[Ended]:
    """The records that a stored offset had passed before they ended. All of one machine's clock."""
    return [
        (partition, offset, at)
        for partition, offset, at in ended
        if any(
            look.partition == partition and look.offset > offset and look.at < at for look in looks
        )
    ]


def stood_at(looks: list[Look], ended: list[Ended]) -> int:
    """How many looks found an offset that stood at one of these records, waiting for it."""
    places = {(partition, offset) for partition, offset, _at in ended}
    return sum((look.partition, look.offset) in places for look in looks)
