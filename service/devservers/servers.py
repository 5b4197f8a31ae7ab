"""Kafka in KRaft mode, and the ZooKeeper that PySpark's jars contain, as child processes."""

import base64
import contextlib
import logging
import os
import shutil
import socket
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from service.devservers.java import java_command, pyspark_jars
from service.devservers.process import HOST, EmbeddedServer, connects
from service.jars.resolver import Progress, resolve

_NOTHING: Mapping[str, str] = MappingProxyType({})
_ANSWER_SECONDS = 2.0
_TOPIC_SECONDS = 60.0
_ATTEMPT_SECONDS = 10.0
_FORMAT_SECONDS = 60.0

_JARS = (
    "zookeeper", "zookeeper-jute", "netty-common", "netty-buffer", "netty-codec-base",
    "netty-handler", "netty-resolver", "netty-transport", "netty-transport-classes-epoll",
    "netty-transport-native-unix-common", "slf4j-api", "log4j-api", "log4j-core",
    "log4j-slf4j2-impl", "metrics-core", "snappy-java", "commons-io",
)  # fmt: skip

_client_log = logging.getLogger("headrace.embedded.kafka")
_client_log.addHandler(logging.NullHandler())
_client_log.propagate = False  # ignore errors while the broker starts


def new_cluster_id() -> str:
    return base64.urlsafe_b64encode(uuid.uuid4().bytes).decode("ascii").rstrip("=")


class EmbeddedKafka(EmbeddedServer):
    """A broker that is also its own controller.

    `properties` override its settings below; `cluster_id` is a new one if none is given. Records
    never expire, so that events of years ago can be replayed. `progress` is told of jars that are
    fetched.
    """

    name = "kafka"
    usual = 9092
    port_count = 2

    def __init__(
        self,
        state_dir: Path,
        port: int | None = None,
        *,
        properties: Mapping[str, str] = _NOTHING,
        cluster_id: str | None = None,
        heap_mb: int = 384,
        usual_port: bool = False,
        progress: Progress | None = None,
    ) -> None:
        super().__init__(state_dir, port, usual_port=usual_port)
        self._properties = dict(properties)
        self._cluster = cluster_id or new_cluster_id()
        self._heap_mb = heap_mb
        self._progress = progress
        self._jars: list[Path] = []
        self._data_dir = self.state_dir / "kafka-data"

    def create_topic(
        self, name: str, partitions: int = 1, *, config: Mapping[str, str] = _NOTHING
    ) -> None:
        """Create a topic and return when the broker has it. Raises KafkaException.

        A client whose broker has just restarted may find no controller and wait out its time,
        so a new client asks again.
        """
        topic = NewTopic(name, partitions, 1, config=dict(config))
        ends = time.monotonic() + _TOPIC_SECONDS
        is_retry = False
        while True:
            admin = self._admin()  # must outlive the answer
            asked = admin.create_topics(
                [topic], operation_timeout=_ATTEMPT_SECONDS, request_timeout=_ATTEMPT_SECONDS
            )
            try:
                asked[name].result()
            except KafkaException as error:
                code = error.args[0].code()
                if is_retry and code == KafkaError.TOPIC_ALREADY_EXISTS:
                    return  # the attempt before succeeded, only its answer was late
                if code != KafkaError._TIMED_OUT or time.monotonic() > ends:  # noqa: SLF001
                    raise
                is_retry = True
            else:
                return

    def topics(self) -> set[str]:
        """Return the names of all topics. Raises KafkaException."""
        return set(self._admin().list_topics(timeout=_TOPIC_SECONDS).topics)

    def _prepare(self) -> None:
        broker, controller = self._ports
        config, data = self._file("properties"), self._data_dir
        settings = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@{HOST}:{controller}",
            "controller.listener.names": "CONTROLLER",
            "listeners": f"PLAINTEXT://{HOST}:{broker},CONTROLLER://{HOST}:{controller}",
            "advertised.listeners": f"PLAINTEXT://{HOST}:{broker}",
            "inter.broker.listener.name": "PLAINTEXT",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "log.dirs": str(data),
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
        config.write_text(_lines(settings), encoding="utf-8")
        self._jars = resolve("kafka-broker", progress=self._progress)
        if not (data / "meta.properties").exists():
            self._format(settings["node.id"])

    def _format(self, node: str) -> None:
        """Format the storage, by a JVM once a release: its features are kept beside its jar."""
        data, config = self._data_dir, self._file("properties")
        broker = next(jar for jar in self._jars if jar.name.startswith("kafka_"))
        kept, features = broker.with_suffix(".checkpoint"), data / "bootstrap.checkpoint"
        if kept.exists():
            data.mkdir(exist_ok=True)
            shutil.copyfile(kept, features)
            ids = {"cluster.id": self._cluster, "directory.id": new_cluster_id(), "node.id": node}
            (data / "meta.properties").write_text(_lines({"version": "1", **ids}), encoding="utf-8")
            return
        arguments = ["format", "-c", config, f"--cluster-id={self._cluster}"]
        tool, flags = "kafka.tools.StorageTool", self.jvm_flags()
        command = java_command(tool, self._jars, arguments, heap_mb=128, flags=flags)
        self._run_once(command, "could not format its storage", _FORMAT_SECONDS)
        with contextlib.suppress(OSError):  # the jars may be others' property
            shutil.copyfile(features, draft := kept.with_suffix(f".{os.getpid()}"))
            draft.replace(kept)

    def _command(self) -> list[str]:
        arguments, flags = [self._file("properties")], self.jvm_flags()
        return java_command(
            "kafka.Kafka", self._jars, arguments, heap_mb=self._heap_mb, flags=flags
        )

    def _answers(self) -> bool:
        if not connects(self.port):
            return False
        try:
            cluster = self._admin().list_topics(timeout=_ANSWER_SECONDS)
        except KafkaException:
            return False
        # The cluster's id tells our broker from another one that took the port.
        ours = (self._data_dir / "meta.properties").read_text(encoding="utf-8").splitlines()
        return bool(cluster.brokers) and f"cluster.id={cluster.cluster_id}" in ours

    def _admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.address}, logger=_client_log)


