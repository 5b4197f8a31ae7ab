"""A whole service in a thread, on real servers: what it reads, tells and shows."""

import contextlib
import json
import os
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

from structlog.testing import capture_logs

from headrace import Record, Reject, To, Topology, bolt
from headrace.sinks import KafkaDeadLetters, MemoryDeadLetters, MemorySink
from headrace.testing import TopologyTest
from service.app import Service
from service.config.settings import load
from service.devservers.process import free_ports
from service.observability.health import HealthCheck
from service.observability.metrics import metric_values
from service.observability.snapshot import RunSummary, Snapshot, snapshot_of
from service.wiring import wire
from tests.support import patience
from tests.support.committed_messages import committed_messages
from tests.support.kafka import BRISK
from tests.support.patience import seconds, until
from topology.topology import Reliability

SECONDS = seconds(60.0)
_POLL_SECONDS = 0.02
_DRAIN_SECONDS = 10.0
BAD = b"bad"  # a value that begins so is refused by the bolt
LOOK = b"look"  # with one that begins so, it looks at the headers


@bolt
def place_of(record: Record) -> tuple[int, int, bytes | None, bytes | None]:
    """Say where a record was, and what it held."""
    if (record.value or b"").startswith(BAD):
        raise Reject("it begins with 'bad'")
    if (record.value or b"").startswith(LOOK):
        assert all(len(name) for name, _value in record.headers)
    return record.partition, record.offset, record.key, record.value


class Serving:
    """Runs of one pipeline over a topic, one after the other. The test's thread owns it.

    `kafka` are the client's properties, `letters` those of the dead letters' producer, over
    them. `rows` are what all runs that are over have written; exactly once all of them write
    into one `sink`, which remembers what was committed.
    """

    def __init__(
        self,
        topics: str | list[str],
        kafka: Mapping[str, Any],
        zookeeper: str,
        letters: Mapping[str, Any] | None = None,
        reliability: Reliability = "at-least-once",
    ) -> None:
        self._reliability = reliability
        self.sink = MemorySink() if reliability == "exactly-once" else None
        self.topics = [topics] if isinstance(topics, str) else topics
        self.dead = f"{self.topics[0]}.dead"
        self.rows: list[tuple[int, int, bytes | None, bytes | None]] = []
        self._told: list[Any] = []  # for each run, what it has logged
        self._kafka = {**BRISK, "reconnect.backoff.max.ms": 500, **kafka}
        self._letters = dict(letters or {})
        self.root = f"/{uuid.uuid4().hex[:8]}"
        self._zookeeper = {"hosts": zookeeper, "root": self.root}

    def run(self, **pipeline: Any) -> RunSummary:
        """Read to the end of the logs as they are at the start. Raises what ends the run."""
        with self.service(pipeline) as service:
            return service.run(until_caught_up=True)

    @contextmanager
    def runs(self, **pipeline: Any) -> "Iterator[Running]":
        with self.service(pipeline) as service:
            running = Running(service)
            try:
                yield running
            finally:
                running.leave()

    @contextmanager
    def service(self, pipeline: Mapping[str, Any]) -> Iterator[Service]:
        """A service that has not begun; what it wrote and told is noted when it has ended."""
        sink = self.sink or MemorySink()
        topology = Topology("faults", reliability=self._reliability)
        first = topology.source(self.topics[0]).then(place_of)
        streams = [first, *(topology.source(each).then(place_of) for each in self.topics[1:])]
        for stream in streams:
            stream.into(sink, batch_seconds=0.05)
        topology.dead_letters.into(KafkaDeadLetters(self.dead, properties=self._letters))
        more = {name: pipeline[name] for name in pipeline if isinstance(pipeline[name], dict)}
        own = {name: pipeline[name] for name in pipeline if name not in more}
        config = load(
            None,
            {
                "kafka": self._kafka,
                "zookeeper": self._zookeeper,
                "pipeline": {"commit_interval_seconds": 0.1, **own},
                **more,
            },
        )
        with capture_logs() as told:
            self._told.append(told)
            try:
                yield Service(wire(topology, config), drain_seconds=_DRAIN_SECONDS)
            finally:
                self.rows = [*([] if sink is self.sink else self.rows), *sink.rows]

    def offsets(self, partition: int) -> list[int]:
        """Which offsets of a partition have been written, in order; one twice is there twice."""
        return sorted(row[1] for row in self.rows if row[0] == partition)

    def events(self, name: str) -> list[Any]:
        return [event for event in self.all_told() if event["event"] == name]

    def all_told(self) -> list[Any]:
        return [event for told in self._told for event in told]

    def letters(self) -> list[dict[str, str]]:
        headers = [dict(message.headers() or []) for message in self.letter_messages()]
        return [{key: value.decode() for key, value in each.items()} for each in headers]

    def letter_messages(self) -> list[Any]:
        return committed_messages({**self._kafka, **self._letters}["bootstrap.servers"], self.dead)


