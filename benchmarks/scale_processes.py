"""Replicas of the service as processes, and a look at what ZooKeeper holds of them."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any, NamedTuple, Self

from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from benchmarks.publishing import Sender
from partition.zookeeper.zookeeper_client import quiet_logger
from service.cli.embedded import Servers
from service.devservers.servers import four_letters

SESSION_SECONDS = 10.0  # the default
COMMIT_SECONDS = 1.0  # as in the model
_WINDOW_SECONDS = 10.0
_EVERY_SECONDS = 0.25  # a record of each partition, under load
_POLL_SECONDS = 0.05
_WAIT_SECONDS = 240.0
_CONFIG = """\
[pipeline]
name = "{name}"
commit_interval_seconds = {commit}

[kafka]
"bootstrap.servers" = "{kafka}"

[zookeeper]
hosts = "{zookeeper}"
session_timeout_seconds = {session}
"""


class Stored(NamedTuple):
    """What is stored of a partition."""

    offset: int
    epoch: int


class Processes:
    """A topic, the replicas that read it, and a client that looks at their nodes."""

    def __init__(self, servers: Servers, name: str, partitions: int) -> None:
        self._servers = servers
        self._name = name
        self._partitions = partitions
        self._published = 0
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._closing = ExitStack()

    def __enter__(self) -> Self:
        self._servers.kafka.create_topic(self._name, self._partitions)
        folder = TemporaryDirectory(prefix="headrace-bench-")
        self._folder = Path(self._closing.enter_context(folder))
        self._sender = Sender(
            self._servers.kafka.address, self._name, self._partitions, linger_ms=5
        )
        self._client = KazooClient(self._servers.zookeeper.address, logger=quiet_logger())
        self._client.start(30)
        self._closing.callback(self._client.close)
        self._closing.callback(self._client.stop)
        (self._folder / "service.toml").write_text(
            _CONFIG.format(
                name=self._name,
                kafka=self._servers.kafka.address,
                zookeeper=self._servers.zookeeper.address,
                session=SESSION_SECONDS,
                commit=COMMIT_SECONDS,
            ),
            encoding="utf-8",
        )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for process in self._running.values():
            process.kill()
            process.wait()
        self._closing.close()

    def start(self, name: str) -> None:
        """Start a replica."""
        command = [sys.executable, "-m", "headrace", "run", "benchmarks.scale_topology:topology"]
        with (self._folder / f"{name}.log").open("ab") as log:
            self._running[name] = subprocess.Popen(
                [*command, "--config", str(self._folder / "service.toml"), "--json"],
                env={
                    **os.environ,
                    "SCALE_TOPIC": self._name,
                    "HEADRACE_REPLICAS__NAME": name,
                    "HEADRACE_HTTP__PORT": "0",
                },
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
            )

    def kill(self, name: str) -> None:
        """`kill -9`."""
        process = self._running.pop(name)
        process.kill()
        process.wait()

    def end(self) -> None:
        """Tell all to end, and see that each record is committed."""
        for process in self._running.values():
            process.send_signal(signal.SIGTERM)
        for name, process in self._running.items():
            if process.wait(_WAIT_SECONDS) != 0:
                raise SystemExit(f"{name} ended with {process.returncode}: {self._tail(name)}")
        self._running.clear()
        self.wait_until_stored()

    def publish(self) -> None:
        """A record to each partition."""
        self._sender.send([b"{}"] * self._partitions)
        self._sender.flush()
        self._published += 1

    def owners(self) -> dict[str, set[int]]:
        """Who holds which partition, as each says itself."""
        folder = f"/headrace/{self._name}/@replicas"
        found = {}
        try:
            for name in self._client.get_children(folder):
                facts = json.loads(self._client.get(f"{folder}/{name}")[0])
                found[name] = set(_numbers(facts["holds"].get(self._name, "")))
        except NoNodeError:
            return {}
        return found

    def settle(self, names: Sequence[str]) -> None:
        """Wait until just these hold all partitions, within one."""

        def is_settled() -> bool:
            self._check()
            owners = self.owners()
            sizes = [len(each) for each in owners.values()]
            return (
                sorted(owners) == sorted(names)
                and sum(sizes) == self._partitions
                and max(sizes) - min(sizes) <= 1
            )

        wait_for(f"{len(names)} replicas hold {self._partitions} partitions", is_settled)

    def stored(self, numbers: Iterable[int]) -> dict[int, Stored]:
        """What is stored of partitions; of one that nobody has claimed yet, nothing."""
        base = f"/headrace/{self._name}/{self._name}/partition_"
        asked = {number: self._client.get_async(f"{base}{number}") for number in numbers}
        found = {}
        for number, answer in asked.items():
            try:
                facts = json.loads(answer.get(timeout=30)[0])
            except NoNodeError:
                continue
            found[number] = Stored(facts["offset"], facts["headrace"]["epoch"])
        return found

    def wait_until_stored(self) -> None:
        """Wait until each record that was published is committed."""
        left = set(range(self._partitions))

        def is_stored() -> bool:
            self._check()
            found = self.stored(left)
            left.difference_update(
                number for number, each in found.items() if each.offset >= self._published
            )
            return not left

        wait_for("each record is committed", is_stored)

    def writes_per_second(self, *, load: bool) -> float:
        """Writes that ZooKeeper counts, of all replicas."""
        before, began = self._zxid(), time.monotonic()
        while time.monotonic() - began < _WINDOW_SECONDS:
            if load:
                self.publish()
            time.sleep(_EVERY_SECONDS)
        return (self._zxid() - before) / (time.monotonic() - began)

    def resident_mb(self, name: str) -> float:
        """The memory that a replica's process holds."""
        pages = Path(f"/proc/{self._running[name].pid}/statm").read_text(encoding="ascii").split()
        return int(pages[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6

    def _zxid(self) -> int:
        lines = four_letters(self._servers.zookeeper.port, "srvr").splitlines()
        (found,) = [line.split()[1] for line in lines if line.startswith("Zxid:")]
        return int(found, 16)

    def _check(self) -> None:
        for name, process in self._running.items():
            if process.poll() is not None:
                raise SystemExit(f"{name} ended with {process.returncode}: {self._tail(name)}")

    def _tail(self, name: str) -> str:
        return "\n".join((self._folder / f"{name}.log").read_text().splitlines()[-5:])


def _numbers(text: str) -> Iterable[int]:
    """The numbers of ranges such as "0-3,7"."""
    for each in text.split(",") if text else ():
        first, _, last = each.partition("-")
        yield from range(int(first), int(last or first) + 1)


def wait_for(what: str, holds: Callable[[], Any]) -> None:
    """Wait until something holds. Raises SystemExit when it does not in time."""
    ends = time.monotonic() + _WAIT_SECONDS
    while not holds():
        if time.monotonic() > ends:
            raise SystemExit(f"not within {_WAIT_SECONDS:g} s: {what}")
        time.sleep(_POLL_SECONDS)
