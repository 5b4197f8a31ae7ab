"""Real replicas on a real broker and ZooKeeper: what they write, take and take over.

Every replica is a process, `headrace run` with shared partitions and a commit each second. What
they have done is read from ZooKeeper's nodes, by nothing of the product. This module has the
topology that they run, too.
"""

import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, Self

from kazoo.exceptions import NoNodeError

from benchmarks.bench import Bench
from benchmarks.measured import resident_mb
from benchmarks.publishing import Sender
from benchmarks.result import Facts, Goal, Table
from headrace import Record, Topology, bolt
from headrace.sinks import DiscardSink, KafkaDeadLetters
from service.cli.run import Servers
from service.devservers.servers import ask_zookeeper
from tests.acceptance.stored import client, parts_of

FEW, MANY = 100, 1_000
REPLICAS, KILLS = 8, 3
SESSION_AND = 2.0  # seconds within which a takeover is to be complete, after the time-out
_REPORTS_PER_SECOND = 0.1  # what a replica holds, and plans, while all is settled
_APART_SECONDS = 1.0  # between two starts
SESSION_SECONDS = 10.0  # the default
COMMIT_SECONDS = 1.0  # as in the model
_WINDOW_SECONDS = 10.0
_EVERY_SECONDS = 0.25  # a record of each partition, under load
_POLL_SECONDS = 0.05
_WAIT_SECONDS = 240.0


