"""Kafka and ZooKeeper of one's own, for a first run and for development."""

import signal
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from service.devservers.servers import EmbeddedKafka, EmbeddedZooKeeper
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
        for topic in sorted(set(topics) - self.kafka.topics()):
            self.kafka.create_topic(topic, TOPIC_PARTITIONS)


@contextmanager
def embedded(state_dir: Path, progress: Progress | None = None) -> Iterator[Servers]:
    """Start both in `state_dir`, where their data stays, and stop them at the end.

    Meanwhile SIGTERM and SIGHUP raise KeyboardInterrupt as Ctrl-C does (on the main
    thread, where signals arrive): their usual effect would leave the servers behind.
    """
    zookeeper = EmbeddedZooKeeper(state_dir / "zookeeper")
    kafka = EmbeddedKafka(state_dir / "kafka", progress=progress)
    with _interrupted_by(signal.SIGTERM, signal.SIGHUP):
        try:
            zookeeper.open()
            kafka.open()
            yield Servers(kafka, zookeeper)
        finally:
            try:
                kafka.close()
            finally:
                zookeeper.close()


@contextmanager
def _interrupted_by(*signals: signal.Signals) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in signals}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:  # nohup's
            signal.signal(number, _interrupt)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt
