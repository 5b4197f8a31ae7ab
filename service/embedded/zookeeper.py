"""ZooKeeper's server, which PySpark's own jars contain, as a child process."""

import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from service.embedded.java import find_java, java_command, pyspark_jars
from service.embedded.ports import HOST
from service.embedded.server import EmbeddedServer

_NOTHING: Mapping[str, str] = MappingProxyType({})
_ANSWER_SECONDS = 2.0
_JARS = (
    "zookeeper",
    "zookeeper-jute",
    "netty-common",
    "netty-buffer",
    "netty-codec-base",
    "netty-handler",
    "netty-resolver",
    "netty-transport",
    "netty-transport-classes-epoll",
    "netty-transport-native-unix-common",
    "slf4j-api",
    "log4j-api",
    "log4j-core",
    "log4j-slf4j2-impl",
    "metrics-core",
    "snappy-java",
    "commons-io",
)


class EmbeddedZooKeeper(EmbeddedServer):
    """A standalone ZooKeeper in `state_dir`; heap in MiB.

    `properties` go into its configuration file, over the values below; `flags` to its JVM
    (a JAAS file, say). A session may ask for a time-out from 1 to 60 seconds. Writes are
    forced to disk, as in production.
    """

    name = "zookeeper"

    def __init__(
        self,
        state_dir: Path,
        port: int | None = None,
        *,
        properties: Mapping[str, str] = _NOTHING,
        flags: Sequence[str] = (),
        heap_mb: int = 128,
    ) -> None:
        super().__init__(state_dir, port)
        self._properties = dict(properties)
        self._flags = tuple(flags)
        self._heap_mb = heap_mb

    @property
    def _config_path(self) -> Path:
        return self._state_dir / "zookeeper.cfg"

    @property
    def _data_dir(self) -> Path:
        return self._state_dir / "zookeeper-data"

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
        lines = "".join(f"{key}={value}\n" for key, value in settings.items())
        self._config_path.write_text(lines, encoding="utf-8")

    def _command(self) -> list[str]:
        return java_command(
            find_java(),
            "org.apache.zookeeper.server.quorum.QuorumPeerMain",
            pyspark_jars(*_JARS),
            heap_mb=self._heap_mb,
            flags=(
                *self.jvm_flags(),
                "-XX:TieredStopAtLevel=1",  # up sooner; one server's traffic is small
                "-Dzookeeper.preAllocSize=1024",  # KiB per log file, not the usual 64 MiB
                *self._flags,
            ),
            arguments=[str(self._config_path)],
        )

    def _answers(self) -> bool:
        # The answer names the data directory, so another server on this port is not
        # taken for ours.
        return str(self._data_dir) in four_letters(self.port, "conf")


def four_letters(port: int, word: str) -> str:
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