class Running:
    def __init__(self, service: Service) -> None:
        self._service = service
        self._health = HealthCheck(lambda: service.snapshot)
        self._error: BaseException | None = None
        self._account: RunSummary | None = None
        self._thread = threading.Thread(target=self._run, name="service")
        self._thread.start()

    def _run(self) -> None:
        try:
            self._account = self._service.run()
        except BaseException as error:  # noqa: BLE001 - it is raised in the test's thread
            self._error = error

    @property
    def snapshot(self) -> Snapshot | None:
        return self._service.snapshot

    @property
    def has_ended(self) -> bool:
        return not self._thread.is_alive()

    @property
    def problems(self) -> tuple[str, ...]:
        """Why the service is not ready; nothing if it is."""
        return self._health.ready().problems

    def figure(self, name: str) -> float:
        """A metric by its name and labels, as in Prometheus' text form; nan while there is none."""
        snapshot = self.snapshot
        return float("nan") if snapshot is None else metric_values(snapshot).get(name, float("nan"))

    def of(self, name: str, topic: str, partition: int) -> float:
        labels = f'topic="{topic}",partition="{partition}"'
        return self.figure(f"headrace_partition_{name}{{{labels}}}")

    def until(self, what: str, holds: Callable[[], object], seconds: float = SECONDS) -> None:
        def so() -> object:
            if (found := holds()) or not self.has_ended:
                return found
            raise AssertionError(f"ended before {what}: {self._error!r}") from self._error

        until(what, so, seconds, lambda: self.snapshot)

    def says(self, text: str) -> None:
        self.until(f"it says {text}", lambda: any(text in each for each in self.problems))

    def committed(self, topic: str, ends: Mapping[int, int]) -> None:
        self.until(
            f"{ends} are stored",
            lambda: all(
                self.of("committed_offset", topic, number) == end for number, end in ends.items()
            ),
        )

    def end(self) -> RunSummary:
        """Drain and end. Raises what ended the run."""
        self._service.stop()
        self.wait()
        if self._account is None:
            raise AssertionError("it has no account") from self._error
        return self._account

    def failed(self, seconds: float = SECONDS) -> BaseException:
        self.wait(seconds)
        assert self._error is not None, "it ended without an error"
        return self._error

    def wait(self, seconds: float = SECONDS) -> None:
        self._thread.join(patience.seconds(seconds))
        assert self.has_ended, f"still runs after {seconds:g} s; {self.snapshot}"

    def leave(self) -> None:
        """Leave no thread behind, whatever the test has come to."""
        self._service.stop()
        self._thread.join(SECONDS)
        assert self.has_ended


_ANSWER_SECONDS = seconds(5.0)


@dataclass(frozen=True)
class Window:
    """The HTTP port of one process; `environment` makes it listen there."""

    port: int = field(default_factory=lambda: free_ports(1)[0])

    @property
    def environment(self) -> dict[str, str]:
        return {"HEADRACE_HTTP__PORT": str(self.port)}

    def problems(self) -> list[str] | None:
        """Why it is not ready; nothing if it is, None if nobody answers."""
        return self._problems("/health/ready")

    def live(self) -> list[str] | None:
        """Why a restart would help; nothing if it would not, None if nobody answers."""
        return self._problems("/health/live")

    def metric(self, name: str) -> float:
        """The sum of a metric over its labels; nan when nobody answers, or there is none."""
        lines = (self._get("/metrics") or b"").decode().splitlines()
        found = [line for line in lines if line.split("{")[0].split(" ")[0] == name]
        return sum(float(line.rpartition(" ")[2]) for line in found) if found else float("nan")

    def _problems(self, path: str) -> list[str] | None:
        told = self._get(path)
        return None if told is None else list(json.loads(told)["problems"])

    def _get(self, path: str) -> bytes | None:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=_ANSWER_SECONDS)
        try:
            connection.request("GET", path)
            return connection.getresponse().read()
        except (OSError, HTTPException):
            return None
        finally:
            connection.close()


def descriptors(pid: int, kind: str = "") -> int:
    """How many a process has open; those of a kind, such as "pipe:" or "socket:", or all."""
    found = 0
    for each in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):  # closed meanwhile
            found += os.readlink(each).startswith(kind)  # noqa: PTH115 - it is no path
    return found


@bolt
def parse(record: Record) -> int:
    return int(record.value or b"")


@bolt
def check(value: int) -> int | To:
    return To("late", value) if value > 60 else value


def topology() -> Topology:
    made = Topology("orders")
    orders = made.source("orders").then(parse)
    returns = made.source("returns").then(parse, name="parse_returns")
    checked = orders.merge(returns).then(check, streams=("late",))
    checked.into(MemorySink("all"))
    checked["late"].into(MemorySink("late"))
    made.dead_letters.into(MemoryDeadLetters())
    return made


def snapshot(test: TopologyTest, now: float = 100.0) -> Snapshot:
    return snapshot_of(test._pipeline, now)
