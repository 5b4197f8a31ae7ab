"""The service as a user runs it: a command, a configuration file, signals, files left behind."""

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import pytest

from service.devservers.process import free_ports
from service.devservers.servers import EmbeddedKafka, EmbeddedZooKeeper
from tests.acceptance import evidence, processes, stored
from tests.support import fork_server, patience
from tests.support.patience import seconds, until

REPOSITORY = Path(__file__).parents[2]
HEADRACE = Path(sys.executable).with_name("headrace")
TOPOLOGY = "tests.acceptance.flights_small_batches:topology"
DRAIN_SECONDS = 20.0
SESSION_SECONDS = 2.0

_CONFIG = """\
[pipeline]
name = "{name}"
commit_interval_seconds = 0.2
drain_seconds = {drain_seconds}
chunk_records = 200

[kafka]
"bootstrap.servers" = "{kafka}"
"queued.min.messages" = 1000 # little is fetched ahead, so that an outage is felt
"queued.max.messages.kbytes" = 256
"max.partition.fetch.bytes" = 65536

[zookeeper]
hosts = "{zookeeper}"
session_timeout_seconds = {session_seconds}

[storage]
warehouse = "{warehouse}"

[http]
port = {port}
"""


@dataclass
class Stage:
    """One pipeline's surroundings: its servers, topic, table and configuration."""

    kafka: EmbeddedKafka
    zookeeper: EmbeddedZooKeeper
    folder: Path
    sink: str = "delta"  # or "spark"
    drain_seconds: float = field(default_factory=lambda: patience.slack(DRAIN_SECONDS))
    name: str = field(default_factory=lambda: f"flights-{uuid.uuid4().hex[:8]}")
    port: int = field(default_factory=lambda: free_ports(1)[0])
    runs: "list[Run]" = field(default_factory=list)

    @property
    def topic(self) -> str:
        return self.name

    @property
    def offsets_folder(self) -> str:
        return f"/headrace/{self.name}/{self.topic}"

    @property
    def table(self) -> Path:
        return self.folder / "warehouse" / "flight_events"

    @property
    def temporary(self) -> Path:
        return self.folder / "tmp"

    def start(self, *options: str) -> "Run":
        """Start `headrace run` over this stage."""
        self.temporary.mkdir(exist_ok=True)
        config = self.folder / "service.toml"
        config.write_text(
            _CONFIG.format(
                name=self.name,
                drain_seconds=self.drain_seconds,
                kafka=self.kafka.address,
                zookeeper=self.zookeeper.address,
                session_seconds=SESSION_SECONDS,
                warehouse=self.folder / "warehouse",
                port=self.port,
            )
        )
        command = [str(HEADRACE), "run", TOPOLOGY, "--config", str(config), "--json", *options]
        environment = {
            "FLIGHTS_TOPIC": self.topic,
            "FLIGHTS_SINK": self.sink,
            "TMPDIR": str(self.temporary),
        }
        run = Run(command, self.folder / f"run-{len(self.runs) + 1}", environment)
        self.runs.append(run)
        return run

    def watch(self) -> stored.Watch:
        return stored.Watch(self.zookeeper.address, self.offsets_folder)

    def stored(self) -> stored.Offsets:
        with stored.client(self.zookeeper.address) as client:
            return stored.read(client, self.offsets_folder)

    def records(self) -> evidence.Topic:
        return evidence.read_topic(self.kafka.address, self.topic)

    def malformed(self) -> "set[evidence.Place]":
        return evidence.malformed(self.kafka.address, self.topic)

    def letters(self) -> "evidence.Counter[evidence.Place]":
        return evidence.dead_letters(self.kafka.address, f"{self.topic}.dead")

    def ready(self) -> int:
        """What /health/ready answers; 0 when nobody does."""
        try:
            with urllib.request.urlopen(
                f"http://127.0.0.1:{self.port}/health/ready", timeout=seconds(5)
            ) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            with error:
                return error.code
        except OSError:
            return 0

    def end(self) -> None:
        for run in self.runs:
            run.end()


class Process(Protocol):
    """What is asked of a process: of `subprocess.Popen`."""

    pid: int
    returncode: int | None

    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...
    def send_signal(self, number: int, /) -> None: ...
    def terminate(self) -> None: ...
    def kill(self) -> None: ...


Launch = Callable[..., Process]


class Run:
    """One process of the service, and what it started."""

    def __init__(
        self,
        command: list[str],
        output: Path,
        environment: dict[str, str],
        launch: Launch | None = None,
    ) -> None:
        """`launch` starts the process: by default a fork server if it is `headrace` itself."""
        if launch is None:
            is_headrace = command[0] == str(HEADRACE)
            launch = fork_server.shared().launch if is_headrace else subprocess.Popen
        self.mark = uuid.uuid4().hex
        marks = {processes.MARK: self.mark, "PYTHONFAULTHANDLER": "1"}
        self._stdout = output.with_suffix(".out")
        self._stderr = output.with_suffix(".err")
        with self._stdout.open("wb") as stdout, self._stderr.open("wb") as stderr:
            self.process = launch(
                command,
                cwd=REPOSITORY,
                env={**os.environ, **environment, **marks},
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def output(self) -> str:
        return self._stdout.read_text()

    @property
    def errors(self) -> str:
        return self._stderr.read_text()

    def jvm(self) -> int:
        until("Spark runs", lambda: processes.java_children(self.pid) or not self.alive)
        return processes.java_children(self.pid)[0]

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        """`kill -9`, as a machine out of memory would; its JVM is left to itself."""
        self.process.kill()
        self.process.wait()

    def wait(self, seconds: float = 120.0) -> int:
        try:
            return self.process.wait(patience.seconds(seconds))
        except subprocess.TimeoutExpired:
            self.process.send_signal(signal.SIGABRT)  # faulthandler prints every thread's stack
            self.process.wait(patience.seconds(10))
            pytest.fail(f"still runs after {seconds:g} s; its log ends:\n{self.tail(200)}")

    def account(self) -> dict[str, Any]:
        facts: dict[str, Any] = json.loads(self.output.splitlines()[-1])
        return facts

    def events(self, name: str) -> list[dict[str, Any]]:
        lines = [line for line in self.errors.splitlines() if line.startswith("{")]
        return [event for event in map(json.loads, lines) if event["event"] == name]

    def tail(self, lines: int = 25) -> str:
        return "\n".join(self.errors.splitlines()[-lines:])

    def descendants(self) -> dict[int, str]:
        """All that this run has started and that still lives, itself included."""
        return processes.marked(self.mark)

    def end(self) -> None:
        """End it and all that it started, by their process ids."""
        if self.alive:
            self.kill()
        for pid in self.descendants():
            os.kill(pid, signal.SIGKILL)
