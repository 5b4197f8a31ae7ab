"""A topic and a pipeline on it, run by commands in processes of their own."""

import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from confluent_kafka import Producer
from kazoo.client import KazooClient

from service.devservers.servers import EmbeddedKafka, EmbeddedZooKeeper
from tests.support import fork_server
from tests.support.patience import seconds

SECONDS = seconds(30.0)

FLOW = """
    import os
    from headrace import Record, Topology, bolt
    from headrace.sinks import DiscardSink, KafkaDeadLetters

    @bolt
    def parse(record: Record) -> int:
        return int(record.value)

    topology = Topology(os.environ["TOPIC"])
    topology.source(os.environ["TOPIC"]).then(parse).into(
        DiscardSink(), batch_rows=10, batch_seconds=0.2
    )
    topology.dead_letters.into(KafkaDeadLetters(os.environ["TOPIC"] + ".dead"))
"""


class Done(NamedTuple):
    code: int
    facts: dict[str, Any]
    out: str
    err: str


class Folder:
    """A folder with a flow that reads a topic and with its configuration, for commands."""

    def __init__(self, folder: Path, name: str, kafka: str, zookeeper: str) -> None:
        self.folder, self.name = folder, name
        self.kafka, self.zookeeper = kafka, zookeeper
        self.environment = {"TOPIC": name, "COLUMNS": "160"}
        (folder / "flow.py").write_text(textwrap.dedent(FLOW))
        self.configure()

    def configure(self, more: str = "") -> None:
        (self.folder / "service.toml").write_text(
            f'[kafka]\nbootstrap.servers = "{self.kafka}"\n'
            f'[zookeeper]\nhosts = "{self.zookeeper}"\n'
            f"[retries]\nlimit = 1\ninitial_seconds = 0.05\n{more}"
        )

    def headrace(self, *words: str) -> Done:
        ran = fork_server.headrace(
            *words, "--config", "service.toml", cwd=self.folder, env=self.environment
        )
        last = ran.stdout.splitlines()[-1] if ran.stdout else ""
        facts = json.loads(last) if last.startswith("{") else {}
        return Done(ran.returncode, facts, ran.stdout, ran.stderr)

    def facts(self, *words: str) -> dict[str, Any]:
        done = self.headrace(*words, "--json")
        assert done.code == 0, done.err
        return done.facts

    def run(self) -> dict[str, Any]:
        return self.facts("run", "flow:topology", "--until-caught-up")


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


def publish(kafka: EmbeddedKafka, topic: str, values: Sequence[str], **more: Any) -> None:
    producer = Producer({"bootstrap.servers": kafka.address})
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
