"""A pipeline's surroundings: its topics, its folder, its processes, and what came out of them."""

import json
import time
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from confluent_kafka import KafkaError, Message, Producer

from service.devservers.servers import EmbeddedKafka, EmbeddedZooKeeper
from tests.acceptance import evidence, stored
from tests.acceptance.evidence import Place
from tests.acceptance.harness import HEADRACE, Launch, Run
from tests.support.patience import seconds, slack, until
from tests.support.service import Window

TOPOLOGIES = "tests.acceptance.troubled"
DRAIN_SECONDS = 20.0  # of the flights
SESSION_SECONDS = 2.0  # of the flights

_PUBLISH_SECONDS = seconds(60.0)
_DEFAULTS: Mapping[str, Mapping[str, object]] = {
    "pipeline": {"commit_interval_seconds": 0.05, "message_timeout_seconds": 300.0},
    "retries": {"limit": 1_000_000, "initial_seconds": 0.1, "multiplier": 1.0, "jitter": 0.0},
    "zookeeper": {"session_timeout_seconds": 45.0},
    "kafka": {"session.timeout.ms": 45_000},
}


@dataclass
class Trial:
    """One pipeline whose records name their places: their partitions and offsets.

    `traces.py` is the other side of its folder.
    `topologies` is the module of its topologies. The topic has the pipeline's name; others are
    called by what stands behind it and a dot.
    """

    kafka: EmbeddedKafka
    zookeeper: EmbeddedZooKeeper
    folder: Path
    topologies: str = TOPOLOGIES
    name: str = field(default_factory=lambda: f"trial-{uuid.uuid4().hex[:8]}")
    runs: list[Run] = field(default_factory=list)
    launch: Launch | None = None

    @property
    def environment(self) -> dict[str, str]:
        return {"TRIAL_TOPIC": self.name, "TRIAL_FOLDER": str(self.folder)}

    def publish(self, *counts: int, trouble: Iterable[Place] = (), topic: str = "") -> None:
        """Create a topic, with so many records in each partition; some are trouble."""
        name = self._topic(topic)
        self.kafka.create_topic(name, len(counts))
        failed: list[KafkaError] = []

        def sent(error: KafkaError | None, _message: Message) -> None:
            if error is not None:
                failed.append(error)

        producer = Producer(
            {
                "bootstrap.servers": self.kafka.address,
                "enable.idempotence": True,  # so that a value is its record's place
                "queue.buffering.max.messages": sum(counts),
                "linger.ms": 5,
                "log_level": 3,
            }
        )
        for offset in range(max(counts)):
            for partition, count in enumerate(counts):
                if offset < count:
                    value = _text((partition, offset))
                    producer.produce(name, value, partition=partition, on_delivery=sent)
        assert producer.flush(_PUBLISH_SECONDS) == 0
        assert not failed, failed[0]
        with (self.folder / "trouble").open("a") as file:
            file.writelines(f"{_text(place)}\n" for place in trouble)

    def start(
        self,
        topology: str,
        *options: str,
        config: Mapping[str, Mapping[str, object]] | None = None,
        environment: Mapping[str, str] | None = None,
        prefix: Sequence[str] = (),
    ) -> Run:
        """Start `headrace run`; `config` goes over what trials have in common.

        `prefix` comes before the command: a program that becomes it.
        """
        path = self.folder / "service.toml"
        written = path.with_suffix(".new")
        written.write_text(self._toml(config or {}))
        written.replace(path)  # at once: another one may be reading it
        run = Run(
            [*prefix, str(HEADRACE), "run", f"{self.topologies}:{topology}", "--config", str(path),
             "--json", *options],
            self.folder / f"run-{len(self.runs) + 1}",
            {**self.environment, **(environment or {})},
            self.launch,
        )  # fmt: skip
        self.runs.append(run)
        return run

    def open(self, *places: Place) -> float:
        """Let these records pass, or all of them; the moment just before, monotonic."""
        now = time.monotonic()
        for name in map(_text, places) if places else ["all"]:
            (self.folder / f"opened-{name}").touch()
        return now

    def rows(self, sink: str = "rows") -> Counter[str]:
        return Counter(self.notes(sink))

    def notes(self, kind: str, run: Run | None = None) -> list[str]:
        """The lines of one kind, of one process or of all.

        Half a line that a killed process left is none.
        """
        paths = self.folder.glob(f"{kind}-{run.pid if run else '*'}")
        return [line for path in paths for line in path.read_text().split("\n")[:-1]]

    def written(self, run: Run, kind: str = "rows") -> int:
        path = self.folder / f"{kind}-{run.pid}"
        return path.read_bytes().count(b"\n") if path.exists() else 0

    def wait_for(self, run: Run, count: int, kind: str = "rows") -> None:
        until(f"{count} {kind}", lambda: self.written(run, kind) >= count or not run.alive)
        assert self.written(run, kind) >= count, run.tail()

    def kill(self, run: Run) -> stored.Offsets:
        assert run.alive, run.tail()
        run.kill()
        return self.stored()

    def tries(self, place: Place) -> list[float]:
        """The moments at which a record was tried in vain, monotonic."""
        lines = map(str.split, self.notes("tries"))
        return sorted(float(moment) for name, moment in lines if name == _text(place))

    def letters(self) -> list[dict[str, str]]:
        return evidence.reasons(self.kafka.address, f"{self.name}.dead")

    def watch(self, topic: str = "") -> stored.Watch:
        parts = [(self._topic(topic), number) for number in stored.PARTITIONS]
        return stored.Watch(self.zookeeper.address, self.name, lambda: parts)

    def stored(self, topic: str = "") -> stored.Offsets:
        with stored.client(self.zookeeper.address) as client:
            return stored.read(client, f"/headrace/{self.name}/{self._topic(topic)}")

    def end(self) -> None:
        for run in self.runs:
            run.end()

    def _topic(self, topic: str) -> str:
        return f"{self.name}.{topic}" if topic else self.name

    def _toml(self, config: Mapping[str, Mapping[str, object]]) -> str:
        own: Mapping[str, Mapping[str, object]] = {
            "pipeline": {"name": self.name},
            "kafka": {"bootstrap.servers": self.kafka.address},
            "zookeeper": {"hosts": self.zookeeper.address},
        }
        lines = []
        for section in {**own, **_DEFAULTS, **config}:
            lines.append(f"[{section}]")
            facts = {
                key: value
                for table in (own, _DEFAULTS, config)
                for key, value in table.get(section, {}).items()
            }
            lines += [f"{json.dumps(key)} = {json.dumps(value)}" for key, value in facts.items()]
        return "\n".join(lines) + "\n"