class EmbeddedZooKeeper(EmbeddedServer):
    """A standalone ZooKeeper.

    `properties` override its settings below, `flags` go to its JVM (a JAAS file, say). Sessions
    may time out after 1 to 60 seconds. Writes are forced to disk, as in production.
    """

    name = "zookeeper"
    usual = 2181

    def __init__(
        self,
        state_dir: Path,
        port: int | None = None,
        *,
        properties: Mapping[str, str] = _NOTHING,
        flags: Sequence[str] = (),
        heap_mb: int = 128,
        usual_port: bool = False,
    ) -> None:
        super().__init__(state_dir, port, usual_port=usual_port)
        self._properties = dict(properties)
        self._flags = tuple(flags)
        self._data_dir = self.state_dir / "zookeeper-data"
        self._heap_mb = heap_mb

    def _prepare(self) -> None:
        self._data_dir.mkdir(exist_ok=True)
        settings = {
            "dataDir": str(self._data_dir),
            "clientPortAddress": HOST,
            "clientPort": str(self.port),
            "tickTime": "500",
            "minSessionTimeout": "1000",
            "maxSessionTimeout": "60000",
            "maxClientCnxns": "0",
            "admin.enableServer": "false",
            "4lw.commands.whitelist": "ruok,srvr,stat,conf,mntr",
            "autopurge.snapRetainCount": "3",
            "autopurge.purgeInterval": "1",
            **self._properties,
        }
        self._file("cfg").write_text(_lines(settings), encoding="utf-8")

    def _command(self) -> list[str]:
        # A log file takes 1024 KiB at once, not the usual 64 MiB.
        flags = (*self.jvm_flags(), "-Dzookeeper.preAllocSize=1024", *self._flags)
        main, jars = "org.apache.zookeeper.server.quorum.QuorumPeerMain", pyspark_jars(*_JARS)
        return java_command(main, jars, [self._file("cfg")], heap_mb=self._heap_mb, flags=flags)

    def _answers(self) -> bool:
        # The answer names the data directory, so another server on this port is not
        # taken for ours.
        return str(self._data_dir) in ask_zookeeper(self.port, "conf")


def ask_zookeeper(port: int, word: str) -> str:
    """Send a four-letter word to a local ZooKeeper; an empty answer when it gives none."""
    try:
        with socket.create_connection((HOST, port), timeout=_ANSWER_SECONDS) as connection:
            connection.sendall(word.encode("ascii"))
            answer = b""
            while part := connection.recv(4096):
                answer += part
    except OSError:
        return ""
    return answer.decode("utf-8", "replace")


def _lines(settings: Mapping[str, str]) -> str:
    return "".join(f"{key}={value}\n" for key, value in settings.items())
