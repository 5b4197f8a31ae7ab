"""The stored offsets, read from ZooKeeper directly, and watched for a step back."""

import json
import math
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from kazoo.client import KazooClient
from kazoo.exceptions import KazooException, NoNodeError
from kazoo.handlers.threading import KazooTimeoutError

from partition.zookeeper.zookeeper_client import KazooLog
from tests.support.patience import seconds

Offsets = dict[int, int]  # by partition
PARTITIONS = range(4)
_POLL_SECONDS = 0.01


@contextmanager
def client(hosts: str) -> Iterator[KazooClient]:
    zookeeper = KazooClient(
        hosts, timeout=5.0, connection_retry={"max_tries": -1, "delay": 0.1}, logger=KazooLog()
    )
    zookeeper.start(30)
    try:
        yield zookeeper
    finally:
        zookeeper.stop()
        zookeeper.close()


def read(zookeeper: KazooClient, folder: str) -> Offsets:
    """Every partition's stored offset; a partition without one is left out."""
    found = {}
    for number in PARTITIONS:
        path = f"{folder}/partition_{number}"
        try:
            zookeeper.sync(path)
            found[number] = int(json.loads(zookeeper.get(path)[0])["offset"])
        except NoNodeError:
            continue
    return found


@dataclass
class Watch:
    """Reads all stored offsets a hundred times a second on a thread of its own.

    `steps_back` lists every offset that was lower than one seen before it, and every
    node that was there and is gone; `steps` every change, with its moment of the monotonic
    clock, its partition and the offset. While ZooKeeper is away it waits.
    """

    hosts: str
    folder: str
    steps_back: list[str] = field(default_factory=list)
    steps: list[tuple[float, int, int]] = field(default_factory=list)
    newest: Offsets = field(default_factory=dict)
    reads: int = 0
    _ended: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._run, name="watch-offsets", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._ended.set()
        assert self._thread is not None
        self._thread.join(seconds(30))

    @property
    def total(self) -> int:
        """The sum of the newest offsets: how much is committed."""
        return sum(self.newest.values())

    def passed(self, partition: int, offset: int) -> float:
        """When a stored offset past that record was first seen; infinite if never."""
        return next((at for at, p, o in self.steps if p == partition and o > offset), math.inf)

    def _run(self) -> None:
        with client(self.hosts) as zookeeper:
            while not self._ended.wait(_POLL_SECONDS):
                try:
                    found = self._read(zookeeper)
                except (KazooException, KazooTimeoutError):
                    continue
                self._compare(found, time.monotonic())
                self.newest = found
                self.reads += 1

    def _read(self, zookeeper: KazooClient) -> Offsets:
        asked: dict[int, Any] = {
            number: zookeeper.get_async(f"{self.folder}/partition_{number}")
            for number in PARTITIONS
        }
        found = {}
        for number, answer in asked.items():
            try:
                found[number] = int(json.loads(answer.get(timeout=2.0)[0])["offset"])
            except NoNodeError:
                continue
        return found

    def _compare(self, found: Mapping[int, int], now: float) -> None:
        self.steps += [(now, p, o) for p, o in found.items() if self.newest.get(p) != o]
        for number, before in self.newest.items():
            after = found.get(number)
            if after is None or after < before:
                self.steps_back.append(f"partition {number}: {before} -> {after}")
