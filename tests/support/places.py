"""A topic and a pipeline on it: run in this process, or by commands in processes of their own."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from kazoo.client import KazooClient

from headrace import Topology
from headrace.sinks import KafkaDeadLetters
from service.app import Service
from service.config.settings import load
from service.devservers.servers import EmbeddedKafka, EmbeddedZooKeeper
from service.observability.snapshot import RunSummary
from service.wiring import wire
from tests.support import fork_server
from tests.support.patience import Limit, seconds

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
            f'[zookeeper]\nhosts = "{self.zookeeper}"\n{more}'
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


class Runs:
    """Runs of one pipeline, in this process, over a topic that loses records."""

    def __init__(self, kafka: EmbeddedKafka, zookeeper: EmbeddedZooKeeper, topic: str) -> None:
        self.topic = topic
        self.dead = f"{topic}.dead"
        self.kafka, self._zookeeper = kafka, zookeeper
        self._root = f"/{uuid.uuid4().hex[:8]}"
        self.admin = AdminClient({"bootstrap.servers": kafka.address})

    def run_through(self, topology: Topology, **pipeline: Any) -> RunSummary:
        topology.dead_letters.into(KafkaDeadLetters(self.dead))
        config = load(
            None,
            {
                "kafka": {"bootstrap.servers": self.kafka.address},
                "zookeeper": {"hosts": self._zookeeper.address, "root": self._root},
                "pipeline": pipeline,
            },
        )
        return Service(wire(topology, config), drain_seconds=10).run(until_caught_up=True)

    def publish(self, partition: int, values: Sequence[str]) -> None:
        publish(self.kafka, self.topic, values, partition=partition)

    def expire(self, partition: int, before: int) -> None:
        """Delete what lies before an offset, as retention does."""
        place = TopicPartition(self.topic, partition, before)
        self.admin.delete_records([place])[place].result(SECONDS)

    def make_again(self, partitions: int) -> None:
        """Delete the topic and create another of its name."""
        self.admin.delete_topics([self.topic])[self.topic].result(SECONDS)
        deadline = Limit(SECONDS)
        while True:
            try:
                self.kafka.create_topic(self.topic, partitions)
            except Exception:
                if deadline.passed:
                    raise
                time.sleep(0.1)  # the deletion is carried out in the background
            else:
                return


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
