"""Kafka and ZooKeeper of one's own, for a first run and for development."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from service.embedded.kafka import EmbeddedKafka
from service.embedded.zookeeper import EmbeddedZooKeeper
from service.jars.resolver import Progress

TOPIC_PARTITIONS = 4


@dataclass(frozen=True, slots=True)
class Servers:
    """The two servers, running."""

    kafka: EmbeddedKafka
    zookeeper: EmbeddedZooKeeper

    @property
    def overrides(self) -> dict[str, Any]:
        """What a configuration has to say to reach them."""
        return {
            "kafka": {"bootstrap.servers": self.kafka.address},
            "zookeeper": {"hosts": self.zookeeper.address},
        }

    def ensure_topics(self, topics: Iterable[str]) -> None:
        """Create the topics that are not there."""
        for topic in set(topics) - self.kafka.topics():
            self.kafka.create_topic(topic, TOPIC_PARTITIONS)


@contextmanager
def embedded(state_dir: Path, progress: Progress | None = None) -> Iterator[Servers]:
    """Start both in `state_dir`, where their data stays, and stop them at the end."""
    zookeeper = EmbeddedZooKeeper(state_dir / "zookeeper")
    kafka = EmbeddedKafka(state_dir / "kafka", progress=progress)
    try:
        zookeeper.open()
        kafka.open()
        yield Servers(kafka, zookeeper)
    finally:
        kafka.close()
        zookeeper.close()