class Stored(NamedTuple):
    """A partition's stored state."""

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

    def __enter__(self) -> Self:
        kafka, zookeeper = self._servers.kafka, self._servers.zookeeper
        kafka.create_topic(self._name, self._partitions)
        self._closing = ExitStack()
        folder = TemporaryDirectory(prefix="headrace-bench-")
        self._folder = Path(self._closing.enter_context(folder))
        self._sender = Sender(kafka.address, self._name, self._partitions, linger_ms=5)
        self._client = self._closing.enter_context(client(zookeeper.address))
        return self

    def __exit__(self, *_error: object) -> None:
        for name in [*self._running]:
            self.kill(name)
        self._closing.close()

    def start(self, name: str) -> None:
        told = {
            "HEADRACE_PIPELINE__NAME": self._name,
            "HEADRACE_PIPELINE__COMMIT_INTERVAL_SECONDS": COMMIT_SECONDS,
            "HEADRACE_KAFKA__BOOTSTRAP_SERVERS": self._servers.kafka.address,
            "HEADRACE_ZOOKEEPER__HOSTS": self._servers.zookeeper.address,
            "HEADRACE_ZOOKEEPER__SESSION_TIMEOUT_SECONDS": SESSION_SECONDS,
            "HEADRACE_REPLICAS__NAME": name,
            "HEADRACE_HTTP__PORT": 0,
            "SCALE_TOPIC": self._name,
        }
        command = [sys.executable, "-m", "headrace", "run", "benchmarks.scale_replicas:topology"]
        with (self._folder / f"{name}.log").open("ab") as log:
            self._running[name] = subprocess.Popen(
                [*command, "--json"],
                env={**os.environ, **{key: str(value) for key, value in told.items()}},
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
        self._sender.send([b"{}"] * self._partitions)
        self._sender.flush()
        self._published += 1

    def owners(self) -> dict[str, set[int]]:
        folder = f"/headrace/{self._name}/@replicas"
        found = {}
        try:
            for name in self._client.get_children(folder):
                facts = json.loads(self._client.get(f"{folder}/{name}")[0])
                found[name] = {number for _, number in parts_of(facts["holds"])}
        except NoNodeError:
            return {}
        return found

    def settle(self, names: Sequence[str]) -> None:
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
        """Return the stored state of partitions that somebody has claimed."""
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
        port = self._servers.zookeeper.port
        before, began = writes_of(port), time.monotonic()
        while time.monotonic() - began < _WINDOW_SECONDS:
            if load:
                self.publish()
            time.sleep(_EVERY_SECONDS)
        return (writes_of(port) - before) / (time.monotonic() - began)

    def resident_mb(self, name: str) -> float:
        return resident_mb(self._running[name].pid)

    def _check(self) -> None:
        for name, process in self._running.items():
            if process.poll() is not None:
                raise SystemExit(f"{name} ended with {process.returncode}: {self._tail(name)}")

    def _tail(self, name: str) -> str:
        return "\n".join((self._folder / f"{name}.log").read_text().splitlines()[-5:])


def writes_of(port: int) -> int:
    """Return how many writes the ZooKeeper of a port has done."""
    lines = ask_zookeeper(port, "srvr").splitlines()
    (found,) = [line.split()[1] for line in lines if line.startswith("Zxid:")]
    return int(found, 16)


def wait_for(what: str, holds: Callable[[], Any]) -> None:
    """Wait until something holds. Raises SystemExit when it does not in time."""
    ends = time.monotonic() + _WAIT_SECONDS
    while not holds():
        if time.monotonic() > ends:
            raise SystemExit(f"not within {_WAIT_SECONDS:g} s: {what}")
        time.sleep(_POLL_SECONDS)


class Replicated(NamedTuple):
    """The figures of the same replicas with few partitions and with many, and some kills."""

    facts: Facts
    goals: list[Goal]
    table: Table


def replicated(bench: Bench) -> Replicated:
    """Measure; a run that is only to show that it works takes two replicas, and kills one."""
    is_short = bench.options.records is not None
    sizes = (4, 12) if is_short else (FEW, MANY)
    count, kills = (2, 1) if is_short else (REPLICAS, KILLS)
    both = []
    for partitions in sizes:
        bench.progress.step(f"{count} replicas of {partitions:,} partitions")
        kills_now = kills if partitions == sizes[-1] else 0
        both.append(of_replicas(bench.servers, partitions, count, kills_now))
    few, many = both
    more = statistics.mean(many["held"]) - statistics.mean(few["held"])
    idle_bytes = (many["resident_mb"] - few["resident_mb"]) * 1e6 / more
    slowest = max(each["claimed_seconds"] for each in many["takeovers"])
    most = count * (1 / COMMIT_SECONDS + _REPORTS_PER_SECOND)
    what = {
        "partitions": "{partitions:,}",
        "of each": "{held[0]} to {held[1]}",
        "all claimed after, s": "{settled_seconds:.0f}",
        "writes/s of all, idle": "{idle_writes_per_second:.1f}",
        "writes/s of all, under load": "{loaded_writes_per_second:.1f}",
        "MB of a process, median": "{resident_mb:.1f}",
    }
    told = [{**each, "held": (each["held"][0], each["held"][-1])} for each in both]
    rows = [(name, *(form.format(**each) for each in told)) for name, form in what.items()]
    rows.append(("kB of a process for an idle partition", "", f"{idle_bytes / 1e3:.1f}"))
    for number, each in enumerate(many["takeovers"], 1):
        claimed, committed = each["claimed_seconds"], each["committed_seconds"]
        rows.append((f"kill {number}: all of it claimed after, s", "", f"{claimed:.1f}"))
        rows.append(("and a fresh record of each committed, s", "", f"{committed:.1f}"))
    columns = (f"{count} processes", "few partitions", "many")
    return Replicated(
        {"few": few, "many": many, "idle_bytes": round(idle_bytes)},
        [
            Goal("takeover by processes, s", slowest, SESSION_SECONDS + SESSION_AND, at_most=True),
            Goal("writes/s under load", many["loaded_writes_per_second"], most, at_most=True),
        ],
        Table(f"{count} replicas of the service, measured", columns, rows),
    )


def of_replicas(servers: Servers, partitions: int, replicas: int, kills: int) -> Facts:
    """Start them, look at them, kill some one after the other, and end them in order.

    Raises SystemExit if what is expected does not come, or a record is not committed at the end.
    """
    with Processes(servers, f"scale-{partitions}", partitions) as cluster:
        began = time.monotonic()
        names = [f"r{number}" for number in range(replicas)]
        for name in names:
            cluster.start(name)
            time.sleep(_APART_SECONDS)
        cluster.publish()
        cluster.settle(names)
        cluster.wait_until_stored()
        found = {
            "partitions": partitions,
            "replicas": replicas,
            "settled_seconds": time.monotonic() - began,
            "held": sorted(map(len, cluster.owners().values())),
            "idle_writes_per_second": cluster.writes_per_second(load=False),
            "loaded_writes_per_second": cluster.writes_per_second(load=True),
        }
        cluster.wait_until_stored()
        found["resident_mb"] = statistics.median(cluster.resident_mb(name) for name in names)
        found["takeovers"] = [_taken(cluster, name, names) for name in names[:kills]]
        cluster.end()
        return found


def _taken(cluster: Processes, victim: str, names: Sequence[str]) -> Facts:
    """Kill a replica, time the takeover, start it again and let all settle.

    The seconds are those until the last of its partitions was claimed, and until a record of each
    that was published after the kill was committed.
    """
    theirs = cluster.owners()[victim]
    before = cluster.stored(theirs)
    cluster.kill(victim)
    killed = claimed_at = time.monotonic()
    cluster.publish()
    claimed: set[int] = set()
    committed: set[int] = set()

    def is_done() -> bool:
        nonlocal claimed_at
        now = time.monotonic()
        for number, found in cluster.stored(theirs - committed).items():
            if found.epoch > before[number].epoch and number not in claimed:
                claimed.add(number)
                claimed_at = now
            if number in claimed and found.offset > before[number].offset:
                committed.add(number)
        return committed == theirs

    wait_for(f"the partitions of {victim} are taken over", is_done)
    taken = {"claimed_seconds": claimed_at - killed, "committed_seconds": time.monotonic() - killed}
    cluster.start(victim)
    cluster.settle(names)
    cluster.wait_until_stored()
    return {"partitions": len(theirs), **taken}


@bolt
def pass_on(record: Record) -> Record:
    return record


TOPIC = os.environ.get("SCALE_TOPIC", "scale")
topology = Topology("scale")
topology.source(TOPIC).then(pass_on).into(DiscardSink(), batch_seconds=0.2)
topology.dead_letters.into(KafkaDeadLetters(f"{TOPIC}.dead"))