@dataclass
class Flights(Trial):
    """The flights example in small batches, with a table that `sink` ("delta", "spark") writes."""

    topologies: str = "tests.acceptance.flights_small_batches"
    sink: str = "delta"
    drain_seconds: float = field(default_factory=lambda: slack(DRAIN_SECONDS))
    window: Window = field(default_factory=Window)

    @property
    def table(self) -> Path:
        return self.folder / "warehouse" / "flight_events"

    @property
    def temporary(self) -> Path:
        return self.folder / "tmp"

    def run(self, *options: str) -> Run:
        self.temporary.mkdir(exist_ok=True)
        config = {
            "pipeline": {
                "commit_interval_seconds": 0.2,
                "drain_seconds": self.drain_seconds,
                "chunk_records": 200,
            },
            "kafka": {  # little is fetched ahead, so that an outage is felt
                "queued.min.messages": 1000,
                "queued.max.messages.kbytes": 256,
                "max.partition.fetch.bytes": 65_536,
            },
            "zookeeper": {"session_timeout_seconds": SESSION_SECONDS},
            "storage": {"warehouse": str(self.folder / "warehouse")},
        }
        environment = {"FLIGHTS_SINK": self.sink, "TMPDIR": str(self.temporary)}
        environment |= self.window.environment
        return self.start("topology", *options, config=config, environment=environment)

    def records(self) -> evidence.Topic:
        return evidence.read_topic(self.kafka.address, self.name)

    def dead(self) -> Counter[Place]:
        return evidence.dead_letters(self.kafka.address, f"{self.name}.dead")


def places(*counts: int) -> Iterator[Place]:
    """Every record of a topic with so many records in each partition."""
    return ((partition, offset) for partition, n in enumerate(counts) for offset in range(n))


def rows_of(places: Iterable[Place]) -> Counter[str]:
    return Counter(map(_text, places))


def rows_below(offsets: stored.Offsets) -> Counter[str]:
    return rows_of((number, at) for number, end in offsets.items() for at in range(end))


def _text(place: Place) -> str:
    return f"{place[0]}:{place[1]}"
