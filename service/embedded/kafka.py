"""A single Kafka broker in KRaft mode, from jars of the lock file, as a child process."""

import base64
import logging
import subprocess
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from service.embedded.errors import ServerFailed
from service.embedded.java import find_java, java_command
from service.embedded.ports import HOST, connects
from service.embedded.server import EmbeddedServer
from service.jars.resolver import Progress, resolve

_NOTHING: Mapping[str, str] = MappingProxyType({})
_ANSWER_SECONDS = 2.0
_TOPIC_SECONDS = 60.0
_TRY_SECONDS = 10.0
_FORMAT_SECONDS = 60.0

_client_log = logging.getLogger("headrace.embedded.kafka")
_client_log.addHandler(logging.NullHandler())
_client_log.propagate = False  # a broker that is not up yet is no news


def new_cluster_id() -> str:
    """Return an id that no other cluster has."""
    return base64.urlsafe_b64encode(uuid.uuid4().bytes).decode("ascii").rstrip("=")


class EmbeddedKafka(EmbeddedServer):
    """A broker that is also its own controller, in `state_dir`; heap in MiB.

    `properties` go into its configuration file, over the values below; `cluster_id` is that
    of the cluster it belongs to, a new one if none is given. Records are never
    deleted for their age, so events of years ago can be replayed. Its jars come from the
    set `kafka-broker`; `progress` and `jar_cache` are `service.jars.resolver.resolve`'s.
    """

    name = "kafka"
    port_count = 2

    def __init__(
        self,
        state_dir: Path,
        port: int | None = None,
        *,
        properties: Mapping[str, str] = _NOTHING,
        cluster_id: str | None = None,
        heap_mb: int = 384,
        jar_cache: Path | None = None,
        progress: Progress | None = None,
    ) -> None:
        super().__init__(state_dir, port)
        self._properties = dict(properties)
        self._cluster = cluster_id
        self._heap_mb = heap_mb
        self._jar_cache = jar_cache
        self._progress = progress
        self._jars: list[Path] = []

    def create_topic(
        self, name: str, partitions: int = 1, *, config: Mapping[str, str] = _NOTHING
    ) -> None:
        """Create a topic and return when the broker has it. Raises KafkaException.

        A client that asks a broker which has just come back may hear of no controller, and
        then waits out its time without asking again: so a new client tries again.
        """
        topic = NewTopic(name, partitions, 1, config=dict(config))
        ends = time.monotonic() + _TOPIC_SECONDS
        tried = False
        while True:
            admin = self._admin()  # must outlive the answer
            asked = admin.create_topics(
                [topic], operation_timeout=_TRY_SECONDS, request_timeout=_TRY_SECONDS
            )
            try:
                asked[name].result()
            except KafkaException as error:
                code = error.args[0].code()
                if tried and code == KafkaError.TOPIC_ALREADY_EXISTS:
                    return  # the try before was carried out, only its answer was late
                if code != KafkaError._TIMED_OUT or time.monotonic() > ends:  # noqa: SLF001
                    raise
                tried = True
            else:
                return

    def topics(self) -> set[str]:
        """The topics that the broker has. Raises KafkaException."""
        return set(self._admin().list_topics(timeout=_TOPIC_SECONDS).topics)

    @property
    def _config_path(self) -> Path:
        return self._state_dir / "kafka.properties"

    @property
    def _data_dir(self) -> Path:
        return self._state_dir / "kafka-data"

    def _prepare(self) -> None:
        broker, controller = self._ports
        settings = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@{HOST}:{controller}",
            "controller.listener.names": "CONTROLLER",
            "listeners": f"PLAINTEXT://{HOST}:{broker},CONTROLLER://{HOST}:{controller}",
            "advertised.listeners": f"PLAINTEXT://{HOST}:{broker}",
            "inter.broker.listener.name": "PLAINTEXT",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "log.dirs": str(self._data_dir),
            "auto.create.topics.enable": "false",
            "log.retention.ms": "-1",
            "num.network.threads": "2",
            "num.io.threads": "4",
            "num.recovery.threads.per.data.dir": "2",
            # The default is 128 MiB, a third of the heap.
            "log.cleaner.dedupe.buffer.size": str(8 * 1024 * 1024),
            # After a crash the controller refuses the broker until its old session has ended.
            "broker.session.timeout.ms": "3000",
            "broker.heartbeat.interval.ms": "500",
            "group.initial.rebalance.delay.ms": "0",
            "offsets.topic.num.partitions": "1",
            "offsets.topic.replication.factor": "1",
            "transaction.state.log.num.partitions": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "share.coordinator.state.topic.num.partitions": "1",
            "share.coordinator.state.topic.replication.factor": "1",
            "share.coordinator.state.topic.min.isr": "1",
            **self._properties,
        }
        lines = "".join(f"{key}={value}\n" for key, value in settings.items())
        self._config_path.write_text(lines, encoding="utf-8")
        self._jars = resolve("kafka-broker", cache=self._jar_cache, progress=self._progress)
        if not (self._data_dir / "meta.properties").exists():
            self._format()

    def _format(self) -> None:
        cluster = self._cluster or new_cluster_id()
        command = java_command(
            find_java(),
            "kafka.tools.StorageTool",
            self._jars,
            heap_mb=128,
            flags=(*self.jvm_flags(), "-XX:TieredStopAtLevel=1"),
            arguments=["format", "-c", str(self._config_path), f"--cluster-id={cluster}"],
        )
        with self.log_path.open("ab") as log:
            self._log_start = log.tell()
            done = subprocess.run(
                command,
                cwd=self._state_dir,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                check=False,
                timeout=_FORMAT_SECONDS,
            )
        if done.returncode != 0:
            what = "could not format its storage"
            raise ServerFailed(self.name, what, self.log_path, self._tail())

    def _command(self) -> list[str]:
        return java_command(
            find_java(),
            "kafka.Kafka",
            self._jars,
            heap_mb=self._heap_mb,
            flags=self.jvm_flags(),
            arguments=[str(self._config_path)],
        )

    def _answers(self) -> bool:
        if not connects(self.port):
            return False
        try:
            cluster = self._admin().list_topics(timeout=_ANSWER_SECONDS)
        except KafkaException:
            return False
        # The cluster's id tells our broker from another one that took the port.
        return bool(cluster.brokers) and cluster.cluster_id == self._cluster_id()

    def _admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.address}, logger=_client_log)

    def _cluster_id(self) -> str:
        text = (self._data_dir / "meta.properties").read_text(encoding="utf-8")
        return dict(line.partition("=")[::2] for line in text.splitlines()).get("cluster.id", "")
