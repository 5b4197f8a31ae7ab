"""A topic and a pipeline on it, run by commands in processes of their own."""

import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from confluent_kafka import Producer
from kazoo.client import KazooClient

from service.devservers.servers import EmbeddedZooKeeper
from tests.support import fork_server
from tests.support.patience import seconds

SECONDS = seconds(30.0)
Started: TypeAlias = "AbstractContextManager[subprocess.Popen[str]]"

FLOW = """
    import os
    from headrace import SKIP, Record, Skip, Topology, bolt
    from headrace.sinks import DiscardSink, KafkaDeadLetters

    TOPIC = os.environ.get("TOPIC", "numbers")

    @bolt
    def parse(record: Record) -> int | Skip:
        return SKIP if record.value == b"skip" else int(record.value)

    topology = Topology(TOPIC)
    topology.source(TOPIC).then(parse).into(DiscardSink(), batch_rows=10, batch_seconds=0.2)
    topology.dead_letters.into(KafkaDeadLetters(TOPIC + ".dead"))
"""


class Done(NamedTuple):
    code: int
    facts: dict[str, Any]
    out: str
    err: str


class Folder:
    """A folder with a flow that reads a topic and with its configuration, for commands."""

    def __init__(
        self, folder: Path, name: str, kafka: str, zookeeper: str, flow: str = FLOW
    ) -> None:
        self.folder, self.name = folder, name
        self.kafka, self.zookeeper = kafka, zookeeper
        self.environment = {"TOPIC": name, "COLUMNS": "160"}
        (folder / "flow.py").write_text(textwrap.dedent(flow))
        self.configure()

    def configure(self, more: str = "") -> None:
        """Write service.toml, which leads to the servers; what is refused is soon given up."""
        (self.folder / "service.toml").write_text(
            f'[kafka]\nbootstrap.servers = "{self.kafka}"\n'
            f'[zookeeper]\nhosts = "{self.zookeeper}"\n'
            f"[retries]\nlimit = 1\ninitial_seconds = 0.05\n{textwrap.dedent(more)}"
        )

    def headrace(self, *words: str, config: bool = True, **environment: str) -> Done:
        more = ("--config", "service.toml") if config else ()
        env = self.environment | environment
        ran = fork_server.headrace(*words, *more, cwd=self.folder, env=env)
        last = ran.stdout.splitlines()[-1] if ran.stdout else ""
        facts = json.loads(last) if last.startswith("{") else {}
        return Done(ran.returncode, facts, ran.stdout, ran.stderr)

    def started(self, *words: str, **environment: str) -> "Started":
        """Start a command, in an interpreter of its own."""
        words = (*words, "--config", "service.toml")
        return started(self.folder, *words, **self.environment | environment)

    def facts(self, *words: str, **environment: str) -> dict[str, Any]:
        done = self.headrace(*words, "--json", **environment)
        assert done.code == 0, done.err
        return done.facts

    def run(self, **environment: str) -> dict[str, Any]:
        return self.facts("run", "flow:topology", "--until-caught-up", **environment)


@contextmanager
def started(folder: Path, *arguments: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-m", "headrace", *arguments],
        cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, **environment},
    ) as process:  # fmt: skip
        try:
            yield process
        finally:
            process.kill()


def ended(process: subprocess.Popen[str], number: signal.Signals | None = None) -> list[str]:
    """Wait for the end, after a signal if one is given; return standard output and error."""
    if number is not None:
        process.send_signal(number)
    return list(process.communicate(timeout=seconds(120)))


def publish(kafka: str, topic: str, values: Sequence[str | bytes], **more: Any) -> None:
    producer = Producer({"bootstrap.servers": kafka})
    for value in values:
        producer.produce(topic, value, **more)
    assert producer.flush(SECONDS) == 0


@contextmanager
def nodes_of(zookeeper: EmbeddedZooKeeper) -> Iterator[KazooClient]:
    client = KazooClient(zookeeper.address)
    client.start(timeout=SECONDS)
    try:
        yield client
    finally:
        client.stop()
        client.close()
